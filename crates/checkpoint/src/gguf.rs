//! Reader of GGUF headers (versions 2 and 3, little endian): metadata and where each tensor lies.
//!
//! Everything in a header is hostile until checked: lengths and counts are compared with what is left of the file
//! before anything is allocated, and offsets are added with overflow checks.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use calypte_disk::{Extent, FileId};
use calypte_quant::DType;

use crate::catalog::Tensor;
use crate::error::{OpenError, quote};
use crate::gguf_value::{List, Value, dtype_of, supported_types, type_name};
use crate::layout::{byte_len, check_extents, value_count};
use crate::limits::{
    DIMS_MAX, GGUF_ALIGNMENT_BYTES_MAX, GGUF_ARRAY_DEPTH_MAX, GGUF_ARRAY_ITEMS_MAX, GGUF_KEYS_MAX,
    GGUF_STRING_BYTES_MAX, HEADER_BYTES_MAX, NAME_BYTES_MAX, TENSORS_MAX,
};

/// First four bytes of every GGUF file.
pub(crate) const MAGIC: [u8; 4] = *b"GGUF";
const FORMAT: &str = "GGUF";
const VERSIONS: [u32; 2] = [2, 3];
const ALIGNMENT_KEY: &str = "general.alignment";
const ALIGNMENT_BYTES_DEFAULT: u64 = 32;
/// A key of no bytes, its type and one byte of value.
const KEY_BYTES_MIN: u64 = 8 + 4 + 1;
/// A name of no bytes, one dimension, type and offset.
const TENSOR_INFO_BYTES_MIN: u64 = 8 + 4 + 8 + 4 + 8;

/// The header of one GGUF file.
#[derive(Debug)]
pub(crate) struct Gguf {
    pub path: PathBuf,
    pub size_bytes: u64,
    pub metadata: BTreeMap<String, Value>,
    pub tensors: Vec<Tensor>,
}

/// Reads the header of the file `path`, whose tensors get the file number `file`.
pub(crate) fn read(path: &Path, file: FileId) -> Result<Gguf, OpenError> {
    let handle = File::open(path).map_err(OpenError::io(path))?;
    let size_bytes = handle.metadata().map_err(OpenError::io(path))?.len();
    let cursor = Cursor { path, reader: BufReader::new(handle), at: 0, size_bytes };
    read_header(cursor, file)
}

fn read_header<R: Read>(mut c: Cursor<'_, R>, file: FileId) -> Result<Gguf, OpenError> {
    let (tensor_count, key_count) = read_preamble(&mut c)?;
    let mut metadata = BTreeMap::new();
    for _ in 0..key_count {
        let at = c.at;
        let key = c.text("a metadata key", NAME_BYTES_MAX)?;
        let kind = c.u32("the type of a metadata value")?;
        let value = read_value(&mut c, kind, &key)?;
        if metadata.insert(key.clone(), value).is_some() {
            return Err(OpenError::Duplicate {
                path: c.path.to_owned(),
                what: "key",
                name: quote(&key),
                place: format!("at byte {at}"),
            });
        }
    }
    let mut infos = Vec::new();
    for _ in 0..tensor_count {
        infos.push(read_tensor_info(&mut c)?);
    }
    let alignment = alignment(c.path, &metadata)?;
    let tensors = place_tensors(&c, infos, alignment, file)?;
    check_extents(c.path, &tensors, c.size_bytes)?;
    Ok(Gguf { path: c.path.to_owned(), size_bytes: c.size_bytes, metadata, tensors })
}

/// Magic, version and the two counts.
fn read_preamble<R: Read>(c: &mut Cursor<'_, R>) -> Result<(u64, u64), OpenError> {
    let magic: [u8; 4] = c.bytes("the magic `GGUF`")?;
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

/// Bytes of one value of a fixed-size type, 0 for strings and arrays, `None` for unknown types.
fn fixed_bytes(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        8 | 9 => Some(0),
        _ => None,
    }
}

fn read_value<R: Read>(c: &mut Cursor<'_, R>, kind: u32, key: &str) -> Result<Value, OpenError> {
    Ok(match kind {
        0 | 2 | 4 | 10 => Value::Unsigned(read_unsigned(c, kind)?),
        1 | 3 | 5 | 11 => Value::Signed(read_signed(c, kind)?),
        6 | 12 => Value::Float(read_float(c, kind)?),
        7 => Value::Bool(read_bool(c)?),
        8 => Value::Text(c.text("a string", GGUF_STRING_BYTES_MAX)?),
        9 => Value::List(read_list(c, key, 1)?),
        _ => return Err(unknown_value_type(c, kind, key)),
    })
}

fn unknown_value_type<R: Read>(c: &Cursor<'_, R>, kind: u32, key: &str) -> OpenError {
    let expected = format!("a value type between 0 and 12 for key `{}`", quote(key));
    c.malformed(c.at.saturating_sub(4), expected, format!("type {kind}"))
}

fn read_list<R: Read>(c: &mut Cursor<'_, R>, key: &str, depth: usize) -> Result<List, OpenError> {
    if depth > GGUF_ARRAY_DEPTH_MAX {
        let expected = format!("arrays nested at most {GGUF_ARRAY_DEPTH_MAX} deep in key `{}`", quote(key));
        return Err(c.malformed(c.at, expected, "a deeper one"));
    }
    let kind = c.u32("the type of an array")?;
    // A string takes at least its length, an array its type and length.
    let item_bytes_min = match (kind, fixed_bytes(kind)) {
        (8, _) => 8,
        (9, _) => 12,
        (_, Some(bytes)) => bytes,
        (_, None) => return Err(unknown_value_type(c, kind, key)),
    };
    let n = c.count("array items", item_bytes_min, GGUF_ARRAY_ITEMS_MAX)?;
    Ok(match kind {
        0 | 2 | 4 | 10 => List::Unsigned((0..n).map(|_| read_unsigned(c, kind)).collect::<Result<_, _>>()?),
        1 | 3 | 5 | 11 => List::Signed((0..n).map(|_| read_signed(c, kind)).collect::<Result<_, _>>()?),
        6 | 12 => List::Float((0..n).map(|_| read_float(c, kind)).collect::<Result<_, _>>()?),
        7 => List::Bool((0..n).map(|_| read_bool(c)).collect::<Result<_, _>>()?),
        8 => List::Text((0..n).map(|_| c.text("a string", GGUF_STRING_BYTES_MAX)).collect::<Result<_, _>>()?),
        _ => List::Lists((0..n).map(|_| read_list(c, key, depth + 1)).collect::<Result<_, _>>()?),
    })
}

fn read_unsigned<R: Read>(c: &mut Cursor<'_, R>, kind: u32) -> Result<u64, OpenError> {
    const WHAT: &str = "an unsigned number";
    Ok(match kind {
        0 => u8::from_le_bytes(c.bytes(WHAT)?).into(),
        2 => u16::from_le_bytes(c.bytes(WHAT)?).into(),
        4 => u32::from_le_bytes(c.bytes(WHAT)?).into(),
        _ => u64::from_le_bytes(c.bytes(WHAT)?),
    })
}

fn read_signed<R: Read>(c: &mut Cursor<'_, R>, kind: u32) -> Result<i64, OpenError> {
    const WHAT: &str = "a signed number";
    Ok(match kind {
        1 => i8::from_le_bytes(c.bytes(WHAT)?).into(),
        3 => i16::from_le_bytes(c.bytes(WHAT)?).into(),
        5 => i32::from_le_bytes(c.bytes(WHAT)?).into(),
        _ => i64::from_le_bytes(c.bytes(WHAT)?),
    })
}

fn read_float<R: Read>(c: &mut Cursor<'_, R>, kind: u32) -> Result<f64, OpenError> {
    const WHAT: &str = "a floating-point number";
    Ok(match kind {
        6 => f32::from_le_bytes(c.bytes(WHAT)?).into(),
        _ => f64::from_le_bytes(c.bytes(WHAT)?),
    })
}

fn read_bool<R: Read>(c: &mut Cursor<'_, R>) -> Result<bool, OpenError> {
    match c.bytes("a truth value")? {
        [0] => Ok(false),
        [1] => Ok(true),
        [b] => Err(c.malformed(c.at.saturating_sub(1), "a truth value, 0 or 1", b.to_string())),
    }
}

struct TensorInfo {
    /// Where the entry starts in the header.
    at: u64,
    name: String,
    shape: Vec<usize>,
    dtype: DType,
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
    let dtype = dtype_of(kind).ok_or_else(|| OpenError::Unsupported {
        path: c.path.to_owned(),
        what: format!("type of tensor `{}` (header entry at byte {at})", quote(&name)),
        expected: format!("one of {}", supported_types()),
        found: type_name(kind),
        todo: "use a file with one of these types, for example a Q4_K_M, Q8_0 or BF16 one",
    })?;
    let offset = c.u64("a tensor offset")?;
    Ok(TensorInfo { at, name, shape, dtype, offset })
}

/// Turns offsets from the start of the data into extents in the file.
fn place_tensors<R: Read>(
    c: &Cursor<'_, R>,
    infos: Vec<TensorInfo>,
    alignment: u64,
    file: FileId,
) -> Result<Vec<Tensor>, OpenError> {
    // Cannot overflow: the cursor is below HEADER_BYTES_MAX and the alignment is small.
    let data_start = c.at.next_multiple_of(alignment);
    let mut tensors = Vec::with_capacity(infos.len());
    for i in infos {
        let Some(len) = byte_len(i.dtype, &i.shape) else {
            let (n, dtype) = (i.dtype.block_len(), i.dtype);
            let expected = format!("rows of tensor `{}` in whole blocks of {n} ({dtype})", quote(&i.name));
            return Err(c.malformed(i.at, expected, format!("shape {:?}", i.shape)));
        };
        if !i.offset.is_multiple_of(alignment) {
            let expected =
                format!("an offset of tensor `{}` that is a multiple of {alignment}", quote(&i.name));
            return Err(c.malformed(i.at, expected, i.offset.to_string()));
        }
        let Some(offset) = data_start.checked_add(i.offset) else {
            let expected = format!("an offset of tensor `{}` inside the file", quote(&i.name));
            return Err(c.malformed(i.at, expected, i.offset.to_string()));
        };
        let extent = Extent { file, offset, len };
        tensors.push(Tensor { name: i.name, dtype: i.dtype, shape: i.shape, extent });
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

/// A reader that knows where it is and how much is left.
struct Cursor<'a, R> {
    path: &'a Path,
    reader: R,
    at: u64,
    size_bytes: u64,
}

impl<R: Read> Cursor<'_, R> {
    fn malformed(&self, offset: u64, expected: impl Into<String>, found: impl Into<String>) -> OpenError {
        OpenError::Malformed {
            path: self.path.to_owned(),
            format: FORMAT,
            offset,
            expected: expected.into(),
            found: found.into(),
        }
    }

    /// Checks that `n` more bytes may be read.
    fn need(&self, n: u64, what: &str) -> Result<(), OpenError> {
        let left = self.size_bytes.saturating_sub(self.at);
        if n > left {
            let expected = format!("{n} more bytes for {what}");
            return Err(self.malformed(self.at, expected, format!("{left} before the end of the file")));
        }
        if self.at.saturating_add(n) > HEADER_BYTES_MAX {
            let expected = format!("a header of at most {HEADER_BYTES_MAX} bytes");
            return Err(self.malformed(self.at, expected, format!("{n} more bytes for {what}")));
        }
        Ok(())
    }

    fn bytes<const N: usize>(&mut self, what: &str) -> Result<[u8; N], OpenError> {
        self.need(N as u64, what)?;
        let mut out = [0; N];
        self.reader.read_exact(&mut out).map_err(OpenError::io(self.path))?;
        self.at += N as u64;
        Ok(out)
    }

    fn u32(&mut self, what: &str) -> Result<u32, OpenError> {
        Ok(u32::from_le_bytes(self.bytes(what)?))
    }

    fn u64(&mut self, what: &str) -> Result<u64, OpenError> {
        Ok(u64::from_le_bytes(self.bytes(what)?))
    }

    /// A count of things that take at least `bytes_min` bytes each.
    fn count(&mut self, what: &str, bytes_min: u64, max: u64) -> Result<u64, OpenError> {
        let at = self.at;
        let n = self.u64(&format!("the number of {what}"))?;
        if n > max {
            return Err(self.malformed(at, format!("at most {max} {what}"), n.to_string()));
        }
        self.need(n.saturating_mul(bytes_min), &format!("{n} {what}"))?;
        Ok(n)
    }

    fn text(&mut self, what: &str, bytes_max: u64) -> Result<String, OpenError> {
        let at = self.at;
        let len = self.u64(&format!("the length of {what}"))?;
        if len > bytes_max {
            return Err(self.malformed(
                at,
                format!("{what} of at most {bytes_max} bytes"),
                format!("{len} bytes"),
            ));
        }
        self.need(len, what)?;
        // Below `bytes_max`, so the cast is exact everywhere.
        let mut out = vec![0; len as usize];
        self.reader.read_exact(&mut out).map_err(OpenError::io(self.path))?;
        self.at += len;
        String::from_utf8(out).map_err(|e| {
            let bad = at.saturating_add(8).saturating_add(e.utf8_error().valid_up_to() as u64);
            self.malformed(bad, format!("{what} in UTF-8"), "other bytes")
        })
    }
}
