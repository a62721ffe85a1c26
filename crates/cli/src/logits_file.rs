//! Logits as a safetensors file, written row by row so that they never have to be in memory together.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::exit::Failure;

/// The header's length is a multiple of this, so that the data is aligned.
const HEADER_ALIGN_BYTES: usize = 8;

/// A file with one F32 tensor `logits` `[rows, vocab]`. It has its name only once it is whole; dropped before that, it is
/// removed.
pub struct LogitsFile {
    path: PathBuf,
    partial: PathBuf,
    file: BufWriter<File>,
    failure: Option<io::Error>,
    whole: bool,
}

impl LogitsFile {
    /// Starts the file for a tensor of this shape.
    pub fn create(path: &Path, rows: usize, vocab: usize) -> Result<LogitsFile, Failure> {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".partial-{}", std::process::id()));
        let partial = PathBuf::from(name);
        let cannot = |e| Failure::Usage(format!("{}: cannot be created: {e}", path.display()));
        let file = File::create(&partial).map_err(cannot)?;
        let mut this = LogitsFile {
            path: path.to_owned(),
            partial,
            file: BufWriter::new(file),
            failure: None,
            whole: false,
        };
        this.file.write_all(&header(rows, vocab)).map_err(cannot)?;
        Ok(this)
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
    pub fn give_up(mut self) -> Result<(), Failure> {
        self.failure.take().map_or(Ok(()), |e| Err(self.cannot_write(e)))
    }

    fn cannot_write(&self, source: io::Error) -> Failure {
        Failure::Output { to: self.path.display().to_string(), source }
    }

    /// Gives the file its name.
    pub fn finish(mut self) -> Result<(), Failure> {
        let outcome = match self.failure.take() {
            Some(error) => Err(error),
            None => self.file.flush(),
        };
        let outcome = outcome.and_then(|()| std::fs::rename(&self.partial, &self.path));
        self.whole = outcome.is_ok();
        outcome.map_err(|e| self.cannot_write(e))
    }
}

impl Drop for LogitsFile {
    fn drop(&mut self) {
        if !self.whole {
            let _ = std::fs::remove_file(&self.partial);
        }
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
