//! Exponentially decayed frequency: the best of the policies that keep one number per expert. The score is the CRF of
//! Lee et al., "LRFU" (IEEE Trans. Computers 50, 2001) with the weighing function 2^(-age / half-life).

use super::decay::{DecayedCounts, Score};
use super::{Candidates, Clocks, Evict};
use crate::Key;

/// The default half-life, in steps of a layer (decoding: tokens): see docs/residency.md.
pub const HALF_LIFE_STEPS_DEFAULT: u32 = 16;
/// The longest half-life: beyond it the policy is a plain frequency count, which ossifies.
pub const HALF_LIFE_STEPS_MAX: u32 = 4096;

/// Evicts the expert with the lowest sum over its uses of `2^(-age / half_life)`. O(log n) an event.
///
/// All uses count, those before an eviction too: an expert that comes back keeps its past.
#[derive(Debug)]
pub struct Dfreq {
    counts: DecayedCounts,
    clocks: Clocks,
    candidates: Candidates<Score>,
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
            counts: DecayedCounts::new(half_life_steps.clamp(1, HALF_LIFE_STEPS_MAX)),
            clocks: Clocks::default(),
            candidates: Candidates::default(),
        }
    }
}

impl Evict for Dfreq {
    fn name(&self) -> &'static str {
        "dfreq"
    }

    fn seed(&mut self, layer: u32, shares: &[f32]) {
        self.counts.seed(layer, shares);
    }

    fn touched(&mut self, key: Key, step: u64) {
        self.counts.touched(key, step);
        self.clocks.reach(key.layer, step);
    }

    fn pinned(&mut self, key: Key) {
        self.candidates.remove(key, self.counts.get(key));
    }

    fn unpinned(&mut self, key: Key) {
        self.candidates.insert(key, self.counts.get(key));
    }

    fn victim(&mut self, layers: &[u32]) -> Option<Key> {
        // Each score as its own layer sees it now: layers are a step apart within one pass.
        self.candidates
            .lowest(layers, |layer, score| score.over(self.counts.worth(self.clocks.now(layer))).rounded())
    }
}
