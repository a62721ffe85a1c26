//! Products of a weight matrix with rows of activations, for every weight format.
//!
//! Integer weights with rounded activations, nearly all of the work, go to `lanes.rs` on tiers that it knows. For everything
//! else there is one body per kind of format here, generic over the format and compiled for every tier: a block of weights is
//! unpacked once and meets up to `TILE` activation rows. Each output element is the canonical sequence of
//! [`calypte_quant::reference`], whatever the way.

use std::ops::Range;

use calypte_quant::formats::{BLOCK, FloatFormat, IntFormat};
use calypte_quant::reference::{LANES, Q8Row, reduce};
use calypte_quant::{Matrix, with_float_format, with_int_format};

use crate::isa::for_each_isa;
use crate::team::SendPtr;
use crate::wide::{Wide, for_each_wide};
use crate::{Activations, Isa, Precision, Team};

/// Activation rows that share one unpacking of a weight block: as many accumulators as stay in registers.
const TILE: usize = 4;
/// From this many activation rows on, unpacking integer weights into a panel pays (`lanes/many.rs`).
pub(crate) const PANEL_X_ROWS_MIN: usize = 5;
/// Weight rows that all activation rows meet before the next ones are fetched: weights come from memory once, and these few
/// stay in the first-level cache meanwhile.
const WEIGHT_ROWS: usize = 16;
/// Below this many multiply-accumulates the hand-over to other threads costs more than it saves.
const PARALLEL_MACS_MIN: usize = 1 << 15;
/// Tasks per thread: enough that a thread which was held up does not hold up the rest.
const TASKS_PER_THREAD: usize = 4;

/// `out[r · w.rows + i] = w[i] · x[r]` for all rows r of `x` (`[x.rows, w.cols]` → `[x.rows, w.rows]`).
///
/// Integer weights take the int8 activations ([`Activations::quantize`] is called if it was not yet), unless
/// `precision` says otherwise.
pub fn matmul(team: &Team, precision: Precision, w: &Matrix<'_>, x: &mut Activations, out: &mut [f32]) {
    if w.dtype.is_integer() && precision == Precision::Int8 {
        x.quantize(team);
    }
    let x = &*x;
    assert_eq!(w.cols, x.cols(), "a matrix of {} columns meets activations of width {}", w.cols, x.cols());
    let out = &mut out[..w.rows * x.rows()];
    let macs = w.rows * w.cols * x.rows();
    let tasks = if macs < PARALLEL_MACS_MIN { 1 } else { team.threads() * TASKS_PER_THREAD };
    // Whole vectors of rows, so that no task ends in the middle of one; two, where two make a tile of a panel.
    let together = if x.rows() < PANEL_X_ROWS_MIN { LANES } else { 2 * LANES };
    let step = w.rows.div_ceil(tasks.min(w.rows.max(1))).next_multiple_of(together).max(1);
    let out = SendPtr(out.as_mut_ptr());
    team.run(w.rows.div_ceil(step), |task| {
        let rows = task * step..((task + 1) * step).min(w.rows);
        // SAFETY: `rows_into` writes out[r · w.rows + i] for i in `rows` only, and the tasks' ranges are disjoint parts
        // of 0..w.rows; the slice was checked above to hold w.rows × x.rows values.
        unsafe { rows_into(Isa::get(), precision, w, rows, x, out) };
    });
}

/// [`matmul`] on the calling thread alone, for use inside a task. `x` must be quantised already if `w` asks for it.
pub fn matmul_serial(precision: Precision, w: &Matrix<'_>, x: &Activations, out: &mut [f32]) {
    assert_eq!(w.cols, x.cols(), "a matrix of {} columns meets activations of width {}", w.cols, x.cols());
    let out = &mut out[..w.rows * x.rows()];
    // SAFETY: the slice holds w.rows × x.rows values and nobody else has it.
    unsafe { rows_into(Isa::get(), precision, w, 0..w.rows, x, SendPtr(out.as_mut_ptr())) };
}

/// Where results go: column i of row r is at `r · stride + i`.
#[derive(Clone, Copy)]
pub(crate) struct Out {
    base: SendPtr<f32>,
    stride: usize,
}

impl Out {
    /// Where column i of row r goes.
    ///
    /// # Safety
    /// The element must lie inside the caller's output, and in a column that no other task writes.
    #[inline(always)]
    pub(crate) unsafe fn at(self, r: usize, i: usize) -> *mut f32 {
        // SAFETY: promised by the caller.
        unsafe { self.base.get().add(r * self.stride + i) }
    }

    /// # Safety
    /// The element must lie inside the caller's output, and in a column that no other task writes.
    #[inline(always)]
    unsafe fn put(self, r: usize, i: usize, v: f32) {
        // SAFETY: promised by the caller.
        unsafe { self.at(r, i).write(v) };
    }
}

/// Computes output columns `rows` for all rows of `x`.
///
/// # Safety
/// `out` must be valid for `w.rows × x.rows()` values, and nobody else may touch columns `rows` of it meanwhile.
unsafe fn rows_into(
    isa: Isa,
    precision: Precision,
    w: &Matrix<'_>,
    rows: Range<usize>,
    x: &Activations,
    out: SendPtr<f32>,
) {
    let out = Out { base: out, stride: w.rows };
    let rounded = w.dtype.is_integer() && precision == Precision::Int8;
    assert!(!rounded || x.is_quantized(), "integer weights need rounded activations");
    #[cfg(any(
        target_arch = "x86_64",
        target_arch = "aarch64",
        all(target_arch = "wasm32", target_feature = "simd128")
    ))]
    if rounded {
        use crate::lanes::int_rows_isa as int_rows;
        // SAFETY: promised by the caller.
        if unsafe { with_int_format!(w.dtype, int_rows(isa, w, rows.clone(), x, out)) } {
            return;
        }
    }
    for first in rows.clone().step_by(WEIGHT_ROWS) {
        let rows = first..(first + WEIGHT_ROWS).min(rows.end);
        if rounded {
            with_int_format!(w.dtype, int_rows(isa, w, rows, x, out));
        } else if w.dtype.is_integer() {
            with_int_format!(w.dtype, int_f32_rows(isa, w, rows, x, out));
        } else {
            with_float_format!(w.dtype, float_rows(isa, w, rows, x, out));
        }
    }
}

for_each_isa! {
    fn int_rows[F: IntFormat](w: &Matrix<'_>, rows: Range<usize>, x: &Activations, out: Out) = int_rows_body
}
for_each_wide! {
    fn float_rows[F: FloatFormat](w: &Matrix<'_>, rows: Range<usize>, x: &Activations, out: Out) = float_rows_body
}
for_each_isa! {
    fn int_f32_rows[F: IntFormat](w: &Matrix<'_>, rows: Range<usize>, x: &Activations, out: Out) = int_f32_rows_body
}

#[inline(always)]
fn int_rows_body<F: IntFormat>(w: &Matrix<'_>, rows: Range<usize>, x: &Activations, out: Out) {
    let mut row = 0;
    while row < x.rows() {
        let n = (x.rows() - row).min(TILE);
        if n == TILE {
            let tile: [Q8Row<'_>; TILE] = [x.q8(row), x.q8(row + 1), x.q8(row + 2), x.q8(row + 3)];
            for i in rows.clone() {
                let acc = int_dot::<F, TILE>(w.row(i), &tile);
                for t in 0..TILE {
                    // SAFETY: row + t < x.rows() and i is in `rows`; see `rows_into`.
                    unsafe { out.put(row + t, i, acc[t]) };
                }
            }
        } else {
            for t in 0..n {
                let one = [x.q8(row + t)];
                for i in rows.clone() {
                    // SAFETY: as above.
                    unsafe { out.put(row + t, i, int_dot::<F, 1>(w.row(i), &one)[0]) };
                }
            }
        }
        row += n;
    }
}

/// # Safety
/// The processor must have the instructions of `W`; `out` as in [`rows_into`].
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

#[inline(always)]
fn int_f32_rows_body<F: IntFormat>(w: &Matrix<'_>, rows: Range<usize>, x: &Activations, out: Out) {
    for r in 0..x.rows() {
        for i in rows.clone() {
            // SAFETY: r < x.rows() and i is in `rows`; see `rows_into`.
            unsafe { out.put(r, i, int_f32_dot::<F>(w.row(i), x.row(r))) };
        }
    }
}

/// Dot products of one row of weights with `N` rows of activations.
#[inline(always)]
fn int_dot<F: IntFormat, const N: usize>(row: &[u8], x: &[Q8Row<'_>; N]) -> [f32; N] {
    let mut acc = [0f32; N];
    for b in 0..x[0].scale.len() {
        let w = F::block(row, b);
        for t in 0..N {
            let q: &[i8; BLOCK] = x[t].q[b * BLOCK..(b + 1) * BLOCK].try_into().expect("a whole block");
            let isum = if F::HAS_HALVES {
                let (mut low, mut high) = (0i32, 0i32);
                for j in 0..BLOCK / 2 {
                    low += w.q[j] as i32 * q[j] as i32;
                }
                for j in BLOCK / 2..BLOCK {
                    high += w.q[j] as i32 * q[j] as i32;
                }
                low * w.halves[0] + high * w.halves[1]
            } else {
                let mut sum = 0i32;
                for j in 0..BLOCK {
                    sum += w.q[j] as i32 * q[j] as i32;
                }
                sum
            };
            acc[t] += isum as f32 * (w.scale * x[t].scale[b]);
            if F::HAS_MIN_HALVES {
                let (mut low, mut high) = (0i32, 0i32);
                for j in 0..BLOCK / 2 {
                    low += q[j] as i32;
                }
                for j in BLOCK / 2..BLOCK {
                    high += q[j] as i32;
                }
                let isum = low * w.min_halves[0] + high * w.min_halves[1];
                acc[t] -= isum as f32 * (w.min * x[t].scale[b]);
            } else if F::HAS_MIN {
                acc[t] -= w.min * x[t].sum[b];
            }
        }
    }
    acc
}

#[inline(always)]
fn int_f32_dot<F: IntFormat>(row: &[u8], x: &[f32]) -> f32 {
    let mut acc = [0f32; LANES];
    for (b, x) in x.chunks_exact(BLOCK).enumerate() {
        let v = F::block(row, b).values();
        for half in 0..BLOCK / LANES {
            for j in 0..LANES {
                acc[j] += v[half * LANES + j] * x[half * LANES + j];
            }
        }
    }
    reduce(acc)
}

#[cfg(test)]
mod tests {
    use super::*;
    use calypte_quant::{DType, reference};

    /// Deterministic noise; a generator crate would be one more thing to read.
    struct Noise(u64);
    impl Noise {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            self.0 >> 33
        }
        fn unit(&mut self) -> f32 {
            (self.next() % 20001) as f32 / 10000.0 - 1.0
        }
    }

    /// Rows of random bytes, valid in every format as long as the scales are finite. Every second row has scales of all
    /// kinds, subnormal ones among them; the others have similar ones, so that no block drowns the rest.
    fn random_weights(dtype: DType, rows: usize, cols: usize, noise: &mut Noise) -> Vec<u8> {
        if dtype.is_plain_float() {
            let mut bytes = Vec::new();
            calypte_quant::pack_float(dtype, (0..rows * cols).map(|_| noise.unit()), &mut bytes);
            return bytes;
        }
        let row_bytes = dtype.row_bytes(cols).expect("whole blocks");
        let mut bytes: Vec<u8> = (0..rows * row_bytes).map(|_| noise.next() as u8).collect();
        for (i, row) in bytes.chunks_mut(row_bytes).enumerate() {
            tame(dtype, row, cols, i % 2 == 1, noise);
        }
        bytes
    }

    /// Makes the scales of a row of random bytes finite.
    fn tame(dtype: DType, row: &mut [u8], cols: usize, wild: bool, noise: &mut Noise) {
        let f16s: &[usize] = match dtype {
            DType::Mxfp4 => {
                let (low, span) = if wild { (0, 200) } else { (120, 10) };
                row.chunks_mut(17).for_each(|b| b[0] = (low + noise.next() % span) as u8);
                return;
            }
            DType::Int4 => {
                // Of a bf16 the upper byte holds the sign and seven bits of the exponent.
                row.chunks_mut(18).for_each(|b| b[1] = if wild { b[1] & 0xbf } else { b[1] & 0x83 | 0x3c });
                return;
            }
            DType::F8E4M3 => {
                let (codes, scales) = row.split_at_mut(cols);
                codes.iter_mut().for_each(|c| *c &= 0xbf); // never NaN, sometimes subnormal
                scales.chunks_mut(4).for_each(|s| s.copy_from_slice(&noise.unit().to_le_bytes()));
                return;
            }
            DType::Q8_0 | DType::Q4_0 | DType::Q5_0 | DType::Iq4Nl | DType::Iq4Xs => &[0],
            DType::Q4_1 | DType::Q5_1 | DType::Q4K | DType::Q5K => &[0, 2],
            DType::Q2K => &[80, 82],
            DType::Q3K => &[108],
            DType::Q6K => &[208],
            DType::Tq1_0 => &[52],
            DType::Tq2_0 => &[64],
            DType::F32 | DType::F16 | DType::BF16 => &[],
        };
        for block in row.chunks_mut(dtype.block_bytes()) {
            for &at in f16s {
                block[at + 1] &= 0xbf; // an exponent below the largest: never infinite, sometimes subnormal
                if !wild {
                    block[at + 1] |= 0x28;
                }
            }
        }
    }

    /// Every tier, thread count and number of rows against the scalar reference, bit for bit.
    #[track_caller]
    fn check(dtype: DType, rows: usize, cols: usize, x_rows: usize, precision: Precision) {
        let mut noise = Noise(rows as u64 * 31 + cols as u64);
        let bytes = random_weights(dtype, rows, cols, &mut noise);
        // An odd start address: readers must not assume alignment.
        let shifted: Vec<u8> = std::iter::once(0).chain(bytes).collect();
        let w = Matrix::new(dtype, rows, cols, &shifted[1..]).expect("the shape fits");
        let mut x = Activations::new();
        x.fill(x_rows, cols).iter_mut().for_each(|v| *v = noise.unit());
        let mut want = vec![0f32; rows * x_rows];
        let team = Team::new(1);
        x.quantize(&team);
        for r in 0..x_rows {
            for i in 0..rows {
                want[r * rows + i] = if dtype.is_integer() && precision == Precision::Int8 {
                    reference::dot_q8(&w, i, x.q8(r))
                } else {
                    reference::dot(&w, i, x.row(r))
                };
            }
        }
        assert!(want.iter().all(|v| v.is_finite()), "{dtype}: weights that are not finite prove nothing");
        let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        for isa in Isa::available() {
            let mut got = vec![f32::NAN; want.len()];
            // SAFETY: `got` holds rows × x_rows values and is ours alone.
            unsafe { rows_into(isa, precision, &w, 0..rows, &x, SendPtr(got.as_mut_ptr())) };
            assert_eq!(bits(&got), bits(&want), "{dtype} {rows}×{cols}, {x_rows} rows, {}", isa.name());
        }
        for threads in [1, 2, 5] {
            let mut got = vec![f32::NAN; want.len()];
            matmul(&Team::new(threads), precision, &w, &mut x, &mut got);
            assert_eq!(bits(&got), bits(&want), "{dtype} {rows}×{cols}, {x_rows} rows, {threads} threads");
        }
    }

    #[test]
    fn every_format_equals_its_reference_on_every_tier() {
        for dtype in DType::ALL {
            let unit = dtype.block_len().max(32);
            for (rows, blocks, x_rows) in [
                (1, 1, 1),
                (7, 2, 3),
                (33, 3, 4),
                (64, 4, 9),
                (300, 1, 5),
                (5, 8, 4),
                (3, 19, 6),
                (16, 17, 1),
                (50, 5, 13),
                (49, 2, 2),
                (31, 35, 7),
                (48, 3, 16),
                (35, 21, 37),
            ] {
                check(dtype, rows, blocks * unit, x_rows, Precision::Int8);
                check(dtype, rows, blocks * unit, x_rows, Precision::F32);
            }
        }
    }

    #[test]
    fn float_widths_need_not_be_multiples_of_the_lanes() {
        for dtype in DType::ALL.into_iter().filter(|d| !d.is_integer()) {
            for cols in [1, 15, 17, 24, 100, 127, 128, 129, 300] {
                check(dtype, 5, cols, 6, Precision::Int8);
            }
        }
    }
}
