//! Products of float weights: four rows of weights and four of activations at a time, sixteen sums of sixteen lanes, where the
//! registers hold them.

use std::ops::Range;

use calypte_quant::Matrix;
use calypte_quant::formats::FloatFormat;
use calypte_quant::reference::{LANES, reduce};

use super::{Out, TILE};
use crate::Activations;
use crate::wide::{Wide, for_each_wide};

for_each_wide! {
    /// Output columns `rows` for all rows of `x`; `out` as [`super::rows_into`] has it.
    pub(super) fn float_rows[F: FloatFormat](w: &Matrix<'_>, rows: Range<usize>, x: &Activations, out: Out) = float_rows_body
}

/// # Safety
/// The processor must have the instructions of `W`; `out` as in [`super::rows_into`].
#[inline(always)]
unsafe fn float_rows_body<W: Wide, F: FloatFormat>(
    w: &Matrix<'_>,
    rows: Range<usize>,
    x: &Activations,
    out: Out,
) {
    let mut x_row = 0;
    while x_row < x.rows() {
        let x_rows = if x.rows() - x_row >= TILE { TILE } else { 1 };
        let mut row = rows.start;
        while row < rows.end {
            let together = if W::ACCUMULATORS >= LANES && rows.end - row >= TILE { TILE } else { 1 };
            // SAFETY: as many rows are left; the rest is promised by the caller.
            unsafe {
                match (together, x_rows) {
                    (TILE, TILE) => float_tile::<W, F, TILE, TILE>(w, row, x, x_row, out),
                    (TILE, _) => float_tile::<W, F, TILE, 1>(w, row, x, x_row, out),
                    (_, TILE) => float_tile::<W, F, 1, TILE>(w, row, x, x_row, out),
                    _ => float_tile::<W, F, 1, 1>(w, row, x, x_row, out),
                }
            }
            row += together;
        }
        x_row += x_rows;
    }
}

/// Dot products of R rows of weights from `row` on with N rows of activations from `x_row` on. Sums are vectors of the tier: arrays
/// the compiler would keep in memory once it has seen the tree that they are added up in.
///
/// # Safety
/// As [`float_rows_body`]; the rows must be there.
#[inline(always)]
unsafe fn float_tile<W: Wide, F: FloatFormat, const R: usize, const N: usize>(
    w: &Matrix<'_>,
    row: usize,
    x: &Activations,
    x_row: usize,
    out: Out,
) {
    const { assert!(R * N <= LANES) };
    let (cols, whole) = (x.cols(), x.cols() / LANES * LANES);
    let weights: [&[u8]; R] = std::array::from_fn(|r| w.row(row + r));
    let values: [&[f32]; N] = std::array::from_fn(|n| x.row(x_row + n));
    // SAFETY: vectors are read inside the rows; the rest is promised by the caller.
    unsafe {
        // Sum of row r and activation row n at N · r + n.
        let mut sums = [W::splat(0.0); LANES];
        for at in (0..whole).step_by(LANES) {
            let mut of_weights = [W::splat(0.0); R];
            for r in 0..R {
                of_weights[r] = W::load(F::lanes(weights[r], at / LANES).as_ptr());
            }
            for n in 0..N {
                let value = W::load(values[n].as_ptr().add(at));
                for r in 0..R {
                    sums[N * r + n] = sums[N * r + n].add(of_weights[r].mul(value));
                }
            }
        }
        let mut results = [0f32; LANES];
        if whole == cols && R * N == LANES {
            W::reduce(&sums).store(results.as_mut_ptr());
        } else {
            for i in 0..R * N {
                let mut lanes = [0f32; LANES];
                sums[i].store(lanes.as_mut_ptr());
                for at in whole..cols {
                    lanes[at % LANES] += F::value(weights[i / N], at) * values[i % N][at];
                }
                results[i] = reduce(lanes);
            }
        }
        for i in 0..R * N {
            out.put(x_row + i % N, row + i / N, results[i]);
        }
    }
}
