//! Decayed frequency times succession: our own combination, and the default.
//!
//! Decayed frequency says what was needed lately, whatever is going on now. But within a layer, the experts of a token say
//! a good deal about those of the next few: a table of how often one followed the other, learned on line and forgotten on
//! line, tells which residents usually come after the experts just used. The product of both closes more of the gap between
//! LRU and Belady than decayed frequency does: a quarter more to twice as much (docs/residency.md). What a predictor expects
//! counts on top of it.
//!
//! The table is what prefetchers know as a correlation or Markov table (Joseph, Grunwald, "Prefetching using Markov
//! predictors", ISCA 1997), used here to keep and not to fetch; co-activation tables between *layers* (EdgeMoE, arXiv
//! 2308.14352) say which expert comes in the next layer, and that is no help to a layer that decides whom to keep.

use std::collections::VecDeque;

use super::decay::{fade, root_of_two};
use super::order::order_of;
use super::{Evict, HALF_LIFE_STEPS_MAX, Ranked, grown, known, of_prompt};
use crate::predict::Guess;
use crate::{Key, LayerSize};

/// The default half-life of the frequency, in steps of a layer.
const HALF_LIFE_STEPS_DEFAULT: u32 = 6;
/// Steps after a use in which another use counts as its successor.
const REACH_STEPS: usize = 3;
/// What a successor counts, by distance: 0.7 to its power, in units of the table.
const SUCCESSOR_UNITS: [u16; REACH_STEPS] = [467, 327, 229];
/// What successors count together: what a row's entry is measured in.
const UNITS: f32 = 1024.0;
/// A row forgets 2 % of itself with every use: entries stay below 1024 / 0.02, which 16 bits hold, and the table follows the
/// text. What is left below 49 units is not forgotten, and is less than [`SUCCESSION_MIN`].
const FORGET_IN_1024: u32 = 21;
/// Share of a row, and of the uses that it is measured by, that is left after another use.
const KEPT: f32 = 1.0 - FORGET_IN_1024 as f32 / 1024.0;
/// Successions of half a use: an expert that was hardly ever seen tells little.
const USES_PRIOR: f32 = 1.0;
/// Keeps a product from forgetting one factor where the other is 0.
const FREQUENCY_MIN: f32 = 0.02;
/// As above.
const SUCCESSION_MIN: f32 = 0.003;
/// Weight of an expectation against the rest, which is rarely above 1.
const EXPECTED_WEIGHT: f32 = 2.0;
/// What an expectation for the token after the next is worth against one for the next.
const EXPECTED_DECAY: f32 = 0.85;
/// Numbers kept for every expert besides the table: frequency, succession, expectation, uses, and two in the heap.
const VALUES_PER_EXPERT: u64 = 6;

/// Evicts the expert with the lowest `sqrt(decayed frequency) × succession + expectation`, where succession is the mean,
/// over the experts of the present step, of how often the candidate followed them within a few steps.
///
/// A step costs one pass over as many rows of the table as it has experts: 2 bytes per pair of experts and layer, 10 MB for
/// 75 layers of 256 experts. O(n) for the first victim of a step, O(log n) for each other.
#[derive(Debug)]
pub struct Successor {
    /// What is left of a use after one step.
    decay: f32,
    layers: Vec<Layer>,
    candidates: Ranked<u32>,
}

#[derive(Debug, Default)]
struct Layer {
    experts: usize,
    top_k: usize,
    frequency: Vec<f32>,
    succession: Vec<f32>,
    expected: Vec<f32>,
    /// `[expert, successor]`, in units.
    table: Vec<u16>,
    /// Uses of each expert that its row remembers.
    uses: Vec<f32>,
    /// Unions of the latest steps, latest first.
    latest: VecDeque<Vec<u32>>,
}

impl Layer {
    fn new(&LayerSize { experts, top_k, .. }: &LayerSize) -> Layer {
        Layer {
            experts,
            top_k,
            frequency: vec![0.0; experts],
            succession: vec![0.0; experts],
            expected: vec![0.0; experts],
            table: vec![0; experts * experts],
            uses: vec![0.0; experts],
            latest: VecDeque::with_capacity(REACH_STEPS),
        }
    }

    fn row(&mut self, expert: u32) -> &mut [u16] {
        let start = expert as usize * self.experts;
        &mut self.table[start..start + self.experts]
    }

    fn count_use(&mut self, decay: f32, union: &[u32]) {
        fade(&mut self.frequency, decay);
        union.iter().for_each(|&expert| self.frequency[expert as usize] += 1.0);
    }

    /// `union` followed the latest unions.
    fn learn(&mut self, union: &[u32]) {
        let latest = std::mem::take(&mut self.latest);
        for (before, units) in latest.iter().zip(SUCCESSOR_UNITS) {
            for &expert in before {
                let row = self.row(expert);
                for &next in union {
                    row[next as usize] = row[next as usize].saturating_add(units);
                }
            }
        }
        self.latest = latest;
        for &expert in union {
            for value in self.row(expert) {
                *value -= ((u32::from(*value) * FORGET_IN_1024) >> 10) as u16;
            }
            let uses = &mut self.uses[expert as usize];
            *uses = (*uses + 1.0) * KEPT;
        }
        if self.latest.len() == REACH_STEPS {
            self.latest.pop_back();
        }
        self.latest.push_front(union.to_vec());
    }

    fn set_succession(&mut self, union: &[u32]) {
        let mut succession = std::mem::take(&mut self.succession);
        succession.fill(0.0);
        for &expert in union {
            let scale = 1.0 / ((self.uses[expert as usize] + USES_PRIOR) * UNITS * union.len() as f32);
            for (sum, &units) in succession.iter_mut().zip(&*self.row(expert)) {
                *sum += f32::from(units) * scale;
            }
        }
        self.succession = succession;
    }

    fn worth(&self, expert: u32) -> u32 {
        let e = expert as usize;
        let Some(frequency) = self.frequency.get(e) else { return 0 };
        let product = (frequency + FREQUENCY_MIN).sqrt() * (self.succession[e] + SUCCESSION_MIN);
        order_of(product + EXPECTED_WEIGHT * self.expected[e])
    }
}

impl Default for Successor {
    fn default() -> Self {
        Successor::new(HALF_LIFE_STEPS_DEFAULT)
    }
}

impl Successor {
    /// A policy whose frequencies halve every `half_life_steps` steps of a layer (clamped to 1 ..=
    /// [`HALF_LIFE_STEPS_MAX`]).
    pub fn new(half_life_steps: u32) -> Successor {
        Successor {
            decay: (1.0 / root_of_two(half_life_steps.clamp(1, HALF_LIFE_STEPS_MAX))) as f32,
            layers: Vec::new(),
            candidates: Ranked::default(),
        }
    }
}

impl Evict for Successor {
    fn name(&self) -> &'static str {
        "successor"
    }

    fn prepare(&mut self, layers: &[LayerSize]) {
        self.layers = layers.iter().map(Layer::new).collect();
    }

    fn memory_bytes(&self, layers: &[LayerSize]) -> u64 {
        let of_layer = |layer: &LayerSize| {
            let experts = layer.experts as u64;
            experts * experts * size_of::<u16>() as u64
                + experts * VALUES_PER_EXPERT * size_of::<f32>() as u64
        };
        layers.iter().map(of_layer).sum()
    }

    fn seed(&mut self, layer: u32, shares: &[f32]) {
        // What a use in every token adds up to.
        let steady = 1.0 / (1.0 - self.decay);
        let frequency = &mut grown(&mut self.layers, layer).frequency;
        frequency.iter_mut().zip(shares).for_each(|(frequency, share)| *frequency = share * steady);
        self.candidates.changed(layer);
    }

    fn sequence_begins(&mut self) {
        self.layers.iter_mut().for_each(|layer| layer.latest.clear());
    }

    fn expects(&mut self, layer: u32, guesses: &[Guess]) {
        let expected = &mut grown(&mut self.layers, layer).expected;
        expected.fill(0.0);
        for guess in guesses {
            if let Some(value) = expected.get_mut(guess.expert as usize) {
                *value = value.max(guess.worth(EXPECTED_DECAY));
            }
        }
        self.candidates.changed(layer);
    }

    fn touched(&mut self, _key: Key, _step: u64) {}

    fn step_touched(&mut self, layer: u32, _step: u64, union: &[u32]) {
        let decay = self.decay;
        let this = grown(&mut self.layers, layer);
        let union = known(union, this.experts);
        this.count_use(decay, &union);
        if of_prompt(&union, this.top_k) {
            // What follows what is lost in it.
            this.latest.clear();
            this.succession.fill(0.0);
        } else {
            this.learn(&union);
            this.set_succession(&union);
        }
        self.candidates.changed(layer);
    }

    fn pinned(&mut self, key: Key) {
        self.candidates.remove(key);
    }

    fn unpinned(&mut self, key: Key) {
        let worth =
            |layers: &[Layer]| layers.get(key.layer as usize).map_or(0, |layer| layer.worth(key.expert));
        self.candidates.insert(key, || worth(&self.layers));
    }

    fn victim(&mut self, layers: &[u32]) -> Option<Key> {
        let all = &self.layers;
        let worth = |key: Key| all.get(key.layer as usize).map_or(0, |layer| layer.worth(key.expert));
        self.candidates.lowest(layers, worth)
    }
}
