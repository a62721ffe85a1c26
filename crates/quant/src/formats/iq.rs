//! Four-bit codes into a table of sixteen unevenly spaced integers, denser around zero as weights are.

use super::{BLOCK, CODES, Factors, IntFormat, bits_at, look_up, nibbles};
use crate::DType;

/// What the codes of both formats stand for.
const VALUES: [i8; CODES] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// `[d: f16][16 bytes of nibbles]`, value `d·VALUES[n]`.
pub struct Iq4Nl;
impl IntFormat for Iq4Nl {
    const DTYPE: DType = DType::Iq4Nl;
    const HAS_MIN: bool = false;
    const HAS_HALVES: bool = false;
    const CODEBOOK: Option<[i8; CODES]> = Some(VALUES);

    #[inline(always)]
    fn codes(row: &[u8], index: usize) -> [i8; BLOCK] {
        nibbles(&row[index * 18 + 2..index * 18 + 18])
    }

    #[inline(always)]
    fn quants(row: &[u8], index: usize) -> [i8; BLOCK] {
        look_up(&VALUES, &Self::codes(row, index))
    }

    #[inline(always)]
    fn factors(row: &[u8], index: usize) -> Factors {
        Factors { d: bits_at(row, index * 18), scale_factor: 1, ..Factors::default() }
    }
}

/// `[d: f16][scales_h: u16][scales_l: 4 bytes][eight runs of 16 bytes of nibbles]`, value `d·(sc − 32)·VALUES[n]`.
///
/// The scale of run r has its low four bits in nibble r of scales_l and its upper two in bits `2r ..` of scales_h.
pub struct Iq4Xs;
impl IntFormat for Iq4Xs {
    const DTYPE: DType = DType::Iq4Xs;
    const HAS_MIN: bool = false;
    const HAS_HALVES: bool = false;
    const CODEBOOK: Option<[i8; CODES]> = Some(VALUES);

    #[inline(always)]
    fn codes(row: &[u8], index: usize) -> [i8; BLOCK] {
        let start = index / 8 * 136 + 8 + index % 8 * 16;
        nibbles(&row[start..start + 16])
    }

    #[inline(always)]
    fn quants(row: &[u8], index: usize) -> [i8; BLOCK] {
        look_up(&VALUES, &Self::codes(row, index))
    }

    #[inline(always)]
    fn factors(row: &[u8], index: usize) -> Factors {
        let (start, run) = (index / 8 * 136, index % 8);
        let low = (row[start + 4 + run / 2] >> (run % 2 * 4)) & 15;
        let high = (bits_at(row, start + 2) >> (run * 2)) & 3;
        let scale_factor = (low as i32 | (high as i32) << 4) - 32;
        Factors { d: bits_at(row, start), scale_factor, ..Factors::default() }
    }
}
