//! Reader of safetensors headers: where each tensor of one file lies.
//!
//! The `safetensors` crate can parse a header too, but reports a fault without the tensor's name and lets the last of
//! two equal names win; here it serves the tests as a second opinion.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use calypte_disk::{Extent, FileId};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use crate::catalog::WeightFile;
use crate::error::{OpenError, quote};
use crate::json::{Entries, parse};
use crate::layout::{LFS_POINTER, check_extents, value_count};
use crate::limits::{HEADER_BYTES_MAX, NAME_BYTES_MAX, TENSORS_MAX};
use crate::stored::{Stored, StoredType};

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

/// Reads the header of the file `path`, whose tensors get the file number `file`, and checks where they lie.
pub(crate) fn read(path: &Path, file: FileId) -> Result<(WeightFile, Vec<Stored>), OpenError> {
    let (weight_file, tensors) = read_unchecked(path, file)?;
    check_extents(path, &tensors, weight_file.size_bytes)?;
    Ok((weight_file, tensors))
}

/// [`read`], but the tensors may lie anywhere: also past the end of a file that is cut short.
pub(crate) fn read_unchecked(path: &Path, file: FileId) -> Result<(WeightFile, Vec<Stored>), OpenError> {
    let handle = File::open(path).map_err(OpenError::io(path))?;
    let size_bytes = handle.metadata().map_err(OpenError::io(path))?.len();
    let tensors = read_from(path, handle, size_bytes, file)?;
    Ok((WeightFile { path: path.to_owned(), size_bytes }, tensors))
}

/// Reads a header from any reader; `path` is for messages.
pub(crate) fn read_from(
    path: &Path,
    mut reader: impl Read,
    size_bytes: u64,
    file: FileId,
) -> Result<Vec<Stored>, OpenError> {
    let header = read_header_bytes(path, &mut reader, size_bytes)?;
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
    Ok(tensors)
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

fn read_header_bytes(path: &Path, reader: &mut impl Read, size_bytes: u64) -> Result<Vec<u8>, OpenError> {
    let Some(left) = size_bytes.checked_sub(LENGTH_BYTES) else {
        let expected = format!("{LENGTH_BYTES} bytes of header length");
        return Err(malformed(path, 0, expected, format!("a file of {size_bytes} bytes")));
    };
    let mut length = [0; LENGTH_BYTES as usize];
    reader.read_exact(&mut length).map_err(OpenError::io(path))?;
    if length == *LFS_POINTER {
        let found = "a Git LFS pointer in place of the file (`git lfs pull` fetches it)";
        return Err(malformed(path, 0, "the length of a header", found));
    }
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
    reader.read_exact(&mut header).map_err(OpenError::io(path))?;
    Ok(header)
}

fn place(
    path: &Path,
    file: FileId,
    data_start: u64,
    name: String,
    info: TensorInfo,
) -> Result<Stored, OpenError> {
    let shown = quote(&name);
    if name.len() as u64 > NAME_BYTES_MAX {
        let expected = format!("tensor names of at most {NAME_BYTES_MAX} bytes");
        return Err(malformed(path, LENGTH_BYTES, expected, format!("`{shown}`")));
    }
    let (Some(dtype), Some(shape), Some([start, end])) = (info.dtype, info.shape, info.data_offsets) else {
        let expected = format!("dtype, shape and data_offsets of tensor `{shown}`");
        return Err(malformed(path, LENGTH_BYTES, expected, "only some of them"));
    };
    let ty = StoredType::of_safetensors(&dtype);
    let shape: Vec<usize> = shape.iter().map(|&d| usize::try_from(d).unwrap_or(usize::MAX)).collect();
    let stored = end.checked_sub(start);
    let len = match (value_count(&shape), ty.has_size()) {
        (None, _) => None,
        (Some(_), true) => ty.byte_len(&shape),
        // Nothing can be compared with the range then.
        (Some(_), false) => stored,
    };
    let (Some(len), true) = (len, len == stored) else {
        let expected = match len {
            Some(len) => {
                format!("data_offsets of tensor `{shown}` that span {len} bytes ({ty} {shape:?})")
            }
            None if value_count(&shape).is_some() => {
                format!("a shape of tensor `{shown}` that takes whole bytes ({ty})")
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
    Ok(Stored { name, ty, shape, extent: Extent { file, offset, len } })
}
