//! Angles of the rotary position embeddings for the rows of one step.

use std::f64::consts::TAU;

use calypte_checkpoint::arch::{Rope, RopeLayout, RopeScaling};
use calypte_kernels::ops;

/// What is needed to rotate by one rotary embedding, whatever the position.
pub(crate) struct RopeTable {
    /// The wavelengths' inverses, as f32: that is the precision in which checkpoints were trained.
    inverse_frequencies: Vec<f32>,
    /// Cosines and sines are multiplied by this.
    magnitude: f32,
    layout: RopeLayout,
}

impl RopeTable {
    /// `stored`: the factors of [`RopeScaling::Stored`].
    pub fn new(rope: &Rope, stored: Option<&[f32]>) -> RopeTable {
        let inverse = |i: usize| 1.0 / libm::pow(rope.theta, 2.0 * i as f64 / rope.dims as f64);
        let scaled = (0..rope.dims / 2).map(|i| scale_frequency(rope, i, inverse(i), stored) as f32);
        let magnitude = match rope.scaling {
            RopeScaling::Yarn { attention_factor, .. } => attention_factor,
            _ => 1.0,
        };
        RopeTable { inverse_frequencies: scaled.collect(), magnitude, layout: rope.layout }
    }
}

/// The inverse wavelength of pair `pair` after scaling.
fn scale_frequency(rope: &Rope, pair: usize, inverse: f64, stored: Option<&[f32]>) -> f64 {
    match rope.scaling {
        RopeScaling::None => inverse,
        RopeScaling::Linear { factor } => inverse / factor,
        RopeScaling::Llama3 { factor, low, high, original_context } => {
            let rotations = original_context * inverse / TAU;
            // 0: stretched in full, 1: as it was.
            let kept = ((rotations - low) / (high - low)).clamp(0.0, 1.0);
            (1.0 - kept) * inverse / factor + kept * inverse
        }
        RopeScaling::Yarn { factor, beta_fast, beta_slow, original_context, truncate, .. } => {
            // The pair that makes so many rotations within the original context.
            let pair_of = |rotations: f64| {
                rope.dims as f64 * libm::log(original_context / (rotations * TAU))
                    / (2.0 * libm::log(rope.theta))
            };
            let (mut first, mut last) = (pair_of(beta_fast), pair_of(beta_slow));
            if truncate {
                (first, last) = (first.floor(), last.ceil());
            }
            (first, last) = (first.max(0.0), last.min(rope.dims as f64 - 1.0));
            if first == last {
                last += 0.001; // so that the ramp has a slope
            }
            let stretched = ((pair as f64 - first) / (last - first)).clamp(0.0, 1.0);
            inverse / factor * stretched + inverse * (1.0 - stretched)
        }
        RopeScaling::Stored => {
            let factor = stored.and_then(|s| s.get(pair)).map_or(1.0, |f| *f as f64);
            inverse / factor
        }
    }
}

/// Cosines and sines of one rotary embedding for consecutive positions.
#[derive(Default)]
pub(crate) struct Rotation {
    half: usize,
    layout: Option<RopeLayout>,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Rotation {
    /// Fills in positions `first .. first + rows`.
    ///
    /// The angle is rounded to f32, as the reference implementations do; its sine and cosine are then exact to the last
    /// place, from a portable implementation, so they are the same everywhere.
    pub fn set(&mut self, table: &RopeTable, first: usize, rows: usize) {
        self.half = table.inverse_frequencies.len();
        self.layout = Some(table.layout);
        self.cos.clear();
        self.sin.clear();
        for position in first..first + rows {
            for f in &table.inverse_frequencies {
                let angle = (position as f32 * f) as f64;
                self.cos.push(libm::cos(angle) as f32 * table.magnitude);
                self.sin.push(libm::sin(angle) as f32 * table.magnitude);
            }
        }
    }

    /// Rotates the first values of `x`, as many as the embedding has, as part of row `row`.
    pub fn rotate(&self, row: usize, x: &mut [f32]) {
        let Some(layout) = self.layout else { return };
        self.rotate_as(layout, row, x);
    }

    /// [`Rotation::rotate`] with pairs of another kind.
    pub fn rotate_as(&self, layout: RopeLayout, row: usize, x: &mut [f32]) {
        let range = row * self.half..(row + 1) * self.half;
        let (cos, sin) = (&self.cos[range.clone()], &self.sin[range]);
        let x = &mut x[..2 * self.half];
        match layout {
            RopeLayout::HalfSplit => ops::rope_half_split(x, cos, sin),
            RopeLayout::Interleaved => ops::rope_interleaved(x, cos, sin),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(scaling: RopeScaling, stored: Option<&[f32]>, expected: [f64; 4]) {
        let rope = Rope { theta: 10_000.0, dims: 8, layout: RopeLayout::HalfSplit, scaling };
        let table = RopeTable::new(&rope, stored);
        for (got, want) in table.inverse_frequencies.iter().zip(expected) {
            assert!((*got as f64 - want).abs() < want * 1e-6, "{:?}: {got} is not {want}", rope.scaling);
        }
    }

    #[test]
    fn wavelengths_are_stretched_as_defined() {
        check(RopeScaling::None, None, [1.0, 0.1, 0.01, 0.001]);
        check(RopeScaling::Linear { factor: 4.0 }, None, [0.25, 0.025, 0.0025, 0.00025]);
        check(RopeScaling::Stored, Some(&[1.0, 2.0, 4.0, 8.0]), [1.0, 0.05, 0.0025, 0.000125]);
        // 100·0.1/τ = 1.59 rotations lie between 1 and 4: kept (1.59 − 1)/3; longer ones are stretched in full.
        let llama = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original_context: 100.0 };
        let kept = (10.0 / TAU - 1.0) / 3.0;
        check(llama, None, [1.0, 0.1 * kept + (1.0 - kept) * 0.1 / 8.0, 0.00125, 0.000125]);
        let yarn = |truncate| RopeScaling::Yarn {
            factor: 4.0,
            beta_fast: 8.0,
            beta_slow: 1.0,
            original_context: 512.0,
            truncate,
            attention_factor: 1.0,
        };
        // The pairs that make 8 and 1 rotations in 512 positions are 1.0075 and 1.9106.
        check(yarn(true), None, [1.0, 0.1, 0.0025, 0.00025]);
        let pair = |rotations: f64| 8.0 * (512.0 / (rotations * TAU)).ln() / (2.0 * 10_000f64.ln());
        assert!(pair(8.0) > 1.0 && pair(1.0) < 2.0);
        check(yarn(false), None, [1.0, 0.1, 0.0025, 0.00025]);
    }

    #[test]
    fn cosines_and_sines_carry_the_attention_factor() {
        let scaling = RopeScaling::Yarn {
            factor: 2.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original_context: 64.0,
            truncate: true,
            attention_factor: 1.5,
        };
        let rope = Rope { theta: 10_000.0, dims: 4, layout: RopeLayout::HalfSplit, scaling };
        let mut rotation = Rotation::default();
        rotation.set(&RopeTable::new(&rope, None), 0, 1);
        let mut x = [1.0, 2.0, 3.0, 4.0, 5.0];
        rotation.rotate(0, &mut x);
        assert_eq!(x, [1.5, 3.0, 4.5, 6.0, 5.0]);
    }
}
