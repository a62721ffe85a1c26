//! Foreign model files as one [`Catalog`].
//!
//! What lives here: reading the headers of GGUF files and safetensors directories, the typed description of a model
//! ([`Arch`]), the role of every tensor, and for every tensor and expert the exact extent of its bytes.
//! The way in is [`open`]; a new family is one file under `families/`.
//!
//! What must never live here: weights in memory, a family's mathematics.

pub mod arch;
mod catalog;
mod census;
mod error;
mod expert_layer;
mod experts;
mod families;
mod fingerprint;
#[doc(hidden)]
pub mod fuzzing;
mod gguf;
mod gguf_catalog;
mod gguf_config;
mod gguf_reader;
mod gguf_split;
mod gguf_value;
mod headers;
mod hf;
mod hf_config;
mod json;
mod judge;
mod layout;
mod limits;
mod open;
mod packed;
mod parameters;
mod safetensors;
mod stored;
mod token_ids;
mod validate;
mod wanted;

pub use arch::Arch;
pub use catalog::*;
pub use error::{MissingShard, OpenError};
pub use expert_layer::{ExpertLayer, ExpertMatrix, Source};
pub use families::{FamilyNames, supported_families};
pub use gguf_catalog::gguf_tokenizer;
pub use headers::{HeaderTensor, Headers, headers};
pub use open::{open, open_files};
pub use parameters::Parameters;
