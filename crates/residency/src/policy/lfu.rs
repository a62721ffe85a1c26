//! Least frequently used, with a perfect memory: a baseline. Expert popularity drifts, and counts that never fade keep
//! the favourites of the past (every study of expert caches reports this).

use super::{Candidates, Evict, PerExpert, seed_uses};
use crate::Key;

/// Evicts the expert with the fewest uses since the start, then the one used the longest ago. O(log n) an event.
#[derive(Debug, Default)]
pub struct Lfu {
    uses: PerExpert<(u64, u64)>,
    candidates: Candidates<(u64, u64)>,
}

impl Evict for Lfu {
    fn name(&self) -> &'static str {
        "lfu"
    }

    fn seed(&mut self, layer: u32, shares: &[f32]) {
        for (expert, &share) in (0..).zip(shares) {
            self.uses.get_mut(Key { layer, expert }).0 = seed_uses(share);
        }
    }

    fn touched(&mut self, key: Key, step: u64) {
        let (count, last) = self.uses.get_mut(key);
        (*count, *last) = (*count + 1, step);
    }

    fn pinned(&mut self, key: Key) {
        self.candidates.remove(key, self.uses.get(key));
    }

    fn unpinned(&mut self, key: Key) {
        self.candidates.insert(key, self.uses.get(key));
    }

    fn victim(&mut self, layers: &[u32]) -> Option<Key> {
        self.candidates.lowest(layers, |_, uses| uses)
    }
}
