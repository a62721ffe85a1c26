//! The header of a safetensors file.

use calypte_checkpoint::fuzzing::{PATH, safetensors_header};

use super::places::{HOLE_BYTES, check_places};

/// Whatever the bytes are: no panic, an error that names the file, or tensors that lie apart inside the file.
pub fn run(data: &[u8]) {
    let len = data.len() as u64;
    for size_bytes in [len, len + HOLE_BYTES] {
        match safetensors_header(data, size_bytes) {
            Ok(places) => check_places(&places, size_bytes),
            Err(error) => assert!(error.to_string().contains(PATH), "no path in: {error}"),
        }
    }
}
