//! Reader of GGUF headers (versions 2 and 3, little endian): metadata and where each tensor lies.
//!
//! Everything in a header is hostile until checked: lengths and counts are compared with what is left of the file
//! before anything is allocated, and offsets are added with overflow checks.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use calypte_disk::{Extent, FileId};

use crate::catalog::WeightFile;
use crate::error::{OpenError, quote};
use crate::gguf_reader::{Cursor, read_value};
use crate::gguf_value::{Value, stored_type};
use crate::layout::{LFS_POINTER, value_count};
use crate::limits::{DIMS_MAX, GGUF_ALIGNMENT_BYTES_MAX, GGUF_KEYS_MAX, NAME_BYTES_MAX, TENSORS_MAX};
use crate::stored::{Stored, StoredType};

/// First four bytes of every GGUF file.
pub(crate) const MAGIC: [u8; 4] = *b"GGUF";
const VERSIONS: [u32; 2] = [2, 3];
const ALIGNMENT_KEY: &str = "general.alignment";
const ALIGNMENT_BYTES_DEFAULT: u64 = 32;
/// A key of no bytes, its type and one byte of value.
const KEY_BYTES_MIN: u64 = 8 + 4 + 1;
/// A name of no bytes, one dimension, type and offset.
const TENSOR_INFO_BYTES_MIN: u64 = 8 + 4 + 8 + 4 + 8;

/// The header of one GGUF file, or of a series of them: the metadata of the first and the tensors of all.
#[derive(Debug)]
pub(crate) struct Gguf {
    pub path: PathBuf,
    pub size_bytes: u64,
    pub metadata: BTreeMap<String, Value>,
    pub tensors: Vec<Stored>,
}

impl Gguf {
    pub fn weight_file(&self) -> WeightFile {
        WeightFile { path: self.path.clone(), size_bytes: self.size_bytes }
    }
}

/// Reads the header of the file `path`, whose tensors get the file number `file`. They may lie anywhere: also past the
/// end of a file that is cut short.
pub(crate) fn read_unchecked(path: &Path, file: FileId) -> Result<Gguf, OpenError> {
    let (reader, size_bytes) = open(path)?;
    read_from(path, reader, size_bytes, file)
}

/// Reads a header from any reader; `path` is for messages.
pub(crate) fn read_from<R: Read>(
    path: &Path,
    reader: R,
    size_bytes: u64,
    file: FileId,
) -> Result<Gguf, OpenError> {
    let mut c = Cursor::new(path, reader, size_bytes);
    let (tensor_count, key_count) = read_preamble(&mut c)?;
    let metadata = read_metadata(&mut c, key_count, |_| true)?;
    let mut infos = Vec::new();
    for _ in 0..tensor_count {
        infos.push(read_tensor_info(&mut c)?);
    }
    let alignment = alignment(path, &metadata)?;
    let tensors = place_tensors(&c, infos, alignment, size_bytes, file)?;
    Ok(Gguf { path: path.to_owned(), size_bytes, metadata, tensors })
}

/// The metadata of the file `path` whose keys `keep` accepts. Nothing else is held in memory.
pub(crate) fn read_keys(
    path: &Path,
    keep: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, Value>, OpenError> {
    let (reader, size_bytes) = open(path)?;
    let mut c = Cursor::new(path, reader, size_bytes);
    let (_, key_count) = read_preamble(&mut c)?;
    read_metadata(&mut c, key_count, keep)
}

fn open(path: &Path) -> Result<(BufReader<File>, u64), OpenError> {
    let handle = File::open(path).map_err(OpenError::io(path))?;
    let size_bytes = handle.metadata().map_err(OpenError::io(path))?.len();
    Ok((BufReader::new(handle), size_bytes))
}

/// Magic, version and the two counts.
fn read_preamble<R: Read>(c: &mut Cursor<'_, R>) -> Result<(u64, u64), OpenError> {
    let magic: [u8; 4] = c.bytes("the magic `GGUF`")?;
    if magic == LFS_POINTER[..4] {
        return Err(c.malformed(
            0,
            "the magic `GGUF`",
            "a Git LFS pointer in place of the file (`git lfs pull` fetches it)",
        ));
    }
    if magic != MAGIC {
        return Err(c.malformed(0, "the magic `GGUF`", format!("bytes {magic:02x?}")));
    }
    let version = c.u32("the version")?;
    if !VERSIONS.contains(&version) {
        let found = if VERSIONS.contains(&version.swap_bytes()) {
            "a big-endian file".to_owned()
        } else {
            format!("version {version}")
        };
        return Err(OpenError::Unsupported {
            path: c.path.to_owned(),
            what: "GGUF version at byte 4".to_owned(),
            expected: "version 2 or 3, little endian".to_owned(),
            found,
            todo: "convert the model again with a current converter",
        });
    }
    let tensor_count = c.count("tensors", TENSOR_INFO_BYTES_MIN, TENSORS_MAX)?;
    let key_count = c.count("metadata keys", KEY_BYTES_MIN, GGUF_KEYS_MAX)?;
    Ok((tensor_count, key_count))
}

/// The metadata whose keys `keep` accepts; every key and value is checked.
fn read_metadata<R: Read>(
    c: &mut Cursor<'_, R>,
    key_count: u64,
    keep: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, Value>, OpenError> {
    let mut metadata = BTreeMap::new();
    for _ in 0..key_count {
        let at = c.at;
        let key = c.text("a metadata key", NAME_BYTES_MAX)?;
        let kind = c.u32("the type of a metadata value")?;
        let value = read_value(c, kind, &key)?;
        if metadata.contains_key(&key) {
            return Err(OpenError::Duplicate {
                path: c.path.to_owned(),
                what: "key",
                name: quote(&key),
                place: format!("at byte {at}"),
            });
        }
        if keep(&key) {
            metadata.insert(key, value);
        }
    }
    Ok(metadata)
}

struct TensorInfo {
    /// Where the entry starts in the header.
    at: u64,
    name: String,
    shape: Vec<usize>,
    ty: StoredType,
    /// From the start of the data.
    offset: u64,
}

fn read_tensor_info<R: Read>(c: &mut Cursor<'_, R>) -> Result<TensorInfo, OpenError> {
    let at = c.at;
    let name = c.text("a tensor name", NAME_BYTES_MAX)?;
    let dims_at = c.at;
    let dims = c.u32("the number of dimensions")? as usize;
    if dims == 0 || dims > DIMS_MAX {
        let expected = format!("1 to {DIMS_MAX} dimensions for tensor `{}`", quote(&name));
        return Err(c.malformed(dims_at, expected, dims.to_string()));
    }
    let mut shape = Vec::with_capacity(dims);
    for _ in 0..dims {
        let d = c.u64("a dimension")?;
        shape.push(usize::try_from(d).unwrap_or(usize::MAX));
    }
    // The file lists the innermost dimension first.
    shape.reverse();
    if value_count(&shape).is_none() {
        let expected =
            format!("dimensions of tensor `{}` that are not 0 and whose product fits", quote(&name));
        return Err(c.malformed(dims_at, expected, format!("{shape:?}")));
    }
    let kind = c.u32("a tensor type")?;
    let offset = c.u64("a tensor offset")?;
    Ok(TensorInfo { at, name, shape, ty: stored_type(kind), offset })
}

/// Turns offsets from the start of the data into extents in the file.
fn place_tensors<R: Read>(
    c: &Cursor<'_, R>,
    infos: Vec<TensorInfo>,
    alignment: u64,
    size_bytes: u64,
    file: FileId,
) -> Result<Vec<Stored>, OpenError> {
    // Cannot overflow: the cursor is below HEADER_BYTES_MAX and the alignment is small.
    let data_start = c.at.next_multiple_of(alignment);
    let mut starts: Vec<u64> = infos.iter().filter_map(|i| data_start.checked_add(i.offset)).collect();
    starts.sort_unstable();
    let mut tensors = Vec::with_capacity(infos.len());
    for i in infos {
        let shown = quote(&i.name);
        if !i.offset.is_multiple_of(alignment) {
            let expected = format!("an offset of tensor `{shown}` that is a multiple of {alignment}");
            return Err(c.malformed(i.at, expected, i.offset.to_string()));
        }
        let Some(offset) = data_start.checked_add(i.offset) else {
            let expected = format!("an offset of tensor `{shown}` inside the file");
            return Err(c.malformed(i.at, expected, i.offset.to_string()));
        };
        let len = if i.ty.has_size() {
            i.ty.byte_len(&i.shape).ok_or_else(|| {
                let (n, ty) = (i.ty.block_len(), i.ty.name());
                let expected = format!("rows of tensor `{shown}` in whole blocks of {n} ({ty})");
                c.malformed(i.at, expected, format!("shape {:?}", i.shape))
            })?
        } else {
            // It reaches as far as the next tensor, for all that can be known.
            let next = starts.partition_point(|&s| s <= offset);
            starts.get(next).copied().unwrap_or(size_bytes).saturating_sub(offset)
        };
        let extent = Extent { file, offset, len };
        tensors.push(Stored { name: i.name, ty: i.ty, shape: i.shape, extent });
    }
    Ok(tensors)
}

fn alignment(path: &Path, metadata: &BTreeMap<String, Value>) -> Result<u64, OpenError> {
    match metadata.get(ALIGNMENT_KEY) {
        None => Ok(ALIGNMENT_BYTES_DEFAULT),
        Some(&Value::Unsigned(a)) if a.is_power_of_two() && a <= GGUF_ALIGNMENT_BYTES_MAX => Ok(a),
        Some(v) => Err(OpenError::Config {
            path: path.to_owned(),
            key: ALIGNMENT_KEY.to_owned(),
            expected: format!("a power of two up to {GGUF_ALIGNMENT_BYTES_MAX}"),
            found: v.in_words(),
        }),
    }
}
