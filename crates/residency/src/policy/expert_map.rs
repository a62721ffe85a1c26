//! The eviction rule of fMoE (arXiv 2502.05370): priority 1 / (probability × visits), the probability being that of the
//! expert map that trajectory search finds for the token under way.

use super::order::order_of;
use super::{Evict, PerExpert, Ranked, of_prompt};
use crate::predict::{Guess, Predict, Routed, Trajectory};
use crate::{Key, LayerSize};

/// What is not in the map found is this likely, so that visits still order it.
const PROBABILITY_MIN: f32 = 1.0 / 1024.0;

/// Evicts the expert with the lowest probability × visits since its read, then the one used the longest ago. The search
/// costs what [`Trajectory`] says, and prompts in large steps are left out of it, since their tokens took many ways; O(n) for the first victim of a step, O(log n) for each other.
#[derive(Debug, Default)]
pub struct ExpertMap {
    search: Trajectory,
    guesses: Vec<Guess>,
    probability: PerExpert<f32>,
    visits: PerExpert<(u32, u64)>,
    /// Experts of a token, per layer.
    top_k: Vec<usize>,
    candidates: Ranked<(u32, u64)>,
}

impl ExpertMap {
    fn rank(probability: &PerExpert<f32>, visits: &PerExpert<(u32, u64)>, key: Key) -> (u32, u64) {
        let (visits, last) = visits.get(key);
        (order_of(probability.get(key).max(PROBABILITY_MIN) * visits as f32), last)
    }
}

impl Evict for ExpertMap {
    fn name(&self) -> &'static str {
        "expert_map"
    }

    fn prepare(&mut self, layers: &[LayerSize]) {
        self.top_k = layers.iter().map(|layer| layer.top_k).collect();
    }

    fn touched(&mut self, key: Key, step: u64) {
        let (visits, last) = self.visits.get_mut(key);
        (*visits, *last) = (visits.saturating_add(1), step);
    }

    fn step_touched(&mut self, layer: u32, _step: u64, union: &[u32]) {
        self.candidates.changed(layer);
        if of_prompt(union, self.top_k.get(layer as usize).copied().unwrap_or(0)) {
            return;
        }
        let mut experts = union.to_vec();
        experts.sort_unstable();
        self.search.observe(&Routed { layer, experts: &experts, inside: None });
        self.guesses.clear();
        // Not a guess of what comes: where the tokens most like this one went in the layer that it is in.
        self.search.predict(layer, 0, &mut (), &mut self.guesses);
        self.probability.reset(layer);
        for guess in &self.guesses {
            *self.probability.get_mut(Key { layer, expert: guess.expert }) = guess.probability;
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
        self.candidates.insert(key, || ExpertMap::rank(&self.probability, &self.visits, key));
    }

    fn victim(&mut self, layers: &[u32]) -> Option<Key> {
        self.candidates.lowest(layers, |key| ExpertMap::rank(&self.probability, &self.visits, key))
    }
}
