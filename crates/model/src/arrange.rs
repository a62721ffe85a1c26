//! From how checkpoints store matrices to how the arithmetic reads them, for layouts that differ.

use calypte_checkpoint::{ExpertLayer, ExpertMatrix, Packing, Source, Tensor};
use calypte_quant::arrange::{self, Misfit};
use calypte_quant::{DType, unpack_row};
use calypte_residency::Arrange;

/// Rows of a tensor whose scales are stored apart.
pub(crate) fn tensor(
    tensor: &Tensor,
    [rows, cols]: [usize; 2],
    stored: &[u8],
    scales: &[u8],
) -> Result<Vec<u8>, Misfit> {
    let matrix = ExpertMatrix { dtype: tensor.dtype, rows, cols };
    let mut out = vec![0; matrix.bytes()];
    match tensor.packing {
        Packing::Plain => out.copy_from_slice(stored),
        Packing::Mxfp4 { .. } => arrange::mxfp4(stored, scales, cols, 0, 1, &mut out)?,
        Packing::Int4 { .. } => arrange::int4(stored, scales, cols, &mut out)?,
        Packing::Fp8(s) => arrange::e4m3(stored, &floats(s.dtype, scales), [rows, cols], s.block, &mut out)?,
    }
    Ok(out)
}

/// Scales as f32.
fn floats(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![0f32; bytes.len() / dtype.block_bytes()];
    unpack_row(dtype, bytes, &mut out);
    out
}

/// How the experts of one layer are put together.
#[derive(Debug)]
pub struct ArrangeExperts {
    matrices: [ExpertMatrix; 3],
    sources: [Source; 3],
}

impl ArrangeExperts {
    /// For experts that are not stored as the arithmetic reads them; `None` for those that are.
    pub fn of(layer: &ExpertLayer) -> Option<ArrangeExperts> {
        let arrange = ArrangeExperts { matrices: layer.matrices(), sources: layer.sources };
        (!layer.is_plain()).then_some(arrange)
    }
}

impl Arrange for ArrangeExperts {
    fn matrix_bytes(&self) -> [usize; 3] {
        self.matrices.map(|m| m.bytes())
    }

    fn arrange(&self, pieces: &[&[u8]], out: &mut [u8]) -> Result<(), String> {
        let mut rest = out;
        for (matrix, source) in self.matrices.iter().zip(&self.sources) {
            let (part, after) = rest.split_at_mut_checked(matrix.bytes()).ok_or("too little room")?;
            rest = after;
            one(matrix, source, pieces, part)?;
        }
        Ok(())
    }
}

fn one(m: &ExpertMatrix, source: &Source, pieces: &[&[u8]], out: &mut [u8]) -> Result<(), String> {
    let piece = |i: usize| pieces.get(i).copied().ok_or_else(|| format!("there is no piece {i}"));
    let done = match *source {
        Source::Piece(i) => arrange::rows(piece(i)?, piece(i)?.len(), 0, 1, out),
        Source::Transposed { piece: i, first, step } => {
            let outputs = m.rows * step;
            arrange::transposed(piece(i)?, m.dtype.block_bytes(), [m.cols, outputs], first, step, out)
        }
        Source::Mxfp4 { piece: i, first, step } => {
            let (blocks, scales) = (piece(i)?, piece(i + 1)?);
            if step == 1 {
                // One after another: gate and up are the halves of a piece.
                let part = |bytes| rows_of(bytes, scales.len() / (m.cols / BLOCK).max(1), first, m.rows);
                arrange::mxfp4(part(blocks)?, part(scales)?, m.cols, 0, 1, out)
            } else {
                arrange::mxfp4(blocks, scales, m.cols, first, step, out)
            }
        }
        Source::Int4 { piece: i } => arrange::int4(piece(i)?, piece(i + 1)?, m.cols, out),
        Source::Fp8 { piece: i, scales_dtype, block } => {
            arrange::e4m3(piece(i)?, &floats(scales_dtype, piece(i + 1)?), [m.rows, m.cols], block, out)
        }
    };
    done.map_err(|misfit| misfit.to_string())
}

/// Values that share one MXFP4 exponent.
const BLOCK: usize = 32;

/// Rows `first .. first + rows` of `of` equal ones.
fn rows_of(bytes: &[u8], of: usize, first: usize, rows: usize) -> Result<&[u8], String> {
    let row_bytes = bytes.len() / of.max(1);
    let range = first * row_bytes..(first + rows) * row_bytes;
    bytes.get(range).ok_or_else(|| format!("rows {first} to {} of {of} are not there", first + rows))
}
