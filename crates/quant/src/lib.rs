//! Block formats of model weights.
//!
//! What lives here: what a [`DType`] is, how many bytes a row of it takes, how its blocks unpack to f32, how
//! activations are rounded to int8 ([`q8`]), and the *scalar reference dot product* of every format ([`mod@reference`])
//! that each fast kernel must equal bit for bit; and how weights that checkpoints store in other layouts become rows of these
//! types ([`arrange`]).
//!
//! What must never live here: threads, SIMD, files.

pub mod arrange;
mod dtype;
pub mod formats;
pub mod q8;
pub mod reference;

pub use dtype::{DType, Matrix};
pub use formats::{pack_float, unpack_row};
