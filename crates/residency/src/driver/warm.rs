//! The warm start: what earlier runs used most is read before anybody asks for it, into slots that nobody has.
//!
//! These reads come last of all in the disk's line, so a demand waits for no more of them than for hints
//! ([`calypte_disk::HINT_DEPTH_MAX`] segments). A slot that still waits for its read is no obstacle to a step either: the step calls
//! the read off and takes the slot, as if nothing had been remembered.

use std::collections::VecDeque;

use calypte_disk::Priority;

use super::{ExpertCache, ticket};
use crate::{Event, Key, SlotState, Usage};

/// Warm reads that wait at the disk at once. Enough to keep it busy while somebody types and nobody looks after the line; few enough
/// that a step which calls some of them off does not search for long.
const WARM_READS_MAX: usize = 1024;

/// What is still to be read, and what is on its way.
#[derive(Debug, Default)]
pub(super) struct Warm {
    /// Likeliest first.
    queue: VecDeque<Key>,
    /// Per layer: experts whose reads have not completed, in the order of submission.
    flying: Vec<Vec<u32>>,
}

impl Warm {
    pub fn new(layers: usize) -> Warm {
        Warm { queue: VecDeque::new(), flying: vec![Vec::new(); layers] }
    }

    pub fn submitted(&mut self, key: Key) {
        if let Some(flying) = self.flying.get_mut(key.layer as usize) {
            flying.push(key.expert);
        }
    }

    /// Returns whether it was a warm read.
    pub fn completed(&mut self, key: Key) -> bool {
        let Some(flying) = self.flying.get_mut(key.layer as usize) else { return false };
        let before = flying.len();
        flying.retain(|&expert| expert != key.expert);
        flying.len() < before
    }

    fn waiting(&self) -> usize {
        self.flying.iter().map(Vec::len).sum()
    }
}

impl ExpertCache {
    /// What earlier runs used: the policy starts with it, and the likeliest experts are read into free slots while the disk has nothing
    /// else to do, from now on. To be said before the first step. Changes no answer.
    pub fn remember(&mut self, usage: &Usage) {
        let mut likely: Vec<(f32, Key)> = Vec::new();
        for layer in 0..self.rooms.len() {
            let shares = usage.shares(layer, self.rooms[layer].top_k);
            let layer = layer as u32;
            self.tell(Event::Seed { layer, shares: &shares });
            let used = (0..).zip(shares).filter(|(_, share)| *share > 0.0);
            likely.extend(used.map(|(expert, share)| (share, Key { layer, expert })));
        }
        // Stable: equals stay in the order of layers, in which they will be needed.
        likely.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        self.warm.queue = likely.into_iter().map(|(_, key)| key).collect();
        self.read_warm();
    }

    /// Submits warm reads as long as there are any, free slots for them, and room in the line.
    pub(super) fn read_warm(&mut self) {
        if self.warm.queue.is_empty() || self.machine.step_waits() {
            return;
        }
        let mut room = WARM_READS_MAX.saturating_sub(self.warm.waiting());
        while room > 0 {
            let Some(key) = self.warm.queue.pop_front() else { break };
            // Whose layer has no free slot now gets none later: it is full of what was asked for.
            self.tell_as(Priority::Idle, Event::Warm(key));
            room -= usize::from(self.machine.state(key) == SlotState::Loading);
        }
    }

    /// A step of `layer` is about to begin: warm reads that wait make way. Those of the union are read as any other miss, in its order;
    /// as many of the others as the step may need slots lose theirs, the least likely first.
    pub(super) fn make_way(&mut self, layer: usize, union: &[u32]) {
        let Some(flying) = self.warm.flying.get(layer).filter(|flying| !flying.is_empty()) else { return };
        let layer = layer as u32;
        let (wanted, others): (Vec<u32>, Vec<u32>) = flying.iter().partition(|expert| union.contains(expert));
        let ready = |&&expert: &&u32| self.machine.state(Key { layer, expert }) == SlotState::Ready;
        let missing = union.len() - union.iter().filter(ready).count();
        for expert in wanted.into_iter().chain(others.into_iter().rev().take(missing)) {
            // What is wholly under way lands, as if nothing had been said.
            self.disk.cancel(ticket(Key { layer, expert }));
        }
    }

    /// Calls off all warm reads, for good.
    pub(super) fn cancel_warm(&mut self) {
        self.warm.queue.clear();
        for (layer, flying) in (0..).zip(&self.warm.flying) {
            for &expert in flying {
                self.disk.cancel(ticket(Key { layer, expert }));
            }
        }
    }
}
