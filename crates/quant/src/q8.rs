//! Activations rounded to int8: once per layer input, shared by every integer matrix that reads it.
//!
//! One activation format serves all weight formats: blocks of 32 with an f32 scale, and beside it the scaled sum of
//! the block, which is all that the minimum of a weight block needs to know.

use crate::formats::BLOCK;

/// Adding this, 1.5·2²³, leaves the nearest integer, ties to even, in the last bits for |v| < 2²²; unlike a rounding
/// instruction it exists on every target and vectorises.
pub const ROUND: f32 = 12_582_912.0;

/// Where a rounded row goes, see [`crate::reference::Q8Row`].
pub struct Q8RowMut<'a> {
    /// The integers.
    pub q: &'a mut [i8],
    /// One scale per 32.
    pub scale: &'a mut [f32],
    /// One scaled sum per 32.
    pub sum: &'a mut [f32],
    /// The sum of each 32 integers.
    pub total: &'a mut [i32],
    /// The sums of the first and the second sixteen of each 32 integers.
    pub halves: &'a mut [[i32; 2]],
}

/// Rounds one row. `x.len()` must be a multiple of 32; `q` has the same length, everything else one entry a block.
///
/// `scale = max|x| / 127`, `q = round(x / scale)` (ties to even), `total = Σq`, `sum = scale · total`. A NaN or infinity
/// anywhere in a block makes its scale, and so everything computed from it, not finite: it must not disappear by rounding.
#[inline(always)]
pub fn quantize_row(x: &[f32], out: &mut Q8RowMut<'_>) {
    /// Blocks whose scales are worked out side by side: divisions take long, but many at once no longer than one.
    const TOGETHER: usize = 16;
    let blocks = x.len() / BLOCK;
    for first in (0..blocks).step_by(TOGETHER) {
        let count = (blocks - first).min(TOGETHER);
        let mut magnitude = [0u32; TOGETHER];
        for b in 0..count {
            let x: &[f32; BLOCK] =
                x[(first + b) * BLOCK..(first + b + 1) * BLOCK].try_into().expect("a whole block");
            // As integers, magnitudes order the same, and NaNs come out on top instead of being ignored.
            let mut max = 0u32;
            for v in x {
                max = max.max(v.to_bits() & 0x7fff_ffff);
            }
            magnitude[b] = max;
        }
        let (mut scale, mut inverse) = ([0f32; TOGETHER], [0f32; TOGETHER]);
        for b in 0..TOGETHER {
            scale[b] = f32::from_bits(magnitude[b]) / 127.0;
        }
        for b in 0..TOGETHER {
            inverse[b] = if scale[b] > 0.0 { 1.0 / scale[b] } else { 0.0 };
        }
        for b in 0..count {
            let at = (first + b) * BLOCK..(first + b + 1) * BLOCK;
            let (x, q): (&[f32; BLOCK], &mut [i8; BLOCK]) = (
                x[at.clone()].try_into().expect("a whole block"),
                (&mut out.q[at]).try_into().expect("a whole block"),
            );
            let halves = round_block(x, inverse[b], q);
            let total = halves[0] + halves[1];
            out.scale[first + b] = scale[b];
            out.sum[first + b] = scale[b] * total as f32;
            out.total[first + b] = total;
            out.halves[first + b] = halves;
        }
    }
}

/// `q = round(x · inverse)`; returns the sums of the two halves.
#[inline(always)]
fn round_block(x: &[f32; BLOCK], inverse: f32, q: &mut [i8; BLOCK]) -> [i32; 2] {
    let mut rounded = [0i32; BLOCK];
    for j in 0..BLOCK {
        let v = x[j] * inverse;
        // A subnormal scale can make the quotient overflow, and that of zero a NaN: saturate like any other rounding.
        let v = if v.is_nan() { 0.0 } else { v };
        let v = if v > 127.0 { 127.0 } else { v };
        let v = if v < -127.0 { -127.0 } else { v };
        rounded[j] = ((v + ROUND).to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    }
    for j in 0..BLOCK {
        q[j] = rounded[j] as i8;
    }
    let mut halves = [0i32; 2];
    for j in 0..BLOCK / 2 {
        halves[0] += rounded[j];
    }
    for j in BLOCK / 2..BLOCK {
        halves[1] += rounded[j];
    }
    halves
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantize(x: &[f32]) -> (Vec<i8>, Vec<f32>, Vec<f32>) {
        let (mut q, mut d, mut s) = (vec![0; x.len()], vec![0.0; x.len() / 32], vec![0.0; x.len() / 32]);
        let (mut total, mut halves) = (vec![0; d.len()], vec![[0; 2]; d.len()]);
        let mut out =
            Q8RowMut { q: &mut q, scale: &mut d, sum: &mut s, total: &mut total, halves: &mut halves };
        quantize_row(x, &mut out);
        assert!(total.iter().zip(&halves).all(|(t, h)| *t == h[0] + h[1]));
        (q, d, s)
    }

    #[test]
    fn rounds_to_the_nearest_and_keeps_the_sum() {
        let mut x = [0.0f32; 64];
        x[..4].copy_from_slice(&[127.0, 2.5, -3.5, 0.4]);
        let (q, d, s) = quantize(&x);
        assert_eq!(&q[..5], &[127, 2, -4, 0, 0]);
        assert_eq!((d[0], s[0], d[1], s[1]), (1.0, 125.0, 0.0, 0.0));
    }

    #[test]
    fn tiny_blocks_saturate() {
        // The scale is so small that its inverse is infinite.
        let mut x = [0.0f32; 32];
        x[..3].copy_from_slice(&[f32::from_bits(200), -f32::from_bits(1), 0.0]);
        let (q, d, _) = quantize(&x);
        assert!(d[0] > 0.0 && (1.0 / d[0]).is_infinite());
        assert_eq!(&q[..4], &[127, -127, 0, 0]);
    }

    #[test]
    fn what_is_not_finite_stays_visible() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.0f32; 32];
            x[7] = bad;
            assert!(!quantize(&x).1[0].is_finite(), "{bad} was rounded away");
        }
    }
}
