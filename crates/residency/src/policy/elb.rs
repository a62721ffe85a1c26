//! The expert look-ahead buffer of MoE-SpeQ (arXiv 2511.14102): a table of what the draft tokens will route to. What is
//! not in the buffer goes first; of what is, the one needed last: Belady's rule as far as the draft sees.

use super::decay::{DecayedCounts, Score};
use super::{Clocks, Evict, HALF_LIFE_STEPS_DEFAULT, HALF_LIFE_STEPS_MAX, PerExpert, Ranked};
use crate::Key;
use crate::predict::Guess;

/// Evicts what the buffer does not hold, by decayed frequency (the paper leaves the order among them open); then what it
/// needs last. O(n) for the first victim of a step, O(log n) for each other.
#[derive(Debug)]
pub struct Elb {
    counts: DecayedCounts,
    clocks: Clocks,
    /// 0: not in the buffer; higher: needed sooner.
    nearness: PerExpert<u32>,
    candidates: Ranked<(u32, Score)>,
}

impl Default for Elb {
    fn default() -> Self {
        Elb::new(HALF_LIFE_STEPS_DEFAULT)
    }
}

impl Elb {
    /// With the half-life of the counts that order what the buffer does not hold, in steps (clamped to 1 ..=
    /// [`HALF_LIFE_STEPS_MAX`]).
    pub fn new(half_life_steps: u32) -> Elb {
        Elb {
            counts: DecayedCounts::new(half_life_steps.clamp(1, HALF_LIFE_STEPS_MAX)),
            clocks: Clocks::default(),
            nearness: PerExpert::default(),
            candidates: Ranked::default(),
        }
    }

    fn rank(nearness: &PerExpert<u32>, counts: &DecayedCounts, clocks: &Clocks, key: Key) -> (u32, Score) {
        let clock = clocks.now(key.layer);
        (nearness.get(key), counts.get(key).over(counts.worth(clock)).rounded())
    }
}

impl Evict for Elb {
    fn name(&self) -> &'static str {
        "elb"
    }

    fn seed(&mut self, layer: u32, shares: &[f32]) {
        self.counts.seed(layer, shares);
        self.candidates.changed(layer);
    }

    fn expects(&mut self, layer: u32, guesses: &[Guess]) {
        self.nearness.reset(layer);
        for guess in guesses {
            let nearness = self.nearness.get_mut(Key { layer, expert: guess.expert });
            *nearness = (*nearness).max(u32::MAX - guess.tokens_ahead);
        }
        self.candidates.changed(layer);
    }

    fn touched(&mut self, key: Key, step: u64) {
        self.counts.touched(key, step);
        self.clocks.reach(key.layer, step);
        self.candidates.changed(key.layer);
    }

    fn pinned(&mut self, key: Key) {
        self.candidates.remove(key);
    }

    fn unpinned(&mut self, key: Key) {
        self.candidates.insert(key, || Elb::rank(&self.nearness, &self.counts, &self.clocks, key));
    }

    fn victim(&mut self, layers: &[u32]) -> Option<Key> {
        self.candidates.lowest(layers, |key| Elb::rank(&self.nearness, &self.counts, &self.clocks, key))
    }
}
