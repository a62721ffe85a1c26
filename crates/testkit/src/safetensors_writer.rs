//! A writer of small safetensors files for tests. It writes what it is told, right or wrong.

use std::fs::File;
use std::io::Write;
use std::path::Path;

#[derive(Clone, Debug)]
struct StoredTensor {
    name: String,
    dtype: String,
    shape: Vec<u64>,
    data: Vec<u8>,
    /// Bytes of zeros that follow `data`: a hole in a sparse file.
    hole_bytes: u64,
    /// Written in place of the true range.
    offsets: Option<[u64; 2]>,
}

/// A safetensors file in the making.
#[derive(Clone, Debug, Default)]
pub struct SafetensorsWriter {
    tensors: Vec<StoredTensor>,
}

impl SafetensorsWriter {
    /// An empty file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor with its bytes, whatever their number, even if there is one of that name.
    pub fn tensor(mut self, name: &str, dtype: &str, shape: &[u64], data: Vec<u8>) -> Self {
        self.tensors.push(StoredTensor {
            name: name.to_owned(),
            dtype: dtype.to_owned(),
            shape: shape.to_vec(),
            data,
            hole_bytes: 0,
            offsets: None,
        });
        self
    }

    /// Adds a tensor of `bytes` zeros, which [`SafetensorsWriter::write_sparse`] does not write.
    pub fn hole(mut self, name: &str, dtype: &str, shape: &[u64], bytes: u64) -> Self {
        self = self.tensor(name, dtype, shape, Vec::new());
        if let Some(last) = self.tensors.last_mut() {
            last.hole_bytes = bytes;
        }
        self
    }

    /// Adds an F32 tensor of zeros.
    pub fn zeros(self, name: &str, shape: &[u64]) -> Self {
        let bytes = shape.iter().product::<u64>() as usize * 4;
        self.tensor(name, "F32", shape, vec![0; bytes])
    }

    /// Removes a tensor.
    pub fn without(mut self, name: &str) -> Self {
        self.tensors.retain(|t| t.name != name);
        self
    }

    /// Replaces the range that is written for a tensor.
    pub fn offsets(mut self, name: &str, offsets: [u64; 2]) -> Self {
        for t in self.tensors.iter_mut().filter(|t| t.name == name) {
            t.offsets = Some(offsets);
        }
        self
    }

    /// Names of the tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.iter().map(|t| t.name.as_str())
    }

    /// The header as JSON, and the number of bytes that follow it. Names must be plain ASCII.
    fn header(&self) -> (String, u64) {
        let (mut entries, mut at) = (vec![r#""__metadata__":{"format":"pt"}"#.to_owned()], 0);
        for t in &self.tensors {
            let start = at;
            at += t.data.len() as u64 + t.hole_bytes;
            let [start, end] = t.offsets.unwrap_or([start, at]);
            let (name, dtype, shape) = (&t.name, &t.dtype, &t.shape);
            entries.push(format!(
                r#"{name:?}:{{"dtype":{dtype:?},"shape":{shape:?},"data_offsets":[{start},{end}]}}"#
            ));
        }
        (format!("{{{}}}", entries.join(",")), at)
    }

    /// The whole file. Names must be plain ASCII.
    pub fn build(&self) -> Vec<u8> {
        let mut data = Vec::new();
        for t in &self.tensors {
            data.extend(&t.data);
            data.resize(data.len() + t.hole_bytes as usize, 0);
        }
        with_header(&self.header().0, &data)
    }

    /// Writes the header and leaves all data a hole.
    ///
    /// # Errors
    /// Those of the system, which may not know files of that size.
    pub fn write_sparse(&self, path: &Path) -> std::io::Result<()> {
        let (header, data_bytes) = self.header();
        let mut file = File::create(path)?;
        file.write_all(&with_header(&header, &[]))?;
        file.set_len(8 + header.len() as u64 + data_bytes)
    }
}

/// A file with any header.
pub fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend(data);
    out
}
