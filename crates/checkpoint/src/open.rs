//! The way in: from a path to a [`Catalog`].

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::catalog::Catalog;
use crate::error::{OpenError, list};
use crate::gguf_split::{Brief, GGUF, Split, file_name, shard_number};
use crate::{gguf, gguf_catalog, hf};

/// What a directory listing may hold before it is no model directory any more.
const DIR_ENTRIES_MAX: usize = 100_000;

const EXPECTED: &str = "a .gguf file, or a directory with config.json and safetensors";

/// Reads the headers of the model at `path`: a GGUF file, any file of a GGUF model in several, a Hugging Face directory
/// (`config.json` and safetensors, sharded or not), or a directory with the files of exactly one GGUF model. No weight
/// is read.
///
/// # Errors
/// See [`OpenError`]; every message names the file and what to do.
pub fn open(path: &Path) -> Result<Catalog, OpenError> {
    match target(path)? {
        Target::HuggingFace { dir, names } => hf::open(&dir, &names),
        Target::Gguf(file) => gguf_catalog::open(&file, || siblings(&file)),
    }
}

/// [`open`], but for the files of one GGUF model in any order, which may lie in several directories and among other
/// files. The first of them belongs to the model.
///
/// # Errors
/// As [`open`].
pub fn open_files(paths: &[PathBuf]) -> Result<Catalog, OpenError> {
    match paths {
        [] => Err(no_model(Path::new(""), "an empty list".to_owned(), "give the paths of the model's files")),
        [one] => open(one),
        [first, ..] => gguf_catalog::open(first, || Ok(paths.to_vec())),
    }
}

/// What there is at a path.
pub(crate) enum Target {
    HuggingFace {
        dir: PathBuf,
        names: Vec<String>,
    },
    /// A file of a GGUF model.
    Gguf(PathBuf),
}

/// What there is at `path`.
pub(crate) fn target(path: &Path) -> Result<Target, OpenError> {
    let metadata = fs::metadata(path).map_err(OpenError::io(path))?;
    if metadata.is_dir() {
        return target_in_directory(path);
    }
    // Reading a pipe or a device could block for ever.
    if !metadata.is_file() {
        return Err(no_model(
            path,
            "neither a file nor a directory".to_owned(),
            "give the path of the model",
        ));
    }
    if has_extension(path, "gguf") || starts_like_gguf(path)? {
        return Ok(Target::Gguf(path.to_owned()));
    }
    Err(no_model(
        path,
        "another kind of file".to_owned(),
        "for safetensors, give the directory that holds config.json",
    ))
}

fn target_in_directory(dir: &Path) -> Result<Target, OpenError> {
    let names = file_names(dir)?;
    let has = |extension: &str| names.iter().any(|n| has_extension(Path::new(n), extension));
    let has_config = names.iter().any(|n| n == hf::CONFIG);
    if has_config && (has("safetensors") || names.iter().any(|n| n == hf::INDEX)) {
        return Ok(Target::HuggingFace { dir: dir.to_owned(), names });
    }
    if has("gguf") {
        return gguf_in_directory(dir, &ggufs(dir, &names)).map(Target::Gguf);
    }
    let (found, todo) = match (has("safetensors"), has_config) {
        (true, _) => {
            ("safetensors without config.json", "fetch config.json from where the weights came from")
        }
        (false, true) => (
            "config.json without any .safetensors file",
            "fetch the weights as safetensors (PyTorch .bin files are not read)",
        ),
        (false, false) => ("neither", "give the path of the model"),
    };
    Err(no_model(dir, found.to_owned(), todo))
}

fn ggufs(dir: &Path, names: &[String]) -> Vec<PathBuf> {
    names.iter().filter(|n| has_extension(Path::new(n), "gguf")).map(|n| dir.join(n)).collect()
}

/// The GGUF files beside `path`.
pub(crate) fn siblings(path: &Path) -> Result<Vec<PathBuf>, OpenError> {
    let dir = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let names = file_names(dir)?;
    let is_gguf = |n: &&String| has_extension(Path::new(n), "gguf");
    Ok(names.iter().filter(is_gguf).map(|n| path.with_file_name(n)).collect())
}

/// The first file of the only GGUF model among `files`.
fn gguf_in_directory(dir: &Path, files: &[PathBuf]) -> Result<PathBuf, OpenError> {
    if let [one] = files {
        return Ok(one.clone());
    }
    // Files of one series count as one model; what cannot be read counts as a file of its own.
    let mut models: BTreeMap<(String, Option<Split>), Vec<PathBuf>> = BTreeMap::new();
    let (mut others, mut damaged) = (Vec::new(), Vec::new());
    for file in files {
        match Brief::read(file) {
            Ok(Brief { companion: Some(kind), .. }) => others.push(format!("{} ({kind})", file_name(file))),
            Ok(brief) => models.entry(brief.series()).or_default().push(file.clone()),
            Err(_) => damaged.push(file_name(file)),
        }
    }
    // A damaged file of a series is told when the series is read.
    let is_part = |name: &str| {
        let number = shard_number(name, GGUF);
        models.keys().any(|(stem, split)| {
            number.is_some_and(|(s, _, of)| s == stem && split.is_some_and(|split| split.count == of))
        })
    };
    others.extend(damaged.iter().filter(|name| !is_part(name)).map(|name| format!("{name} (damaged)")));
    let mut firsts = models.into_values().filter_map(|files| {
        let count = files.len();
        files.into_iter().next().map(|first| (first, count))
    });
    let (one, more) = (firsts.next(), firsts.next());
    if let (Some((first, _)), None, true) = (&one, &more, others.is_empty()) {
        return Ok(first.clone());
    }
    let models: Vec<(PathBuf, usize)> = one.into_iter().chain(more).chain(firsts).collect();
    let words = |(first, count): &(PathBuf, usize)| match count {
        1 => file_name(first),
        _ => format!("{} and {} more parts", file_name(first), count - 1),
    };
    let names: Vec<String> = models.iter().map(words).collect();
    let mut found = match names.len() {
        0 => "no model".to_owned(),
        1 => format!("one model, {}", list(names.iter().map(String::as_str))),
        n => format!("{n} models, {}", list(names.iter().map(String::as_str))),
    };
    if !others.is_empty() {
        found = format!("{found}, and beside it {}", list(others.iter().map(String::as_str)));
    }
    Err(OpenError::NoModel {
        path: dir.to_owned(),
        expected: "the GGUF files of one model and nothing else",
        found,
        todo: "give the path of the model's file (of any one, if it has several)",
    })
}

/// Names of the files in a directory, sorted. Names that are no Unicode cannot be those of a model.
pub(crate) fn file_names(dir: &Path) -> Result<Vec<String>, OpenError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(OpenError::io(dir))?.take(DIR_ENTRIES_MAX) {
        let entry = entry.map_err(OpenError::io(dir))?;
        if let Ok(name) = entry.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn no_model(path: &Path, found: String, todo: &'static str) -> OpenError {
    OpenError::NoModel { path: PathBuf::from(path), expected: EXPECTED, found, todo }
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case(extension))
}

fn starts_like_gguf(path: &Path) -> Result<bool, OpenError> {
    let file = fs::File::open(path).map_err(OpenError::io(path))?;
    let mut start = Vec::new();
    file.take(gguf::MAGIC.len() as u64).read_to_end(&mut start).map_err(OpenError::io(path))?;
    Ok(start == gguf::MAGIC)
}
