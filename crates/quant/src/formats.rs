//! How the blocks of each format become numbers.
//!
//! Every integer format is seen as a run of 32-value blocks ([`Block32`]), whatever its storage block is: that is the
//! grain at which activations are rounded, and so the grain of the canonical dot product (see [`crate::reference`]).
//! The byte layouts are ggml's (`ggml-common.h` and `gguf-py` define them); each is restated where it is read.
//!
//! To add a format, write its layout in a file of this module (an [`IntFormat`] or a [`FloatFormat`]), give it a line in the
//! table of `dtype.rs` and one in the list of [`with_int_format!`](crate::with_int_format) or
//! [`with_float_format!`](crate::with_float_format), and add the vectors of its definition to `fixtures/quants`
//! (`tools/oracle/make_quants.py`). Every kernel is generic over it and tested for every [`DType`].

mod e4m3;
mod float;
mod int4;
mod iq;
mod k;
mod legacy;
mod mxfp4;
mod ternary;

pub(crate) use e4m3::row_bytes as e4m3_row_bytes;
pub use e4m3::{E4M3_GROUP, F8E4M3, e4m3_to_f32};
pub use float::{BF16, F16, F32};
pub use int4::Int4;
pub use iq::{Iq4Nl, Iq4Xs};
pub use k::{Q2K, Q3K, Q4K, Q5K, Q6K};
pub use legacy::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub use mxfp4::Mxfp4;
pub use ternary::{Tq1_0, Tq2_0};

use half::f16;

use crate::DType;

/// Values of an integer format that share one activation scale.
pub const BLOCK: usize = 32;
/// Accumulators of a float dot product.
pub const LANES: usize = 16;
/// Entries of a codebook.
pub const CODES: usize = 16;

/// 32 weights as integers with what turns them back into numbers:
/// `value[j] = scale · halves[j / 16] · q[j] − min · min_halves[j / 16]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Block32 {
    /// The integers.
    pub q: [i8; BLOCK],
    /// Integer factors of the first and second 16 values (both 1 except in Q2_K, Q3_K and Q6_K).
    pub halves: [i32; 2],
    /// Integer factors of the first and second half's `min` (both 1 except in Q2_K).
    pub min_halves: [i32; 2],
    /// Float factor. A power of two, a bf16, or a product of an f16 and at most six bits, so it is exact.
    pub scale: f32,
    /// Float offset, subtracted; exact for the same reason.
    pub min: f32,
}

/// What the float factors of a block are made of: `scale = widen(d) · scale_factor`, `min = widen(m) · min_factor`, both
/// exact, with [`IntFormat::widen`].
///
/// Kept apart from the arithmetic so that a kernel can widen the factors of many blocks at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Factors {
    /// Bits of the scale, an f16 unless the format says otherwise.
    pub d: u16,
    /// Bits of the minimum, likewise.
    pub m: u16,
    /// Integer factor of the scale.
    pub scale_factor: i32,
    /// Integer factor of the minimum; 0 in formats without one.
    pub min_factor: i32,
}

/// An integer format as a sequence of [`Block32`]s. All methods take the block's number `index` (values `32·index ..`) and
/// panic when the row is too short: callers own the shape.
pub trait IntFormat {
    /// The type this is.
    const DTYPE: DType;
    /// Whether `min` can be anything but zero.
    const HAS_MIN: bool;
    /// Whether `halves` can be anything but one.
    const HAS_HALVES: bool;
    /// Whether `min_halves` can be anything but one; asks for `HAS_MIN`, and changes the canonical sequence.
    const HAS_MIN_HALVES: bool = false;
    /// The integers that [`IntFormat::codes`] stand for, in formats that have a table of them.
    const CODEBOOK: Option<[i8; CODES]> = None;

    /// The float that the bits of a scale or minimum stand for.
    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        f16_to_f32(bits)
    }

    /// Indices into the codebook, all below [`CODES`]; the integers themselves where there is none. A kernel that can look
    /// up many at once starts here.
    #[inline(always)]
    fn codes(row: &[u8], index: usize) -> [i8; BLOCK] {
        Self::quants(row, index)
    }

    /// The integers.
    fn quants(row: &[u8], index: usize) -> [i8; BLOCK];

    /// The float factors.
    fn factors(row: &[u8], index: usize) -> Factors;

    /// Integer factors of the two halves.
    #[inline(always)]
    fn halves(row: &[u8], index: usize) -> [i32; 2] {
        let _ = (row, index);
        [1, 1]
    }

    /// Integer factors, 0 to 127, of the two halves' minima.
    #[inline(always)]
    fn min_halves(row: &[u8], index: usize) -> [i32; 2] {
        let _ = (row, index);
        [1, 1]
    }

    /// All of a block.
    #[inline(always)]
    fn block(row: &[u8], index: usize) -> Block32 {
        let f = Self::factors(row, index);
        Block32 {
            q: Self::quants(row, index),
            halves: Self::halves(row, index),
            min_halves: Self::min_halves(row, index),
            scale: Self::widen(f.d) * f.scale_factor as f32,
            min: Self::widen(f.m) * f.min_factor as f32,
        }
    }
}

/// A float format as a sequence of values.
pub trait FloatFormat {
    /// The type this is.
    const DTYPE: DType;
    /// Value number `index` of a row.
    fn value(row: &[u8], index: usize) -> f32;
    /// Values `16·chunk ..` of a row. Apart from [`FloatFormat::value`] so that one bounds check serves all sixteen, without
    /// which none of this vectorises.
    fn lanes(row: &[u8], chunk: usize) -> [f32; LANES];
}

/// An f16 in two little-endian bytes, widened without a branch so that loops over it vectorise on every target.
///
/// Shifting exponent and mantissa into place leaves the exponent 112 too small; the multiplication corrects it and
/// normalises subnormals at once. It is exact. Infinities and NaNs get their exponent back by selection.
#[inline(always)]
pub fn f16_to_f32(bits: u16) -> f32 {
    const REBIAS: f32 = f32::from_bits((127 + 112) << 23);
    let magnitude = f32::from_bits(((bits & 0x7fff) as u32) << 13) * REBIAS;
    let special = (bits & 0x7c00) == 0x7c00;
    let magnitude_bits = magnitude.to_bits() | if special { 0x7f80_0000 } else { 0 };
    f32::from_bits(magnitude_bits | ((bits & 0x8000) as u32) << 16)
}

#[inline(always)]
fn bits_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The 32 nibbles of 16 bytes: byte j holds values j (low) and j + 16 (high).
#[inline(always)]
fn nibbles(bytes: &[u8]) -> [i8; BLOCK] {
    let bytes: &[u8; 16] = bytes.try_into().expect("16 bytes");
    let mut q = [0i8; BLOCK];
    for j in 0..16 {
        q[j] = (bytes[j] & 15) as i8;
    }
    for j in 0..16 {
        q[j + 16] = (bytes[j] >> 4) as i8;
    }
    q
}

/// [`nibbles`] less 8.
#[inline(always)]
fn nibbles_around_zero(bytes: &[u8]) -> [i8; BLOCK] {
    let mut q = nibbles(bytes);
    for n in &mut q {
        *n -= 8;
    }
    q
}

/// The integers that 32 codes below [`CODES`] stand for.
#[inline(always)]
fn look_up(codebook: &[i8; CODES], codes: &[i8; BLOCK]) -> [i8; BLOCK] {
    let mut q = [0i8; BLOCK];
    for j in 0..BLOCK {
        q[j] = codebook[codes[j] as usize % CODES];
    }
    q
}

impl Block32 {
    /// The 32 values as floats, rounded once where the format's own definition rounds.
    #[inline(always)]
    pub fn values(&self) -> [f32; BLOCK] {
        let mut v = [0f32; BLOCK];
        for j in 0..BLOCK {
            v[j] = self.scale * (self.halves[j / 16] * self.q[j] as i32) as f32
                - self.min * self.min_halves[j / 16] as f32;
        }
        v
    }
}

fn unpack_int<F: IntFormat>(row: &[u8], out: &mut [f32]) {
    for (i, chunk) in out.chunks_mut(BLOCK).enumerate() {
        chunk.copy_from_slice(&F::block(row, i).values()[..chunk.len()]);
    }
}

fn unpack_float<F: FloatFormat>(row: &[u8], out: &mut [f32]) {
    for (i, v) in out.iter_mut().enumerate() {
        *v = F::value(row, i);
    }
}

/// Calls `$f::<Format>($args)` with the format type that `$dtype` names, for integer formats.
#[macro_export]
macro_rules! with_int_format {
    ($dtype:expr, $f:ident ( $($arg:expr),* $(,)? )) => {
        match $dtype {
            $crate::DType::Q8_0 => $f::<$crate::formats::Q8_0>($($arg),*),
            $crate::DType::Q4_0 => $f::<$crate::formats::Q4_0>($($arg),*),
            $crate::DType::Q4_1 => $f::<$crate::formats::Q4_1>($($arg),*),
            $crate::DType::Q5_0 => $f::<$crate::formats::Q5_0>($($arg),*),
            $crate::DType::Q5_1 => $f::<$crate::formats::Q5_1>($($arg),*),
            $crate::DType::Q2K => $f::<$crate::formats::Q2K>($($arg),*),
            $crate::DType::Q3K => $f::<$crate::formats::Q3K>($($arg),*),
            $crate::DType::Q4K => $f::<$crate::formats::Q4K>($($arg),*),
            $crate::DType::Q5K => $f::<$crate::formats::Q5K>($($arg),*),
            $crate::DType::Q6K => $f::<$crate::formats::Q6K>($($arg),*),
            $crate::DType::Iq4Nl => $f::<$crate::formats::Iq4Nl>($($arg),*),
            $crate::DType::Iq4Xs => $f::<$crate::formats::Iq4Xs>($($arg),*),
            $crate::DType::Mxfp4 => $f::<$crate::formats::Mxfp4>($($arg),*),
            $crate::DType::Int4 => $f::<$crate::formats::Int4>($($arg),*),
            $crate::DType::Tq1_0 => $f::<$crate::formats::Tq1_0>($($arg),*),
            $crate::DType::Tq2_0 => $f::<$crate::formats::Tq2_0>($($arg),*),
            $crate::DType::F32 | $crate::DType::F16 | $crate::DType::BF16 | $crate::DType::F8E4M3 => {
                unreachable!("a float format reached integer arithmetic")
            }
        }
    };
}

/// Calls `$f::<Format>($args)` with the format type that `$dtype` names, for float formats.
#[macro_export]
macro_rules! with_float_format {
    ($dtype:expr, $f:ident ( $($arg:expr),* $(,)? )) => {
        match $dtype {
            $crate::DType::F32 => $f::<$crate::formats::F32>($($arg),*),
            $crate::DType::F16 => $f::<$crate::formats::F16>($($arg),*),
            $crate::DType::BF16 => $f::<$crate::formats::BF16>($($arg),*),
            $crate::DType::F8E4M3 => $f::<$crate::formats::F8E4M3>($($arg),*),
            _ => unreachable!("an integer format reached float arithmetic"),
        }
    };
}

/// Unpacks the first `out.len()` values of a row. Panics when the row is shorter than that. `row` must be one whole row:
/// where the scales of an arranged type are follows from its length.
pub fn unpack_row(dtype: DType, row: &[u8], out: &mut [f32]) {
    if dtype.is_integer() {
        with_int_format!(dtype, unpack_int(row, out))
    } else {
        with_float_format!(dtype, unpack_float(row, out))
    }
}

/// Packs values into a plain float format ([`DType::is_plain_float`]; panics on others), rounding to nearest even: for
/// transposing weights and for tests.
pub fn pack_float(dtype: DType, values: impl Iterator<Item = f32>, out: &mut Vec<u8>) {
    for v in values {
        match dtype {
            DType::F32 => out.extend_from_slice(&v.to_le_bytes()),
            DType::F16 => out.extend_from_slice(&f16::from_f32(v).to_le_bytes()),
            DType::BF16 => out.extend_from_slice(&half::bf16::from_f32(v).to_le_bytes()),
            _ => unreachable!("only plain floats can be packed value by value"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_widens_as_the_half_crate_does() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (f16_to_f32(bits), f16::from_bits(bits).to_f32());
            let same = ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan());
            assert!(same, "{bits:#06x}: {ours} is not {theirs}");
        }
    }
}
