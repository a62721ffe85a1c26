//! Why a checkpoint could not be opened.

use std::path::{Path, PathBuf};

use crate::limits::{NAMES_LISTED_MAX, QUOTE_CHARS_MAX};

/// Why a checkpoint could not be opened. Every message names the file, what was expected, what was found and what
/// to do; where the trouble has a place in the file, also the offset.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The operating system refused.
    #[error("{}: cannot be read: {source}; check the path and its permissions", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's own words.
        source: std::io::Error,
    },

    /// The path exists but does not lead to one model.
    #[error("{}: expected {expected}, found {found}; {todo}", path.display())]
    NoModel {
        /// The file or directory.
        path: PathBuf,
        /// What would have been a model.
        expected: &'static str,
        /// What is there.
        found: String,
        /// The way out.
        todo: &'static str,
    },

    /// A header that does not follow its format.
    #[error(
        "{}: at byte {offset}: expected {expected}, found {found}; the file is damaged or not {format}: fetch it again \
         and compare its size and checksum",
        path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The format it should follow.
        format: &'static str,
        /// Where in the file.
        offset: u64,
        /// What the format asks for.
        expected: String,
        /// What is there.
        found: String,
    },

    /// A tensor whose data is not all there.
    #[error(
        "{}: tensor `{tensor}` at byte {offset}: expected {len} bytes, found {left} before the end of the file \
         ({size_bytes} bytes); the file is truncated: fetch it again",
        path.display(), left = size_bytes.saturating_sub(*offset)
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// First byte of its data.
        offset: u64,
        /// Bytes it should have.
        len: u64,
        /// Size of the file.
        size_bytes: u64,
    },

    /// Two tensors that claim the same bytes.
    #[error(
        "{}: at byte {offset}: expected disjoint tensors, found `{second}` starting inside `{first}`; the file is \
         damaged: fetch it again",
        path.display()
    )]
    Overlap {
        /// The file.
        path: PathBuf,
        /// The tensor that starts first.
        first: String,
        /// The tensor that starts inside it.
        second: String,
        /// Where the second one starts.
        offset: u64,
    },

    /// A name that must be unique and is not.
    #[error(
        "{}: {what} `{name}`: expected once, found again {place}; which one is meant cannot be known: fetch or \
         convert the model again",
        path.display()
    )]
    Duplicate {
        /// The file.
        path: PathBuf,
        /// `key` or `tensor`.
        what: &'static str,
        /// The name.
        name: String,
        /// Where the second one is.
        place: String,
    },

    /// A model of a family that is not known here.
    #[error(
        "{}: expected an architecture that is supported, found `{found}`; supported are {supported}; use a model of one \
         of these families",
        path.display()
    )]
    UnknownArchitecture {
        /// The file that names it.
        path: PathBuf,
        /// Its name there.
        found: String,
        /// [`supported_families`](crate::supported_families) in words.
        supported: String,
    },

    /// A known family with a feature that is not supported; ignoring it would give wrong answers.
    #[error("{}: {what}: expected {expected}, found {found}, which is not supported; {todo}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The key or tensor.
        what: String,
        /// What is supported.
        expected: String,
        /// What is there.
        found: String,
        /// The way out.
        todo: &'static str,
    },

    /// A configuration value that is missing, of the wrong type or out of range.
    #[error(
        "{}: key `{key}`: expected {expected}, found {found}; correct the value, or fetch or convert the model again",
        path.display()
    )]
    Config {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What it must be.
        expected: String,
        /// What it is.
        found: String,
    },

    /// Files of a model in several parts that are not there; all of them.
    #[error(
        "{}: expected {of} files of one model, found {present}; missing {}; fetch the missing files into the same \
         directory",
        path.display(), missing_in_words(missing)
    )]
    MissingShards {
        /// The file or directory that speaks of them.
        path: PathBuf,
        /// How many files there should be.
        of: usize,
        /// How many of them are there.
        present: usize,
        /// The others.
        missing: Vec<MissingShard>,
    },

    /// A tensor that is not where the index says.
    #[error(
        "{}: expected tensor `{tensor}` in shard `{shard}`, found it {found}; index and shards are of different \
         versions: fetch them again together",
        path.display()
    )]
    NotInShard {
        /// The index.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Where the index puts it.
        shard: String,
        /// Where it is.
        found: String,
    },

    /// The configuration describes one model and the weights hold another.
    #[error(
        "{}: config and weights disagree: {tensor}: expected {expected}, found {found} ({census}); take config and \
         weights from the same model",
        path.display()
    )]
    Disagree {
        /// The file or directory.
        path: PathBuf,
        /// The tensor or tensors.
        tensor: String,
        /// What the configuration asks for.
        expected: String,
        /// What the weights have.
        found: String,
        /// Layers and experts by the configuration and by the weights.
        census: String,
    },
}

/// A weight file that should be there and is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingShard {
    /// Its name, or its number where nothing tells the name.
    pub name: String,
    /// How many tensors are in it, where an index says so.
    pub tensors: Option<usize>,
}

/// Nobody can fetch files that are not named, so the list is long; the limit is for files that claim absurd numbers.
const MISSING_LISTED_MAX: usize = 1000;

fn missing_in_words(missing: &[MissingShard]) -> String {
    let one = |m: &MissingShard| match m.tensors {
        Some(n) => format!("`{}` ({n} tensors are in it)", m.name),
        None => format!("`{}`", m.name),
    };
    let mut out = missing.iter().take(MISSING_LISTED_MAX).map(one).collect::<Vec<_>>().join(", ");
    if missing.len() > MISSING_LISTED_MAX {
        out.push_str(&format!(" and {} more", missing.len() - MISSING_LISTED_MAX));
    }
    out
}

impl OpenError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| OpenError::Io { path, source }
    }
}

/// A foreign string made fit for a message: no control characters, and not longer than a line.
pub(crate) fn quote(text: &str) -> String {
    let mut out: String =
        text.chars().take(QUOTE_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(QUOTE_CHARS_MAX).is_some() {
        out.push('…');
    }
    out
}

/// The first few names of a list, and how many more there are.
pub(crate) fn list<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let rest = names.len().saturating_sub(NAMES_LISTED_MAX);
    let shown: Vec<String> = names.take(NAMES_LISTED_MAX).map(|n| format!("`{}`", quote(n))).collect();
    match rest {
        0 => shown.join(", "),
        _ => format!("{} and {rest} more", shown.join(", ")),
    }
}
