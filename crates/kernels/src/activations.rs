//! Layer inputs, as f32 and rounded to int8, so that all matrices that read one input share one rounding.

#[cfg(target_arch = "x86_64")]
mod avx512;

use calypte_quant::formats::BLOCK;
use calypte_quant::q8::{Q8RowMut, quantize_row};
use calypte_quant::reference::Q8Row;

use crate::scratch::grow;
use crate::{Isa, Team, isa::for_each_isa};

/// What integer weights are multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Precision {
    /// Activations rounded to int8 in blocks of 32, as every fast engine does. The default.
    #[default]
    Int8,
    /// Activations as they are, for measuring what the rounding costs. Slower.
    F32,
}

/// Rows of activations.
#[derive(Default)]
pub struct Activations {
    rows: usize,
    cols: usize,
    x: Vec<f32>,
    q8: Rounded,
    rounded: bool,
}

/// Rounded rows one after the other, each part as in [`Q8Row`].
#[derive(Default)]
struct Rounded {
    q: Vec<i8>,
    scale: Vec<f32>,
    sum: Vec<f32>,
    total: Vec<i32>,
    halves: Vec<[i32; 2]>,
}

impl Rounded {
    /// Makes room for so many blocks at least.
    fn grow(&mut self, blocks: usize) {
        grow(&mut self.q, blocks * BLOCK);
        grow(&mut self.scale, blocks);
        grow(&mut self.sum, blocks);
        grow(&mut self.total, blocks);
        grow(&mut self.halves, blocks);
    }

    /// Rows of `blocks` blocks, as many as there is room for.
    fn rows_mut(&mut self, blocks: usize) -> impl Iterator<Item = Q8RowMut<'_>> {
        let scales = self.scale.chunks_mut(blocks).zip(self.sum.chunks_mut(blocks));
        let totals = self.total.chunks_mut(blocks).zip(self.halves.chunks_mut(blocks));
        let parts = self.q.chunks_mut(blocks * BLOCK).zip(scales).zip(totals);
        parts.map(|((q, (scale, sum)), (total, halves))| Q8RowMut { q, scale, sum, total, halves })
    }

    #[inline(always)]
    fn row(&self, blocks: std::ops::Range<usize>) -> Q8Row<'_> {
        Q8Row {
            q: &self.q[blocks.start * BLOCK..blocks.end * BLOCK],
            scale: &self.scale[blocks.clone()],
            sum: &self.sum[blocks.clone()],
            total: &self.total[blocks.clone()],
            halves: &self.halves[blocks],
        }
    }
}

/// Below this many values one thread rounds faster than two hand over.
const PARALLEL_VALUES_MIN: usize = 1 << 14;
/// Rows that one task rounds.
const ROWS_PER_TASK: usize = 8;

for_each_isa! {
    fn quantize_isa(x: &[f32], out: &mut Q8RowMut<'_>) = quantize_row
}

/// [`quantize_row`] on a given tier.
fn quantize(isa: Isa, x: &[f32], out: &mut Q8RowMut<'_>) {
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Avx512 {
        // SAFETY: a tier above `Scalar` is only ever made by `Isa::available`, which asked the processor.
        return unsafe { avx512::quantize_row(x, out) };
    }
    quantize_isa(isa, x, out);
}

impl Activations {
    /// An empty buffer; it keeps its memory from use to use.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes room for `rows` × `cols` values and gives them out to be written. Their earlier contents are undefined.
    pub fn fill(&mut self, rows: usize, cols: usize) -> &mut [f32] {
        (self.rows, self.cols, self.rounded) = (rows, cols, false);
        grow(&mut self.x, rows * cols);
        &mut self.x[..rows * cols]
    }

    /// The values, to be changed in place: any rounding of them is forgotten.
    pub fn values_mut(&mut self) -> &mut [f32] {
        self.rounded = false;
        &mut self.x[..self.rows * self.cols]
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values per row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Row `row` as f32.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.x[row * self.cols..(row + 1) * self.cols]
    }

    /// Rounds all rows to int8, once; a width that is not a multiple of 32 stays f32 (no integer format has it).
    pub fn quantize(&mut self, team: &Team) {
        if self.rows * self.cols < PARALLEL_VALUES_MIN || self.rows < 2 {
            self.quantize_serial();
            return;
        }
        if self.prepare() {
            let (cols, isa, x) = (self.cols, Isa::get(), &self.x[..self.rows * self.cols]);
            // Jobs of a team never nest, so this must not be reached from inside a task; `quantize_serial` may.
            let mut rows: Vec<_> = self.q8.rows_mut(cols / BLOCK).take(self.rows).collect();
            team.run_pieces(&mut rows, ROWS_PER_TASK, |piece, rows| {
                let x = &x[piece * ROWS_PER_TASK * cols..];
                x.chunks_exact(cols).zip(rows).for_each(|(x, row)| quantize(isa, x, row));
            });
            self.rounded = true;
        }
    }

    /// [`Activations::quantize`] on the calling thread alone, for use inside a task.
    pub fn quantize_serial(&mut self) {
        if self.prepare() {
            let x = &self.x[..self.rows * self.cols];
            // All blocks as one long row.
            self.q8.rows_mut(x.len() / BLOCK).take(1).for_each(|mut all| quantize(Isa::get(), x, &mut all));
            self.rounded = true;
        }
    }

    /// Makes room for the rounding; false when there is nothing to do.
    fn prepare(&mut self) -> bool {
        let values = self.rows * self.cols;
        if self.rounded || !self.cols.is_multiple_of(BLOCK) || values == 0 {
            return false;
        }
        self.q8.grow(values / BLOCK);
        true
    }

    /// Whether [`Activations::quantize`] has run on the present contents.
    pub fn is_quantized(&self) -> bool {
        self.rounded
    }

    /// Row `row` rounded. Only after [`Activations::quantize`].
    #[inline(always)]
    pub fn q8(&self, row: usize) -> Q8Row<'_> {
        let blocks = self.cols / BLOCK;
        self.q8.row(row * blocks..(row + 1) * blocks)
    }

    /// As [`Activations::q8`], of all rows from `row` on, one after the other.
    #[allow(dead_code)] // on a processor without lanes nobody asks
    pub(crate) fn q8_from(&self, row: usize) -> Q8Row<'_> {
        let blocks = self.cols / BLOCK;
        self.q8.row(row * blocks..self.rows * blocks)
    }

    /// Copies the given rows of `from`, with their rounding if they have one: an expert's share of a layer input.
    pub fn gather(&mut self, from: &Activations, rows: impl ExactSizeIterator<Item = usize> + Clone) {
        if from.rounded {
            self.gather_rounded(from, rows.clone());
        }
        (self.rows, self.cols, self.rounded) = (rows.len(), from.cols, from.rounded);
        grow(&mut self.x, self.rows * self.cols);
        for (to, r) in self.x.chunks_exact_mut(from.cols.max(1)).zip(rows) {
            to.copy_from_slice(from.row(r));
        }
    }

    /// [`Activations::gather`] for those who read nothing but the rounding, which `from` must have. The values themselves are
    /// undefined.
    pub fn gather_rounded(&mut self, from: &Activations, rows: impl ExactSizeIterator<Item = usize>) {
        assert!(from.rounded, "there is no rounding to be copied");
        (self.rows, self.cols, self.rounded) = (rows.len(), from.cols, true);
        self.q8.grow(self.rows * self.cols / BLOCK);
        for (to, r) in self.q8.rows_mut(from.cols / BLOCK).zip(rows) {
            let row = from.q8(r);
            to.q.copy_from_slice(row.q);
            to.scale.copy_from_slice(row.scale);
            to.sum.copy_from_slice(row.sum);
            to.total.copy_from_slice(row.total);
            to.halves.copy_from_slice(row.halves);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every tier rounds as the reference does, bit for bit.
    #[track_caller]
    fn check(x: &[f32]) {
        let round = |quantize: &dyn Fn(&mut Q8RowMut<'_>)| {
            let mut rounded = Rounded::default();
            rounded.grow(x.len() / BLOCK);
            rounded.rows_mut(x.len() / BLOCK).for_each(|mut row| quantize(&mut row));
            let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            (rounded.q, bits(&rounded.scale), bits(&rounded.sum), rounded.total, rounded.halves)
        };
        let want = round(&|row| quantize_row(x, row));
        for isa in Isa::available() {
            assert!(round(&|row| quantize(isa, x, row)) == want, "{} values on {}", x.len(), isa.name());
        }
    }

    #[test]
    fn every_tier_rounds_as_the_reference() {
        for blocks in [1, 2, 15, 16, 17, 40] {
            let mut x: Vec<f32> =
                (0..blocks * BLOCK).map(|i| (i * 7919 % 2003) as f32 * 0.37 - 371.0).collect();
            check(&x);
            // A block of zeros, one with ties, one so small that its scale has no inverse, and what is not finite.
            x[..BLOCK].fill(0.0);
            check(&x);
            x[..4].copy_from_slice(&[127.0, 2.5, -3.5, 0.5]);
            check(&x);
            x[..BLOCK].fill(f32::from_bits(1));
            x[1] = -f32::from_bits(200);
            check(&x);
            for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                x[BLOCK * (blocks - 1) + 7] = bad;
                check(&x);
            }
        }
    }
}
