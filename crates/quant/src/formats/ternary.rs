//! Ternary formats: values of −1, 0 and 1 under one f16 scale per 256.

use super::{BLOCK, Factors, IntFormat, bits_at};
use crate::DType;

/// `[48 bytes of five base-3 digits][4 bytes of four][d: f16]`, value `d·(digit − 1)`.
///
/// A byte b is a fraction b/256 written in base 3: digit n is `⌊3·(b·3ⁿ mod 256) / 256⌋`. The first 32 bytes hold the values
/// `32n + j`, the next 16 the values `160 + 16n + j`, the last four `240 + 4n + j`.
pub struct Tq1_0;

const TQ1_BYTES: usize = 54;

/// Digit `n` of a byte, less one.
#[inline(always)]
fn digit(byte: u8, n: usize) -> i8 {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    ((byte.wrapping_mul(POWERS[n]) as u16 * 3) >> 8) as i8 - 1
}

impl IntFormat for Tq1_0 {
    const DTYPE: DType = DType::Tq1_0;
    const HAS_MIN: bool = false;
    const HAS_HALVES: bool = false;

    #[inline(always)]
    fn quants(row: &[u8], index: usize) -> [i8; BLOCK] {
        let start = index / 8 * TQ1_BYTES;
        let bytes: &[u8; TQ1_BYTES] = row[start..start + TQ1_BYTES].try_into().expect("a whole block");
        let run = index % 8;
        let mut q = [0i8; BLOCK];
        if run < 5 {
            for j in 0..32 {
                q[j] = digit(bytes[j], run);
            }
            return q;
        }
        // Runs 5 to 7 begin with digits 0, 2 and 4 of the next sixteen bytes.
        let n = (run - 5) * 2;
        for j in 0..16 {
            q[j] = digit(bytes[32 + j], n);
        }
        for j in 0..16 {
            q[16 + j] = if run < 7 { digit(bytes[32 + j], n + 1) } else { digit(bytes[48 + j % 4], j / 4) };
        }
        q
    }

    #[inline(always)]
    fn factors(row: &[u8], index: usize) -> Factors {
        Factors { d: bits_at(row, index / 8 * TQ1_BYTES + 52), scale_factor: 1, ..Factors::default() }
    }
}

/// `[64 bytes of four 2-bit integers][d: f16]`, value `d·(n − 1)`.
///
/// Each half of 128 values has 32 bytes; its four runs of 32 values are bits 0–1, 2–3, 4–5, 6–7 of them. The definition
/// gives the unused code 3 the value 2.
pub struct Tq2_0;
impl IntFormat for Tq2_0 {
    const DTYPE: DType = DType::Tq2_0;
    const HAS_MIN: bool = false;
    const HAS_HALVES: bool = false;

    #[inline(always)]
    fn quants(row: &[u8], index: usize) -> [i8; BLOCK] {
        let start = index / 8 * 66 + index % 8 / 4 * 32;
        let bytes: &[u8; BLOCK] = row[start..start + 32].try_into().expect("32 bytes");
        let shift = (index % 4) as u32 * 2;
        let mut q = [0i8; BLOCK];
        for j in 0..BLOCK {
            q[j] = ((bytes[j] >> shift) & 3) as i8 - 1;
        }
        q
    }

    #[inline(always)]
    fn factors(row: &[u8], index: usize) -> Factors {
        Factors { d: bits_at(row, index / 8 * 66 + 64), scale_factor: 1, ..Factors::default() }
    }
}
