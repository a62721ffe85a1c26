//! Metadata values and tensor types of GGUF files.

use calypte_quant::DType;

use crate::error::quote;
use crate::stored::StoredType;

/// A metadata value. The width of a number is of no interest to any reader here.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    List(List),
}

/// A metadata array.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum List {
    Unsigned(Vec<u64>),
    Signed(Vec<i64>),
    Float(Vec<f64>),
    Bool(Vec<bool>),
    Text(Vec<String>),
    Lists(Vec<List>),
}

impl Value {
    /// The value as a message shows it.
    pub fn in_words(&self) -> String {
        match self {
            Value::Unsigned(v) => v.to_string(),
            Value::Signed(v) => v.to_string(),
            Value::Float(v) => v.to_string(),
            Value::Bool(v) => v.to_string(),
            Value::Text(v) => format!("`{}`", quote(v)),
            Value::List(v) => format!("an array of {}", v.len()),
        }
    }
}

impl List {
    pub fn len(&self) -> usize {
        match self {
            List::Unsigned(v) => v.len(),
            List::Signed(v) => v.len(),
            List::Float(v) => v.len(),
            List::Bool(v) => v.len(),
            List::Text(v) => v.len(),
            List::Lists(v) => v.len(),
        }
    }
}

/// The element type with ggml's number `kind`, if it can be computed with.
fn dtype_of(kind: u32) -> Option<DType> {
    Some(match kind {
        0 => DType::F32,
        1 => DType::F16,
        2 => DType::Q4_0,
        3 => DType::Q4_1,
        6 => DType::Q5_0,
        7 => DType::Q5_1,
        8 => DType::Q8_0,
        10 => DType::Q2K,
        11 => DType::Q3K,
        12 => DType::Q4K,
        13 => DType::Q5K,
        14 => DType::Q6K,
        20 => DType::Iq4Nl,
        23 => DType::Iq4Xs,
        30 => DType::BF16,
        34 => DType::Tq1_0,
        35 => DType::Tq2_0,
        39 => DType::Mxfp4,
        _ => return None,
    })
}

/// A ggml type that cannot be computed with here.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct GgmlType {
    /// ggml's number.
    pub kind: u32,
    /// ggml's name.
    pub name: &'static str,
    /// Values in one block.
    pub block_len: usize,
    /// Bytes of one block; 0 for types whose layout is no longer defined.
    pub block_bytes: usize,
}

impl GgmlType {
    /// What to do about a file that has it.
    pub fn todo(&self) -> &'static str {
        match self.kind {
            4 | 5 => "the file is from 2023: convert the model again with a current converter",
            31..=33 => "use the plain Q4_0 file of the model, which holds the same values",
            36..=38 => "use the plain IQ4_NL file of the model, which holds the same values",
            24..=28 => "no supported model computes with this type: use another file of the model",
            _ => "use a file of the model in another quantisation, for example Q4_K_M, Q8_0 or BF16",
        }
    }
}

const fn ggml(kind: u32, name: &'static str, block_len: usize, block_bytes: usize) -> GgmlType {
    GgmlType { kind, name, block_len, block_bytes }
}

/// ggml's types and their blocks, as ggml.h numbers them, but for those of [`dtype_of`].
static OTHERS: [GgmlType; 25] = [
    ggml(4, "Q4_2", 16, 0),
    ggml(5, "Q4_3", 16, 0),
    ggml(9, "Q8_1", 32, 36),
    ggml(15, "Q8_K", 256, 292),
    ggml(16, "IQ2_XXS", 256, 66),
    ggml(17, "IQ2_XS", 256, 74),
    ggml(18, "IQ3_XXS", 256, 98),
    ggml(19, "IQ1_S", 256, 50),
    ggml(21, "IQ3_S", 256, 110),
    ggml(22, "IQ2_S", 256, 82),
    ggml(24, "I8", 1, 1),
    ggml(25, "I16", 1, 2),
    ggml(26, "I32", 1, 4),
    ggml(27, "I64", 1, 8),
    ggml(28, "F64", 1, 8),
    ggml(29, "IQ1_M", 256, 56),
    ggml(31, "Q4_0_4_4", 32, 18),
    ggml(32, "Q4_0_4_8", 32, 18),
    ggml(33, "Q4_0_8_8", 32, 18),
    ggml(36, "IQ4_NL_4_4", 32, 18),
    ggml(37, "IQ4_NL_4_8", 32, 18),
    ggml(38, "IQ4_NL_8_8", 32, 18),
    ggml(40, "NVFP4", 64, 36),
    ggml(41, "Q1_0", 128, 18),
    ggml(42, "Q2_0", 64, 18),
];

/// The type with ggml's number `kind`.
pub(crate) fn stored_type(kind: u32) -> StoredType {
    if let Some(dtype) = dtype_of(kind) {
        return StoredType::Plain(dtype);
    }
    match OTHERS.iter().find(|t| t.kind == kind) {
        Some(ggml) => StoredType::Ggml(ggml),
        None => StoredType::Unknown(format!("unknown (ggml type {kind})")),
    }
}
