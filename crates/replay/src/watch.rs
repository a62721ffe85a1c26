//! A policy that is watched: what a cache did, event by event, whoever drives it.

use std::sync::{Arc, Mutex, PoisonError};

use calypte_residency::per_expert::PerExpert;
use calypte_residency::predict::Guess;
use calypte_residency::{Evict, Key, LayerSize};

/// What happened to an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// A step needed it, and it was there.
    Hit,
    /// A step needed it, and it was not, or only on its way.
    Miss,
    /// It lost its slot.
    Evicted,
}

/// One event. Hits and misses of a step come by number, before what is evicted for it, which comes in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watched {
    /// Step of the layer, from 1.
    pub step: u64,
    /// The expert.
    pub key: Key,
    /// What happened to it.
    pub what: What,
}

/// Events so far; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Log {
    events: Arc<Mutex<Vec<Watched>>>,
}

impl Log {
    /// All events so far.
    pub fn events(&self) -> Vec<Watched> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// `policy`, watched.
    pub fn watch(&self, policy: Box<dyn Evict>) -> Box<dyn Evict> {
        Box::new(Watch { policy, log: self.clone(), held: PerExpert::default(), step: 0 })
    }

    fn push(&self, event: Watched) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }
}

struct Watch {
    policy: Box<dyn Evict>,
    log: Log,
    held: PerExpert<bool>,
    step: u64,
}

impl Evict for Watch {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn prepare(&mut self, layers: &[LayerSize]) {
        self.policy.prepare(layers);
    }

    fn memory_bytes(&self, layers: &[LayerSize]) -> u64 {
        self.policy.memory_bytes(layers)
    }

    fn seed(&mut self, layer: u32, shares: &[f32]) {
        self.policy.seed(layer, shares);
    }

    fn sequence_begins(&mut self) {
        self.policy.sequence_begins();
    }

    fn expects(&mut self, layer: u32, guesses: &[Guess]) {
        self.policy.expects(layer, guesses);
    }

    fn touched(&mut self, key: Key, step: u64) {
        self.policy.touched(key, step);
    }

    fn step_touched(&mut self, layer: u32, step: u64, union: &[u32]) {
        self.step = step;
        let mut experts = union.to_vec();
        experts.sort_unstable();
        for expert in experts {
            let key = Key { layer, expert };
            let what = if self.held.get(key) { What::Hit } else { What::Miss };
            self.log.push(Watched { step, key, what });
        }
        self.policy.step_touched(layer, step, union);
    }

    fn inserted(&mut self, key: Key) {
        *self.held.get_mut(key) = true;
        self.policy.inserted(key);
    }

    fn evicted(&mut self, key: Key) {
        *self.held.get_mut(key) = false;
        self.log.push(Watched { step: self.step, key, what: What::Evicted });
        self.policy.evicted(key);
    }

    fn pinned(&mut self, key: Key) {
        self.policy.pinned(key);
    }

    fn unpinned(&mut self, key: Key) {
        self.policy.unpinned(key);
    }

    fn victim(&mut self, layers: &[u32]) -> Option<Key> {
        self.policy.victim(layers)
    }
}
