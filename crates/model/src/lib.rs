//! Transformer models composed from a catalogue.
//!
//! What lives here: the blocks (attention kinds, the DSA indexer, the short convolution, gates, the mixture, MLPs), each in one
//! file, how stored weights become what the arithmetic reads (`arrange`), how a predictor is asked while the model runs
//! (`lookahead`), and
//! [`Model`], which strings them together as the catalogue's [`Arch`](calypte_checkpoint::Arch) describes. There is no
//! code per family here: a family is a description, filled in by `checkpoint`.
//!
//! What must never live here: decisions about what is cached (experts come through
//! [`ExpertCache`](calypte_residency::ExpertCache)), sampling, sessions, text, file formats.

mod arrange;
mod compute;
mod dsa;
mod error;
mod experts;
mod gate;
mod gqa;
mod kv;
mod lookahead;
mod mla;
mod mlp;
mod model;
mod moe;
mod observer;
mod rotation;
mod scratch;
mod short_conv;
mod weights;

pub use arrange::ArrangeExperts;
pub use compute::Compute;
pub use error::ModelError;
pub use kv::Kv;
pub use lookahead::Lookahead;
pub use model::{LOGIT_ROWS_MAX, Model, Workspace, working_bytes};
pub use observer::Observer;
pub use weights::{Loading, NoProgress, resident_bytes, resident_extents};
