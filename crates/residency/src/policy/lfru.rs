//! Frequency over age, called LFRU where expert caches are compared (arXiv 2608.07911, who find it the best causal policy at
//! one slot per expert of a token and little above).

use super::{Clocks, Evict, PerExpert, Ranked, seed_uses};
use crate::Key;

/// Evicts the expert with the lowest uses / (1 + steps since the last use), then the one used the longest ago. Values
/// change with every step: O(n) for the first victim of a step, O(log n) for each other.
#[derive(Debug, Default)]
pub struct Lfru {
    /// Uses and the step of the last one.
    uses: PerExpert<(u64, u64)>,
    clocks: Clocks,
    candidates: Ranked<(u64, u64)>,
}

/// Fractions are compared in units of 2⁻³²: uses stay below 2³² for longer than a model runs.
const FRACTION_BITS: u32 = 32;

fn rank(uses: &PerExpert<(u64, u64)>, clocks: &Clocks, key: Key) -> (u64, u64) {
    let (count, last) = uses.get(key);
    let clock = clocks.now(key.layer);
    ((count << FRACTION_BITS) / (1 + clock.saturating_sub(last)), last)
}

impl Evict for Lfru {
    fn name(&self) -> &'static str {
        "lfru"
    }

    fn seed(&mut self, layer: u32, shares: &[f32]) {
        for (expert, &share) in (0..).zip(shares) {
            self.uses.get_mut(Key { layer, expert }).0 = seed_uses(share);
        }
        self.candidates.changed(layer);
    }

    fn touched(&mut self, key: Key, step: u64) {
        let (count, last) = self.uses.get_mut(key);
        (*count, *last) = (*count + 1, step);
        self.clocks.reach(key.layer, step);
        self.candidates.changed(key.layer);
    }

    fn pinned(&mut self, key: Key) {
        self.candidates.remove(key);
    }

    fn unpinned(&mut self, key: Key) {
        self.candidates.insert(key, || rank(&self.uses, &self.clocks, key));
    }

    fn victim(&mut self, layers: &[u32]) -> Option<Key> {
        self.candidates.lowest(layers, |key| rank(&self.uses, &self.clocks, key))
    }
}
