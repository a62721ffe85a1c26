//! Products that need no rounding, so that a fused multiplication and addition is the same as a separate one.
//!
//! A fused instruction does twice the work, but rounds once where two instructions round twice, and not every tier has one
//! (WebAssembly's fixed SIMD does not). If the product is a number of the format already, there is nothing to round the first time:
//! both give the same bits. An f16 has 11 significant bits; the other factor is rounded to the remaining 13 of an f32's 24, which is
//! four times finer than the f16 it meets. Its exponent is kept so far from the ends of the range that no product overflows or
//! becomes subnormal.

use crate::math;

/// Bits of the significand that are dropped: of 24, 13 remain.
const DROPPED_BITS: u32 = 11;
/// Below this a factor becomes zero: its product with the smallest f16 is still normal with all bits.
const FACTOR_MIN: f32 = f32::from_bits((127 - 60) << 23); // 2⁻⁶⁰
/// A factor is not larger: its product with the largest f16 is finite, and so is any sum of them that fits a cache.
const FACTOR_MAX: f32 = f32::from_bits((127 + 80) << 23); // 2⁸⁰
/// The largest f16.
const HALF_MAX: f32 = 65504.0;

/// The bits of an f32 without the last ones, to nearest with ties to even.
#[inline(always)]
fn shortened(bits: u32) -> u32 {
    let even = (bits >> DROPPED_BITS) & 1;
    let half = (1 << (DROPPED_BITS - 1)) - 1;
    bits.wrapping_add(half + even) & !((1 << DROPPED_BITS) - 1)
}

/// `x` rounded to 13 significant bits, to nearest with ties to even; within ±2⁸⁰; zero below 2⁻⁶⁰. NaN stays NaN.
#[inline(always)]
pub(super) fn factor(x: f32) -> f32 {
    let clamped = x.clamp(-FACTOR_MAX, FACTOR_MAX);
    let rounded = f32::from_bits(shortened(clamped.to_bits()));
    if x.is_nan() {
        x
    } else if x.abs() < FACTOR_MIN {
        0.0
    } else {
        rounded
    }
}

/// `factor(exp(x))` for x ≤ 0 that is no NaN, bit for bit, in half the instructions: the power of two and the rounding are
/// additions to the bits, since no result that is kept is subnormal.
#[inline(always)]
pub(super) fn power_factor(x: f32) -> f32 {
    /// Below this the result is below `FACTOR_MIN`, and above it is not so far below that an exponent would be negative.
    const MIN: f32 = -42.0;
    let (p, power) = math::exp_parts(if x < MIN { MIN } else { x });
    let bits = p.to_bits().wrapping_add((power as u32) << 23);
    if bits < FACTOR_MIN.to_bits() { 0.0 } else { f32::from_bits(shortened(bits)) }
}

/// The f16 nearest to `x`, ties to even; ±65504 for whatever is beyond. NaN stays NaN. Without branches, so that loops over it
/// vectorise.
#[inline(always)]
pub(super) fn half_of(x: f32) -> u16 {
    const SIGN: u32 = 0x8000_0000;
    const NAN: u32 = 0x7E00;
    // Numbers below the smallest normal f16 are multiples of 2⁻²⁴, which is the last place of numbers from one half on.
    const NORMAL_MIN: f32 = f32::from_bits((127 - 14) << 23);
    let sign = (x.to_bits() & SIGN) >> 16;
    let size = f32::from_bits(x.to_bits() & !SIGN);
    let small = (size + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let limited = if size > HALF_MAX { HALF_MAX } else { size };
    let bits = limited.to_bits();
    let normal = (bits.wrapping_add(0xFFF + ((bits >> 13) & 1)) >> 13).wrapping_sub((127 - 15) << 10);
    let number = if size < NORMAL_MIN { small } else { normal };
    let number = if x.is_nan() { NAN } else { number };
    (sign | number) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn halves_are_those_of_the_half_crate_up_to_the_limit() {
        // Every f16, and numbers just beside the middle between neighbours.
        for bits in 0..0x7C00u16 {
            let (a, b) = (f16::from_bits(bits).to_f32(), f16::from_bits(bits + 1).to_f32());
            let middle = if b.is_finite() { (a + b) / 2.0 } else { a };
            for x in
                [a, middle, f32::from_bits(middle.to_bits() + 1), f32::from_bits(middle.to_bits().max(1) - 1)]
            {
                for x in [x, -x] {
                    let want = f16::from_f32(x.clamp(-65504.0, 65504.0));
                    assert_eq!(half_of(x), want.to_bits(), "{x:e}");
                }
            }
        }
        for (x, want) in [(1e9, 65504.0), (f32::NEG_INFINITY, -65504.0), (1e-30, 0.0)] {
            assert_eq!(f16::from_bits(half_of(x)).to_f32(), want, "{x:e}");
        }
        assert!(f16::from_bits(half_of(f32::NAN)).is_nan());
    }

    #[test]
    fn powers_are_factors_of_exponentials() {
        for i in 0..2_000_000 {
            let x = i as f32 * -5e-5;
            assert_eq!(power_factor(x).to_bits(), factor(math::exp(x)).to_bits(), "{x}");
        }
        assert_eq!(power_factor(f32::NEG_INFINITY), 0.0);
    }

    #[test]
    fn factors_are_near_and_their_products_exact() {
        let mut bits = 1u32;
        for _ in 0..200_000 {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let x = f32::from_bits(bits);
            let short = factor(x);
            if x.is_nan() {
                assert!(short.is_nan());
                continue;
            }
            if (1e-17..1e23).contains(&x.abs()) {
                assert!(((short - x) / x).abs() <= 1.0 / 8192.0, "{x:e} became {short:e}");
            }
            let other = f16::from_bits((bits >> 7) as u16);
            if other.is_finite() {
                let exact = short as f64 * other.to_f64();
                assert_eq!((short * other.to_f32()) as f64, exact, "{short:e} times {other}");
            }
        }
    }
}
