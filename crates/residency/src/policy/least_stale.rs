//! Least-Stale (SpecMD, arXiv 2602.03921): what the current forward pass has not touched goes first, by the distance of
//! its layer, so that nothing prefetched for a layer ahead is evicted before it is used.
//!
//! The paper leaves ties open; here they go by last use, and what is expected outlasts what was touched. Within the slots of
//! one layer there is no difference of distance, and without expectations nothing is fresh but what the step needs: then this
//! is LRU, which others found too (arXiv 2608.07911).

use super::{Evict, PerExpert, Ranked};
use crate::Key;
use crate::predict::Guess;

/// Evicts stale experts first, then those used the longest ago. O(n) for the first victim of a step, O(log n) for each
/// other.
#[derive(Debug, Default)]
pub struct LeastStale {
    last_step: PerExpert<u64>,
    /// Expected to be used soon.
    expected: PerExpert<bool>,
    /// Forward pass of the last use.
    last_pass: PerExpert<u64>,
    /// Forward passes begun.
    pass: u64,
    /// Layer and step of the latest use.
    latest: Option<(u32, u64)>,
    candidates: Ranked<(Freshness, u64)>,
}

/// Whether an expert is expected, and whether the present pass touched it.
type Freshness = (bool, bool);
const STALE: Freshness = (false, false);

impl LeastStale {
    fn rank(&self, key: Key) -> (Freshness, u64) {
        let touched = self.pass > 0 && self.last_pass.get(key) == self.pass;
        ((self.expected.get(key), touched), self.last_step.get(key))
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
        if self.latest != Some((key.layer, step)) {
            // A pass goes through the layers in order.
            if self.latest.is_none_or(|(layer, _)| key.layer <= layer) {
                self.pass += 1;
                self.candidates.all_changed();
            }
            self.latest = Some((key.layer, step));
        }
        *self.last_step.get_mut(key) = step;
        *self.last_pass.get_mut(key) = self.pass;
        self.candidates.changed(key.layer);
    }

    fn pinned(&mut self, key: Key) {
        self.candidates.remove(key);
    }

    fn unpinned(&mut self, key: Key) {
        let rank = self.rank(key);
        self.candidates.insert(key, || rank);
    }

    fn victim(&mut self, layers: &[u32]) -> Option<Key> {
        let mut candidates = std::mem::take(&mut self.candidates);
        // The layers come in the order of distance, the farthest first.
        let firsts = layers.iter().filter_map(|&layer| candidates.first(layer, |key| self.rank(key)));
        let victim =
            firsts.reduce(|best, next| if best.0.0 != STALE && next.0.0 == STALE { next } else { best });
        self.candidates = candidates;
        victim.map(|(_, key)| key)
    }
}
