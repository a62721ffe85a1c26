//! Element types of stored tensors and the byte arithmetic that follows from them.

use crate::formats;

/// Declares [`DType`] and what a table can say of each of its variants.
macro_rules! dtypes {
    ($($(#[$doc:meta])* $variant:ident $name:literal: $len:literal in $bytes:literal;)*) => {
        /// The element type of a stored tensor.
        ///
        /// Integer formats are laid out as ggml defines them or, where it does not, much like that: a row is a sequence of blocks, each block holds
        /// [`DType::block_len`] values in [`DType::block_bytes`] bytes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum DType {
            $($(#[$doc])* $variant,)*
        }

        impl DType {
            /// Every format, in the order of the documentation.
            pub const ALL: [DType; [$(DType::$variant),*].len()] = [$(DType::$variant),*];

            /// Values in one block (1 for the float types).
            pub const fn block_len(self) -> usize {
                match self {
                    $(DType::$variant => $len,)*
                }
            }

            /// Bytes of one block. What an arranged type has beside its blocks is not in it: ask [`DType::row_bytes`]
            /// for the size of anything.
            pub const fn block_bytes(self) -> usize {
                match self {
                    $(DType::$variant => $bytes,)*
                }
            }

            /// The name used in messages, as the formats themselves spell it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(DType::$variant => $name,)*
                }
            }
        }
    };
}

// Variant, name, values and bytes of a block.
dtypes! {
    /// IEEE 754 binary32.
    F32 "F32": 1 in 4;
    /// IEEE 754 binary16.
    F16 "F16": 1 in 2;
    /// The upper half of an f32.
    BF16 "BF16": 1 in 2;
    /// OCP FP8 E4M3, the finite variant, with an f32 scale per 128 values of a row. *Arranged*: no file has it like this,
    /// [`crate::arrange::e4m3`] makes it when weights are read.
    F8E4M3 "F8_E4M3": 1 in 1;
    /// 32 × int8 and one f16 scale.
    Q8_0 "Q8_0": 32 in 34;
    /// 32 × 4 bit around 8 and one f16 scale.
    Q4_0 "Q4_0": 32 in 18;
    /// 32 × 4 bit, one f16 scale and one f16 minimum.
    Q4_1 "Q4_1": 32 in 20;
    /// 32 × 5 bit around 16 and one f16 scale.
    Q5_0 "Q5_0": 32 in 22;
    /// 32 × 5 bit, one f16 scale and one f16 minimum.
    Q5_1 "Q5_1": 32 in 24;
    /// 256 × 2 bit in sixteen sub-blocks with 4-bit scales and minima.
    Q2K "Q2_K": 256 in 84;
    /// 256 × 3 bit in sixteen sub-blocks with 6-bit scales.
    Q3K "Q3_K": 256 in 110;
    /// 256 × 4 bit in eight sub-blocks with 6-bit scales and minima.
    Q4K "Q4_K": 256 in 144;
    /// 256 × 5 bit in eight sub-blocks with 6-bit scales and minima.
    Q5K "Q5_K": 256 in 176;
    /// 256 × 6 bit in sixteen sub-blocks with 8-bit scales.
    Q6K "Q6_K": 256 in 210;
    /// 32 × 4-bit codes of unevenly spaced integers and one f16 scale.
    Iq4Nl "IQ4_NL": 32 in 18;
    /// 256 × 4-bit codes of unevenly spaced integers in eight sub-blocks with 6-bit scales.
    Iq4Xs "IQ4_XS": 256 in 136;
    /// 32 × E2M1 and one power of two.
    Mxfp4 "MXFP4": 32 in 17;
    /// 32 × 4 bit around 8 and one bf16 scale. *Arranged*: no file has it like this, [`crate::arrange::int4`] makes it when
    /// weights are read.
    Int4 "INT4": 32 in 18;
    /// 256 × base-3 digits, five to a byte, and one f16 scale.
    Tq1_0 "TQ1_0": 256 in 54;
    /// 256 × 2-bit ternary values and one f16 scale.
    Tq2_0 "TQ2_0": 256 in 66;
}

impl DType {
    /// Whether activations are rounded to int8 before they meet weights of this type.
    pub const fn is_integer(self) -> bool {
        self.block_len() > 1
    }

    /// Whether no file has it like this: it is made of what checkpoints store in several tensors.
    pub const fn is_arranged(self) -> bool {
        matches!(self, DType::F8E4M3 | DType::Int4)
    }

    /// Whether every value stands alone, with no scale beside it.
    pub const fn is_plain_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16)
    }

    /// Bytes of one row of `cols` values, or `None` when `cols` is not a whole number of blocks or overflows.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        match self {
            DType::F8E4M3 => formats::e4m3_row_bytes(cols),
            _ => (cols / self.block_len()).checked_mul(self.block_bytes()),
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

    /// The bytes of row `row` and all after it.
    pub fn from_row(&self, row: usize) -> &'a [u8] {
        &self.bytes[row * self.row_bytes()..]
    }
}
