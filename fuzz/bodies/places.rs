//! What holds for the tensors of every header that is accepted.

use std::collections::HashSet;

use calypte_disk::Extent;

/// What a file may have after its header without anybody reading it: room for the tensors of most headers.
pub const HOLE_BYTES: u64 = 1 << 34;

/// Names differ, and extents lie inside the file and apart from each other.
pub fn check_places(places: &[(String, Extent)], size_bytes: u64) {
    let names: HashSet<&str> = places.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names.len(), places.len(), "a name twice");
    let mut extents: Vec<(u64, u64)> = places.iter().map(|(_, e)| (e.offset, e.len)).collect();
    extents.sort_unstable();
    let mut free = 0;
    for (offset, len) in extents {
        assert!(offset >= free, "tensors overlap at byte {offset}");
        free = offset.checked_add(len).expect("an extent beyond all numbers");
        assert!(free <= size_bytes, "a tensor ends at byte {free} of {size_bytes}");
    }
}
