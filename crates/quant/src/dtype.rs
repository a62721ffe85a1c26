//! Element types of stored tensors and the byte arithmetic that follows from them.

/// The element type of a stored tensor.
///
/// Integer formats are laid out as ggml defines them: a row is a sequence of blocks, each block holds
/// [`DType::block_len`] values in [`DType::block_bytes`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of an f32.
    BF16,
    /// 32 × int8 and one f16 scale.
    Q8_0,
    /// 32 × 4 bit around 8 and one f16 scale.
    Q4_0,
    /// 32 × 4 bit, one f16 scale and one f16 minimum.
    Q4_1,
    /// 256 × 4 bit in eight sub-blocks with 6-bit scales and minima.
    Q4K,
    /// 256 × 6 bit in sixteen sub-blocks with 8-bit scales.
    Q6K,
}

impl DType {
    /// Every format, in the order of the documentation.
    pub const ALL: [DType; 8] =
        [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0, DType::Q4_1, DType::Q4K, DType::Q6K];

    /// Values in one block (1 for the float types).
    pub const fn block_len(self) -> usize {
        match self {
            DType::F32 | DType::F16 | DType::BF16 => 1,
            DType::Q8_0 | DType::Q4_0 | DType::Q4_1 => 32,
            DType::Q4K | DType::Q6K => 256,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::Q8_0 => 34,
            DType::Q4_0 => 18,
            DType::Q4_1 => 20,
            DType::Q4K => 144,
            DType::Q6K => 210,
        }
    }

    /// Whether activations are rounded to int8 before they meet weights of this type.
    pub const fn is_integer(self) -> bool {
        self.block_len() > 1
    }

    /// Bytes of one row of `cols` values, or `None` when `cols` is not a whole number of blocks or overflows.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }

    /// The name used in messages, as the formats themselves spell it.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "F32",
            DType::F16 => "F16",
            DType::BF16 => "BF16",
            DType::Q8_0 => "Q8_0",
            DType::Q4_0 => "Q4_0",
            DType::Q4_1 => "Q4_1",
            DType::Q4K => "Q4_K",
            DType::Q6K => "Q6_K",
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A borrowed row-major matrix of `rows` × `cols` weights; multiplying by it maps `cols` inputs to `rows` outputs.
///
/// The bytes may start at any address: every reader of them uses unaligned loads.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    /// Element type of the bytes.
    pub dtype: DType,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Exactly `rows × row_bytes(cols)` bytes.
    pub bytes: &'a [u8],
}

impl<'a> Matrix<'a> {
    /// Wraps `bytes`; `None` if their number is not what the shape asks for.
    pub fn new(dtype: DType, rows: usize, cols: usize, bytes: &'a [u8]) -> Option<Self> {
        let want = dtype.row_bytes(cols)?.checked_mul(rows)?;
        (bytes.len() == want).then_some(Matrix { dtype, rows, cols, bytes })
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.bytes.len() / self.rows.max(1)
    }

    /// The bytes of row `row`.
    pub fn row(&self, row: usize) -> &'a [u8] {
        let n = self.row_bytes();
        &self.bytes[row * n..(row + 1) * n]
    }
}
