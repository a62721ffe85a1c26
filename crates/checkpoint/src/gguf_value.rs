//! Metadata values and tensor types of GGUF files.

use calypte_quant::DType;

use crate::error::quote;

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

/// The element type with ggml's number `kind`.
pub(crate) fn dtype_of(kind: u32) -> Option<DType> {
    Some(match kind {
        0 => DType::F32,
        1 => DType::F16,
        2 => DType::Q4_0,
        3 => DType::Q4_1,
        8 => DType::Q8_0,
        12 => DType::Q4K,
        14 => DType::Q6K,
        30 => DType::BF16,
        _ => return None,
    })
}

/// The types that can be read, for messages.
pub(crate) fn supported_types() -> String {
    DType::ALL.map(|d| d.name()).join(", ")
}

/// Names of the ggml types that cannot be read here, so that a message can name what the file has.
pub(crate) fn type_name(kind: u32) -> String {
    const OTHERS: [(u32, &str); 26] = [
        (6, "Q5_0"),
        (7, "Q5_1"),
        (9, "Q8_1"),
        (10, "Q2_K"),
        (11, "Q3_K"),
        (13, "Q5_K"),
        (15, "Q8_K"),
        (16, "IQ2_XXS"),
        (17, "IQ2_XS"),
        (18, "IQ3_XXS"),
        (19, "IQ1_S"),
        (20, "IQ4_NL"),
        (21, "IQ3_S"),
        (22, "IQ2_S"),
        (23, "IQ4_XS"),
        (24, "I8"),
        (25, "I16"),
        (26, "I32"),
        (27, "I64"),
        (28, "F64"),
        (29, "IQ1_M"),
        (34, "TQ1_0"),
        (35, "TQ2_0"),
        (39, "MXFP4"),
        (40, "NVFP4"),
        (41, "Q1_0"),
    ];
    let name = OTHERS.iter().find(|(k, _)| *k == kind).map_or("unknown", |(_, n)| n);
    format!("{name} (ggml type {kind})")
}
