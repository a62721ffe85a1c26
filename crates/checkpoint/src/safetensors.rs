//! Reader of safetensors headers: where each tensor of one file lies.
//!
//! The `safetensors` crate can parse a header too, but reports a fault without the tensor's name and lets the last of
//! two equal names win; here it serves the tests as a second opinion.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use calypte_disk::{Extent, FileId};
use calypte_quant::DType;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use crate::catalog::{Tensor, WeightFile};
use crate::error::{OpenError, quote};
use crate::json::{Entries, parse};
use crate::layout::{byte_len, check_extents, value_count};
use crate::limits::{HEADER_BYTES_MAX, NAME_BYTES_MAX, TENSORS_MAX};

const FORMAT: &str = "safetensors";
/// The header's length precedes it.
const LENGTH_BYTES: u64 = 8;
const METADATA_KEY: &str = "__metadata__";

/// One entry of the header.
enum Entry {
    Tensor(TensorInfo),
    /// The free-form `__metadata__` object.
    Metadata,
}

#[derive(Default)]
struct TensorInfo {
    dtype: Option<String>,
    shape: Option<Vec<u64>>,
    data_offsets: Option<[u64; 2]>,
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntryVisitor;

        impl<'de> Visitor<'de> for EntryVisitor {
            type Value = Entry;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object with dtype, shape and data_offsets")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entry, A::Error> {
                let mut info = TensorInfo::default();
                while let Some(key) = map.next_key::<String>()? {
                    let again = match key.as_str() {
                        "dtype" => info.dtype.replace(map.next_value()?).is_some(),
                        "shape" => info.shape.replace(map.next_value()?).is_some(),
                        "data_offsets" => info.data_offsets.replace(map.next_value()?).is_some(),
                        _ => map.next_value::<IgnoredAny>().map(|_| false)?,
                    };
                    if again {
                        return Err(A::Error::custom(format_args!("`{key}` twice")));
                    }
                }
                Ok(match info {
                    // Only `__metadata__` may look like this; the caller, who knows the name, decides.
                    TensorInfo { dtype: None, shape: None, data_offsets: None } => Entry::Metadata,
                    info => Entry::Tensor(info),
                })
            }
        }

        deserializer.deserialize_map(EntryVisitor)
    }
}

/// Reads the header of the file `path`, whose tensors get the file number `file`.
pub(crate) fn read(path: &Path, file: FileId) -> Result<(WeightFile, Vec<Tensor>), OpenError> {
    let mut handle = File::open(path).map_err(OpenError::io(path))?;
    let size_bytes = handle.metadata().map_err(OpenError::io(path))?.len();
    let header = read_header_bytes(path, &mut handle, size_bytes)?;
    let entries: Entries<Entry> = parse(path, &header, LENGTH_BYTES, FORMAT)?;
    let entries = entries.unique(path, "tensor")?;
    if entries.len() as u64 > TENSORS_MAX {
        let found = entries.len().to_string();
        return Err(malformed(path, LENGTH_BYTES, format!("at most {TENSORS_MAX} tensors"), found));
    }
    let data_start = LENGTH_BYTES + header.len() as u64;
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, entry) in entries {
        match entry {
            _ if name == METADATA_KEY => {}
            Entry::Tensor(info) => tensors.push(place(path, file, data_start, name, info)?),
            Entry::Metadata => {
                let expected = format!("dtype, shape and data_offsets of tensor `{}`", quote(&name));
                return Err(malformed(path, LENGTH_BYTES, expected, "none of them"));
            }
        }
    }
    check_extents(path, &tensors, size_bytes)?;
    Ok((WeightFile { path: path.to_owned(), size_bytes }, tensors))
}

fn malformed(path: &Path, offset: u64, expected: impl Into<String>, found: impl Into<String>) -> OpenError {
    OpenError::Malformed {
        path: path.to_owned(),
        format: FORMAT,
        offset,
        expected: expected.into(),
        found: found.into(),
    }
}

fn read_header_bytes(path: &Path, handle: &mut File, size_bytes: u64) -> Result<Vec<u8>, OpenError> {
    let Some(left) = size_bytes.checked_sub(LENGTH_BYTES) else {
        let expected = format!("{LENGTH_BYTES} bytes of header length");
        return Err(malformed(path, 0, expected, format!("a file of {size_bytes} bytes")));
    };
    let mut length = [0; LENGTH_BYTES as usize];
    handle.read_exact(&mut length).map_err(OpenError::io(path))?;
    let length = u64::from_le_bytes(length);
    if length > left.min(HEADER_BYTES_MAX) {
        let expected = format!("a header of at most {} bytes", left.min(HEADER_BYTES_MAX));
        return Err(malformed(
            path,
            0,
            expected,
            format!("a header length of {length} (the file has {size_bytes} bytes)"),
        ));
    }
    // At most HEADER_BYTES_MAX, so the cast is exact everywhere.
    let mut header = vec![0; length as usize];
    handle.read_exact(&mut header).map_err(OpenError::io(path))?;
    Ok(header)
}

fn place(
    path: &Path,
    file: FileId,
    data_start: u64,
    name: String,
    info: TensorInfo,
) -> Result<Tensor, OpenError> {
    let shown = quote(&name);
    if name.len() as u64 > NAME_BYTES_MAX {
        let expected = format!("tensor names of at most {NAME_BYTES_MAX} bytes");
        return Err(malformed(path, LENGTH_BYTES, expected, format!("`{shown}`")));
    }
    let (Some(dtype), Some(shape), Some([start, end])) = (info.dtype, info.shape, info.data_offsets) else {
        let expected = format!("dtype, shape and data_offsets of tensor `{shown}`");
        return Err(malformed(path, LENGTH_BYTES, expected, "only some of them"));
    };
    let dtype = match dtype.as_str() {
        "F32" => DType::F32,
        "F16" => DType::F16,
        "BF16" => DType::BF16,
        other => {
            return Err(OpenError::Unsupported {
                path: path.to_owned(),
                what: format!("type of tensor `{shown}`"),
                expected: "F32, F16 or BF16".to_owned(),
                found: quote(other),
                todo: "use a BF16 checkpoint, or a GGUF file of the model",
            });
        }
    };
    let shape: Vec<usize> = shape.iter().map(|&d| usize::try_from(d).unwrap_or(usize::MAX)).collect();
    let len = value_count(&shape).and_then(|_| byte_len(dtype, &shape));
    let stored = end.checked_sub(start);
    let (Some(len), true) = (len, len == stored) else {
        let expected = match len {
            Some(len) => {
                format!("data_offsets of tensor `{shown}` that span {len} bytes ({dtype} {shape:?})")
            }
            None => format!("dimensions of tensor `{shown}` that are not 0 and whose product fits"),
        };
        return Err(malformed(
            path,
            LENGTH_BYTES,
            expected,
            format!("shape {shape:?}, data_offsets [{start}, {end}]"),
        ));
    };
    let Some(offset) = data_start.checked_add(start) else {
        let expected = format!("data_offsets of tensor `{shown}` inside the file");
        return Err(malformed(path, LENGTH_BYTES, expected, format!("[{start}, {end}]")));
    };
    Ok(Tensor { name, dtype, shape, extent: Extent { file, offset, len } })
}
