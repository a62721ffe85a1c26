//! The arithmetic, and the threads it runs on.
//!
//! What lives here: the compute [`Team`], run-time choice of an instruction set ([`Isa`]), matrix products of every
//! weight format ([`matmul()`]), norms, rotations, exponentials and attention over a key cache.
//!
//! Every function gives the same bits on every instruction set, for any number of threads and any number of rows at
//! once. That works because each output element is one fixed sequence of roundings (see
//! [`calypte_quant::reference`]); threads and vector lanes only ever split *between* elements or between the fixed
//! accumulators of one.
//!
//! What must never live here: reading of files, knowledge of any model.

pub mod activations;
pub mod attention;
mod fetch;
mod isa;
#[cfg(any(
    target_arch = "x86_64",
    target_arch = "aarch64",
    all(target_arch = "wasm32", target_feature = "simd128")
))]
mod lanes;
pub mod math;
pub mod matmul;
pub mod ops;
pub mod scratch;
mod sync;
mod team;
mod wide;

pub use activations::{Activations, Precision};
pub use isa::{Isa, UnknownIsa};
pub use matmul::matmul;
pub use team::Team;
