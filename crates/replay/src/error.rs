//! What can be wrong with a trace.

use std::path::{Path, PathBuf};

/// Why a trace cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The system refused the file.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's own words.
        source: std::io::Error,
    },
    /// The content is not what it should be.
    #[error("{}, offset {offset}: expected {expected}, found {found}; {remedy}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where in it, in bytes.
        offset: u64,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
        /// What to do.
        remedy: &'static str,
    },
}

/// What can be done about a trace that was cut or changed.
pub(crate) const RECORD_AGAIN: &str = "record or download it again";

impl TraceError {
    pub(crate) fn io(path: &Path, source: std::io::Error) -> TraceError {
        TraceError::Io { path: path.to_owned(), source }
    }
}

/// A file with the place that is being read; every take says where it failed.
pub(crate) struct Bytes<'a> {
    pub path: &'a Path,
    pub all: &'a [u8],
    pub at: usize,
}

impl<'a> Bytes<'a> {
    pub fn damaged(
        &self,
        at: usize,
        expected: impl Into<String>,
        found: impl Into<String>,
        remedy: &'static str,
    ) -> TraceError {
        TraceError::Damaged {
            path: self.path.to_owned(),
            offset: at as u64,
            expected: expected.into(),
            found: found.into(),
            remedy,
        }
    }

    /// The next `count` bytes, which are `what`.
    pub fn take(&mut self, count: usize, what: &str) -> Result<&'a [u8], TraceError> {
        let left = &self.all[self.at.min(self.all.len())..];
        match left.get(..count) {
            Some(bytes) => {
                self.at += count;
                Ok(bytes)
            }
            None => Err(self.damaged(
                self.at,
                format!("{count} bytes ({what})"),
                format!("{} bytes until the end of the file", left.len()),
                RECORD_AGAIN,
            )),
        }
    }

    pub fn u16(&mut self, what: &str) -> Result<u16, TraceError> {
        self.take(2, what).map(|b| u16::from_le_bytes([b[0], b[1]]))
    }

    pub fn u32(&mut self, what: &str) -> Result<u32, TraceError> {
        self.take(4, what).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    pub fn u64(&mut self, what: &str) -> Result<u64, TraceError> {
        let bytes = self.take(8, what)?;
        Ok(bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }
}
