//! The façade: what a program that wants a model to answer talks to.
//!
//! What lives here: [`Engine`] (a loaded model with its expert cache), [`Session`] (one timeline: keys, values, what was
//! said), generation as a stream of [`Event`]s, teacher-forced [`Scoring`](score::Scoring), the memory [`budget`] and
//! the [`plan`].
//!
//! What must never live here: HTTP types, terminal output, tensor arithmetic.

pub mod budget;
mod cores;
mod disk;
mod engine;
mod error;
mod generate;
mod learning;
pub mod memory;
mod options;
pub mod plan;
mod pressure;
mod recorded;
pub mod sampler;
pub mod score;
mod session;
pub mod size;
mod stopwatch;
mod streaming;
mod usage;

pub use calypte_checkpoint as checkpoint;
pub use calypte_disk::{DiskOptions, IoMode};
pub use calypte_kernels::attention::KvType;
pub use calypte_kernels::{Isa, Precision, UnknownIsa};
pub use calypte_model::Observer;
pub use calypte_residency::predict::Guess;
pub use calypte_residency::{CacheStats, Evict, LayerSize, timeline};
pub use calypte_text as text;

pub use engine::{Engine, Opening};
pub use error::{EngineError, ErrorKind};
pub use generate::{Event, Generation, Outcome, Stats, Stop};
pub use options::Options;
pub use session::Session;
pub use size::{Size, UnknownSize};
pub use streaming::{Policy, Predictor};
