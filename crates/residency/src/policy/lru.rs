//! Least recently used: the baseline of every caching paper (Belady 1966 calls it by its replacement class; Mattson et
//! al. 1970 analyse it as a stack algorithm).

use super::{Candidates, Clocks, Evict, PerExpert};
use crate::Key;

/// Evicts the expert whose last use lies the most steps of its own layer back. O(log n) an event.
///
/// Ages count steps of the expert's layer, not a global clock: globally, the least recent expert always belongs to the
/// layer that comes next, which is the worst choice there is.
#[derive(Debug, Default)]
pub struct Lru {
    last_step: PerExpert<u64>,
    clocks: Clocks,
    candidates: Candidates<u64>,
}

impl Evict for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn touched(&mut self, key: Key, step: u64) {
        *self.last_step.get_mut(key) = step;
        self.clocks.reach(key.layer, step);
    }

    fn pinned(&mut self, key: Key) {
        self.candidates.remove(key, self.last_step.get(key));
    }

    fn unpinned(&mut self, key: Key) {
        self.candidates.insert(key, self.last_step.get(key));
    }

    fn victim(&mut self, layers: &[u32]) -> Option<Key> {
        let age = |layer, last: u64| self.clocks.now(layer).saturating_sub(last);
        self.candidates.lowest(layers, |layer, last| std::cmp::Reverse(age(layer, last)))
    }
}
