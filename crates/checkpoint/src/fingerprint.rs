//! What tells one checkpoint from another without reading its weights.

use calypte_disk::Extent;
use sha2::{Digest, Sha256};

use crate::catalog::Tensor;

/// SHA-256 over name, type, shape and extent of all tensors in the order of their names. Strings are preceded by
/// their length, so that no two lists give the same bytes.
pub(crate) fn of(tensors: &[Tensor]) -> [u8; 32] {
    let mut sorted: Vec<&Tensor> = tensors.iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    let mut hash = Sha256::new();
    for t in sorted {
        put_text(&mut hash, &t.name);
        put_text(&mut hash, t.dtype.name());
        put_number(&mut hash, t.shape.len() as u64);
        for &d in &t.shape {
            put_number(&mut hash, d as u64);
        }
        let Extent { file, offset, len } = t.extent;
        for n in [file.0.into(), offset, len] {
            put_number(&mut hash, n);
        }
    }
    hash.finalize().into()
}

fn put_number(hash: &mut Sha256, n: u64) {
    hash.update(n.to_le_bytes());
}

fn put_text(hash: &mut Sha256, text: &str) {
    put_number(hash, text.len() as u64);
    hash.update(text.as_bytes());
}
