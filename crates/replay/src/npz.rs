//! Traces that others publish as NumPy archives: a ZIP file with an array `experts`, `[layers, tokens, top_k]` of integers,
//! best first.
//!
//! The ZIP reader knows what `numpy.savez` and `savez_compressed` write: one disk, entries stored or deflated, sizes below
//! 4 GiB. The NPY reader knows integers of 1 to 8 bytes in C order. Sources: PKWARE's APPNOTE 6.3.10; NumPy's
//! `numpy.lib.format`.

use std::path::Path;

use crate::error::Bytes;
use crate::format::{EXPERTS_MAX, LAYERS_MAX};
use crate::{Step, Trace, TraceError, TraceLayer};

const END_MAGIC: [u8; 4] = *b"PK\x05\x06";
const END_BYTES: usize = 22;
const COMMENT_BYTES_MAX: usize = u16::MAX as usize;
const ENTRY_MAGIC: [u8; 4] = *b"PK\x01\x02";
const LOCAL_MAGIC: [u8; 4] = *b"PK\x03\x04";
const STORED: u16 = 0;
const DEFLATED: u16 = 8;
/// What an array may become when it is inflated: a million tokens of a large model.
const ARRAY_BYTES_MAX: usize = 1 << 31;
const ARRAY: &str = "experts.npy";
const REMEDY: &str = "give an .npz with an array `experts` of integers [layers, tokens, top-k], best first";

impl Trace {
    /// Reads the bytes of an `.npz`; `path` is for messages. Every token is a step. A sequence begins with the first token
    /// and after every `sequence_tokens`. Every layer has as many experts as the highest id tells.
    ///
    /// # Errors
    /// [`TraceError::Damaged`].
    pub fn from_npz(path: &Path, bytes: &[u8], sequence_tokens: Option<usize>) -> Result<Trace, TraceError> {
        let array = entry(&mut Bytes { path, all: bytes, at: 0 })?;
        let mut file = Bytes { path, all: &array, at: 0 };
        let (shape, width) = header(&mut file)?;
        let [layers, tokens, top_k] = shape;
        let start = file.at;
        let count = layers.checked_mul(tokens).and_then(|n| n.checked_mul(top_k));
        let total = count.and_then(|n| n.checked_mul(width)).unwrap_or(usize::MAX);
        let data = file.take(total, "the array")?;
        let mut ids = Vec::with_capacity(total / width.max(1));
        for (index, bytes) in data.chunks_exact(width).enumerate() {
            let value = bytes.iter().rev().fold(0u64, |value, &byte| value << 8 | u64::from(byte));
            let known = u16::try_from(value).ok().filter(|&id| u32::from(id) < EXPERTS_MAX);
            let Some(id) = known else {
                let expected = format!("an expert below {EXPERTS_MAX}");
                return Err(file.damaged(start + index * width, expected, value.to_string(), REMEDY));
            };
            ids.push(id);
        }
        let experts = ids.iter().max().map_or(1, |&highest| u32::from(highest) + 1);
        // An array without numbers may claim any shape.
        if ids.is_empty() || layers as u64 > u64::from(LAYERS_MAX) || top_k as u64 > u64::from(experts) {
            let found = format!("[{layers}, {tokens}, {top_k}] with {experts} experts");
            let expected = format!("1 to {LAYERS_MAX} layers, tokens, and no more choices than experts");
            return Err(file.damaged(0, expected, found, REMEDY));
        }
        let layer = |number| TraceLayer { number, experts, top_k: top_k as u32, slot_bytes: 0 };
        let mut trace = Trace::new((0..layers as u32).map(layer).collect());
        for token in 0..tokens {
            let begins_sequence =
                token == 0 || sequence_tokens.is_some_and(|n| token.is_multiple_of(n.max(1)));
            let of = |layer: usize| {
                let at = (layer * tokens + token) * top_k;
                ids[at..at + top_k].to_vec()
            };
            trace.push(Step { rows: 1, begins_sequence }, &(0..layers).map(of).collect::<Vec<_>>());
        }
        Ok(trace)
    }
}

/// Finds, inflates and checks the array.
fn entry(file: &mut Bytes<'_>) -> Result<Vec<u8>, TraceError> {
    let all = file.all;
    let first = all.len().saturating_sub(END_BYTES + COMMENT_BYTES_MAX);
    let last = all.len().saturating_sub(END_BYTES);
    let end = (first..=last).rev().find(|&at| all[at..].starts_with(&END_MAGIC));
    let Some(end) = end else {
        return Err(file.damaged(last, "the end of a ZIP file", "none", "download it again"));
    };
    file.at = end + 10;
    let entries = file.u16("the number of entries")?;
    file.at = end + 16;
    file.at = file.u32("the place of the directory")? as usize;
    for _ in 0..entries {
        let at = file.at;
        if file.take(4, "an entry")? != ENTRY_MAGIC {
            return Err(file.damaged(
                at,
                "an entry of the ZIP directory",
                "something else",
                "download it again",
            ));
        }
        file.at = at + 10;
        let method = file.u16("the method")?;
        file.at = at + 16;
        let (crc, packed, size) = (file.u32("a CRC")?, file.u32("a size")?, file.u32("a size")?);
        let lengths = (file.u16("a length")?, file.u16("a length")?, file.u16("a length")?);
        file.at = at + 42;
        let local = file.u32("the place of an entry")? as usize;
        let name = file.take(usize::from(lengths.0), "a name")?;
        file.at += usize::from(lengths.1) + usize::from(lengths.2);
        if name == ARRAY.as_bytes() {
            return content(file, local, method, [packed as usize, size as usize], crc);
        }
    }
    Err(file.damaged(end, format!("an entry {ARRAY}"), format!("{entries} others"), REMEDY))
}

fn content(
    file: &mut Bytes<'_>,
    local: usize,
    method: u16,
    [packed, size]: [usize; 2],
    crc: u32,
) -> Result<Vec<u8>, TraceError> {
    file.at = local;
    if file.take(4, "an entry")? != LOCAL_MAGIC {
        return Err(file.damaged(local, "an entry of the ZIP file", "something else", "download it again"));
    }
    file.at = local + 26;
    let (name, extra) = (file.u16("a length")?, file.u16("a length")?);
    file.at += usize::from(name) + usize::from(extra);
    let start = file.at;
    let bytes = file.take(packed, ARRAY)?;
    let inflated = match method {
        _ if size > ARRAY_BYTES_MAX => {
            return Err(file.damaged(
                start,
                format!("at most {ARRAY_BYTES_MAX} bytes"),
                size.to_string(),
                REMEDY,
            ));
        }
        STORED => bytes.to_vec(),
        DEFLATED => miniz_oxide::inflate::decompress_to_vec_with_limit(bytes, size).map_err(|e| {
            file.damaged(start, "deflated data", format!("{:?}", e.status), "download it again")
        })?,
        other => {
            let expected = "an entry that is stored or deflated";
            return Err(file.damaged(start, expected, format!("method {other}"), "save it with numpy.savez"));
        }
    };
    if inflated.len() != size || crc32(&inflated) != crc {
        let found = format!("{} bytes with CRC {:08x}", inflated.len(), crc32(&inflated));
        return Err(file.damaged(
            start,
            format!("{size} bytes with CRC {crc:08x}"),
            found,
            "download it again",
        ));
    }
    Ok(inflated)
}

/// The array's shape, and bytes per number.
fn header(file: &mut Bytes<'_>) -> Result<([usize; 3], usize), TraceError> {
    if file.take(6, "an array")? != b"\x93NUMPY" {
        return Err(file.damaged(0, "a NumPy array", "something else", REMEDY));
    }
    let version = file.u16("the version")?;
    let length = match version & 0xFF {
        1 => usize::from(file.u16("the header's length")?),
        _ => file.u32("the header's length")? as usize,
    };
    let at = file.at;
    let text = String::from_utf8_lossy(file.take(length, "the header")?).into_owned();
    let after = |key: &str| text.split_once(key).map(|(_, rest)| rest.trim_start_matches([' ', ':', '\'']));
    let kind = after("'descr'").and_then(|rest| rest.split('\'').next()).unwrap_or("");
    let width = match kind {
        "|u1" => 1,
        "<u2" | "<i2" => 2,
        "<u4" | "<i4" => 4,
        "<u8" | "<i8" => 8,
        _ => return Err(file.damaged(at, "little-endian integers", format!("{kind:?}"), REMEDY)),
    };
    let shape =
        after("'shape'").and_then(|rest| rest.strip_prefix('(')).and_then(|rest| rest.split(')').next());
    let numbers = shape.unwrap_or("").split(',').map(str::trim).filter(|part| !part.is_empty());
    let numbers: Result<Vec<usize>, _> = numbers.map(str::parse).collect();
    let shape = numbers.ok().and_then(|numbers| <[usize; 3]>::try_from(numbers).ok());
    let in_order = after("'fortran_order'").is_some_and(|rest| rest.starts_with("False"));
    match shape.filter(|_| in_order) {
        Some(shape) => Ok((shape, width)),
        None => {
            Err(file.damaged(at, "an array of three dimensions in C order", text.trim().to_owned(), REMEDY))
        }
    }
}

/// CRC-32 as ZIP has it (ISO 3309, reflected).
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
    let table: Vec<u32> = (0..256).map(|byte| (0..8).fold(byte, |crc, _| step(crc))).collect();
    let next = |crc: u32, byte: &u8| table[((crc ^ u32::from(*byte)) & 0xFF) as usize] ^ crc >> 8;
    !bytes.iter().fold(u32::MAX, next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_of_the_check_string() {
        // The check value of the CRC catalogues.
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
    }
}
