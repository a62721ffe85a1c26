//! The canonical dot product of every format: the definition that each fast kernel must equal bit for bit.
//!
//! **Integer weights, int8 activations.** A sequence over blocks of 32: an exact integer sum, then *one* rounding to
//! f32, one multiplication by the product of the two scales, one addition; where the format has a minimum, one more
//! multiplication and subtraction. No fused multiply-add. Integer sums are exact in any order, so lanes, tiles and
//! threads cannot change the result; only this sequence rounds. With w the weights, a the activations and h the half of the
//! block that a value is in:
//!
//! ```text
//! acc += float(Σ_h halves[h] · Σ q_w·q_a) · (scale_w · scale_a)
//! acc −= min_w · sum_a                                             where there is one minimum a block
//! acc −= float(Σ_h min_halves[h] · Σ q_a) · (min_w · scale_a)      where each half has its own (Q2_K)
//! ```
//!
//! **Floats.** Sixteen accumulators: value i is multiplied and added (two roundings) into accumulator i mod 16; they
//! are then summed in a fixed tree. Sixteen lanes are one AVX-512 register, two AVX or four NEON/WASM ones.

pub use crate::formats::LANES;
use crate::formats::{BLOCK, FloatFormat, IntFormat};
use crate::{Matrix, with_float_format, with_int_format};

/// One activation row rounded by [`crate::q8::quantize_row`].
#[derive(Clone, Copy)]
pub struct Q8Row<'a> {
    /// The integers.
    pub q: &'a [i8],
    /// One scale per 32.
    pub scale: &'a [f32],
    /// One scaled sum per 32.
    pub sum: &'a [f32],
    /// The sum of each 32 integers.
    pub total: &'a [i32],
    /// The sums of the first and the second sixteen of each 32 integers.
    pub halves: &'a [[i32; 2]],
}

/// Sums sixteen accumulators in the fixed tree: halves are added onto each other until one is left.
#[inline(always)]
pub fn reduce(acc: [f32; LANES]) -> f32 {
    let mut a = acc;
    let mut n = LANES / 2;
    while n > 0 {
        for j in 0..n {
            a[j] += a[j + n];
        }
        n /= 2;
    }
    a[0]
}

/// Dot product of two f32 slices of equal length in the canonical order.
#[inline(always)]
pub fn dot_f32(a: &[f32], b: &[f32]) -> f32 {
    let n = a.len().min(b.len());
    let (a, b) = (&a[..n], &b[..n]);
    let mut acc = [0f32; LANES];
    let mut ca = a.chunks_exact(LANES);
    let mut cb = b.chunks_exact(LANES);
    for (x, y) in (&mut ca).zip(&mut cb) {
        for j in 0..LANES {
            acc[j] += x[j] * y[j];
        }
    }
    for (j, (x, y)) in ca.remainder().iter().zip(cb.remainder()).enumerate() {
        acc[j] += x * y;
    }
    reduce(acc)
}

fn dot_int<F: IntFormat>(row: &[u8], x: Q8Row<'_>) -> f32 {
    let mut acc = 0f32;
    for b in 0..x.scale.len() {
        let w = F::block(row, b);
        let mut halves = [0i32; 2];
        for j in 0..BLOCK {
            halves[j / 16] += w.q[j] as i32 * x.q[b * BLOCK + j] as i32;
        }
        let isum = halves[0] * w.halves[0] + halves[1] * w.halves[1];
        acc += isum as f32 * (w.scale * x.scale[b]);
        if F::HAS_MIN_HALVES {
            let mut sums = [0i32; 2];
            for j in 0..BLOCK {
                sums[j / 16] += x.q[b * BLOCK + j] as i32;
            }
            let isum = sums[0] * w.min_halves[0] + sums[1] * w.min_halves[1];
            acc -= isum as f32 * (w.min * x.scale[b]);
        } else if F::HAS_MIN {
            acc -= w.min * x.sum[b];
        }
    }
    acc
}

fn dot_float<F: FloatFormat>(row: &[u8], x: &[f32]) -> f32 {
    let mut acc = [0f32; LANES];
    for (i, x) in x.iter().enumerate() {
        acc[i % LANES] += F::value(row, i) * x;
    }
    reduce(acc)
}

fn dot_int_f32<F: IntFormat>(row: &[u8], x: &[f32]) -> f32 {
    let mut acc = [0f32; LANES];
    for (b, x) in x.chunks(BLOCK).enumerate() {
        let v = F::block(row, b).values();
        for (j, x) in x.iter().enumerate() {
            acc[j % LANES] += v[j] * x;
        }
    }
    reduce(acc)
}

/// Row `row` of an integer matrix times rounded activations.
pub fn dot_q8(w: &Matrix<'_>, row: usize, x: Q8Row<'_>) -> f32 {
    with_int_format!(w.dtype, dot_int(w.row(row), x))
}

/// Row `row` of any matrix times f32 activations.
pub fn dot(w: &Matrix<'_>, row: usize, x: &[f32]) -> f32 {
    if w.dtype.is_integer() {
        with_int_format!(w.dtype, dot_int_f32(w.row(row), x))
    } else {
        with_float_format!(w.dtype, dot_float(w.row(row), x))
    }
}
