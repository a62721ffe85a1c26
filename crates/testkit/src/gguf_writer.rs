//! A writer of small GGUF files for tests. It writes what it is told, right or wrong: broken files are its purpose.

/// A metadata value.
#[derive(Clone, Debug)]
pub enum GgufValue {
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
            offset: None,
        });
        self
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
            at = (at + t.data.len() as u64).next_multiple_of(self.alignment);
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
        }
        out
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &GgufValue) {
    let put_type = |out: &mut Vec<u8>, kind: u32| out.extend(kind.to_le_bytes());
    match value {
        GgufValue::U32(v) => {
            put_type(out, 4);
            out.extend(v.to_le_bytes());
        }
        GgufValue::U64(v) => {
            put_type(out, 10);
            out.extend(v.to_le_bytes());
        }
        GgufValue::I32(v) => {
            put_type(out, 5);
            out.extend(v.to_le_bytes());
        }
        GgufValue::F32(v) => {
            put_type(out, 6);
            out.extend(v.to_le_bytes());
        }
        GgufValue::Bool(v) => {
            put_type(out, 7);
            out.push(u8::from(*v));
        }
        GgufValue::Text(v) => {
            put_type(out, 8);
            put_text(out, v);
        }
        GgufValue::Texts(v) => {
            put_array(out, 8, v.len());
            v.iter().for_each(|t| put_text(out, t));
        }
        GgufValue::Bools(v) => {
            put_array(out, 7, v.len());
            out.extend(v.iter().map(|&b| u8::from(b)));
        }
        GgufValue::Raw(kind, bytes) => {
            put_type(out, *kind);
            out.extend(bytes);
        }
    }
}

fn put_array(out: &mut Vec<u8>, kind: u32, len: usize) {
    out.extend(9u32.to_le_bytes());
    out.extend(kind.to_le_bytes());
    out.extend((len as u64).to_le_bytes());
}
