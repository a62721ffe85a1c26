//! Exponentially decayed frequency: the best cheap policy for expert routing in our replays (half-lives of 8 to 32
//! tokens are a plateau). The score is the CRF of Lee et al., "LRFU" (IEEE Trans. Computers 50, 2001) with the weighing
//! function 2^(-age / half-life).

use super::{Candidates, Evict, PerExpert, grown};
use crate::Key;

/// The default half-life, in steps of a layer (decoding: tokens).
pub const HALF_LIFE_STEPS_DEFAULT: u32 = 16;
/// The longest half-life: beyond it the policy is a plain frequency count, which ossifies.
pub const HALF_LIFE_STEPS_MAX: u32 = 4096;

/// Bits in which scores of different layers are compared. Their last bits are rounding, and experts of equal history must
/// tie.
const COMPARED_BITS: u32 = 20;
/// Bits of a mantissa: sums of two mantissas still fit 64 bits.
const MANTISSA_BITS: u32 = 62;
/// A mantissa of 1.
const ONE: u64 = 1 << MANTISSA_BITS;

/// Evicts the expert with the lowest sum over its uses of `2^(-age / half_life)`. O(log n) an event.
///
/// All uses count, those before an eviction too: an expert that comes back keeps its past.
#[derive(Debug)]
pub struct Dfreq {
    /// `2^(i / half_life)` for i in 0..half_life, as mantissas.
    powers: Vec<u64>,
    scores: PerExpert<Score>,
    clocks: Vec<u64>,
    candidates: Candidates<Score>,
}

/// `mantissa / ONE * 2^exponent`, with ONE ≤ mantissa < 2·ONE, or zero. Integers, so that every platform orders alike.
///
/// Scores grow with time instead of decaying: the sum of `2^(t_i / h)` orders experts as the decayed sum does, and needs
/// no update while nothing happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Score {
    exponent: i64,
    mantissa: u64,
}

impl Default for Score {
    fn default() -> Self {
        Score { exponent: i64::MIN, mantissa: 0 }
    }
}

impl Score {
    fn plus(self, other: Score) -> Score {
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
    fn rounded(self) -> Score {
        let step = 1 << (MANTISSA_BITS - COMPARED_BITS);
        let mantissa = (self.mantissa + step / 2) / step * step;
        if mantissa >= 2 * ONE {
            Score { exponent: self.exponent + 1, mantissa: ONE }
        } else {
            Score { mantissa, ..self }
        }
    }

    fn over(self, other: Score) -> Score {
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

impl Default for Dfreq {
    fn default() -> Self {
        Dfreq::new(HALF_LIFE_STEPS_DEFAULT)
    }
}

impl Dfreq {
    /// A policy whose counts halve every `half_life_steps` steps of a layer (clamped to 1 ..=
    /// [`HALF_LIFE_STEPS_MAX`]).
    pub fn new(half_life_steps: u32) -> Dfreq {
        Dfreq {
            powers: powers_of_root(half_life_steps.clamp(1, HALF_LIFE_STEPS_MAX)),
            scores: PerExpert::default(),
            clocks: Vec::new(),
            candidates: Candidates::default(),
        }
    }

    /// What one use in step `step` is worth.
    fn worth(&self, step: u64) -> Score {
        let half_life = self.powers.len() as u64;
        Score { exponent: (step / half_life) as i64, mantissa: self.powers[(step % half_life) as usize] }
    }
}

impl Evict for Dfreq {
    fn name(&self) -> &'static str {
        "dfreq"
    }

    fn touched(&mut self, key: Key, step: u64) {
        let worth = self.worth(step);
        let score = self.scores.get_mut(key);
        *score = score.plus(worth);
        let clock = grown(&mut self.clocks, key.layer);
        *clock = step.max(*clock);
    }

    fn evicted(&mut self, key: Key) {
        self.pinned(key);
    }

    fn pinned(&mut self, key: Key) {
        self.candidates.remove(key, self.scores.get(key));
    }

    fn unpinned(&mut self, key: Key) {
        self.candidates.insert(key, self.scores.get(key));
    }

    fn victim(&mut self, layers: &[u32]) -> Option<Key> {
        let clock = |layer: u32| self.clocks.get(layer as usize).copied().unwrap_or(0);
        // Each score as its own layer sees it now: layers are a step apart within one pass.
        self.candidates.lowest(layers, |layer, score| score.over(self.worth(clock(layer))).rounded())
    }
}

/// `2^(i / n)` for i in 0..n as mantissas. The root is found by bisection with multiplications only, because the
/// platform's `powf` differs between platforms.
fn powers_of_root(n: u32) -> Vec<u64> {
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
    let mut value = 1.0f64;
    (0..n)
        .map(|_| {
            let mantissa = (value * ONE as f64) as u64;
            value = (value * low).min(2.0);
            mantissa.clamp(ONE, 2 * ONE - 1)
        })
        .collect()
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
        let mut policy = Dfreq::new(half_life);
        let key = Key { layer: 0, expert: 0 };
        for &step in uses {
            policy.touched(key, step);
        }
        let got = value(policy.scores.get(key).over(policy.worth(now)));
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
