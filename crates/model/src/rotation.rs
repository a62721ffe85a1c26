//! Angles of the rotary position embedding for the rows of one step.

use calypte_checkpoint::arch::{Rope, RopeLayout};
use calypte_kernels::ops;

/// Cosines and sines for consecutive positions.
#[derive(Default)]
pub(crate) struct Rotation {
    half: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

/// The wavelengths' inverses, `theta^(−2i/dims)`, as f32: that is the precision in which checkpoints were trained.
pub(crate) fn inverse_frequencies(rope: &Rope) -> Vec<f32> {
    (0..rope.dims / 2)
        .map(|i| (1.0 / libm::pow(rope.theta, 2.0 * i as f64 / rope.dims as f64)) as f32)
        .collect()
}

impl Rotation {
    /// Fills in positions `first .. first + rows`.
    ///
    /// The angle is rounded to f32, as the reference implementations do; its sine and cosine are then exact to the last
    /// place, from a portable implementation, so they are the same everywhere.
    pub fn set(&mut self, inverse_frequencies: &[f32], first: usize, rows: usize) {
        self.half = inverse_frequencies.len();
        self.cos.clear();
        self.sin.clear();
        for position in first..first + rows {
            for f in inverse_frequencies {
                let angle = (position as f32 * f) as f64;
                self.cos.push(libm::cos(angle) as f32);
                self.sin.push(libm::sin(angle) as f32);
            }
        }
    }

    /// Rotates `x` (exactly the rotated values) of row `row`.
    pub fn rotate(&self, layout: RopeLayout, row: usize, x: &mut [f32]) {
        let range = row * self.half..(row + 1) * self.half;
        let (cos, sin) = (&self.cos[range.clone()], &self.sin[range]);
        match layout {
            RopeLayout::HalfSplit => ops::rope_half_split(x, cos, sin),
            RopeLayout::Interleaved => ops::rope_interleaved(x, cos, sin),
        }
    }
}
