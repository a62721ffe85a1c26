//! The header of a GGUF file, and the model that it describes.

use calypte_checkpoint::Catalog;
use calypte_checkpoint::fuzzing::{PATH, gguf_header};

use super::places::{HOLE_BYTES, check_places};

/// Whatever the bytes are: no panic, an error that names the file, or tensors that lie apart inside the file; and a model
/// reads from the file only.
pub fn run(data: &[u8]) {
    let len = data.len() as u64;
    for size_bytes in [len, len + HOLE_BYTES] {
        match gguf_header(data, size_bytes) {
            Ok((places, catalog)) => {
                check_places(&places, size_bytes);
                match catalog {
                    Ok(catalog) => check_catalog(&catalog, size_bytes),
                    Err(error) => assert!(error.to_string().contains(PATH), "no path in: {error}"),
                }
            }
            Err(error) => assert!(error.to_string().contains(PATH), "no path in: {error}"),
        }
    }
}

fn check_catalog(catalog: &Catalog, size_bytes: u64) {
    let experts = catalog.experts.iter().flat_map(|l| l.extents.iter().flatten());
    for extent in catalog.tensors.values().map(|t| &t.extent).chain(experts) {
        assert!(extent.offset + extent.len <= size_bytes, "{extent:?} of {size_bytes}");
        assert_eq!(extent.file.0, 0);
    }
    let parameters = catalog.parameters();
    assert!(parameters.resident_bytes <= size_bytes && parameters.expert_bytes_total <= size_bytes);
    assert!(parameters.active <= parameters.total);
}
