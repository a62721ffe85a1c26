//! INT4 as compressed-tensors' `pack-quantized` has it: integers around zero under a bf16 scale.

use super::{BLOCK, Factors, IntFormat, bits_at, nibbles_around_zero};
use crate::DType;

/// `[d: bf16][16 bytes of nibbles]`, value `d·(n − 8)`.
///
/// The laying out is ours (see [`crate::arrange::int4`]); that of the nibbles is [`super::Q4_0`]'s. Only the scale is not an
/// f16: it would lose half of its exponents there.
pub struct Int4;
impl IntFormat for Int4 {
    const DTYPE: DType = DType::Int4;
    const HAS_MIN: bool = false;
    const HAS_HALVES: bool = false;

    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        f32::from_bits((bits as u32) << 16)
    }

    #[inline(always)]
    fn quants(row: &[u8], index: usize) -> [i8; BLOCK] {
        nibbles_around_zero(&row[index * 18 + 2..index * 18 + 18])
    }

    #[inline(always)]
    fn factors(row: &[u8], index: usize) -> Factors {
        Factors { d: bits_at(row, index * 18), scale_factor: 1, ..Factors::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scale_widens_as_the_half_crate_does() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (Int4::widen(bits), half::bf16::from_bits(bits).to_f32());
            let same = ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan());
            assert!(same, "{bits:#06x}: {ours} is not {theirs}");
        }
    }
}
