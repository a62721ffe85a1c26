//! Ways in for the fuzz targets of `fuzz/`: headers from memory. Nobody else should use them, and they may change at any
//! time.

use std::path::{Path, PathBuf};

use calypte_disk::{Extent, FileId};

use crate::catalog::{Catalog, TokenizerSource, WeightFile};
use crate::error::OpenError;
use crate::hf_config::HfConfig;
use crate::layout::check_extents;
use crate::stored::Stored;
use crate::{census, gguf, gguf_catalog, hf, safetensors};

/// The path that every error must name.
pub const PATH: &str = "fuzzed/model";

fn places(tensors: &[Stored]) -> Vec<(String, Extent)> {
    tensors.iter().map(|t| (t.name.clone(), t.extent)).collect()
}

/// Where the tensors of a safetensors file of `size_bytes` bytes are that starts with `bytes`.
pub fn safetensors_header(bytes: &[u8], size_bytes: u64) -> Result<Vec<(String, Extent)>, OpenError> {
    let tensors = safetensors::read_from(Path::new(PATH), bytes, size_bytes, FileId(0))?;
    check_extents(Path::new(PATH), &tensors, size_bytes)?;
    Ok(places(&tensors))
}

/// Where the tensors of a GGUF file of `size_bytes` bytes are that starts with `bytes`, and what model it is.
#[allow(clippy::type_complexity, reason = "two results, one after the other")]
pub fn gguf_header(
    bytes: &[u8],
    size_bytes: u64,
) -> Result<(Vec<(String, Extent)>, Result<Catalog, OpenError>), OpenError> {
    let path = PathBuf::from(PATH);
    let gguf = gguf::read_from(&path, bytes, size_bytes, FileId(0))?;
    check_extents(&path, &gguf.tensors, size_bytes)?;
    let places = places(&gguf.tensors);
    let files = vec![WeightFile { path: path.clone(), size_bytes }];
    Ok((places, gguf_catalog::describe(&path, files, gguf)))
}

/// The tokenizer of a GGUF file that starts with `bytes`.
pub fn gguf_tokenizer(bytes: &[u8]) -> Result<TokenizerSource, OpenError> {
    let size_bytes = bytes.len() as u64;
    gguf_catalog::tokenizer(&gguf::read_from(Path::new(PATH), bytes, size_bytes, FileId(0))?)
}

/// The family that `config.json` describes, after every shape that it asks for was worked out.
pub fn config(bytes: &[u8]) -> Result<&'static str, OpenError> {
    let config = HfConfig::from_bytes(Path::new(PATH), bytes)?;
    let (family, mut arch) = hf::describe(&config, None)?;
    let tied = config.bool_opt("tie_word_embeddings")?;
    census::take(Path::new(PATH), &mut arch, &family.hf_names, Vec::new(), tied)?;
    Ok(family.model_type)
}
