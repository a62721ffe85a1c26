//! Reads ahead of a prompt: a step of many tokens needs nearly every expert of every layer, so what the next layer lacks is read
//! as soon as the layer under way has asked for all it needs, while that one still computes.
//!
//! The slots for it move along from layer to layer ([`crate::AHEAD_SLOTS_MAX`]). Like all guesses these reads are hints:
//! promoted when the step comes that needs them, called off when that one does not.

use std::collections::VecDeque;

use calypte_disk::Priority;

use super::ExpertCache;
use crate::{Event, Key, SlotState};

/// What is to be read when there is room.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// The layer that gives slots up.
    after: u32,
    /// In the order of file offsets.
    queue: VecDeque<Key>,
}

impl Ahead {
    pub fn clear(&mut self) {
        self.queue.clear();
    }
}

impl ExpertCache {
    /// The next step of MoE layer `layer` has many tokens, and will need `experts` (in any order) and perhaps others. Those that
    /// are missing are read while the disk has nothing else to do, in the place of what the step of layer `after`, under way, is done with.
    ///
    /// Changes no answer. A list that names an unknown expert or layer is ignored.
    pub fn expect_many(&mut self, after: usize, layer: usize, experts: &[u32]) {
        self.ahead.clear();
        let Some(room) = self.rooms.get(layer).filter(|_| after < self.rooms.len()) else { return };
        if experts.iter().any(|&expert| expert as usize >= room.extents.len()) {
            return;
        }
        let keys = experts.iter().map(|&expert| Key { layer: layer as u32, expert });
        self.ahead.after = after as u32;
        self.ahead.queue.extend(keys.filter(|&key| self.machine.state(key) == SlotState::Free));
        self.ahead.queue.make_contiguous().sort_unstable_by_key(|key| room.read_rank[key.expert as usize]);
        self.read_ahead();
    }

    /// Submits reads ahead as far as there are slots for them.
    pub(super) fn read_ahead(&mut self) {
        while let Some(&key) = self.ahead.queue.front() {
            if self.machine.state(key) == SlotState::Free {
                self.tell_as(Priority::Hint, Event::Ahead { key, after: self.ahead.after });
                if self.machine.state(key) == SlotState::Free {
                    // The next lease that comes back may make room.
                    return;
                }
            }
            self.ahead.queue.pop_front();
        }
    }
}
