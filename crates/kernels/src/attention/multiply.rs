//! A small matrix product, the arithmetic of all attention: sixteen columns in the lanes, one sequence over the depth.
//!
//! Scores are queries times keys, with either in the lanes; outputs are weights times values. Sums stay in registers over the
//! whole depth, in tiles of rows and columns that fit the registers of a tier. Which tile an element is in changes nothing.

use calypte_quant::formats::LANES;

use super::ahead::Ahead;
use crate::wide::{Wide, for_each_wide};

/// Rows of numbers that lie `stride` apart.
#[derive(Clone, Copy)]
pub(super) struct Strided<'a> {
    pub numbers: &'a [f32],
    pub stride: usize,
}

/// What is multiplied with what.
#[derive(Clone, Copy)]
pub(super) struct Product<'a> {
    /// `[rows, depth]`
    pub a: Strided<'a>,
    /// `[depth, blocks · 16]`
    pub b: Strided<'a>,
    pub rows: usize,
    pub depth: usize,
    /// Columns in sixteens.
    pub blocks: usize,
    /// Whether every product is exact, so that it may be fused with the addition.
    pub exact: bool,
    /// Whether sums start from what `c` holds, not from zero.
    pub onto: bool,
}

for_each_wide! {
    /// `c = a · b`, or `c += a · b`: c[i, j] is a sequence over the depth from the first on. Rows of `c` are `stride` apart.
    /// Meanwhile `ahead` is asked for.
    pub(super) fn multiply(product: Product<'_>, c: &mut [f32], stride: usize, ahead: &mut Ahead<'_>) = multiply_body
}

/// Blocks of sixteen columns of the largest tile.
const BLOCKS_MAX: usize = 4;
/// Rows that a tile should have.
const ROWS_WORTH: usize = 6;

/// # Safety
/// The processor must have the instructions of `W`.
#[inline(always)]
unsafe fn multiply_body<W: Wide>(product: Product<'_>, c: &mut [f32], stride: usize, ahead: &mut Ahead<'_>) {
    let Product { a, b, rows, depth, blocks, .. } = product;
    if rows == 0 || blocks == 0 {
        return;
    }
    assert!(
        a.numbers.len() >= (rows - 1) * a.stride + depth
            && (depth == 0 || b.numbers.len() >= (depth - 1) * b.stride + blocks * LANES)
            && c.len() >= (rows - 1) * stride + blocks * LANES,
        "a matrix product reaches beyond its matrices"
    );
    let mut block = 0;
    while block < blocks {
        // Where registers are few, a wider tile would have too few rows to use what it loads.
        let width = match blocks - block {
            BLOCKS_MAX.. if W::ACCUMULATORS >= ROWS_WORTH * BLOCKS_MAX => BLOCKS_MAX,
            2.. if W::ACCUMULATORS >= ROWS_WORTH * 2 => 2,
            _ => 1,
        };
        // SAFETY: the matrices are as large as was just asserted; the rest is promised by the caller.
        unsafe {
            let (b, c) = (b.numbers.as_ptr().add(block * LANES), c.as_mut_ptr().add(block * LANES));
            match (width, product.exact) {
                (BLOCKS_MAX, true) => columns::<W, BLOCKS_MAX, true>(&product, b, c, stride, ahead),
                (BLOCKS_MAX, false) => columns::<W, BLOCKS_MAX, false>(&product, b, c, stride, ahead),
                (2, true) => columns::<W, 2, true>(&product, b, c, stride, ahead),
                (2, false) => columns::<W, 2, false>(&product, b, c, stride, ahead),
                (_, true) => columns::<W, 1, true>(&product, b, c, stride, ahead),
                (_, false) => columns::<W, 1, false>(&product, b, c, stride, ahead),
            }
        }
        block += width;
    }
}

/// All rows for B blocks of columns, in tiles as high as the registers allow.
///
/// # Safety
/// The processor must have the instructions of `W`; `b` and `c` point to these columns of the first row, and have all rows.
#[inline(always)]
unsafe fn columns<W: Wide, const B: usize, const EXACT: bool>(
    product: &Product<'_>,
    b: *const f32,
    c: *mut f32,
    stride: usize,
    ahead: &mut Ahead<'_>,
) {
    let mut row = 0;
    while row < product.rows {
        let left = product.rows - row;
        let most = W::ACCUMULATORS / B;
        // SAFETY: as many rows are left; the rest is promised by the caller.
        unsafe {
            let a = product.a.numbers.as_ptr().add(row * product.a.stride);
            let c = c.add(row * stride);
            row += match left.min(most) {
                // Not as many as there are registers: tiles of keys are 64 high, which this divides.
                16.. => tile::<W, 16, B, EXACT>(product, a, b, c, stride, ahead),
                12.. => tile::<W, 12, B, EXACT>(product, a, b, c, stride, ahead),
                6.. => tile::<W, 6, B, EXACT>(product, a, b, c, stride, ahead),
                5 => tile::<W, 5, B, EXACT>(product, a, b, c, stride, ahead),
                4 => tile::<W, 4, B, EXACT>(product, a, b, c, stride, ahead),
                3 => tile::<W, 3, B, EXACT>(product, a, b, c, stride, ahead),
                2 => tile::<W, 2, B, EXACT>(product, a, b, c, stride, ahead),
                _ => tile::<W, 1, B, EXACT>(product, a, b, c, stride, ahead),
            };
        }
    }
}

/// R rows and B blocks of columns; returns R.
///
/// # Safety
/// As [`columns`], with `a` and `c` at the first of these rows.
#[inline(always)]
unsafe fn tile<W: Wide, const R: usize, const B: usize, const EXACT: bool>(
    product: &Product<'_>,
    a: *const f32,
    b: *const f32,
    c: *mut f32,
    stride: usize,
    ahead: &mut Ahead<'_>,
) -> usize {
    // A tile that the registers cannot hold is never called; it need not be compiled either.
    if R * B > W::ACCUMULATORS && R * B > 1 {
        return R;
    }
    let (a_stride, b_stride) = (product.a.stride, product.b.stride);
    // SAFETY: promised by the caller.
    unsafe {
        let mut sums = [[W::splat(0.0); B]; R];
        if product.onto {
            for r in 0..R {
                for j in 0..B {
                    sums[r][j] = W::load(c.add(r * stride + j * LANES));
                }
            }
        }
        for k in 0..product.depth {
            ahead.step();
            let mut columns = [W::splat(0.0); B];
            for j in 0..B {
                columns[j] = W::load(b.add(k * b_stride + j * LANES));
            }
            for r in 0..R {
                let x = W::splat(*a.add(r * a_stride + k));
                for j in 0..B {
                    sums[r][j] = if EXACT {
                        sums[r][j].add_exact(x, columns[j])
                    } else {
                        sums[r][j].add(x.mul(columns[j]))
                    };
                }
            }
        }
        for r in 0..R {
            for j in 0..B {
                sums[r][j].store(c.add(r * stride + j * LANES));
            }
        }
    }
    R
}

#[cfg(test)]
mod tests {
    use super::super::testing::{bits, noise};
    use super::*;
    use crate::Isa;

    /// Every tier and both forms against three loops. The factors have so few digits that all products are exact.
    #[track_caller]
    fn check(rows: usize, depth: usize, blocks: usize) {
        let short =
            |v: Vec<f32>| -> Vec<f32> { v.into_iter().map(|v| (v * 1000.0).round() / 1024.0).collect() };
        let (a_stride, b_stride, stride) = (depth + 3, blocks * LANES + 5, blocks * LANES + 2);
        let (a, b) = (short(noise(rows * a_stride, 1)), short(noise(depth * b_stride, 2)));
        let before = noise(rows * stride, 3);
        for onto in [false, true] {
            let mut want = before.clone();
            for (i, row) in want.chunks_exact_mut(stride).enumerate() {
                for (j, c) in row[..blocks * LANES].iter_mut().enumerate() {
                    let start = if onto { *c } else { 0.0 };
                    *c = (0..depth).fold(start, |sum, k| sum + a[i * a_stride + k] * b[k * b_stride + j]);
                }
            }
            for (isa, exact) in Isa::available().into_iter().flat_map(|isa| [(isa, true), (isa, false)]) {
                let mut got = before.clone();
                let (a, b) =
                    (Strided { numbers: &a, stride: a_stride }, Strided { numbers: &b, stride: b_stride });
                multiply(
                    isa,
                    Product { a, b, rows, depth, blocks, exact, onto },
                    &mut got,
                    stride,
                    &mut Ahead::of(&b.numbers[..b.numbers.len().min(99)]),
                );
                assert_eq!(bits(&got), bits(&want), "{rows} {depth} {blocks} {onto} {exact} {}", isa.name());
            }
        }
    }

    #[test]
    fn tiles_do_not_show() {
        for rows in [1, 2, 3, 5, 6, 11, 13, 24, 31] {
            for blocks in [1, 2, 3, 4, 5, 7] {
                check(rows, 19, blocks);
            }
        }
        check(7, 1, 4);
        check(0, 4, 1);
    }
}
