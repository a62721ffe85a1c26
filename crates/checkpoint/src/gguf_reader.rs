//! Reads what GGUF headers are made of: numbers, strings, arrays. Every length and count is compared with what is left of
//! the file before anything is allocated.

use std::io::Read;
use std::path::Path;

use crate::error::{OpenError, quote};
use crate::gguf_value::{List, Value};
use crate::limits::{GGUF_ARRAY_DEPTH_MAX, GGUF_ARRAY_ITEMS_MAX, GGUF_STRING_BYTES_MAX, HEADER_BYTES_MAX};

const FORMAT: &str = "GGUF";

/// A reader that knows where it is and how much is left.
pub(crate) struct Cursor<'a, R> {
    pub path: &'a Path,
    reader: R,
    /// The next byte to read.
    pub at: u64,
    size_bytes: u64,
}

impl<'a, R: Read> Cursor<'a, R> {
    /// At the start of a file of `size_bytes` bytes.
    pub fn new(path: &'a Path, reader: R, size_bytes: u64) -> Self {
        Cursor { path, reader, at: 0, size_bytes }
    }

    pub fn malformed(&self, offset: u64, expected: impl Into<String>, found: impl Into<String>) -> OpenError {
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

    pub fn bytes<const N: usize>(&mut self, what: &str) -> Result<[u8; N], OpenError> {
        self.need(N as u64, what)?;
        let mut out = [0; N];
        self.reader.read_exact(&mut out).map_err(OpenError::io(self.path))?;
        self.at += N as u64;
        Ok(out)
    }

    pub fn u32(&mut self, what: &str) -> Result<u32, OpenError> {
        Ok(u32::from_le_bytes(self.bytes(what)?))
    }

    pub fn u64(&mut self, what: &str) -> Result<u64, OpenError> {
        Ok(u64::from_le_bytes(self.bytes(what)?))
    }

    /// A count of things that take at least `bytes_min` bytes each.
    pub fn count(&mut self, what: &str, bytes_min: u64, max: u64) -> Result<u64, OpenError> {
        let at = self.at;
        let n = self.u64(&format!("the number of {what}"))?;
        if n > max {
            return Err(self.malformed(at, format!("at most {max} {what}"), n.to_string()));
        }
        self.need(n.saturating_mul(bytes_min), &format!("{n} {what}"))?;
        Ok(n)
    }

    pub fn text(&mut self, what: &str, bytes_max: u64) -> Result<String, OpenError> {
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

/// Reads the value of `key`, whose type has the number `kind`.
pub(crate) fn read_value<R: Read>(c: &mut Cursor<'_, R>, kind: u32, key: &str) -> Result<Value, OpenError> {
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
