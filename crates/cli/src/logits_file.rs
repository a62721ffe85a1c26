//! Logits as a safetensors file, written row by row so that they never have to be in memory together.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::exit::Failure;
use crate::partial_file::PartialFile;

/// The header's length is a multiple of this, so that the data is aligned.
const HEADER_ALIGN_BYTES: usize = 8;

/// A file with one F32 tensor `logits` `[rows, vocab]`. It has its name only once it is whole; dropped before that, it is
/// removed.
pub struct LogitsFile {
    path: PathBuf,
    file: PartialFile,
    failure: Option<io::Error>,
}

impl LogitsFile {
    /// Starts the file for a tensor of this shape.
    pub fn create(path: &Path, rows: usize, vocab: usize) -> Result<LogitsFile, Failure> {
        let cannot = |e| Failure::Usage(format!("{}: cannot be created: {e}", path.display()));
        let mut file = PartialFile::create(path).map_err(cannot)?;
        file.write_all(&header(rows, vocab)).map_err(cannot)?;
        Ok(LogitsFile { path: path.to_owned(), file, failure: None })
    }

    /// Appends a row. After a failure it does nothing and returns false.
    pub fn row(&mut self, row: &[f32]) -> bool {
        for value in row {
            if self.failure.is_some() {
                break;
            }
            self.failure = self.file.write_all(&value.to_le_bytes()).err();
        }
        self.failure.is_none()
    }

    /// Removes the file; an error if writing had failed.
    pub fn give_up(self) -> Result<(), Failure> {
        let LogitsFile { path, failure, .. } = self;
        failure.map_or(Ok(()), |source| Err(Failure::Output { to: path.display().to_string(), source }))
    }

    /// Gives the file its name.
    pub fn finish(self) -> Result<(), Failure> {
        let LogitsFile { path, file, failure } = self;
        let outcome = failure.map_or_else(|| file.finish(), Err);
        outcome.map_err(|source| Failure::Output { to: path.display().to_string(), source })
    }
}

/// The safetensors header: its length as a little-endian u64, then JSON padded with spaces.
fn header(rows: usize, vocab: usize) -> Vec<u8> {
    let bytes = rows as u64 * vocab as u64 * size_of::<f32>() as u64;
    let object = json!({ "logits": { "dtype": "F32", "shape": [rows, vocab], "data_offsets": [0, bytes] } });
    let mut text = object.to_string().into_bytes();
    text.resize(text.len().next_multiple_of(HEADER_ALIGN_BYTES), b' ');
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.append(&mut text);
    out
}
