//! S3-FIFO (Yang, Zhang, Qiu, Yue, Vigfusson: "FIFO queues are all you need for cache eviction", SOSP 2023): a small queue
//! that new experts pass through, a main queue, and a ghost queue that remembers who left the small one.

use std::collections::BTreeSet;

use super::{Candidates, Evict, PerExpert, grown};
use crate::Key;

/// Share of the resident experts that the small queue may hold before it gives up its own: one in so many.
const SMALL_SHARE: usize = 10;
/// Uses are counted up to here (two bits).
const USES_MAX: u8 = 3;
/// Uses in the small queue above which an expert is moved to the main queue instead of evicted.
const USES_FOR_MAIN: u8 = 1;
/// Places in a queue within one step: those that are moved come before those that arrive.
const PLACES_PER_STEP: u64 = 1 << 24;

/// Evicts the head of the small queue if that holds more than a tenth of the residents, else the head of the main queue;
/// experts used in the meantime get another round in the main queue. O(log n) an event, amortised.
///
/// An expert's place in a queue is given by step and number, not by the time at which its read landed.
#[derive(Debug, Default)]
pub struct S3Fifo {
    entries: PerExpert<Entry>,
    layers: Vec<Layer>,
    small: Candidates<u64>,
    main: Candidates<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    queue: Queue,
    place: u64,
    uses: u8,
    last_step: u64,
    candidate: bool,
    /// Place in the ghost queue.
    ghost: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Queue {
    #[default]
    Outside,
    Small,
    Main,
}

#[derive(Debug, Default)]
struct Layer {
    step: u64,
    /// Experts moved to the main queue in this step.
    moved: u64,
    small: usize,
    main: usize,
    ghosts: BTreeSet<(u64, u32)>,
}

impl S3Fifo {
    fn candidates(&mut self, queue: Queue) -> &mut Candidates<u64> {
        // What was never inserted is only offered, and would enter the small queue.
        if queue == Queue::Main { &mut self.main } else { &mut self.small }
    }

    fn set_candidate(&mut self, key: Key, is: bool) {
        let entry = self.entries.get_mut(key);
        if entry.candidate == is {
            return;
        }
        entry.candidate = is;
        let Entry { queue, place, .. } = *entry;
        if is {
            self.candidates(queue).insert(key, place);
        } else {
            self.candidates(queue).remove(key, place);
        }
    }

    /// To the tail of the main queue.
    fn move_to_main(&mut self, key: Key, uses: u8) {
        self.set_candidate(key, false);
        let layer = grown(&mut self.layers, key.layer);
        layer.moved += 1;
        let place = layer.step * PLACES_PER_STEP + layer.moved;
        let entry = self.entries.get_mut(key);
        if entry.queue == Queue::Small {
            layer.small -= 1;
            layer.main += 1;
        }
        entry.queue = Queue::Main;
        (entry.place, entry.uses) = (place, uses);
        self.set_candidate(key, true);
    }

    fn victim_of(&mut self, layer: u32) -> Option<Key> {
        loop {
            let counts = grown(&mut self.layers, layer);
            let from_small = counts.small * SMALL_SHARE > counts.small + counts.main;
            let (small, main) = (self.small.first(layer), self.main.first(layer));
            let (_, key) = if from_small { small.or(main)? } else { main.or(small)? };
            let entry = self.entries.get(key);
            match entry.queue {
                Queue::Small if entry.uses > USES_FOR_MAIN => self.move_to_main(key, 0),
                Queue::Main if entry.uses > 0 => self.move_to_main(key, entry.uses - 1),
                _ => return Some(key),
            }
        }
    }
}

impl Evict for S3Fifo {
    fn name(&self) -> &'static str {
        "s3fifo"
    }

    fn touched(&mut self, key: Key, step: u64) {
        let layer = grown(&mut self.layers, key.layer);
        if layer.step < step {
            (layer.step, layer.moved) = (step, 0);
            // The ghost queue remembers as many as the cache holds (the main queue's size in the paper). Within a step,
            // how many that are depends on which reads have landed.
            while layer.ghosts.len() > layer.small + layer.main {
                let Some((_, expert)) = layer.ghosts.pop_first() else { break };
                self.entries.get_mut(Key { layer: key.layer, expert }).ghost = None;
            }
        }
        let entry = self.entries.get_mut(key);
        entry.last_step = step;
        if entry.queue != Queue::Outside {
            entry.uses = (entry.uses + 1).min(USES_MAX);
        } else {
            entry.place = step * PLACES_PER_STEP + PLACES_PER_STEP / 2 + u64::from(key.expert);
        }
    }

    fn inserted(&mut self, key: Key) {
        let layer = grown(&mut self.layers, key.layer);
        let entry = self.entries.get_mut(key);
        (entry.queue, entry.uses) = (Queue::Small, 0);
        entry.place = entry.last_step * PLACES_PER_STEP + PLACES_PER_STEP / 2 + u64::from(key.expert);
        if let Some(place) = entry.ghost.take() {
            layer.ghosts.remove(&(place, key.expert));
            entry.queue = Queue::Main;
            layer.main += 1;
        } else {
            layer.small += 1;
        }
    }

    fn evicted(&mut self, key: Key) {
        self.pinned(key);
        let layer = grown(&mut self.layers, key.layer);
        let entry = self.entries.get_mut(key);
        match std::mem::take(&mut entry.queue) {
            Queue::Outside => {}
            Queue::Main => layer.main -= 1,
            Queue::Small => {
                layer.small -= 1;
                let place = layer.step * PLACES_PER_STEP + u64::from(key.expert);
                entry.ghost = Some(place);
                layer.ghosts.insert((place, key.expert));
            }
        }
    }

    fn pinned(&mut self, key: Key) {
        self.set_candidate(key, false);
    }

    fn unpinned(&mut self, key: Key) {
        self.set_candidate(key, true);
    }

    fn victim(&mut self, layers: &[u32]) -> Option<Key> {
        // Queues of different layers cannot be compared: the first layer that has anyone to give.
        layers.iter().find_map(|&layer| self.victim_of(layer))
    }
}
