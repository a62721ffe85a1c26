//! MXFP4: the OCP Microscaling format of E2M1 floats under a shared power of two.

use super::{BLOCK, CODES, Factors, IntFormat, look_up, nibbles};
use crate::DType;

/// The E2M1 values ±{0, ½, 1, 1½, 2, 3, 4, 6}, doubled to be integers. Minus zero is zero.
const DOUBLED: [i8; CODES] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// `[e: E8M0][16 bytes of nibbles]`, value `2^(e − 127)·E2M1[n]`.
///
/// The integers are doubled and the scale is halved, both exactly: `2^(e − 128)` is an f32 for every e. So is 2^127 for
/// e = 255, which OCP calls NaN: the reference implementations (`gguf-py`, ggml) read it as one more power of two, and a
/// file that has it must mean the same here as there.
pub struct Mxfp4;
impl IntFormat for Mxfp4 {
    const DTYPE: DType = DType::Mxfp4;
    const HAS_MIN: bool = false;
    const HAS_HALVES: bool = false;
    const CODEBOOK: Option<[i8; CODES]> = Some(DOUBLED);

    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        let e = bits as u32;
        // The smallest two are subnormal.
        f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (e - 1) << 23 })
    }

    #[inline(always)]
    fn codes(row: &[u8], index: usize) -> [i8; BLOCK] {
        nibbles(&row[index * 17 + 1..index * 17 + 17])
    }

    #[inline(always)]
    fn quants(row: &[u8], index: usize) -> [i8; BLOCK] {
        look_up(&DOUBLED, &Self::codes(row, index))
    }

    #[inline(always)]
    fn factors(row: &[u8], index: usize) -> Factors {
        Factors { d: row[index * 17] as u16, scale_factor: 1, ..Factors::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exponent_is_half_its_power_of_two() {
        for e in 0..=255u16 {
            assert_eq!(Mxfp4::widen(e) as f64, 2f64.powi(e as i32 - 128), "exponent byte {e}");
        }
    }

    #[test]
    fn every_code_is_twice_its_e2m1_value() {
        for code in 0..16u8 {
            let (exponent, mantissa) = ((code >> 1 & 3) as i32, (code & 1) as f32);
            let magnitude =
                if exponent == 0 { mantissa / 2.0 } else { (1.0 + mantissa / 2.0) * 2f32.powi(exponent - 1) };
            let want = if code >= 8 { -magnitude } else { magnitude };
            assert_eq!(DOUBLED[code as usize] as f32 / 2.0, want, "code {code}");
        }
    }
}
