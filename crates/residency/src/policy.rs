//! Who loses its slot. One file per policy; adding one is one file and one line in [`by_name`].

mod dfreq;
mod lru;

use std::collections::BTreeSet;

pub use dfreq::{Dfreq, HALF_LIFE_STEPS_DEFAULT, HALF_LIFE_STEPS_MAX};
pub use lru::Lru;

use crate::Key;

/// Names that [`by_name`] knows.
pub const NAMES: &[&str] = &["dfreq", "lru"];

/// An eviction policy, in the vocabulary of buffer managers: keys are touched, inserted, pinned, unpinned, evicted, and
/// a victim is asked for.
///
/// A key is a *candidate* from [`Evict::unpinned`] until [`Evict::pinned`] or [`Evict::evicted`]. The machine touches a
/// key only while it is not a candidate, so that an ordered structure over the candidates never has to be re-sorted.
/// Policies see no bytes and no weights: they cannot change an answer. They must be deterministic.
pub trait Evict: Send {
    /// The name that [`by_name`] accepts.
    fn name(&self) -> &'static str;

    /// `key` was routed to in step `step` of its layer (each layer counts its own steps, from 1), whether it is
    /// resident or not. At most once a step.
    fn touched(&mut self, key: Key, step: u64);

    /// The weights of `key` arrived.
    fn inserted(&mut self, _key: Key) {}

    /// `key` lost its slot and is no candidate any more.
    fn evicted(&mut self, key: Key);

    /// `key` is needed now and is no candidate any more.
    fn pinned(&mut self, key: Key);

    /// `key` became a candidate. This is also said of keys that are still to be read, when a step needs more slots than
    /// there are and the policy is asked which of its experts shall not stay.
    fn unpinned(&mut self, key: Key);

    /// The candidate that is worth least among those of `layers`, or `None` when none of these layers has one.
    ///
    /// `layers` is in the order of preference for ties: the layer that will be used last comes first. Ties within a
    /// layer go to the lowest expert. The victim stays a candidate until the machine says otherwise.
    fn victim(&mut self, layers: &[u32]) -> Option<Key>;
}

/// The policy called `name` with its default parameters, or `None` when there is none of that name (see [`NAMES`]).
pub fn by_name(name: &str) -> Option<Box<dyn Evict>> {
    match name {
        "dfreq" => Some(Box::<Dfreq>::default()),
        "lru" => Some(Box::<Lru>::default()),
        _ => None,
    }
}

/// The candidates of every layer, each layer in the order in which it would give them up.
#[derive(Debug)]
struct Candidates<R> {
    layers: Vec<BTreeSet<(R, u32)>>,
}

// Derived `Default` would ask for `R: Default`.
impl<R> Default for Candidates<R> {
    fn default() -> Self {
        Candidates { layers: Vec::new() }
    }
}

impl<R: Ord + Copy> Candidates<R> {
    fn insert(&mut self, key: Key, rank: R) {
        grown(&mut self.layers, key.layer).insert((rank, key.expert));
    }

    fn remove(&mut self, key: Key, rank: R) {
        grown(&mut self.layers, key.layer).remove(&(rank, key.expert));
    }

    /// The lowest rank of `layer`; the lowest expert among equals.
    fn first(&self, layer: u32) -> Option<(R, Key)> {
        let (rank, expert) = *self.layers.get(layer as usize)?.first()?;
        Some((rank, Key { layer, expert }))
    }

    /// The lowest of all `layers` after `fair` made the ranks of different layers comparable; the first among equals.
    fn lowest<F: Ord>(&self, layers: &[u32], fair: impl Fn(u32, R) -> F) -> Option<Key> {
        layers
            .iter()
            .filter_map(|&layer| self.first(layer))
            .map(|(rank, key)| (fair(key.layer, rank), key))
            .reduce(|best, next| if next.0 < best.0 { next } else { best })
            .map(|(_, key)| key)
    }
}

/// A value for every expert that was ever named.
#[derive(Debug)]
struct PerExpert<T> {
    layers: Vec<Vec<T>>,
}

impl<T> Default for PerExpert<T> {
    fn default() -> Self {
        PerExpert { layers: Vec::new() }
    }
}

impl<T: Default + Clone> PerExpert<T> {
    fn get(&self, key: Key) -> T {
        let layer = self.layers.get(key.layer as usize);
        let value = layer.and_then(|experts| experts.get(key.expert as usize));
        value.cloned().unwrap_or_default()
    }

    fn get_mut(&mut self, key: Key) -> &mut T {
        grown(grown(&mut self.layers, key.layer), key.expert)
    }
}

/// `values[index]`, after growing to it: policies learn a model's dimensions from what they are told.
fn grown<T: Default>(values: &mut Vec<T>, index: u32) -> &mut T {
    let index = index as usize;
    if values.len() <= index {
        values.resize_with(index + 1, T::default);
    }
    &mut values[index]
}
