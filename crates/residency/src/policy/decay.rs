//! Exponentially decayed counts: the CRF of Lee et al., "LRFU" (IEEE Trans. Computers 50, 2001) with the weighing function
//! 2^(-age / half-life). In integers where experts are ordered by nothing else, in floats for policies that calculate with them.

use crate::Key;
use crate::per_expert::PerExpert;

/// Bits in which scores of different layers are compared. Their last bits are rounding, and experts of equal history must
/// tie.
const COMPARED_BITS: u32 = 20;
/// Bits of a mantissa: sums of two mantissas still fit 64 bits.
const MANTISSA_BITS: u32 = 62;
/// A mantissa of 1.
const ONE: u64 = 1 << MANTISSA_BITS;

/// `mantissa / ONE * 2^exponent`, with ONE ≤ mantissa < 2·ONE, or zero. Integers, so that every platform orders alike.
///
/// Scores grow with time instead of decaying: the sum of `2^(t_i / h)` orders experts as the decayed sum does, and needs
/// no update while nothing happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score {
    exponent: i64,
    mantissa: u64,
}

impl Default for Score {
    fn default() -> Self {
        Score { exponent: i64::MIN, mantissa: 0 }
    }
}

impl Score {
    /// The score of value `value`; zero for what is no normal positive number.
    pub fn of(value: f32) -> Score {
        const FRACTION_BITS: u32 = f32::MANTISSA_DIGITS - 1;
        if !value.is_normal() || value < 0.0 {
            return Score::default();
        }
        let bits = value.to_bits();
        let fraction = u64::from(bits & ((1 << FRACTION_BITS) - 1)) | 1 << FRACTION_BITS;
        let exponent = i64::from(bits >> FRACTION_BITS) + 1 - i64::from(f32::MAX_EXP);
        Score { exponent, mantissa: fraction << (MANTISSA_BITS - FRACTION_BITS) }
    }

    /// The sum.
    pub fn plus(self, other: Score) -> Score {
        let (big, small) = if self >= other { (self, other) } else { (other, self) };
        let shift = big.exponent.abs_diff(small.exponent);
        let shift = u32::try_from(shift).unwrap_or(u32::MAX);
        let sum = big.mantissa + small.mantissa.checked_shr(shift).unwrap_or(0);
        if sum >= 2 * ONE {
            Score { exponent: big.exponent + 1, mantissa: sum / 2 }
        } else {
            Score { exponent: big.exponent, mantissa: sum }
        }
    }

    /// The nearest score of [`COMPARED_BITS`] bits.
    pub fn rounded(self) -> Score {
        let step = 1 << (MANTISSA_BITS - COMPARED_BITS);
        let mantissa = (self.mantissa + step / 2) / step * step;
        if mantissa >= 2 * ONE {
            Score { exponent: self.exponent + 1, mantissa: ONE }
        } else {
            Score { mantissa, ..self }
        }
    }

    /// The quotient; zero over anything, and anything over zero, is zero.
    pub fn over(self, other: Score) -> Score {
        if self.mantissa == 0 || other.mantissa == 0 {
            return Score::default();
        }
        let wide = (u128::from(self.mantissa) << (MANTISSA_BITS + 1)) / u128::from(other.mantissa);
        let exponent = self.exponent - other.exponent;
        // The quotient lies between 1/2 and 2, and `wide` has one bit more than a mantissa.
        match u64::try_from(wide) {
            Ok(wide) if wide < 2 * ONE => Score { exponent: exponent - 1, mantissa: wide },
            _ => Score { exponent, mantissa: (wide / 2) as u64 },
        }
    }
}

/// Decayed sums below this are 0, before they become denormal and slow.
const NOTHING: f32 = 1e-20;

/// Leaves `kept` of decayed sums.
pub fn fade(sums: &mut [f32], kept: f32) {
    for sum in sums {
        *sum *= kept;
        if *sum < NOTHING {
            *sum = 0.0;
        }
    }
}

/// For every expert, the sum over its uses of `2^(-age / half_life)`.
#[derive(Debug)]
pub struct DecayedCounts {
    /// `2^(i / half_life)` for i in 0..half_life, as mantissas.
    powers: Vec<u64>,
    scores: PerExpert<Score>,
}

impl DecayedCounts {
    /// Counts that halve every `half_life_steps` steps of a layer.
    pub fn new(half_life_steps: u32) -> DecayedCounts {
        DecayedCounts { powers: powers_of_root(half_life_steps.max(1)), scores: PerExpert::default() }
    }

    /// Before the first step: what experts of `layer` count that were used in these shares of all steps ever.
    pub fn seed(&mut self, layer: u32, shares: &[f32]) {
        let steady = 1.0 / (1.0 - 1.0 / root_of_two(self.powers.len() as u32));
        for (expert, &share) in (0..).zip(shares) {
            *self.scores.get_mut(Key { layer, expert }) = Score::of(share * steady as f32);
        }
    }

    /// Counts a use.
    pub fn touched(&mut self, key: Key, step: u64) {
        let worth = self.worth(step);
        let score = self.scores.get_mut(key);
        *score = score.plus(worth);
    }

    /// The count of an expert. Counts of one layer can be compared as they are.
    pub fn get(&self, key: Key) -> Score {
        self.scores.get(key)
    }

    /// What one use in step `step` is worth.
    pub fn worth(&self, step: u64) -> Score {
        let half_life = self.powers.len() as u64;
        Score { exponent: (step / half_life) as i64, mantissa: self.powers[(step % half_life) as usize] }
    }
}

/// `2^(i / n)` for i in 0..n as mantissas.
fn powers_of_root(n: u32) -> Vec<u64> {
    let root = root_of_two(n);
    let mut value = 1.0f64;
    (0..n)
        .map(|_| {
            let mantissa = (value * ONE as f64) as u64;
            value = (value * root).min(2.0);
            mantissa.clamp(ONE, 2 * ONE - 1)
        })
        .collect()
}

/// The `1/n`-th power of 2, found by bisection with multiplications only: `powf` differs between platforms.
pub fn root_of_two(n: u32) -> f64 {
    let power = |x: f64| (0..n).fold(1.0f64, |product, _| product * x);
    let (mut low, mut high) = (1.0f64, 2.0f64);
    for _ in 0..f64::MANTISSA_DIGITS {
        let middle = (low + high) / 2.0;
        if power(middle) <= 2.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(score: Score) -> f64 {
        if score.mantissa == 0 {
            return 0.0;
        }
        score.mantissa as f64 / ONE as f64 * 2f64.powi(score.exponent as i32)
    }

    /// The steps of one expert's uses, the step at which to look, the half-life: compares with the defining sum.
    fn check(half_life: u32, uses: &[u64], now: u64) {
        let mut counts = DecayedCounts::new(half_life);
        let key = Key { layer: 0, expert: 0 };
        for &step in uses {
            counts.touched(key, step);
        }
        let got = value(counts.get(key).over(counts.worth(now)));
        let age = |step: &u64| (now as f64 - *step as f64) / f64::from(half_life);
        let expected: f64 = uses.iter().map(|step| 2f64.powf(-age(step))).sum();
        assert!(
            (got - expected).abs() <= 1e-9 * expected,
            "half-life {half_life}, uses {uses:?}, at {now}: {got} instead of {expected}"
        );
    }

    #[test]
    fn scores_are_decayed_counts() {
        check(16, &[], 10);
        check(16, &[1], 1);
        check(16, &[1], 17);
        check(16, &[1, 2, 3, 4, 5, 6], 7);
        check(16, &[3, 1000, 1001, 1020], 1021);
        check(1, &[1, 2, 3, 200], 201);
        check(7, &[5, 6, 40, 41, 43], 44);
        check(4096, &[1, 5000, 9000], 10_000);
        // Far beyond the exponents of a double.
        check(1, &[1_000_000, 1_000_003], 1_000_004);
    }
}
