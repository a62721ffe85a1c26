//! Few rows of activations: weights pass through once and are multiplied as they are unpacked.

use calypte_quant::Matrix;
use calypte_quant::formats::BLOCK;

use super::rows::{Part, RowsAhead};
use super::{Factors, QUADS, Rows, Shape, Simd, Sink, Tile, Unpack, add_block, dot, parts};
use crate::Activations;
use crate::matmul::{Out, Share};

/// # Safety
/// As [`super::int_rows`]; `x` must have one to four rows.
#[inline(always)]
pub(super) unsafe fn int_rows<V: Simd, F: Unpack>(
    w: &Matrix<'_>,
    share: Share<'_>,
    x: &Activations,
    out: Out,
) {
    let mut parts = parts(w.rows, V::LANES, share.rows).peekable();
    while let Some(part) = parts.next() {
        let then = if parts.peek().is_some() { &[] } else { share.then };
        // SAFETY: passed on.
        unsafe {
            match x.rows() {
                1 => one_part::<V, F, 1>(w, part, then, x, out),
                2 => one_part::<V, F, 2>(w, part, then, x, out),
                3 => one_part::<V, F, 3>(w, part, then, x, out),
                _ => one_part::<V, F, 4>(w, part, then, x, out),
            }
        }
    }
}

/// # Safety
/// As [`int_rows`]; `x` must have N rows.
#[inline(always)]
unsafe fn one_part<V: Simd, F: Unpack, const N: usize>(
    w: &Matrix<'_>,
    part: Part,
    then: &[u8],
    x: &Activations,
    out: Out,
) {
    // SAFETY: passed on; the lanes that are stored are rows that are asked for.
    unsafe {
        let rows = Rows::new(w, part.first);
        let mut sums = Dot::<V, F, N> {
            x: Tile::new(x, 0, 0),
            acc: [V::splat_f(0.0); N],
            ahead: rows.ahead(1, 0, then),
        };
        F::unpack::<V, _>(&rows, 0..w.cols / BLOCK, &mut sums);
        for t in 0..N {
            part.store::<V>(out.at(t, part.first), sums.acc[t]);
        }
    }
}

/// Multiplies blocks with N rows of activations as they come.
struct Dot<V: Simd, F, const N: usize> {
    x: Tile,
    acc: [V::F; N],
    ahead: RowsAhead<F, V>,
}

impl<V: Simd, F: Unpack, const N: usize> Sink<V, F> for Dot<V, F, N> {
    #[inline(always)]
    unsafe fn take(&mut self, block: usize, codes: &[V::I; QUADS], factors: &Factors<V>) {
        self.ahead.step();
        // SAFETY: passed on.
        unsafe {
            let halves = <F::Shape as Shape>::HAS_HALVES;
            for t in 0..N {
                let mut sums = [V::splat(0); 2];
                for half in 0..if halves { 2 } else { 1 } {
                    sums[half] = V::splat(self.x.start::<V, F::Shape>(t, block, half));
                }
                for k in 0..QUADS {
                    let half = if halves { k / (QUADS / 2) } else { 0 };
                    sums[half] = dot::<V, F::Shape>(sums[half], codes[k], self.x.quad(t, block, k));
                }
                self.acc[t] = add_block::<V, F::Shape>(self.acc[t], sums, factors, &self.x, t, block);
            }
        }
    }
}
