//! A writer of small GGUF files for tests. It writes what it is told, right or wrong: broken files are its purpose.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

/// A metadata value.
#[derive(Clone, Debug)]
pub enum GgufValue {
    /// Type 0.
    U8(u8),
    /// Type 1.
    I8(i8),
    /// Type 2.
    U16(u16),
    /// Type 3.
    I16(i16),
    /// Type 11.
    I64(i64),
    /// Type 12.
    F64(f64),
    /// Type 4.
    U32(u32),
    /// Type 10.
    U64(u64),
    /// Type 5.
    I32(i32),
    /// Type 6.
    F32(f32),
    /// Type 7.
    Bool(bool),
    /// Type 8.
    Text(String),
    /// Type 9 of type 8.
    Texts(Vec<String>),
    /// Type 9 of type 7.
    Bools(Vec<bool>),
    /// Type 9 of any type: its number, and values of that type.
    Array(u32, Vec<GgufValue>),
    /// Any type number with the bytes that follow it.
    Raw(u32, Vec<u8>),
}

impl From<&str> for GgufValue {
    fn from(text: &str) -> Self {
        GgufValue::Text(text.to_owned())
    }
}

#[derive(Clone, Debug)]
struct GgufTensor {
    name: String,
    /// Outermost first; the file has them the other way round.
    shape: Vec<u64>,
    kind: u32,
    data: Vec<u8>,
    /// Bytes of zeros that follow `data`: a hole in a sparse file.
    hole_bytes: u64,
    /// Written in place of the true offset.
    offset: Option<u64>,
}

/// A GGUF file in the making.
#[derive(Clone, Debug)]
pub struct GgufWriter {
    version: u32,
    alignment: u64,
    keys: Vec<(String, GgufValue)>,
    tensors: Vec<GgufTensor>,
    counts: [Option<u64>; 2],
}

impl Default for GgufWriter {
    fn default() -> Self {
        Self::new()
    }
}

impl GgufWriter {
    /// An empty file of version 3 with the usual alignment of 32 bytes.
    pub fn new() -> Self {
        GgufWriter { version: 3, alignment: 32, keys: Vec::new(), tensors: Vec::new(), counts: [None; 2] }
    }

    /// Sets the version.
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Sets how the data is aligned, without writing the key that says so.
    pub fn alignment(mut self, bytes: u64) -> Self {
        self.alignment = bytes.max(1);
        self
    }

    /// Adds a key, even if there is one of that name.
    pub fn key(mut self, name: &str, value: impl Into<GgufValue>) -> Self {
        self.keys.push((name.to_owned(), value.into()));
        self
    }

    /// Replaces the value of a key, or adds it.
    pub fn set(mut self, name: &str, value: impl Into<GgufValue>) -> Self {
        self.keys.retain(|(n, _)| n != name);
        self.key(name, value)
    }

    /// Removes a key.
    pub fn without_key(mut self, name: &str) -> Self {
        self.keys.retain(|(n, _)| n != name);
        self
    }

    /// Adds a tensor: shape outermost first, ggml's type number, and its bytes, whatever their number.
    pub fn tensor(mut self, name: &str, shape: &[u64], kind: u32, data: Vec<u8>) -> Self {
        self.tensors.push(GgufTensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            kind,
            data,
            hole_bytes: 0,
            offset: None,
        });
        self
    }

    /// Adds a tensor of `bytes` zeros, which [`GgufWriter::write_sparse`] does not write.
    pub fn hole(mut self, name: &str, shape: &[u64], kind: u32, bytes: u64) -> Self {
        self = self.tensor(name, shape, kind, Vec::new());
        if let Some(last) = self.tensors.last_mut() {
            last.hole_bytes = bytes;
        }
        self
    }

    /// The parts of a split model, as converters write them: `lens` tensors in each part, and metadata in the first.
    pub fn split(self, lens: &[usize]) -> Vec<GgufWriter> {
        let total = self.tensors.len();
        let mut tensors = self.tensors.into_iter();
        let part = |(number, len): (usize, &usize)| {
            let keys = if number == 0 { self.keys.clone() } else { Vec::new() };
            let tensors = tensors.by_ref().take(*len).collect();
            GgufWriter { keys, tensors, counts: [None; 2], ..self }
                .key("split.no", GgufValue::U16(number as u16))
                .key("split.count", GgufValue::U16(lens.len() as u16))
                .key("split.tensors.count", GgufValue::I32(total as i32))
        };
        lens.iter().enumerate().map(part).collect()
    }

    /// Adds an F32 tensor of zeros.
    pub fn zeros(self, name: &str, shape: &[u64]) -> Self {
        let bytes = shape.iter().product::<u64>() as usize * 4;
        self.tensor(name, shape, 0, vec![0; bytes])
    }

    /// Removes a tensor.
    pub fn without(mut self, name: &str) -> Self {
        self.tensors.retain(|t| t.name != name);
        self
    }

    /// Replaces the offset that is written for a tensor.
    pub fn offset(mut self, name: &str, offset: u64) -> Self {
        for t in self.tensors.iter_mut().filter(|t| t.name == name) {
            t.offset = Some(offset);
        }
        self
    }

    /// Replaces the numbers of tensors and keys that the header states.
    pub fn counts(mut self, tensors: Option<u64>, keys: Option<u64>) -> Self {
        self.counts = [tensors, keys];
        self
    }

    /// The header alone, without padding.
    pub fn header(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.counts[0].unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.counts[1].unwrap_or(self.keys.len() as u64).to_le_bytes());
        for (name, value) in &self.keys {
            put_text(&mut out, name);
            put_value(&mut out, value);
        }
        let mut at = 0u64;
        for t in &self.tensors {
            put_text(&mut out, &t.name);
            out.extend((t.shape.len() as u32).to_le_bytes());
            for d in t.shape.iter().rev() {
                out.extend(d.to_le_bytes());
            }
            out.extend(t.kind.to_le_bytes());
            out.extend(t.offset.unwrap_or(at).to_le_bytes());
            at = (at + t.data.len() as u64 + t.hole_bytes).next_multiple_of(self.alignment);
        }
        out
    }

    /// The whole file.
    pub fn build(&self) -> Vec<u8> {
        let mut out = self.header();
        let pad = |out: &mut Vec<u8>| out.resize(out.len().next_multiple_of(self.alignment as usize), 0);
        for t in &self.tensors {
            pad(&mut out);
            out.extend(&t.data);
            out.resize(out.len() + t.hole_bytes as usize, 0);
        }
        out
    }

    /// Writes the whole file with nothing where its holes and zeros are.
    ///
    /// # Errors
    /// Those of the system, which may not know files of that size.
    pub fn write_sparse(&self, path: &Path) -> std::io::Result<()> {
        let mut file = File::create(path)?;
        let header = self.header();
        file.write_all(&header)?;
        let mut at = header.len() as u64;
        for t in &self.tensors {
            at = at.next_multiple_of(self.alignment);
            file.seek(SeekFrom::Start(at))?;
            file.write_all(&t.data)?;
            at += t.data.len() as u64 + t.hole_bytes;
        }
        file.set_len(at)
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &GgufValue) {
    let kind: u32 = match value {
        GgufValue::U8(_) => 0,
        GgufValue::I8(_) => 1,
        GgufValue::U16(_) => 2,
        GgufValue::I16(_) => 3,
        GgufValue::U32(_) => 4,
        GgufValue::I32(_) => 5,
        GgufValue::F32(_) => 6,
        GgufValue::Bool(_) => 7,
        GgufValue::Text(_) => 8,
        GgufValue::Texts(_) | GgufValue::Bools(_) | GgufValue::Array(..) => 9,
        GgufValue::U64(_) => 10,
        GgufValue::I64(_) => 11,
        GgufValue::F64(_) => 12,
        GgufValue::Raw(kind, _) => *kind,
    };
    out.extend(kind.to_le_bytes());
    put_bare(out, value);
}

/// A value without its type: what the items of an array are.
fn put_bare(out: &mut Vec<u8>, value: &GgufValue) {
    match value {
        GgufValue::U8(v) => out.push(*v),
        GgufValue::I8(v) => out.extend(v.to_le_bytes()),
        GgufValue::U16(v) => out.extend(v.to_le_bytes()),
        GgufValue::I16(v) => out.extend(v.to_le_bytes()),
        GgufValue::U32(v) => out.extend(v.to_le_bytes()),
        GgufValue::I32(v) => out.extend(v.to_le_bytes()),
        GgufValue::F32(v) => out.extend(v.to_le_bytes()),
        GgufValue::Bool(v) => out.push(u8::from(*v)),
        GgufValue::Text(v) => put_text(out, v),
        GgufValue::U64(v) => out.extend(v.to_le_bytes()),
        GgufValue::I64(v) => out.extend(v.to_le_bytes()),
        GgufValue::F64(v) => out.extend(v.to_le_bytes()),
        GgufValue::Texts(v) => {
            put_array(out, 8, v.len());
            v.iter().for_each(|t| put_text(out, t));
        }
        GgufValue::Bools(v) => {
            put_array(out, 7, v.len());
            out.extend(v.iter().map(|&b| u8::from(b)));
        }
        GgufValue::Array(kind, items) => {
            put_array(out, *kind, items.len());
            items.iter().for_each(|v| put_bare(out, v));
        }
        GgufValue::Raw(_, bytes) => out.extend(bytes),
    }
}

/// What comes before the items of an array.
fn put_array(out: &mut Vec<u8>, kind: u32, len: usize) {
    out.extend(kind.to_le_bytes());
    out.extend((len as u64).to_le_bytes());
}
