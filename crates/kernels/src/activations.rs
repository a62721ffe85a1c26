//! Layer inputs, as f32 and rounded to int8, so that all matrices that read one input share one rounding.

use calypte_quant::formats::BLOCK;
use calypte_quant::q8::quantize_row;
use calypte_quant::reference::Q8Row;

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
    q: Vec<i8>,
    scale: Vec<f32>,
    sum: Vec<f32>,
    bias: Vec<[i32; 3]>,
    rounded: bool,
}

/// Below this many values one thread rounds faster than two hand over.
const PARALLEL_VALUES_MIN: usize = 1 << 14;

for_each_isa! {
    fn quantize(x: &[f32], q: &mut [i8], scale: &mut [f32], sum: &mut [f32], bias: &mut [[i32; 3]]) = quantize_row
}

impl Activations {
    /// An empty buffer; it keeps its memory from use to use.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes room for `rows` × `cols` values and gives them out to be written. Their earlier contents are undefined.
    pub fn fill(&mut self, rows: usize, cols: usize) -> &mut [f32] {
        (self.rows, self.cols, self.rounded) = (rows, cols, false);
        self.x.resize(rows * cols, 0.0);
        &mut self.x
    }

    /// The values, to be changed in place: any rounding of them is forgotten.
    pub fn values_mut(&mut self) -> &mut [f32] {
        self.rounded = false;
        &mut self.x[..self.rows * self.cols]
    }

    /// Copies `x` (`rows` × `cols`) in.
    pub fn copy_from(&mut self, rows: usize, cols: usize, x: &[f32]) {
        self.fill(rows, cols).copy_from_slice(&x[..rows * cols]);
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
            let (cols, blocks, isa) = (self.cols, self.cols / BLOCK, Isa::get());
            let (x, q, scale, sum) = (&self.x, &mut self.q[..], &mut self.scale[..], &mut self.sum[..]);
            let bias = &mut self.bias[..];
            // Jobs of a team never nest, so this must not be reached from inside a task; `quantize_serial` may.
            let factors = scale.chunks_mut(blocks).zip(sum.chunks_mut(blocks)).zip(bias.chunks_mut(blocks));
            let mut rows: Vec<_> = q.chunks_mut(cols).zip(factors).collect();
            team.run_pieces(&mut rows, 8, |piece, rows| {
                for (i, (q, ((scale, sum), bias))) in rows.iter_mut().enumerate() {
                    let row = piece * 8 + i;
                    quantize(isa, &x[row * cols..(row + 1) * cols], q, scale, sum, bias);
                }
            });
            self.rounded = true;
        }
    }

    /// [`Activations::quantize`] on the calling thread alone, for use inside a task.
    pub fn quantize_serial(&mut self) {
        if self.prepare() {
            let (q, scale) = (&mut self.q, &mut self.scale);
            quantize(Isa::get(), &self.x, q, scale, &mut self.sum, &mut self.bias);
            self.rounded = true;
        }
    }

    /// Makes room for the rounding; false when there is nothing to do.
    fn prepare(&mut self) -> bool {
        if self.rounded || !self.cols.is_multiple_of(BLOCK) || self.cols == 0 {
            return false;
        }
        self.q.resize(self.rows * self.cols, 0);
        self.scale.resize(self.rows * self.cols / BLOCK, 0.0);
        self.sum.resize(self.rows * self.cols / BLOCK, 0.0);
        self.bias.resize(self.rows * self.cols / BLOCK, [0; 3]);
        true
    }

    /// Whether [`Activations::quantize`] has run on the present contents.
    pub fn is_quantized(&self) -> bool {
        self.rounded
    }

    /// Row `row` rounded. Only after [`Activations::quantize`].
    #[inline(always)]
    pub fn q8(&self, row: usize) -> Q8Row<'_> {
        let (cols, blocks) = (self.cols, self.cols / BLOCK);
        Q8Row {
            q: &self.q[row * cols..(row + 1) * cols],
            scale: &self.scale[row * blocks..(row + 1) * blocks],
            sum: &self.sum[row * blocks..(row + 1) * blocks],
            bias: &self.bias[row * blocks..(row + 1) * blocks],
        }
    }

    /// Copies the given rows of `from`, with their rounding if they have one: an expert's share of a layer input.
    pub fn gather(&mut self, from: &Activations, rows: impl ExactSizeIterator<Item = usize> + Clone) {
        let (n, cols, blocks) = (rows.len(), from.cols, from.cols / BLOCK);
        (self.rows, self.cols, self.rounded) = (n, cols, from.rounded);
        self.x.clear();
        rows.clone().for_each(|r| self.x.extend_from_slice(from.row(r)));
        if from.rounded {
            self.q.clear();
            self.scale.clear();
            self.sum.clear();
            self.bias.clear();
            for r in rows {
                self.q.extend_from_slice(&from.q[r * cols..(r + 1) * cols]);
                self.scale.extend_from_slice(&from.scale[r * blocks..(r + 1) * blocks]);
                self.sum.extend_from_slice(&from.sum[r * blocks..(r + 1) * blocks]);
                self.bias.extend_from_slice(&from.bias[r * blocks..(r + 1) * blocks]);
            }
        }
    }
}
