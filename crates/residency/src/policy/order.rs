//! What policies keep their candidates in: sets in an order that only uses change, and heaps for values that change with
//! every step.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use crate::Key;
use crate::per_expert::grown;

/// The candidates of every layer, each layer in the order in which it would give them up. For ranks that stay the same
/// while a key is a candidate.
#[derive(Debug)]
pub struct Candidates<R> {
    layers: Vec<BTreeSet<(R, u32)>>,
}

// Derived `Default` would ask for `R: Default`.
impl<R> Default for Candidates<R> {
    fn default() -> Self {
        Candidates { layers: Vec::new() }
    }
}

impl<R: Ord + Copy> Candidates<R> {
    /// Adds a candidate.
    pub fn insert(&mut self, key: Key, rank: R) {
        grown(&mut self.layers, key.layer).insert((rank, key.expert));
    }

    /// Removes a candidate that was added with this rank; `false` when there was none.
    pub fn remove(&mut self, key: Key, rank: R) -> bool {
        grown(&mut self.layers, key.layer).remove(&(rank, key.expert))
    }

    /// The lowest rank of `layer`; the lowest expert among equals.
    pub fn first(&self, layer: u32) -> Option<(R, Key)> {
        let (rank, expert) = *self.layers.get(layer as usize)?.first()?;
        Some((rank, Key { layer, expert }))
    }

    /// The lowest of all `layers` after `fair` made the ranks of different layers comparable; the first among equals.
    pub fn lowest<F: Ord>(&self, layers: &[u32], fair: impl Fn(u32, R) -> F) -> Option<Key> {
        let firsts = layers.iter().filter_map(|&layer| self.first(layer));
        lowest(firsts.map(|(rank, key)| (fair(key.layer, rank), key)))
    }
}

/// The candidates of every layer when ranks change with every step: a heap is made when a victim is asked for the first
/// time after a change, O(n), and each further victim of the step costs O(log n).
#[derive(Debug)]
pub struct Ranked<R> {
    layers: Vec<RankedLayer<R>>,
}

#[derive(Debug)]
struct RankedLayer<R> {
    candidate: Vec<bool>,
    /// May name experts that are no candidates any more.
    heap: BinaryHeap<Reverse<(R, u32)>>,
    /// Whether the heap has every candidate with its present rank.
    fresh: bool,
}

impl<R: Ord> Default for RankedLayer<R> {
    fn default() -> Self {
        RankedLayer { candidate: Vec::new(), heap: BinaryHeap::new(), fresh: false }
    }
}

impl<R: Ord> Default for Ranked<R> {
    fn default() -> Self {
        Ranked { layers: Vec::new() }
    }
}

impl<R: Ord + Copy> Ranked<R> {
    /// Adds a candidate.
    pub fn insert(&mut self, key: Key, rank: impl FnOnce() -> R) {
        let layer = grown(&mut self.layers, key.layer);
        *grown(&mut layer.candidate, key.expert) = true;
        if layer.fresh {
            layer.heap.push(Reverse((rank(), key.expert)));
        }
    }

    /// Removes a candidate.
    pub fn remove(&mut self, key: Key) {
        *grown(&mut grown(&mut self.layers, key.layer).candidate, key.expert) = false;
    }

    /// Must be said whenever ranks of `layer` change.
    pub fn changed(&mut self, layer: u32) {
        grown(&mut self.layers, layer).fresh = false;
    }

    /// Must be said when ranks of any layer may have changed.
    pub fn all_changed(&mut self) {
        self.layers.iter_mut().for_each(|layer| layer.fresh = false);
    }

    /// The lowest rank of `layer`; the lowest expert among equals. `rank` is asked after changes only.
    pub fn first(&mut self, layer: u32, rank: impl Fn(Key) -> R) -> Option<(R, Key)> {
        let this = self.layers.get_mut(layer as usize)?;
        if !this.fresh {
            let members = this.candidate.iter().enumerate().filter(|(_, is)| **is);
            let all = members.map(|(expert, _)| {
                let expert = expert as u32;
                Reverse((rank(Key { layer, expert }), expert))
            });
            let mut memory = std::mem::take(&mut this.heap).into_vec();
            memory.clear();
            memory.extend(all);
            this.heap = BinaryHeap::from(memory);
            this.fresh = true;
        }
        while let Some(&Reverse((rank, expert))) = this.heap.peek() {
            if this.candidate[expert as usize] {
                return Some((rank, Key { layer, expert }));
            }
            this.heap.pop();
        }
        None
    }

    /// The lowest of all `layers`; the first among equals.
    pub fn lowest(&mut self, layers: &[u32], rank: impl Fn(Key) -> R) -> Option<Key> {
        lowest(layers.iter().filter_map(|&layer| self.first(layer, &rank)))
    }
}

/// The first of the lowest.
fn lowest<F: Ord>(all: impl Iterator<Item = (F, Key)>) -> Option<Key> {
    all.reduce(|best, next| if next.0 < best.0 { next } else { best }).map(|(_, key)| key)
}

/// A value that is not negative, as an integer of the same order.
pub fn order_of(value: f32) -> u32 {
    value.max(0.0).to_bits()
}
