//! Elementary functions of our own, so that every target gives the same bits: a system's `exp` may differ from the
//! next one's in the last place, and cannot be vectorised.

use calypte_quant::q8::ROUND;

/// e^x. Relative error below 2 units in the last place over the whole range; below −87.3 the result is 0 and above
/// 88.7 infinite, NaN stays NaN.
///
/// x = n·ln 2 + r with |r| ≤ ln 2 / 2, ln 2 split in two so that r is exact enough; e^r by its Taylor polynomial of
/// degree 7; the power of two goes into the exponent. Only multiplications and additions, in a fixed order.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const MIN: f32 = -87.3;
    const MAX: f32 = 88.7;
    let (p, power) = exp_parts(x.clamp(MIN, MAX));
    // Two steps, since the power reaches 128, which one exponent cannot hold.
    let half = power >> 1;
    let scale = |k: i32| f32::from_bits((k.wrapping_add(127) as u32) << 23);
    let y = p * scale(half) * scale(power.wrapping_sub(half));
    if x < MIN {
        0.0
    } else if x > MAX {
        f32::INFINITY
    } else {
        y
    }
}

/// e^r and n for x = n·ln 2 + r, of x between −87.3 and 88.7. Of a NaN the first is one.
#[inline(always)]
pub(crate) fn exp_parts(x: f32) -> (f32, i32) {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    const LN2_HIGH: f32 = 0.693_359_4; // 355/512: n times it is exact
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let rounded = x * LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = (x - n * LN2_HIGH) - n * LN2_LOW;
    let mut p = 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    // Not `n as i32`, which saturates and takes several instructions; of a NaN anything will do, since `p` is one.
    (p, (rounded.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32))
}

/// 1 / (1 + e^−x).
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// x · sigmoid(x), also called swish.
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// x · Φ(x) by the approximation with tanh (Hendrycks and Gimpel, arXiv 1606.08415):
/// `x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`, which is x times the sigmoid of twice the argument.
#[inline(always)]
pub fn gelu_tanh(x: f32) -> f32 {
    const TWICE_ROOT_2_BY_PI: f32 = 1.595_769;
    x * sigmoid(TWICE_ROOT_2_BY_PI * (x + 0.044_715 * x * x * x))
}

/// `cap · tanh(x / cap)`: nearly x while that is small, never beyond ± `cap`.
#[inline(always)]
pub fn softcap(x: f32, cap: f32) -> f32 {
    // tanh y = 2·sigmoid(2y) − 1 loses digits near 0, but none that the sum with scores of size `cap` would keep.
    cap * (2.0 * sigmoid(2.0 * (x / cap)) - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_everywhere() {
        let mut worst = 0f64;
        for i in -870_000..=880_000 {
            let x = i as f32 * 1e-4;
            let want = libm::exp(x as f64);
            worst = worst.max(((exp(x) as f64 - want) / want).abs());
        }
        assert!(worst < 2.4e-7, "relative error {worst:e}");
    }

    #[test]
    fn exp_at_its_edges() {
        for (x, want) in [(0.0, 1.0), (f32::NEG_INFINITY, 0.0), (f32::INFINITY, f32::INFINITY), (-100.0, 0.0)]
        {
            assert_eq!(exp(x), want, "exp({x})");
        }
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(88.7).is_finite());
    }

    #[test]
    fn gelu_and_softcap_are_close_to_their_definitions() {
        for i in -400..=400 {
            let x = i as f32 * 0.05;
            let y = x as f64;
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (y + 0.044715 * y * y * y);
            let gelu = 0.5 * y * (1.0 + libm::tanh(inner));
            assert!((gelu_tanh(x) as f64 - gelu).abs() < 2e-6, "gelu({x})");
            let cap = 5.0 * libm::tanh(y / 5.0);
            assert!((softcap(x, 5.0) as f64 - cap).abs() < 2e-6, "softcap({x})");
        }
    }
}
