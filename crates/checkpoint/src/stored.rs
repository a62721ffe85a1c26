//! A tensor as a file stores it, before anybody has said what it is for: also of types that nothing here computes with.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

use calypte_disk::Extent;
use calypte_quant::DType;

use crate::catalog::Tensor;
use crate::error::{OpenError, quote};
use crate::gguf_value::GgmlType;

/// Element type of a stored tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StoredType {
    /// A type that can be computed with.
    Plain(DType),
    /// A type that means something only together with other tensors (such as scales), or to nobody.
    Raw(RawType),
    /// One of ggml's types that cannot be computed with here.
    Ggml(&'static GgmlType),
    /// A type that the format's definition did not have when this was written. Its size cannot be computed.
    Unknown(String),
}

/// Types that safetensors files have besides the plain ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RawType {
    /// 8-bit float with four exponent bits, without infinities (OCP FP8); real values are these times a scale.
    F8E4M3,
    /// 8-bit float with five exponent bits.
    F8E5M2,
    /// An exponent alone: the scale of an MX block.
    F8E8M0,
    /// Bytes; MXFP4 blocks and their scales are stored so.
    U8,
    I8,
    I32,
    I64,
    F64,
    Bool,
    /// Types that no published model is stored in, by name and bits per value.
    Other(&'static str, u64),
}

/// Names in safetensors headers and bits per value.
const RAW: [(&str, RawType, u64); 20] = [
    ("F8_E4M3", RawType::F8E4M3, 8),
    ("F8_E5M2", RawType::F8E5M2, 8),
    ("F8_E8M0", RawType::F8E8M0, 8),
    ("U8", RawType::U8, 8),
    ("I8", RawType::I8, 8),
    ("I32", RawType::I32, 32),
    ("I64", RawType::I64, 64),
    ("F64", RawType::F64, 64),
    ("BOOL", RawType::Bool, 8),
    ("F8_E4M3FNUZ", RawType::Other("F8_E4M3FNUZ", 8), 8),
    ("F8_E5M2FNUZ", RawType::Other("F8_E5M2FNUZ", 8), 8),
    ("F4", RawType::Other("F4", 4), 4),
    ("F6_E2M3", RawType::Other("F6_E2M3", 6), 6),
    ("F6_E3M2", RawType::Other("F6_E3M2", 6), 6),
    ("I16", RawType::Other("I16", 16), 16),
    ("U16", RawType::Other("U16", 16), 16),
    ("U32", RawType::Other("U32", 32), 32),
    ("U64", RawType::Other("U64", 64), 64),
    ("C64", RawType::Other("C64", 64), 64),
    ("C128", RawType::Other("C128", 128), 128),
];

impl RawType {
    fn entry(self) -> (&'static str, u64) {
        if let RawType::Other(name, bits) = self {
            return (name, bits);
        }
        // Every other variant is in the table; a test checks it.
        RAW.iter().find(|(_, t, _)| *t == self).map_or(("", 8), |(name, _, bits)| (name, *bits))
    }

    /// Its name in a safetensors header.
    pub fn name(self) -> &'static str {
        self.entry().0
    }

    /// Bits of one value.
    pub fn bits(self) -> u64 {
        self.entry().1
    }
}

impl StoredType {
    /// The type with the safetensors name `name`.
    pub fn of_safetensors(name: &str) -> Self {
        match name {
            "F32" => StoredType::Plain(DType::F32),
            "F16" => StoredType::Plain(DType::F16),
            "BF16" => StoredType::Plain(DType::BF16),
            _ => match RAW.iter().find(|(n, _, _)| *n == name) {
                Some((_, raw, _)) => StoredType::Raw(*raw),
                None => StoredType::Unknown(quote(name)),
            },
        }
    }

    /// The name that the format gives it.
    pub fn name(&self) -> Cow<'static, str> {
        match self {
            StoredType::Plain(dtype) => dtype.name().into(),
            StoredType::Raw(raw) => raw.name().into(),
            StoredType::Ggml(ggml) => ggml.name.into(),
            StoredType::Unknown(name) => name.clone().into(),
        }
    }

    /// Values in one block, 1 when there are no blocks.
    pub fn block_len(&self) -> usize {
        match self {
            StoredType::Plain(dtype) => dtype.block_len(),
            StoredType::Ggml(ggml) => ggml.block_len,
            StoredType::Raw(_) | StoredType::Unknown(_) => 1,
        }
    }

    /// Whether the number of bytes follows from the shape.
    pub fn has_size(&self) -> bool {
        match self {
            StoredType::Plain(_) | StoredType::Raw(_) => true,
            StoredType::Ggml(ggml) => ggml.block_bytes > 0,
            StoredType::Unknown(_) => false,
        }
    }

    /// Bytes of a tensor of shape `shape`; `None` when its rows are no whole number of blocks, the size overflows, or
    /// the type's size is not known.
    pub fn byte_len(&self, shape: &[usize]) -> Option<u64> {
        let values = || shape.iter().try_fold(1u64, |n, &d| n.checked_mul(u64::try_from(d).ok()?));
        let (block_len, block_bytes) = match self {
            StoredType::Plain(dtype) => (dtype.block_len(), dtype.block_bytes()),
            StoredType::Ggml(ggml) if ggml.block_bytes > 0 => (ggml.block_len, ggml.block_bytes),
            StoredType::Raw(raw) => {
                let bits = values()?.checked_mul(raw.bits())?;
                return bits.is_multiple_of(8).then_some(bits / 8);
            }
            StoredType::Ggml(_) | StoredType::Unknown(_) => return None,
        };
        if !shape.last().copied().unwrap_or(1).is_multiple_of(block_len) {
            return None;
        }
        let blocks = values()? / u64::try_from(block_len).ok()?;
        blocks.checked_mul(u64::try_from(block_bytes).ok()?)
    }
}

impl fmt::Display for StoredType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoredType::Ggml(ggml) => write!(f, "{} (ggml type {})", ggml.name, ggml.kind),
            _ => f.write_str(&self.name()),
        }
    }
}

/// One tensor as stored.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stored {
    /// Its name in the file.
    pub name: String,
    /// Element type.
    pub ty: StoredType,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// Where its bytes are.
    pub extent: Extent,
}

impl Stored {
    /// The tensor of file `path`, if its type can be computed with.
    ///
    /// # Errors
    /// [`OpenError::Unsupported`] with the type's name and what to use instead.
    pub fn into_tensor(self, path: &Path) -> Result<Tensor, OpenError> {
        let StoredType::Plain(dtype) = self.ty else {
            let todo = match &self.ty {
                StoredType::Ggml(ggml) => ggml.todo(),
                StoredType::Unknown(name) if name.contains("ggml type") => {
                    "use a current version of this program, or a Q4_K_M, Q8_0 or BF16 file of the model"
                }
                _ => "use a BF16 checkpoint, or a GGUF file of the model",
            };
            let supported = match &self.ty {
                StoredType::Raw(_) => safetensors_types(),
                StoredType::Unknown(name) if !name.contains("ggml type") => safetensors_types(),
                _ => ggml_types(),
            };
            return Err(OpenError::Unsupported {
                path: path.to_owned(),
                what: format!("type of tensor `{}` at byte {}", quote(&self.name), self.extent.offset),
                expected: format!("one of {supported}"),
                found: self.ty.to_string(),
                todo,
            });
        };
        Ok(Tensor::plain(self.name, dtype, self.shape, self.extent))
    }
}

/// Types that stand for themselves in safetensors files, for messages.
fn safetensors_types() -> String {
    [DType::F32, DType::F16, DType::BF16].map(|d| d.name()).join(", ")
}

/// Types of GGUF files that can be computed with, for messages.
fn ggml_types() -> String {
    // The scales of arranged types are stored apart, which GGUF has no way to say.
    let names = DType::ALL.iter().filter(|d| !d.is_arranged()).map(|d| d.name());
    names.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, shape: &[usize], bytes: Option<u64>) {
        let ty = StoredType::of_safetensors(name);
        assert_eq!(ty.name(), name);
        assert_eq!(ty.byte_len(shape), bytes, "{name} {shape:?}");
    }

    #[test]
    fn names_and_sizes() {
        for (name, raw, bits) in RAW {
            assert_eq!((raw.name(), raw.bits()), (name, bits));
            check(name, &[3, 8], Some(3 * bits));
            check(name, &[usize::MAX, usize::MAX], None);
        }
        check("F32", &[2, 3], Some(24));
        check("BF16", &[], Some(2));
        check("F4", &[3], None);
        check("F9", &[3], None);
    }
}
