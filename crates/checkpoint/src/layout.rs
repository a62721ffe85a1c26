//! Checks on where tensors lie that both formats share.

use std::collections::HashMap;
use std::path::Path;

use crate::error::{OpenError, quote};
use crate::stored::Stored;

/// What a file begins with that was checked out of Git without Git LFS.
pub(crate) const LFS_POINTER: &[u8; 8] = b"version ";

/// Number of values, or `None` when it is zero or overflows.
pub(crate) fn value_count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).filter(|&n| n > 0)
}

/// Checks that all data lies inside the file, that no two tensors overlap and that no name occurs twice. All tensors
/// are of the file `path`, whose size is `size_bytes`.
///
/// # Errors
/// [`OpenError::Truncated`], [`OpenError::Overlap`] and [`OpenError::Duplicate`].
pub(crate) fn check_extents(path: &Path, tensors: &[Stored], size_bytes: u64) -> Result<(), OpenError> {
    let mut seen = HashMap::with_capacity(tensors.len());
    for t in tensors {
        if let Some(first) = seen.insert(t.name.as_str(), t.extent.offset) {
            return Err(OpenError::Duplicate {
                path: path.to_owned(),
                what: "tensor",
                name: quote(&t.name),
                place: format!("in the same file (data at bytes {first} and {})", t.extent.offset),
            });
        }
        if t.extent.offset.checked_add(t.extent.len).is_none_or(|end| end > size_bytes) {
            return Err(OpenError::Truncated {
                path: path.to_owned(),
                tensor: quote(&t.name),
                offset: t.extent.offset,
                len: t.extent.len,
                size_bytes,
            });
        }
    }
    let mut by_offset: Vec<&Stored> = tensors.iter().collect();
    by_offset.sort_by_key(|t| (t.extent.offset, t.extent.len));
    for pair in by_offset.windows(2) {
        if let [a, b] = pair
            && a.extent.offset + a.extent.len > b.extent.offset
        {
            return Err(OpenError::Overlap {
                path: path.to_owned(),
                first: quote(&a.name),
                second: quote(&b.name),
                offset: b.extent.offset,
            });
        }
    }
    Ok(())
}
