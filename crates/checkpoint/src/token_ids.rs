//! Checks on the ids that begin and end a text.

use std::path::Path;

use crate::arch::Arch;
use crate::error::OpenError;

/// An id outside the vocabulary would be looked up past the end of the embedding.
pub(crate) fn check(path: &Path, arch: &Arch) -> Result<(), OpenError> {
    let outside = |id: &&u32| usize::try_from(**id).is_ok_and(|id| id >= arch.vocab);
    match arch.bos.iter().chain(&arch.eos).find(outside) {
        None => Ok(()),
        Some(id) => Err(OpenError::Config {
            path: path.to_owned(),
            key: "beginning or end token id".to_owned(),
            expected: format!("an id below the vocabulary size, {}", arch.vocab),
            found: id.to_string(),
        }),
    }
}
