//! The expert activation matrix of MoE-Infinity (arXiv 2401.14361): how often a sequence used each expert of each layer.
//! The collection of finished sequences' matrices is searched for the one most like the present sequence, and what that one
//! used is protected; everything else goes by how often it was used since it came into memory.

use super::{Evict, PerExpert, Ranked, grown};
use crate::{Key, LayerSize};

/// Matrices kept, as in the authors' code. The oldest goes first (the authors': the least often found).
const MATRICES_MAX: usize = 1000;
/// A sequence shorter than this, in steps of the first layer, says nothing worth keeping.
const STEPS_MIN: u64 = 16;

/// Evicts what the most similar sequence used less than evenly, by visits since the read, then by last use. A use costs one
/// addition per matrix and a match matrices × layers, once a pass; O(n) for the first victim of a step, O(log n) for each other.
///
/// The authors match in every layer; counts of a sequence change little within a pass.
#[derive(Debug, Default)]
pub struct Eam {
    experts: Vec<usize>,
    current: Matrix,
    collection: Vec<Stored>,
    /// Of the collection.
    found: Option<usize>,
    last_layer: Option<u32>,
    visits: PerExpert<(u32, u64)>,
    candidates: Ranked<(bool, u32, u64)>,
}

/// Counts by layer and expert.
#[derive(Clone, Debug, Default)]
struct Matrix {
    counts: Vec<Vec<f32>>,
    /// Per layer: the sum of the squares.
    squares: Vec<f32>,
    steps: u64,
}

#[derive(Debug)]
struct Stored {
    matrix: Matrix,
    /// Per layer: the product with the present sequence's counts.
    products: Vec<f32>,
}

impl Eam {
    fn find(&mut self) {
        let similarity = |stored: &Stored| -> f32 {
            let layers = self.current.squares.iter().zip(&stored.matrix.squares).zip(&stored.products);
            layers
                .map(|((a, b), product)| if *a > 0.0 && *b > 0.0 { product / (a * b).sqrt() } else { 0.0 })
                .sum()
        };
        let all = self.collection.iter().map(similarity).enumerate();
        self.found =
            all.reduce(|best, next| if next.1 > best.1 { next } else { best }).map(|(index, _)| index);
    }

    /// Whether the sequence found uses the expert more than it would if it used all evenly.
    fn protected(&self, key: Key) -> bool {
        let Some(found) = self.found else { return false };
        let Some(row) = self.collection[found].matrix.counts.get(key.layer as usize) else { return false };
        let count = row.get(key.expert as usize).copied().unwrap_or(0.0);
        count * row.len() as f32 > row.iter().sum::<f32>()
    }

    fn rank(&self, key: Key) -> (bool, u32, u64) {
        let (visits, last) = self.visits.get(key);
        (self.protected(key), visits, last)
    }
}

impl Evict for Eam {
    fn name(&self) -> &'static str {
        "eam"
    }

    fn prepare(&mut self, layers: &[LayerSize]) {
        self.experts = layers.iter().map(|layer| layer.experts).collect();
    }

    fn sequence_begins(&mut self) {
        let finished = std::mem::take(&mut self.current);
        if finished.steps >= STEPS_MIN {
            if self.collection.len() == MATRICES_MAX {
                self.collection.remove(0);
            }
            self.collection.push(Stored { matrix: finished, products: Vec::new() });
        }
        self.collection.iter_mut().for_each(|stored| stored.products.clear());
        self.found = None;
        self.candidates.all_changed();
    }

    fn touched(&mut self, key: Key, step: u64) {
        let (visits, last) = self.visits.get_mut(key);
        (*visits, *last) = (visits.saturating_add(1), step);
        let experts = self.experts.get(key.layer as usize).copied().unwrap_or(0);
        let row = grown(&mut self.current.counts, key.layer);
        row.resize(row.len().max(experts), 0.0);
        let count = grown(row, key.expert);
        *grown(&mut self.current.squares, key.layer) += 2.0 * *count + 1.0;
        *count += 1.0;
        for stored in &mut self.collection {
            let product = grown(&mut stored.products, key.layer);
            let row = stored.matrix.counts.get(key.layer as usize);
            *product += row.and_then(|row| row.get(key.expert as usize)).copied().unwrap_or(0.0);
        }
        self.candidates.changed(key.layer);
    }

    fn step_touched(&mut self, layer: u32, _step: u64, _union: &[u32]) {
        let passes = self.last_layer.is_none_or(|last| layer <= last);
        self.last_layer = Some(layer);
        if passes {
            self.current.steps += 1;
            self.find();
            self.candidates.all_changed();
        }
    }

    fn evicted(&mut self, key: Key) {
        self.pinned(key);
        self.visits.get_mut(key).0 = 0;
    }

    fn pinned(&mut self, key: Key) {
        self.candidates.remove(key);
    }

    fn unpinned(&mut self, key: Key) {
        let rank = self.rank(key);
        self.candidates.insert(key, || rank);
    }

    fn victim(&mut self, layers: &[u32]) -> Option<Key> {
        let mut candidates = std::mem::take(&mut self.candidates);
        let victim = candidates.lowest(layers, |key| self.rank(key));
        self.candidates = candidates;
        victim
    }
}
