//! What every block computes with.

use calypte_kernels::{Precision, Team};

/// The threads and the precision of a computation.
pub struct Compute<'a> {
    /// The compute team. Its jobs never nest: a block that runs one must not be inside another.
    pub team: &'a Team,
    /// What integer weights are multiplied with.
    pub precision: Precision,
}
