//! The formats of 32 values with scales of their own: `Qn_0` is symmetric, `Qn_1` has a minimum.

use super::{BLOCK, Factors, IntFormat, bits_at, nibbles, nibbles_around_zero};
use crate::DType;

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
        nibbles_around_zero(&row[index * 18 + 2..index * 18 + 18])
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

/// 32 five-bit integers: four low bits as [`nibbles`], the fifth of value j in bit j of the four bytes before them.
#[inline(always)]
fn five_bits(high: &[u8], low: &[u8]) -> [i8; BLOCK] {
    let high: &[u8; 4] = high.try_into().expect("4 bytes");
    let mut q = nibbles(low);
    // Bytes against masks, not shifts by j: that takes four times as few vectors.
    for j in 0..BLOCK {
        let fifth = high[j / 8] & (1 << (j % 8));
        q[j] |= if fifth != 0 { 16 } else { 0 };
    }
    q
}

/// `[d: f16][4 bytes of fifth bits][16 bytes of nibbles]`, value `d·(n − 16)`.
pub struct Q5_0;
impl IntFormat for Q5_0 {
    const DTYPE: DType = DType::Q5_0;
    const HAS_MIN: bool = false;
    const HAS_HALVES: bool = false;

    #[inline(always)]
    fn quants(row: &[u8], index: usize) -> [i8; BLOCK] {
        let block = &row[index * 22..index * 22 + 22];
        let mut q = five_bits(&block[2..6], &block[6..22]);
        for n in &mut q {
            *n -= 16;
        }
        q
    }

    #[inline(always)]
    fn factors(row: &[u8], index: usize) -> Factors {
        Factors { d: bits_at(row, index * 22), scale_factor: 1, ..Factors::default() }
    }
}

/// `[d: f16][m: f16][4 bytes of fifth bits][16 bytes of nibbles]`, value `d·n + m`.
pub struct Q5_1;
impl IntFormat for Q5_1 {
    const DTYPE: DType = DType::Q5_1;
    const HAS_MIN: bool = true;
    const HAS_HALVES: bool = false;

    #[inline(always)]
    fn quants(row: &[u8], index: usize) -> [i8; BLOCK] {
        let block = &row[index * 24..index * 24 + 24];
        five_bits(&block[4..8], &block[8..24])
    }

    #[inline(always)]
    fn factors(row: &[u8], index: usize) -> Factors {
        let (d, m) = (bits_at(row, index * 24), bits_at(row, index * 24 + 2));
        // Added, not subtracted, as in Q4_1.
        Factors { d, m, scale_factor: 1, min_factor: -1 }
    }
}
