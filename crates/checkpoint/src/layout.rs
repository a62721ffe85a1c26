//! Checks on where tensors lie that both formats share.

use std::collections::HashMap;
use std::path::Path;

use calypte_quant::DType;

use crate::catalog::Tensor;
use crate::error::OpenError;

/// Bytes of a tensor, or `None` when its rows are no whole number of blocks or the size overflows.
pub(crate) fn byte_len(dtype: DType, shape: &[usize]) -> Option<u64> {
    let (cols, outer) = match shape.split_last() {
        Some((cols, outer)) => (*cols, outer),
        None => (1, &[][..]),
    };
    let row = u64::try_from(dtype.row_bytes(cols)?).ok()?;
    outer.iter().try_fold(row, |bytes, &d| bytes.checked_mul(u64::try_from(d).ok()?))
}

/// Number of values, or `None` when it is zero or overflows.
pub(crate) fn value_count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).filter(|&n| n > 0)
}

/// Checks that all data lies inside the file, that no two tensors overlap and that no name occurs twice. All tensors
/// are of the file `path`, whose size is `size_bytes`.
///
/// # Errors
/// [`OpenError::Truncated`], [`OpenError::Overlap`] and [`OpenError::Duplicate`].
pub(crate) fn check_extents(path: &Path, tensors: &[Tensor], size_bytes: u64) -> Result<(), OpenError> {
    let mut seen = HashMap::with_capacity(tensors.len());
    for t in tensors {
        if let Some(first) = seen.insert(t.name.as_str(), t.extent.offset) {
            return Err(OpenError::Duplicate {
                path: path.to_owned(),
                what: "tensor",
                name: t.name.clone(),
                place: format!("in the same file (data at bytes {first} and {})", t.extent.offset),
            });
        }
        if t.extent.offset.checked_add(t.extent.len).is_none_or(|end| end > size_bytes) {
            return Err(OpenError::Truncated {
                path: path.to_owned(),
                tensor: t.name.clone(),
                offset: t.extent.offset,
                len: t.extent.len,
                size_bytes,
            });
        }
    }
    let mut by_offset: Vec<&Tensor> = tensors.iter().collect();
    by_offset.sort_by_key(|t| (t.extent.offset, t.extent.len));
    for pair in by_offset.windows(2) {
        if let [a, b] = pair
            && a.extent.offset + a.extent.len > b.extent.offset
        {
            return Err(OpenError::Overlap {
                path: path.to_owned(),
                first: a.name.clone(),
                second: b.name.clone(),
                offset: b.extent.offset,
            });
        }
    }
    Ok(())
}
