//! How the blocks of each format become numbers.
//!
//! Every integer format is seen as a run of 32-value blocks ([`Block32`]), whatever its storage block is: that is the
//! grain at which activations are rounded, and so the grain of the canonical dot product (see [`crate::reference`]).
//! The byte layouts are ggml's (`ggml-common.h` and `gguf-py` define them); each is restated where it is read.

use half::f16;

use crate::DType;

/// Values of an integer format that share one activation scale.
pub const BLOCK: usize = 32;
/// Accumulators of a float dot product.
pub const LANES: usize = 16;

/// 32 weights as integers with what turns them back into numbers:
/// `value[j] = scale · halves[j / 16] · q[j] − min`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Block32 {
    /// The integers.
    pub q: [i8; BLOCK],
    /// Integer factors of the first and second 16 values (both 1 except in Q6_K).
    pub halves: [i32; 2],
    /// Float factor. A product of an f16 and at most six bits, so it is exact.
    pub scale: f32,
    /// Float offset, subtracted; exact for the same reason.
    pub min: f32,
}

/// What the float factors of a block are made of: `scale = f16(d) · scale_factor`, `min = f16(m) · min_factor`, both exact.
///
/// Kept apart from the arithmetic so that a kernel can widen the f16s of many blocks at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Factors {
    /// Bits of the scale's f16.
    pub d: u16,
    /// Bits of the minimum's f16.
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

    /// All of a block.
    #[inline(always)]
    fn block(row: &[u8], index: usize) -> Block32 {
        let f = Self::factors(row, index);
        Block32 {
            q: Self::quants(row, index),
            halves: Self::halves(row, index),
            scale: f16_to_f32(f.d) * f.scale_factor as f32,
            min: f16_to_f32(f.m) * f.min_factor as f32,
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

/// `f32` little-endian values.
pub struct F32;
impl FloatFormat for F32 {
    const DTYPE: DType = DType::F32;
    #[inline(always)]
    fn value(row: &[u8], i: usize) -> f32 {
        f32::from_le_bytes([row[4 * i], row[4 * i + 1], row[4 * i + 2], row[4 * i + 3]])
    }
    #[inline(always)]
    fn lanes(row: &[u8], chunk: usize) -> [f32; LANES] {
        let bytes: &[u8; 4 * LANES] =
            row[4 * LANES * chunk..][..4 * LANES].try_into().expect("sixteen values");
        let mut v = [0f32; LANES];
        for j in 0..LANES {
            v[j] = f32::from_le_bytes([bytes[4 * j], bytes[4 * j + 1], bytes[4 * j + 2], bytes[4 * j + 3]]);
        }
        v
    }
}

/// `f16` little-endian values.
pub struct F16;
impl FloatFormat for F16 {
    const DTYPE: DType = DType::F16;
    #[inline(always)]
    fn value(row: &[u8], i: usize) -> f32 {
        f16_to_f32(bits_at(row, 2 * i))
    }
    #[inline(always)]
    fn lanes(row: &[u8], chunk: usize) -> [f32; LANES] {
        let bytes: &[u8; 2 * LANES] =
            row[2 * LANES * chunk..][..2 * LANES].try_into().expect("sixteen values");
        let mut v = [0f32; LANES];
        for j in 0..LANES {
            v[j] = f16_to_f32(u16::from_le_bytes([bytes[2 * j], bytes[2 * j + 1]]));
        }
        v
    }
}

/// The upper two bytes of little-endian `f32` values.
pub struct BF16;
impl FloatFormat for BF16 {
    const DTYPE: DType = DType::BF16;
    #[inline(always)]
    fn value(row: &[u8], i: usize) -> f32 {
        f32::from_bits((u16::from_le_bytes([row[2 * i], row[2 * i + 1]]) as u32) << 16)
    }
    #[inline(always)]
    fn lanes(row: &[u8], chunk: usize) -> [f32; LANES] {
        let bytes: &[u8; 2 * LANES] =
            row[2 * LANES * chunk..][..2 * LANES].try_into().expect("sixteen values");
        let mut v = [0f32; LANES];
        for j in 0..LANES {
            v[j] = f32::from_bits((u16::from_le_bytes([bytes[2 * j], bytes[2 * j + 1]]) as u32) << 16);
        }
        v
    }
}

/// `[d: f16][q: i8 × 32]`, value `d·q`.
pub struct Q8_0;
impl IntFormat for Q8_0 {
    const DTYPE: DType = DType::Q8_0;
    const HAS_MIN: bool = false;
    const HAS_HALVES: bool = false;

    #[inline(always)]
    fn quants(row: &[u8], index: usize) -> [i8; BLOCK] {
        let bytes: &[u8; BLOCK] = row[index * 34 + 2..index * 34 + 34].try_into().expect("32 bytes");
        // Plain loops here and below: `map` over an array does not vectorise.
        let mut q = [0i8; BLOCK];
        for j in 0..BLOCK {
            q[j] = bytes[j] as i8;
        }
        q
    }

    #[inline(always)]
    fn factors(row: &[u8], index: usize) -> Factors {
        Factors { d: bits_at(row, index * 34), scale_factor: 1, ..Factors::default() }
    }
}

/// `[d: f16][16 bytes of nibbles]`, value `d·(n − 8)`.
pub struct Q4_0;
impl IntFormat for Q4_0 {
    const DTYPE: DType = DType::Q4_0;
    const HAS_MIN: bool = false;
    const HAS_HALVES: bool = false;

    #[inline(always)]
    fn quants(row: &[u8], index: usize) -> [i8; BLOCK] {
        let mut q = nibbles(&row[index * 18 + 2..index * 18 + 18]);
        for n in &mut q {
            *n -= 8;
        }
        q
    }

    #[inline(always)]
    fn factors(row: &[u8], index: usize) -> Factors {
        Factors { d: bits_at(row, index * 18), scale_factor: 1, ..Factors::default() }
    }
}

/// `[d: f16][m: f16][16 bytes of nibbles]`, value `d·n + m`.
pub struct Q4_1;
impl IntFormat for Q4_1 {
    const DTYPE: DType = DType::Q4_1;
    const HAS_MIN: bool = true;
    const HAS_HALVES: bool = false;

    #[inline(always)]
    fn quants(row: &[u8], index: usize) -> [i8; BLOCK] {
        nibbles(&row[index * 20 + 4..index * 20 + 20])
    }

    #[inline(always)]
    fn factors(row: &[u8], index: usize) -> Factors {
        let (d, m) = (bits_at(row, index * 20), bits_at(row, index * 20 + 2));
        // This format adds its minimum where the others subtract it.
        Factors { d, m, scale_factor: 1, min_factor: -1 }
    }
}

/// `[d: f16][dmin: f16][12 bytes: eight 6-bit scales and minima][128 bytes]`.
///
/// The nibbles come in four runs of 32 bytes; the low nibbles of run r are sub-block 2r, the high ones 2r + 1. Value
/// `d·sc·n − dmin·m`. Scales and minima of the first four sub-blocks are the low six bits of bytes 0–3 and 4–7; of the
/// last four, the nibbles of bytes 8–11 with the top two bits of bytes 0–3 and 4–7 above them.
pub struct Q4K;
impl IntFormat for Q4K {
    const DTYPE: DType = DType::Q4K;
    const HAS_MIN: bool = true;
    const HAS_HALVES: bool = false;

    #[inline(always)]
    fn quants(row: &[u8], index: usize) -> [i8; BLOCK] {
        let start = index / 8 * 144 + 16 + index % 8 / 2 * 32;
        let bytes: &[u8; BLOCK] = row[start..start + 32].try_into().expect("32 bytes");
        let shift = (index % 2) as u32 * 4;
        let mut q = [0i8; BLOCK];
        for j in 0..BLOCK {
            q[j] = ((bytes[j] >> shift) & 15) as i8;
        }
        q
    }

    #[inline(always)]
    fn factors(row: &[u8], index: usize) -> Factors {
        let start = index / 8 * 144;
        let s: &[u8; 12] = row[start + 4..start + 16].try_into().expect("12 bytes");
        let sub = index % 8;
        let (sc, m) = if sub < 4 {
            (s[sub] & 63, s[sub + 4] & 63)
        } else {
            ((s[sub + 4] & 15) | (s[sub - 4] >> 6) << 4, (s[sub + 4] >> 4) | (s[sub] >> 6) << 4)
        };
        Factors {
            d: bits_at(row, start),
            m: bits_at(row, start + 2),
            scale_factor: sc as i32,
            min_factor: m as i32,
        }
    }
}

/// `[ql: 128 bytes][qh: 64 bytes][sc: i8 × 16][d: f16]`, value `d·sc·(n − 32)`.
///
/// Each half of 128 values has 64 bytes of ql and 32 of qh. Its four runs of 32 values take, in order: low nibbles of
/// the first and of the second 32 bytes of ql, then their high nibbles; and bits 0–1, 2–3, 4–5, 6–7 of qh above them.
pub struct Q6K;
impl IntFormat for Q6K {
    const DTYPE: DType = DType::Q6K;
    const HAS_MIN: bool = false;
    const HAS_HALVES: bool = true;

    #[inline(always)]
    fn quants(row: &[u8], index: usize) -> [i8; BLOCK] {
        let start = index / 8 * 210;
        let (half, run) = (index % 8 / 4, index % 4);
        let (low, high) = (start + half * 64 + run % 2 * 32, start + 128 + half * 32);
        let ql: &[u8; BLOCK] = row[low..low + 32].try_into().expect("32 bytes");
        let qh: &[u8; BLOCK] = row[high..high + 32].try_into().expect("32 bytes");
        let (low_shift, high_shift) = ((run / 2) as u32 * 4, run as u32 * 2);
        let mut q = [0i8; BLOCK];
        for j in 0..BLOCK {
            let n = ((ql[j] >> low_shift) & 15) | (((qh[j] >> high_shift) & 3) << 4);
            q[j] = n as i8 - 32;
        }
        q
    }

    #[inline(always)]
    fn factors(row: &[u8], index: usize) -> Factors {
        Factors { d: bits_at(row, index / 8 * 210 + 208), scale_factor: 1, ..Factors::default() }
    }

    #[inline(always)]
    fn halves(row: &[u8], index: usize) -> [i32; 2] {
        let at = index / 8 * 210 + 192 + index % 8 * 2;
        [(row[at] as i8) as i32, (row[at + 1] as i8) as i32]
    }
}

impl Block32 {
    /// The 32 values as floats, rounded once where the format's own definition rounds.
    #[inline(always)]
    pub fn values(&self) -> [f32; BLOCK] {
        let mut v = [0f32; BLOCK];
        for j in 0..BLOCK {
            v[j] = self.scale * (self.halves[j / 16] * self.q[j] as i32) as f32 - self.min;
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
            $crate::DType::Q4K => $f::<$crate::formats::Q4K>($($arg),*),
            $crate::DType::Q6K => $f::<$crate::formats::Q6K>($($arg),*),
            $crate::DType::F32 | $crate::DType::F16 | $crate::DType::BF16 => {
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
            _ => unreachable!("an integer format reached float arithmetic"),
        }
    };
}

/// Unpacks the first `out.len()` values of a row. Panics when the row is shorter than that.
pub fn unpack_row(dtype: DType, row: &[u8], out: &mut [f32]) {
    if dtype.is_integer() {
        with_int_format!(dtype, unpack_int(row, out))
    } else {
        with_float_format!(dtype, unpack_float(row, out))
    }
}

/// Packs values into a float format, rounding to nearest even: for transposing weights and for tests.
pub fn pack_float(dtype: DType, values: impl Iterator<Item = f32>, out: &mut Vec<u8>) {
    for v in values {
        match dtype {
            DType::F32 => out.extend_from_slice(&v.to_le_bytes()),
            DType::F16 => out.extend_from_slice(&f16::from_f32(v).to_le_bytes()),
            DType::BF16 => out.extend_from_slice(&half::bf16::from_f32(v).to_le_bytes()),
            _ => unreachable!("only float formats can be packed value by value"),
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
