//! What can go wrong with a read, as types that a caller can act on.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// A read, or the opening of a file, that did not come to its end.
#[derive(Debug, Error)]
#[error("{}: {len} bytes at offset {offset}: {failure}", path.display())]
pub struct DiskError {
    /// The file.
    pub path: PathBuf,
    /// First byte that was wanted: that of the extent, or 0 when the file could not be opened.
    pub offset: u64,
    /// How many bytes were wanted from there.
    pub len: u64,
    /// What happened.
    #[source]
    pub failure: Failure,
}

/// Why a read failed.
#[derive(Debug, Error)]
pub enum Failure {
    /// The file ends before the bytes do.
    #[error(
        "truncated: the file now has only {file_bytes} bytes; it was cut short or not downloaded completely: fetch it \
         again"
    )]
    Truncated {
        /// Size of the file now, in bytes.
        file_bytes: u64,
    },
    /// The file is larger than it was when the catalogue was read.
    #[error(
        "changed: the file now has {file_bytes} bytes; something still writes to it: wait for it, then start again"
    )]
    Changed {
        /// Size of the file now, in bytes.
        file_bytes: u64,
    },
    /// There is no such file, or not any more.
    #[error("gone: the file does not exist (any more), or its device has left: restore it, then start again")]
    Gone,
    /// The system does not let this user read it.
    #[error("permission denied: give this user the right to read the file")]
    Permission,
    /// The process may open no more files.
    #[error("out of file descriptors: raise the limit (`ulimit -n`) above the number of weight files")]
    OutOfDescriptors,
    /// It did not succeed in time.
    #[error("timed out after {deadline_ms} ms ({cause}): check the device, or raise the deadline")]
    TimedOut {
        /// How long it was tried, in milliseconds.
        deadline_ms: u64,
        /// What the system said meanwhile.
        cause: String,
    },
    /// It was a hint, and was called off before all of it was issued. Not a fault.
    #[error("cancelled: the read was called off before it was made; ask again if it is needed")]
    Cancelled,
    /// The request itself cannot be carried out; nothing was read.
    #[error("refused: {reason}")]
    Refused {
        /// What is wrong with the request and what would be right.
        reason: String,
    },
    /// The system reported something else, and went on doing so when it was asked again.
    #[error("{0}: check the device and its file system")]
    Io(#[source] io::Error),
}

impl Failure {
    /// One word for programs: `truncated`, `changed`, `gone`, `permission`, `out-of-descriptors`, `timed-out`,
    /// `cancelled`, `refused` or `io`.
    pub fn code(&self) -> &'static str {
        match self {
            Failure::Truncated { .. } => "truncated",
            Failure::Changed { .. } => "changed",
            Failure::Gone => "gone",
            Failure::Permission => "permission",
            Failure::OutOfDescriptors => "out-of-descriptors",
            Failure::TimedOut { .. } => "timed-out",
            Failure::Cancelled => "cancelled",
            Failure::Refused { .. } => "refused",
            Failure::Io(_) => "io",
        }
    }

    /// The failure that an error of the system stands for.
    pub fn from_io(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::StaleNetworkFileHandle => Failure::Gone,
            io::ErrorKind::PermissionDenied => Failure::Permission,
            _ if is_out_of_descriptors(&error) => Failure::OutOfDescriptors,
            _ => Failure::Io(error),
        }
    }

    pub(crate) fn refused(reason: impl Into<String>) -> Failure {
        Failure::Refused { reason: reason.into() }
    }

    pub(crate) fn at(self, path: &Path, offset: u64, len: u64) -> DiskError {
        DiskError { path: path.to_owned(), offset, len, failure: self }
    }
}

/// ENFILE (23) and EMFILE (24) have the same numbers on Linux, macOS and the BSDs; Windows says
/// ERROR_TOO_MANY_OPEN_FILES (4).
fn is_out_of_descriptors(error: &io::Error) -> bool {
    match error.raw_os_error() {
        Some(code) if cfg!(windows) => code == 4,
        Some(code) => code == 23 || code == 24,
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(failure: Failure, code: &str, words: &[&str]) {
        assert_eq!(failure.code(), code);
        let text = failure.at(Path::new("a/model.gguf"), 4096, 17).to_string();
        for word in ["a/model.gguf", "4096", "17"].iter().chain(words) {
            assert!(text.contains(word), "{text:?} lacks {word:?}");
        }
    }

    #[test]
    fn every_failure_names_the_file_the_place_and_a_remedy() {
        check(Failure::Truncated { file_bytes: 99 }, "truncated", &["99", "fetch"]);
        check(Failure::Changed { file_bytes: 99 }, "changed", &["99", "wait"]);
        check(Failure::Gone, "gone", &["restore"]);
        check(Failure::Permission, "permission", &["right"]);
        check(Failure::OutOfDescriptors, "out-of-descriptors", &["ulimit"]);
        check(Failure::TimedOut { deadline_ms: 30, cause: "EIO".into() }, "timed-out", &["30 ms", "EIO"]);
        check(Failure::Cancelled, "cancelled", &["ask again"]);
        check(Failure::refused("odd"), "refused", &["odd"]);
        check(Failure::Io(io::Error::other("bad sector")), "io", &["bad sector", "check"]);
    }

    #[test]
    #[cfg(unix)]
    fn errors_of_the_system_become_types() {
        for (errno, code) in [
            (2, "gone"),
            (13, "permission"),
            (1, "permission"),
            (24, "out-of-descriptors"),
            (23, "out-of-descriptors"),
            (5, "io"),
        ] {
            assert_eq!(Failure::from_io(io::Error::from_raw_os_error(errno)).code(), code, "errno {errno}");
        }
    }
}
