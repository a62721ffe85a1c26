//! The routed experts of a layer: what is read for each, and how that becomes three matrices.

use calypte_disk::Extent;
use calypte_quant::DType;

/// One matrix of an expert: the same type and shape for every expert of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertMatrix {
    /// Element type.
    pub dtype: DType,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
}

impl ExpertMatrix {
    /// Bytes of the matrix, saturating.
    pub fn bytes(&self) -> usize {
        self.dtype.row_bytes(self.cols).unwrap_or(usize::MAX).saturating_mul(self.rows)
    }
}

/// The routed experts of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertLayer {
    /// Layer number in the model.
    pub layer: usize,
    /// `[width, hidden]`
    pub gate: ExpertMatrix,
    /// `[width, hidden]`
    pub up: ExpertMatrix,
    /// `[hidden, width]`
    pub down: ExpertMatrix,
    /// Per expert: the pieces that are read for it, in the order that `sources` counts them.
    pub extents: Vec<Vec<Extent>>,
    /// What gate, up and down are made of.
    pub sources: [Source; 3],
}

/// How one matrix of an expert comes out of the pieces that were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// It is this piece.
    Piece(usize),
    /// Every `step`th *column* of a piece that is stored with inputs outermost.
    Transposed {
        /// The piece.
        piece: usize,
        /// First column.
        first: usize,
        /// Columns from one to the next.
        step: usize,
    },
    /// Every `step`th row of MXFP4 blocks whose exponents are apart.
    Mxfp4 {
        /// The piece with the blocks; the next one has the exponents.
        piece: usize,
        /// First row.
        first: usize,
        /// Rows from one to the next.
        step: usize,
    },
    /// INT4 words whose scales are apart.
    Int4 {
        /// The piece with the words; the next one has the scales.
        piece: usize,
    },
    /// FP8 values whose scales are apart.
    Fp8 {
        /// The piece with the values; the next one has the scales.
        piece: usize,
        /// Type of the scales.
        scales_dtype: DType,
        /// Rows and columns of values that share one.
        block: [usize; 2],
    },
}

impl ExpertLayer {
    /// Bytes that are read for one expert.
    pub fn expert_bytes(&self) -> u64 {
        self.extents.first().map_or(0, |e| e.iter().map(|x| x.len).sum())
    }

    /// Gate, up and down.
    pub fn matrices(&self) -> [ExpertMatrix; 3] {
        [self.gate, self.up, self.down]
    }

    /// Whether the pieces are gate, up and down as the arithmetic reads them.
    pub fn is_plain(&self) -> bool {
        self.sources == [Source::Piece(0), Source::Piece(1), Source::Piece(2)]
    }
}
