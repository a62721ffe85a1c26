//! What every block computes with.

use calypte_kernels::{Precision, Team, ops};
use calypte_residency::timeline::{Begun, Lane, Recording};

/// The threads and the precision of a computation, and who wants to know how long it takes.
pub struct Compute<'a> {
    /// The compute team. Its jobs never nest: a block that runs one must not be inside another.
    pub team: &'a Team,
    /// What integer weights are multiplied with.
    pub precision: Precision,
    /// Where spans of it go.
    pub recording: Recording<'a>,
}

/// Below this many values one thread is faster than two hand over.
const PARALLEL_VALUES_MIN: usize = 1 << 15;
/// Tasks per thread: enough that a thread which was held up does not hold up the rest.
const TASKS_PER_THREAD: usize = 4;

impl Compute<'_> {
    /// What began with [`Recording::begin`] was this, in layer `layer`.
    pub(crate) fn computed(&self, begun: Begun, name: &'static str, layer: usize) {
        self.recording.end(begun, Lane::Compute, name, &["layer"], [layer as u64]);
    }

    /// Runs `task(row, its values)` for every row of `width` values, on several threads if there are many. What a row becomes
    /// must not depend on the others.
    pub(crate) fn rows(&self, values: &mut [f32], width: usize, task: impl Fn(usize, &mut [f32]) + Sync) {
        let rows = values.len() / width.max(1);
        let tasks =
            if values.len() < PARALLEL_VALUES_MIN { 1 } else { self.team.threads() * TASKS_PER_THREAD };
        let together = rows.div_ceil(tasks).max(1);
        self.team.run_pieces(values, together * width, |piece, values| {
            for (i, row) in values.chunks_exact_mut(width).enumerate() {
                task(piece * together + i, row);
            }
        });
    }

    /// Root-mean-square norms of all rows of `x`, which are as wide as the weights.
    pub(crate) fn rms_norm(&self, x: &[f32], weights: &[f32], eps: f32, out: &mut [f32]) {
        let width = weights.len();
        self.rows(out, width, |row, out| {
            ops::rms_norm(&x[row * width..(row + 1) * width], weights, eps, out);
        });
    }
}
