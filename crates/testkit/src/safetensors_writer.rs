//! A writer of small safetensors files for tests. It writes what it is told, right or wrong.

#[derive(Clone, Debug)]
struct StoredTensor {
    name: String,
    dtype: String,
    shape: Vec<u64>,
    data: Vec<u8>,
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
            offsets: None,
        });
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

    /// The whole file. Names must be plain ASCII.
    pub fn build(&self) -> Vec<u8> {
        let (mut entries, mut data) = (vec![r#""__metadata__":{"format":"pt"}"#.to_owned()], Vec::new());
        for t in &self.tensors {
            let start = data.len() as u64;
            data.extend(&t.data);
            let [start, end] = t.offsets.unwrap_or([start, data.len() as u64]);
            let (name, dtype, shape) = (&t.name, &t.dtype, &t.shape);
            entries.push(format!(
                r#"{name:?}:{{"dtype":{dtype:?},"shape":{shape:?},"data_offsets":[{start},{end}]}}"#
            ));
        }
        with_header(&format!("{{{}}}", entries.join(",")), &data)
    }
}

/// A file with any header.
pub fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend(data);
    out
}
