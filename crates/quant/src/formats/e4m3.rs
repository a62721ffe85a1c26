//! FP8: E4M3 floats under an f32 scale per 128 values of a row.
//!
//! Checkpoints keep these scales in a tensor of their own, in blocks of their choice; [`crate::arrange::e4m3`] brings them
//! to the one row layout that is read here: `cols` bytes of E4M3, then ⌈cols / 128⌉ little-endian f32 scales at whatever
//! address follows. A row carries all it needs, so a matrix of this type is a run of equal rows like any other.

use super::{FloatFormat, LANES};
use crate::DType;

/// Values of a row that share a scale.
pub const E4M3_GROUP: usize = 128;

/// Bytes of a row of `cols` values, unless they overflow.
pub(crate) fn row_bytes(cols: usize) -> Option<usize> {
    cols.checked_add(cols.div_ceil(E4M3_GROUP).checked_mul(4)?)
}

/// Values of a row of `row_bytes` bytes: every full group takes 132 of them, a last one between 5 and 132.
#[inline(always)]
fn row_cols(row_bytes: usize) -> usize {
    row_bytes - 4 * row_bytes.div_ceil(E4M3_GROUP + 4)
}

/// An E4M3 ("fn": no infinities, ±NaN at the very end, largest 448) as f32, without a branch so that loops over it
/// vectorise. Exact, by the multiplication explained at [`super::f16_to_f32`].
#[inline(always)]
pub fn e4m3_to_f32(bits: u8) -> f32 {
    const REBIAS: f32 = f32::from_bits((127 + 127 - 7) << 23);
    let magnitude = f32::from_bits(((bits & 0x7f) as u32) << 20) * REBIAS;
    let nan = (bits & 0x7f) == 0x7f;
    let magnitude_bits = magnitude.to_bits() | if nan { 0x7f80_0000 } else { 0 };
    f32::from_bits(magnitude_bits | ((bits & 0x80) as u32) << 24)
}

/// The scale of group `group`.
#[inline(always)]
fn scale(row: &[u8], group: usize) -> f32 {
    let at = row_cols(row.len()) + 4 * group;
    f32::from_le_bytes(row[at..at + 4].try_into().expect("4 bytes"))
}

/// `[cols × E4M3][⌈cols / 128⌉ × f32]`, value `e4m3·scale`, rounded once. The slice must be one whole row.
pub struct F8E4M3;
impl FloatFormat for F8E4M3 {
    const DTYPE: DType = DType::F8E4M3;

    #[inline(always)]
    fn value(row: &[u8], i: usize) -> f32 {
        e4m3_to_f32(row[i]) * scale(row, i / E4M3_GROUP)
    }

    #[inline(always)]
    fn lanes(row: &[u8], chunk: usize) -> [f32; LANES] {
        let bytes: &[u8; LANES] = row[LANES * chunk..][..LANES].try_into().expect("sixteen values");
        let scale = scale(row, chunk * LANES / E4M3_GROUP);
        let mut v = [0f32; LANES];
        for j in 0..LANES {
            v[j] = e4m3_to_f32(bytes[j]) * scale;
        }
        v
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_widens_as_defined() {
        for bits in 0..=255u8 {
            let (exponent, mantissa) = ((bits >> 3 & 15) as i32, (bits & 7) as f64);
            let magnitude = match (exponent, bits & 7) {
                (15, 7) => f64::NAN,
                (0, _) => mantissa / 8.0 * 2f64.powi(-6),
                _ => (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7),
            };
            let want = if bits & 0x80 != 0 { -magnitude } else { magnitude };
            let got = e4m3_to_f32(bits) as f64;
            let same = got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
            assert!(same, "{bits:#04x}: {got} is not {want}");
        }
        assert_eq!(e4m3_to_f32(0x7e), 448.0);
    }

    #[test]
    fn a_rows_length_gives_its_width() {
        for cols in 0..1000 {
            assert_eq!(row_cols(row_bytes(cols).expect("small")), cols);
        }
        assert_eq!(row_bytes(usize::MAX), None);
    }

    #[test]
    fn each_group_has_its_own_scale() {
        let mut row = vec![0x38u8; 130]; // 1.0
        row.extend([3f32.to_le_bytes(), (-0.5f32).to_le_bytes()].concat());
        for (i, want) in [(0, 3.0), (127, 3.0), (128, -0.5), (129, -0.5)] {
            assert_eq!(F8E4M3::value(&row, i), want, "value {i}");
        }
        assert_eq!(F8E4M3::lanes(&row, 7), [3.0; LANES]);
    }
}
