//! Products of a weight matrix with rows of activations, for every weight format.
//!
//! Integer weights with rounded activations, nearly all of the work, go to `lanes.rs` on tiers that it knows, float weights to
//! `matmul/floats.rs`. For everything else there is one body per kind of product here, generic over the format and compiled for
//! every tier: a block of weights is unpacked once and meets up to `TILE` activation rows. Each output element is the canonical sequence of
//! [`calypte_quant::reference`], whatever the way.

mod floats;

use std::ops::Range;

use calypte_quant::formats::{BLOCK, IntFormat};
use calypte_quant::reference::{LANES, Q8Row, reduce};
use calypte_quant::{Matrix, with_float_format, with_int_format};

use crate::fetch::{CACHE_LINE_BYTES, prefetch_to_write};
use crate::isa::for_each_isa;
use crate::team::SendPtr;
use crate::{Activations, Isa, Precision, Team};
use floats::float_rows;

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
    matmul_all(team, precision, [w], x, [out]);
}

/// [`matmul`] of several matrices that read one input, each into its own `[x.rows, w.rows]`, as one job of the team, so that nobody
/// waits in between.
pub fn matmul_all<const N: usize>(
    team: &Team,
    precision: Precision,
    w: [&Matrix<'_>; N],
    x: &mut Activations,
    out: [&mut [f32]; N],
) {
    let x = input(team, precision, w, x);
    let mut out = out.into_iter().zip(w);
    let out: [SendPtr<f32>; N] = std::array::from_fn(|_| {
        let (out, w) = out.next().expect("as many outputs as matrices");
        SendPtr(out[..w.rows * x.rows()].as_mut_ptr())
    });
    let step = rows_per_task(team, w.iter().map(|w| w.rows).sum(), x.cols(), x.rows());
    let tasks = w.map(|w| w.rows.div_ceil(step));
    // The matrix of a task, and its first row.
    let place = |mut task: usize| {
        for (i, tasks) in tasks.iter().enumerate() {
            if task < *tasks {
                return Some((i, task * step));
            }
            task -= tasks;
        }
        None
    };
    team.run(tasks.iter().sum(), |task| {
        let (i, first) = place(task).expect("a task of one of the matrices");
        let then = place(task + team.threads()).map_or(&[][..], |(i, first)| w[i].from_row(first));
        let share = Share { rows: first..(first + step).min(w[i].rows), then };
        // SAFETY: `rows_into` writes out[r · w.rows + i] for i in the share's rows only, and the tasks' ranges are disjoint parts
        // of 0..w.rows; the slices were checked above to hold w.rows × x.rows values.
        unsafe { rows_into(Isa::get(), precision, w[i], share, x, out[i]) };
    });
}

/// `gate = finish(gates · x, ups · x)` for all rows of `x`; `finish(first, gate, up)` gets results number `first ..` of one of them.
/// For few rows it is one job of the team: a task computes the same rows of both matrices and finishes them, so that nobody waits in
/// between. Of many rows a task would have more than its cache holds, and in strips: there all is computed first.
///
/// `[x.rows, gates.rows]` each; the matrices have one shape. Otherwise as [`matmul`].
pub fn matmul_gated(
    team: &Team,
    precision: Precision,
    [gates, ups]: [&Matrix<'_>; 2],
    x: &mut Activations,
    gate: &mut [f32],
    up: &mut [f32],
    finish: impl Fn(usize, &mut [f32], &mut [f32]) + Sync,
) {
    assert_eq!([gates.rows, gates.cols], [ups.rows, ups.cols], "gate and up have different shapes");
    let (width, x_rows) = (gates.rows, x.rows());
    let (gate, up) = (&mut gate[..width * x_rows], &mut up[..width * x_rows]);
    let few = x_rows < PANEL_X_ROWS_MIN;
    if !few {
        matmul_all(team, precision, [gates, ups], x, [&mut *gate, &mut *up]);
    }
    let x = input(team, precision, [gates, ups], x);
    let (gate, up) = (SendPtr(gate.as_mut_ptr()), SendPtr(up.as_mut_ptr()));
    let finish = |x_row: usize, rows: Range<usize>| {
        // SAFETY: both slices were checked above to hold width × x_rows values, and these are the calling task's alone.
        let of = |out: SendPtr<f32>| unsafe {
            std::slice::from_raw_parts_mut(out.get().add(x_row * width + rows.start), rows.len())
        };
        finish(rows.start, of(gate), of(up));
    };
    if few {
        let step = rows_per_task(team, width, 2 * gates.cols, x_rows);
        team.run(width.div_ceil(step), |task| {
            let rows = task * step..((task + 1) * step).min(width);
            let next = (task + team.threads()) * step;
            let of_gates = Share { rows: rows.clone(), then: ups.from_row(rows.start) };
            let of_ups =
                Share { rows: rows.clone(), then: if next < width { gates.from_row(next) } else { &[] } };
            // SAFETY: as in `matmul_all`.
            unsafe {
                rows_into(Isa::get(), precision, gates, of_gates, x, gate);
                rows_into(Isa::get(), precision, ups, of_ups, x, up);
            }
            (0..x_rows).for_each(|x_row| finish(x_row, rows.clone()));
        });
    } else {
        let step = x_rows.div_ceil(team.threads() * TASKS_PER_THREAD);
        team.run(x_rows.div_ceil(step), |task| {
            (task * step..((task + 1) * step).min(x_rows)).for_each(|x_row| finish(x_row, 0..width));
        });
    }
}

/// The input of some matrices, rounded once if one of them asks for that.
fn input<'x, const N: usize>(
    team: &Team,
    precision: Precision,
    w: [&Matrix<'_>; N],
    x: &'x mut Activations,
) -> &'x Activations {
    let cols = x.cols();
    w.iter().for_each(|w| {
        assert_eq!(w.cols, cols, "a matrix of {} columns meets activations of width {cols}", w.cols)
    });
    if precision == Precision::Int8 && w.iter().any(|w| w.dtype.is_integer()) {
        x.quantize(team);
    }
    x
}

/// Rows of weights that one task multiplies with all rows of activations.
fn rows_per_task(team: &Team, rows: usize, cols: usize, x_rows: usize) -> usize {
    let macs = rows * cols * x_rows;
    let tasks = if macs < PARALLEL_MACS_MIN { 1 } else { team.threads() * TASKS_PER_THREAD };
    // Whole vectors of rows, so that no task ends in the middle of one; two, where two make a tile of a panel.
    let together = if x_rows < PANEL_X_ROWS_MIN { LANES } else { 2 * LANES };
    rows.div_ceil(tasks.min(rows.max(1))).next_multiple_of(together).max(1)
}

/// [`matmul`] on the calling thread alone, for use inside a task. `x` must be quantised already if `w` asks for it.
pub fn matmul_serial(precision: Precision, w: &Matrix<'_>, x: &Activations, out: &mut [f32]) {
    assert_eq!(w.cols, x.cols(), "a matrix of {} columns meets activations of width {}", w.cols, x.cols());
    let out = &mut out[..w.rows * x.rows()];
    // SAFETY: the slice holds w.rows × x.rows values and nobody else has it.
    unsafe { rows_into(Isa::get(), precision, w, Share::of(0..w.rows), x, SendPtr(out.as_mut_ptr())) };
}

/// Some rows of a matrix, and the weights that whoever multiplies them will probably read next, to be asked for meanwhile.
#[derive(Clone)]
pub(crate) struct Share<'a> {
    pub rows: Range<usize>,
    /// Empty for what follows the rows in memory.
    #[allow(dead_code)] // on a processor without lanes nobody asks
    pub then: &'a [u8],
}

impl Share<'_> {
    /// Of somebody who goes on with what follows, or nobody knows with what.
    fn of(rows: Range<usize>) -> Self {
        Share { rows, then: &[] }
    }
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

    /// Asks for the memory of columns `i .. i + columns` of row r to be written; they need not exist.
    #[inline(always)]
    #[allow(dead_code)] // on a processor without lanes nobody asks
    pub(crate) fn prefetch(self, r: usize, i: usize, columns: usize) {
        let first = self.base.get().wrapping_add(r * self.stride + i);
        for line in (0..columns).step_by(CACHE_LINE_BYTES / size_of::<f32>()) {
            prefetch_to_write(first.wrapping_add(line).cast());
        }
        // Where the row does not begin a line there is one more.
        prefetch_to_write(first.wrapping_add(columns - 1).cast());
    }

    /// # Safety
    /// The element must lie inside the caller's output, and in a column that no other task writes.
    #[inline(always)]
    unsafe fn put(self, r: usize, i: usize, v: f32) {
        // SAFETY: promised by the caller.
        unsafe { self.at(r, i).write(v) };
    }
}

/// Computes output columns `share.rows` for all rows of `x`.
///
/// # Safety
/// `out` must be valid for `w.rows × x.rows()` values, and nobody else may touch these columns of it meanwhile.
unsafe fn rows_into(
    isa: Isa,
    precision: Precision,
    w: &Matrix<'_>,
    share: Share<'_>,
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
        if unsafe { with_int_format!(w.dtype, int_rows(isa, w, share.clone(), x, out)) } {
            return;
        }
    }
    let rows = share.rows;
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
            unsafe { rows_into(isa, precision, &w, Share::of(0..rows), &x, SendPtr(got.as_mut_ptr())) };
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

    /// Several products of one input, as one job or one by one, give the same bits.
    #[test]
    fn products_of_one_input_do_not_mix() {
        let (cols, mut noise) = (256, Noise(11));
        let shapes = [(DType::Q4K, 97), (DType::Q6K, 33), (DType::F32, 0), (DType::F16, 5)];
        let bytes = shapes.map(|(dtype, rows)| random_weights(dtype, rows, cols, &mut noise));
        let w: [Matrix<'_>; 4] = std::array::from_fn(|i| {
            Matrix::new(shapes[i].0, shapes[i].1, cols, &bytes[i]).expect("the shape fits")
        });
        for (x_rows, threads) in [(1, 1), (1, 3), (6, 2), (40, 5)] {
            let mut x = Activations::new();
            x.fill(x_rows, cols).iter_mut().for_each(|v| *v = noise.unit());
            let team = Team::new(threads);
            let mut want = shapes.map(|(_, rows)| vec![f32::NAN; rows * x_rows]);
            for (w, want) in w.iter().zip(&mut want) {
                matmul(&team, Precision::Int8, w, &mut x, want);
            }
            let mut got = shapes.map(|(_, rows)| vec![f32::NAN; rows * x_rows]);
            let out = got.each_mut().map(|got| got.as_mut_slice());
            matmul_all(&team, Precision::Int8, w.each_ref(), &mut x, out);
            assert!(got == want, "{x_rows} rows, {threads} threads");
        }
    }

    /// Both products and what finishes them, one job or three, give the same bits.
    #[test]
    fn a_gated_pair_is_two_products_and_a_pass_over_them() {
        for (dtypes, rows, x_rows) in [
            ([DType::Q4_0, DType::Q4_0], 300, 1),
            ([DType::Q4K, DType::Q6K], 70, 7),
            ([DType::F32, DType::Q8_0], 33, 3),
            ([DType::BF16, DType::F16], 1, 2),
        ] {
            let (cols, mut noise) = (512, Noise(7));
            let bytes = dtypes.map(|dtype| random_weights(dtype, rows, cols, &mut noise));
            let w = [0, 1].map(|i| Matrix::new(dtypes[i], rows, cols, &bytes[i]).expect("the shape fits"));
            let mut x = Activations::new();
            x.fill(x_rows, cols).iter_mut().for_each(|v| *v = noise.unit());
            let biases: Vec<f32> = (0..rows).map(|_| noise.unit()).collect();
            for (precision, threads) in [(Precision::Int8, 1), (Precision::Int8, 3), (Precision::F32, 2)] {
                let team = Team::new(threads);
                let (mut want, mut up) = (vec![0f32; rows * x_rows], vec![0f32; rows * x_rows]);
                matmul(&team, precision, &w[0], &mut x, &mut want);
                matmul(&team, precision, &w[1], &mut x, &mut up);
                for (i, (gate, up)) in want.iter_mut().zip(&up).enumerate() {
                    *gate = *gate * up + biases[i % rows];
                }
                let (mut got, mut up) = (vec![f32::NAN; rows * x_rows], vec![f32::NAN; rows * x_rows]);
                matmul_gated(
                    &team,
                    precision,
                    [&w[0], &w[1]],
                    &mut x,
                    &mut got,
                    &mut up,
                    |first, gate, up| {
                        for (i, (gate, up)) in gate.iter_mut().zip(up).enumerate() {
                            *gate = *gate * *up + biases[first + i];
                        }
                    },
                );
                let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&got), bits(&want), "{dtypes:?} {rows}, {x_rows} rows, {threads} threads");
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
