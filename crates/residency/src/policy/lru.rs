//! Least recently used: the baseline of every caching paper (Belady 1966 calls it by its replacement class; Mattson et
//! al. 1970 analyse it as a stack algorithm).

use super::{Candidates, Evict, PerExpert, grown};
use crate::Key;

/// Evicts the expert whose last use lies the most steps of its own layer back. O(log n) an event.
///
/// Ages count steps of the expert's layer, not a global clock: globally, the least recent expert always belongs to the
/// layer that comes next, which is the worst choice there is.
#[derive(Debug, Default)]
pub struct Lru {
    last_step: PerExpert<u64>,
    clocks: Vec<u64>,
    candidates: Candidates<u64>,
}

impl Evict for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn touched(&mut self, key: Key, step: u64) {
        *self.last_step.get_mut(key) = step;
        let clock = grown(&mut self.clocks, key.layer);
        *clock = step.max(*clock);
    }

    fn evicted(&mut self, key: Key) {
        self.pinned(key);
    }

    fn pinned(&mut self, key: Key) {
        self.candidates.remove(key, self.last_step.get(key));
    }

    fn unpinned(&mut self, key: Key) {
        self.candidates.insert(key, self.last_step.get(key));
    }

    fn victim(&mut self, layers: &[u32]) -> Option<Key> {
        let clock = |layer: u32| self.clocks.get(layer as usize).copied().unwrap_or(0);
        let age = |layer, last: u64| clock(layer).saturating_sub(last);
        self.candidates.lowest(layers, |layer, last| std::cmp::Reverse(age(layer, last)))
    }
}
