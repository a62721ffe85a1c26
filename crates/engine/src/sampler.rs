//! From logits to the next token.

use calypte_kernels::{math, ops};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0: always the likeliest. Otherwise logits are divided by this.
    pub temperature: f32,
    /// Keep the k likeliest; 0: all.
    pub top_k: usize,
    /// Keep the likeliest until their probabilities sum to this (nucleus sampling, arXiv 1904.09751); 1: all.
    pub top_p: f32,
    /// Keep those at least this likely relative to the likeliest (arXiv 2407.01082); 0: all.
    pub min_p: f32,
    /// Start of the random sequence.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling { temperature: 0.7, top_k: 0, top_p: 0.95, min_p: 0.0, seed: 0 }
    }
}

/// A stream of choices. The same seed and logits give the same tokens on every machine: the generator's sequence is
/// fixed by its definition (ChaCha8), and probabilities are computed in a fixed order.
pub struct Sampler {
    sampling: Sampling,
    rng: ChaCha8Rng,
    candidates: Vec<(f32, u32)>,
}

impl Sampler {
    /// A sampler at the start of its sequence.
    pub fn new(sampling: Sampling) -> Sampler {
        Sampler { sampling, rng: ChaCha8Rng::seed_from_u64(sampling.seed), candidates: Vec::new() }
    }

    /// Chooses a token. Equal logits: the lower id counts as the likelier.
    pub fn sample(&mut self, logits: &[f32]) -> u32 {
        let s = self.sampling;
        if s.temperature <= 0.0 {
            return ops::argmax(logits) as u32;
        }
        self.candidates.clear();
        self.candidates.extend(logits.iter().zip(0u32..).map(|(l, id)| (*l, id)));
        self.candidates.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        if s.top_k > 0 {
            self.candidates.truncate(s.top_k);
        }
        let best = self.candidates.first().map_or(0.0, |c| c.0);
        self.candidates.iter_mut().for_each(|c| c.0 = math::exp((c.0 - best) / s.temperature));
        // The likeliest now has weight 1, so `min_p` is a plain threshold.
        self.candidates.retain(|c| c.0 >= s.min_p);
        let total: f32 = self.candidates.iter().map(|c| c.0).sum();
        let mut kept = 0f32;
        let mut n = 0;
        while n < self.candidates.len() && (n == 0 || kept < s.top_p * total) {
            kept += self.candidates[n].0;
            n += 1;
        }
        // 24 random bits: exactly what an f32 in [0, 1) holds.
        let mut point = (self.rng.next_u32() >> 8) as f32 / (1 << 24) as f32 * kept;
        for (weight, id) in &self.candidates[..n] {
            if point < *weight {
                return *id;
            }
            point -= weight;
        }
        self.candidates[..n].last().map_or(0, |c| c.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [1.0, 3.0, 3.0, 0.5, -1.0];

    fn draws(sampling: Sampling) -> Vec<u32> {
        let mut sampler = Sampler::new(sampling);
        (0..200).map(|_| sampler.sample(&LOGITS)).collect()
    }

    #[test]
    fn filters_leave_exactly_the_likeliest() {
        let all = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 7 };
        let cases: [(Sampling, &[u32]); 5] = [
            (Sampling { temperature: 0.0, ..all }, &[1]),
            (Sampling { top_k: 2, ..all }, &[1, 2]),
            (Sampling { min_p: 0.1, ..all }, &[0, 1, 2]),
            (Sampling { top_p: 0.4, ..all }, &[1]),
            (Sampling { top_p: 0.8, ..all }, &[1, 2]),
        ];
        for (sampling, want) in cases {
            let mut seen = draws(sampling);
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen, want, "{sampling:?}");
        }
    }

    #[test]
    fn the_seed_decides_and_frequencies_follow_the_probabilities() {
        let s = |seed| Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed };
        assert_eq!(draws(s(1)), draws(s(1)));
        assert_ne!(draws(s(1)), draws(s(2)));
        // p(1) = e³ / (e¹ + 2e³ + e^.5 + e⁻¹) = 0.448: 90 of 200 expected, 5 standard deviations are 35.
        let ones = draws(s(3)).iter().filter(|t| **t == 1).count();
        assert!((55..=125).contains(&ones), "{ones}");
    }
}
