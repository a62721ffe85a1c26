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
mod experts;
mod families;
mod fingerprint;
mod gguf;
mod gguf_catalog;
mod gguf_config;
mod gguf_value;
mod hf;
mod hf_config;
mod json;
mod judge;
mod layout;
mod limits;
mod open;
mod parameters;
mod safetensors;
mod token_ids;
mod validate;
mod wanted;

pub use arch::Arch;
pub use catalog::*;
pub use error::OpenError;
pub use families::{FamilyNames, supported_families};
pub use gguf_catalog::gguf_tokenizer;
pub use open::open;
pub use parameters::Parameters;
