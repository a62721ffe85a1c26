//! Logistic regression, on line: how much will each expert be used in the next few steps?
//!
//! LRB (Song, Berger, Li, Lloyd, "Learning relaxed Belady for content distribution network caching", NSDI 2020) learns from the
//! requests so far when an object will be asked for again, and evicts what is predicted to be far off. Here objects are few,
//! dozens are used at a time, and what tells most is which: so there is one weight for every pair of an expert used now and one
//! used soon, learned by gradient descent as steps pass (normalised as in Widrow and Hoff's rule), on top of what frequency and
//! recency say. A table of mean successions (`successor`) counts the same news once for every expert that brings it; a
//! regression learns what each adds to the others, and so can take more of them: the step before, and the two layers below.
//!
//! Guesses are used twice. What is guessed is expected, and what comes after it is predicted from it as if it had been used.

use std::collections::VecDeque;

use super::decay::{fade, root_of_two};
use super::order::order_of;
use super::{Evict, Ranked, grown, known, of_prompt};
use crate::predict::Guess;
use crate::{Key, LayerSize};

/// Steps that are predicted together.
const HORIZON_STEPS: usize = 6;
/// What a use counts against one a step earlier.
const DISCOUNT: f32 = 0.8;
/// The layer's own experts in this step and in the one before, then those of layers below.
const OWN_SOURCES: usize = 2;
/// Layers below whose experts, in the same token, tell something. (Below the first is the last, a token earlier.)
const LAYERS_BELOW: usize = 2;
const SOURCES: usize = OWN_SOURCES + LAYERS_BELOW;
/// Step of the descent; see [`Layer::rate`].
const RATE: f32 = 0.22;
/// Uses of an expert after which its weights learn slower, by the root of their number: they know something by then.
const USES_EAGER: f32 = 100.0;
/// The half-life of the frequency, in steps of a layer.
const HALF_LIFE_STEPS: u32 = 24;
/// Exponents of frequency and of the steps since the last use, in odds.
const FREQUENCY_EXPONENT: f32 = 0.2;
const RECENCY_EXPONENT: f32 = 0.1;
/// Frequency of an expert that was never used, as a share of the mean: logarithms need one.
const FREQUENCY_MIN: f32 = 0.04;
/// A layer that uses more than this share of its experts in every token is taken to use this share.
const MEAN_MAX: f32 = 0.5;
/// Weight of an expectation for the next token against a prediction. From 0.3 to 1.5 it hardly matters which.
const EXPECTED_WEIGHT: f32 = 0.7;
/// Guesses further ahead are expected, but nothing is predicted from them.
const WINDOW_TOKENS_MAX: usize = 8;
/// Numbers kept for every expert besides weights and predictions: frequency, age, prior, value, and two in the heap.
const VALUES_PER_EXPERT: usize = 6;

/// Evicts the expert with the lowest predicted use: the discounted share of the next steps that will use it.
///
/// A step costs a pass over the weights of the experts used, to predict, and one over those of the experts used
/// six steps earlier, to learn: 16 bytes per pair of experts and layer, 79 MB for 75 layers of 256 experts. O(n) for the
/// first victim of a step, O(log n) for each other.
#[derive(Debug)]
pub struct Forecast {
    /// What is left of a frequency after one step.
    decay: f32,
    layers: Vec<Layer>,
    candidates: Ranked<u32>,
}

/// A row of weights, and how much of it counts.
type Input = (usize, f32);

/// A step whose prediction is still to be compared with what came.
#[derive(Debug, Default)]
struct Pending {
    union: Vec<u32>,
    inputs: Vec<Input>,
    predicted: Vec<f32>,
}

#[derive(Debug, Default)]
struct Layer {
    experts: usize,
    top_k: usize,
    /// Uses of an expert in a step, on average.
    mean: f32,
    frequency: Vec<f32>,
    /// Steps since the last use, or since the first step.
    age: Vec<f32>,
    /// Log-odds by mean, frequency and recency.
    prior: Vec<f32>,
    /// What was predicted after the latest step, or, if somebody guessed, what is predicted and expected.
    value: Vec<f32>,
    /// Where the rows of each source begin.
    starts: [usize; SOURCES],
    /// `[expert of a source, expert]`: what its use adds to the other's log-odds.
    weights: Vec<f32>,
    /// Of every row: how often it learned.
    learned: Vec<f32>,
    /// Latest first.
    pending: VecDeque<Pending>,
    /// Experts of the latest step, unless it was of a prompt.
    latest: Vec<u32>,
    guesses: Vec<Guess>,
    /// Whether `value` is of before the latest step or guesses.
    stale: bool,
    /// Whether anybody ever had to go: before that, nothing needs to be predicted.
    asked: bool,
}

fn add_scaled(sum: &mut [f32], row: &[f32], scale: f32) {
    sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value * scale);
}

fn logistic(odds_log: f32) -> f32 {
    1.0 / (1.0 + (-odds_log).exp())
}

impl Layer {
    /// Layer `index` of `layers`.
    fn new(layers: &[LayerSize], index: usize) -> Layer {
        let LayerSize { experts, top_k, .. } = layers[index];
        let sources = Layer::sources(layers, index);
        let rows = sources.iter().sum();
        let mut starts = [0; SOURCES];
        for source in 1..SOURCES {
            starts[source] = starts[source - 1] + sources[source - 1];
        }
        let mut layer = Layer {
            experts,
            top_k,
            mean: (top_k.max(1) as f32 / experts.max(1) as f32).min(MEAN_MAX),
            frequency: vec![0.0; experts],
            age: vec![0.0; experts],
            prior: vec![0.0; experts],
            value: vec![0.0; experts],
            starts,
            weights: vec![0.0; rows * experts],
            learned: vec![0.0; rows],
            stale: true,
            ..Layer::default()
        };
        layer.set_prior();
        layer
    }

    /// Experts of every source of layer `index`; 0 for layers below that do not exist.
    fn sources(layers: &[LayerSize], index: usize) -> [usize; SOURCES] {
        let mut sources = [layers[index].experts; SOURCES];
        for below in 1..=LAYERS_BELOW {
            sources[OWN_SOURCES + below - 1] =
                layer_below(layers.len(), index, below).map_or(0, |l| layers[l].experts);
        }
        sources
    }

    /// The step of the descent for a weight of full input. The more inputs, the more weights share an error. The logistic curve is
    /// flat where odds are low, as they are where few of many are used: by its slope alone the step would be longer there, by the
    /// inverse of the mean, but gradients are noise to the root of that.
    fn rate(&self) -> f32 {
        let inputs = (SOURCES * self.top_k.max(1)) as f32;
        RATE / (inputs * (self.mean * (1.0 - self.mean)).sqrt())
    }

    fn row(&self, row: usize) -> &[f32] {
        &self.weights[row * self.experts..(row + 1) * self.experts]
    }

    fn count_use(&mut self, decay: f32, union: &[u32]) {
        fade(&mut self.frequency, decay);
        self.age.iter_mut().for_each(|age| *age += 1.0);
        for &expert in union {
            self.frequency[expert as usize] += 1.0 - decay;
            self.age[expert as usize] = 0.0;
        }
    }

    fn set_prior(&mut self) {
        let bias = (self.mean / (1.0 - self.mean)).ln();
        for (prior, (frequency, age)) in self.prior.iter_mut().zip(self.frequency.iter().zip(&self.age)) {
            let frequency = (frequency / self.mean + FREQUENCY_MIN).ln();
            *prior = bias + FREQUENCY_EXPONENT * frequency - RECENCY_EXPONENT * (1.0 + age).ln();
        }
    }

    /// Compares what was predicted [`HORIZON_STEPS`] ago with what came since, the last of which is `union`. Returns memory that is
    /// not needed any more.
    fn learn(&mut self, union: &[u32]) -> Pending {
        if self.pending.len() < HORIZON_STEPS {
            return Pending::default();
        }
        let Some(mut old) = self.pending.pop_back() else { return Pending::default() };
        let error = &mut old.predicted;
        error.iter_mut().for_each(|value| *value = -*value);
        // As many steps as the horizon: together they count 1.
        let steps = self.pending.iter().rev().map(|step| &step.union[..]).chain([union]);
        let mut counts = (1.0 - DISCOUNT) / (1.0 - (0..HORIZON_STEPS).fold(1.0, |power, _| power * DISCOUNT));
        for step in steps {
            step.iter().for_each(|&expert| error[expert as usize] += counts);
            counts *= DISCOUNT;
        }
        let rate = self.rate();
        for &(row, share) in &old.inputs {
            self.learned[row] += 1.0;
            let slower = (USES_EAGER / (USES_EAGER + self.learned[row])).sqrt();
            let of_row = row * self.experts..(row + 1) * self.experts;
            add_scaled(&mut self.weights[of_row], error, rate * slower * share);
        }
        old
    }

    /// Experts of a source as inputs: a union of two tokens counts as one of one.
    fn add_inputs(&self, source: usize, experts: &[u32], inputs: &mut Vec<Input>) {
        let share = self.top_k as f32 / experts.len().max(1) as f32;
        let start = self.starts[source];
        inputs.extend(experts.iter().map(|&expert| (start + expert as usize, share.min(1.0))));
    }

    /// `union` was used in this step, and these in layers below.
    fn step(&mut self, union: Vec<u32>, below: &[Vec<u32>; LAYERS_BELOW]) {
        let mut now = self.learn(&union);
        now.inputs.clear();
        self.add_inputs(0, &union, &mut now.inputs);
        self.add_inputs(1, &self.latest, &mut now.inputs);
        for (source, experts) in (OWN_SOURCES..).zip(below) {
            self.add_inputs(source, experts, &mut now.inputs);
        }
        now.predicted.clear();
        now.predicted.extend_from_slice(&self.prior);
        now.inputs.iter().for_each(|&(row, share)| add_scaled(&mut now.predicted, self.row(row), share));
        now.predicted.iter_mut().for_each(|value| *value = logistic(*value));
        self.latest.clone_from(&union);
        now.union = union;
        self.pending.push_front(now);
    }

    /// What follows what is lost in it, or it is another conversation.
    fn interrupt(&mut self) {
        self.pending.clear();
        self.latest.clear();
        self.stale = true;
    }

    /// Brings `value` up to date.
    fn refresh(&mut self) {
        if !std::mem::take(&mut self.stale) {
            return;
        }
        let mut value = std::mem::take(&mut self.value);
        match self.pending.front() {
            Some(latest) if self.guesses.is_empty() => value.copy_from_slice(&latest.predicted),
            _ => {
                value.copy_from_slice(&self.prior);
                self.inputs_ahead()
                    .iter()
                    .for_each(|&(row, share)| add_scaled(&mut value, self.row(row), share));
                value.iter_mut().for_each(|value| *value = logistic(*value));
                for guess in &self.guesses {
                    value[guess.expert as usize] += EXPECTED_WEIGHT * guess.worth(DISCOUNT);
                }
            }
        }
        self.value = value;
    }

    /// The inputs of the latest step and of those guessed, each counted by how likely it is to be the last that is guessed right.
    fn inputs_ahead(&self) -> Vec<Input> {
        let mut by_token: [Vec<(u32, f32)>; WINDOW_TOKENS_MAX + 1] = Default::default();
        for guess in &self.guesses {
            if let Some(token) = by_token.get_mut(guess.tokens_ahead.max(1) as usize) {
                token.push((guess.expert, guess.probability));
            }
        }
        // Whether so many tokens are guessed right; and what one of their guesses counts, by its probability.
        let (mut right, mut scale) = ([0.0; WINDOW_TOKENS_MAX + 2], [0.0; WINDOW_TOKENS_MAX + 1]);
        right[0] = 1.0f32;
        for ahead in 1..=WINDOW_TOKENS_MAX {
            let sum: f32 = by_token[ahead].iter().map(|(_, probability)| probability).sum();
            right[ahead] = right[ahead - 1].min(sum / self.top_k.max(1) as f32);
            scale[ahead] = if sum > 0.0 { self.top_k as f32 / sum } else { 0.0 };
        }
        let last = |ahead: usize| right[ahead] - right[ahead + 1];
        let mut inputs = Vec::new();
        if let Some(latest) = self.pending.front() {
            for &(row, share) in &latest.inputs {
                // What the layers below will have used nobody guesses here: what they used now stands for it.
                let of_below = row >= self.starts[OWN_SOURCES];
                inputs.push((row, if of_below { share } else { share * last(0) }));
            }
            let mut before = Vec::new();
            self.add_inputs(1, &self.latest, &mut before);
            inputs.extend(before.into_iter().map(|(row, share)| (row, share * last(1))));
        }
        for (ahead, token) in by_token.iter().enumerate().skip(1) {
            for &(expert, probability) in token {
                let share = probability * scale[ahead];
                inputs.push((self.starts[0] + expert as usize, share * last(ahead)));
                if ahead < WINDOW_TOKENS_MAX {
                    inputs.push((self.starts[1] + expert as usize, share * last(ahead + 1)));
                }
            }
        }
        inputs.retain(|&(_, share)| share > 0.0);
        inputs
    }

    fn worth(&self, expert: u32) -> u32 {
        self.value.get(expert as usize).map_or(0, |&value| order_of(value))
    }
}

/// The layer that comes `below` before layer `index` of so many: before the first, those that end the token before.
fn layer_below(layers: usize, index: usize, below: usize) -> Option<usize> {
    (below < layers).then(|| (index + layers - below) % layers)
}

impl Default for Forecast {
    fn default() -> Self {
        Forecast {
            decay: (1.0 / root_of_two(HALF_LIFE_STEPS)) as f32,
            layers: Vec::new(),
            candidates: Ranked::default(),
        }
    }
}

impl Evict for Forecast {
    fn name(&self) -> &'static str {
        "forecast"
    }

    fn prepare(&mut self, layers: &[LayerSize]) {
        self.layers = (0..layers.len()).map(|index| Layer::new(layers, index)).collect();
    }

    fn memory_bytes(&self, layers: &[LayerSize]) -> u64 {
        let of_layer = |index: usize| {
            let rows: usize = Layer::sources(layers, index).iter().sum();
            let experts = layers[index].experts;
            ((rows * experts + rows + experts * (VALUES_PER_EXPERT + HORIZON_STEPS)) * size_of::<f32>())
                as u64
        };
        (0..layers.len()).map(of_layer).sum()
    }

    fn seed(&mut self, layer: u32, shares: &[f32]) {
        let this = grown(&mut self.layers, layer);
        this.frequency.iter_mut().zip(shares).for_each(|(frequency, share)| *frequency = *share);
        this.set_prior();
        this.stale = true;
        self.candidates.changed(layer);
    }

    fn sequence_begins(&mut self) {
        self.layers.iter_mut().for_each(Layer::interrupt);
        self.candidates.all_changed();
    }

    fn expects(&mut self, layer: u32, guesses: &[Guess]) {
        let this = grown(&mut self.layers, layer);
        let known = this.experts;
        this.guesses.clear();
        this.guesses.extend(guesses.iter().filter(|guess| (guess.expert as usize) < known));
        this.stale = true;
        self.candidates.changed(layer);
    }

    fn touched(&mut self, _key: Key, _step: u64) {}

    fn step_touched(&mut self, layer: u32, _step: u64, union: &[u32]) {
        let decay = self.decay;
        let this = grown(&mut self.layers, layer);
        let union = known(union, this.experts);
        this.count_use(decay, &union);
        if !this.asked {
            return;
        }
        let count = self.layers.len();
        let below = std::array::from_fn(|below| {
            let found = layer_below(count, layer as usize, below + 1);
            found.map_or(Vec::new(), |index| self.layers[index].latest.clone())
        });
        let this = &mut self.layers[layer as usize];
        this.set_prior();
        if of_prompt(&union, this.top_k) {
            this.interrupt();
        } else {
            this.step(union, &below);
        }
        this.stale = true;
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
        for &layer in layers {
            if let Some(this) = self.layers.get_mut(layer as usize) {
                if !std::mem::replace(&mut this.asked, true) {
                    this.set_prior();
                    this.stale = true;
                    self.candidates.changed(layer);
                }
                this.refresh();
            }
        }
        let all = &self.layers;
        let worth = |key: Key| all.get(key.layer as usize).map_or(0, |layer| layer.worth(key.expert));
        self.candidates.lowest(layers, worth)
    }
}
