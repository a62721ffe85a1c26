//! Floats stored one after the other, without scales.

use super::{FloatFormat, LANES, bits_at, f16_to_f32};
use crate::DType;

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
