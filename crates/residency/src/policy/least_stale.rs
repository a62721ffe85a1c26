//! Least-Stale (SpecMD, arXiv 2602.03921): what the current forward pass has not touched goes first, by the distance of
//! its layer, so that nothing prefetched for a layer ahead is evicted before it is used.
//!
//! The paper leaves ties open; here they go by last use. With slots of its own, a layer never sees a difference of
//! distance, and without prefetching nothing is fresh that is not needed: then this is LRU, which others found too
//! (arXiv 2608.07911).

use super::{Evict, PerExpert, Ranked, grown};
use crate::Key;
use crate::predict::Guess;

/// Evicts stale experts first, then those used the longest ago. O(n) for the first victim of a step, O(log n) for each
/// other.
#[derive(Debug, Default)]
pub struct LeastStale {
    last_step: PerExpert<u64>,
    /// Expected to be used soon.
    expected: PerExpert<bool>,
    clocks: Vec<u64>,
    candidates: Ranked<(bool, u64)>,
}

impl LeastStale {
    fn rank(expected: &PerExpert<bool>, last_step: &PerExpert<u64>, key: Key) -> (bool, u64) {
        (expected.get(key), last_step.get(key))
    }
}

impl Evict for LeastStale {
    fn name(&self) -> &'static str {
        "least_stale"
    }

    fn expects(&mut self, layer: u32, guesses: &[Guess]) {
        self.expected.reset(layer);
        for guess in guesses {
            *self.expected.get_mut(Key { layer, expert: guess.expert }) = true;
        }
        self.candidates.changed(layer);
    }

    fn touched(&mut self, key: Key, step: u64) {
        *self.last_step.get_mut(key) = step;
        let clock = grown(&mut self.clocks, key.layer);
        *clock = step.max(*clock);
        self.candidates.changed(key.layer);
    }

    fn evicted(&mut self, key: Key) {
        self.candidates.remove(key);
    }

    fn pinned(&mut self, key: Key) {
        self.candidates.remove(key);
    }

    fn unpinned(&mut self, key: Key) {
        self.candidates.insert(key, || LeastStale::rank(&self.expected, &self.last_step, key));
    }

    fn victim(&mut self, layers: &[u32]) -> Option<Key> {
        let rank = |key| LeastStale::rank(&self.expected, &self.last_step, key);
        // The layers come in the order of distance, the farthest first.
        let firsts = layers.iter().filter_map(|&layer| self.candidates.first(layer, rank));
        firsts.reduce(|best, next| if best.0.0 && !next.0.0 { next } else { best }).map(|(_, key)| key)
    }
}
