//! The next layer's router plus a small network that learns on line what it gets wrong (PROBE, arXiv 2602.00509): the router is
//! frozen, the network's output is added to its logits, and the true router of the layer is the teacher, token by token.

use super::{Gates, Guess, Predict, Routed};
use crate::LayerSize;
use crate::per_expert::grown;

/// Hidden units of a layer's network.
const UNITS: usize = 16;
/// Share of an error that one step takes back: of the output weights, of the input weights, of the biases.
const RATE_OUT: f32 = 0.2;
const RATE_IN: f32 = 0.2;
const RATE_BIAS: f32 = 0.02;
/// Keeps a division from blowing up.
const NORM_MIN: f32 = 1e-6;
/// Seed of the first input weights.
const SEED: u64 = 0x9E37_79B9_7F4A_7C15;

/// Guesses by `router(residual) + bias + out · silu(in · residual)`, where the residual stream is one or more layers old.
#[derive(Debug, Default)]
pub struct Learned {
    /// Where the latest token was observed last, and its residual stream there over its root mean square.
    layer: u32,
    residual: Vec<f32>,
    normed: Vec<f32>,
    networks: Vec<Network>,
    experts: Vec<u32>,
    target: Vec<f32>,
}

/// The network of a layer that is guessed for.
#[derive(Debug, Default)]
struct Network {
    /// `[hidden, UNITS]`
    input: Vec<f32>,
    /// `[experts, UNITS]`
    output: Vec<f32>,
    bias: Vec<f32>,
    /// Of the latest guess, if it was not judged so far: its input, units before and after their function, and logits.
    x: Vec<f32>,
    before: [f32; UNITS],
    after: [f32; UNITS],
    logits: Vec<f32>,
}

fn silu(z: f32) -> f32 {
    z / (1.0 + (-z).exp())
}

fn silu_slope(z: f32) -> f32 {
    let sigmoid = 1.0 / (1.0 + (-z).exp());
    sigmoid * (1.0 + z * (1.0 - sigmoid))
}

fn softmax(logits: &[f32], out: &mut Vec<f32>) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    out.clear();
    out.extend(logits.iter().map(|logit| (logit - max).exp()));
    let sum: f32 = out.iter().sum();
    out.iter_mut().for_each(|p| *p /= sum);
}

impl Network {
    /// Room for the first guess: input weights small and at random, output weights 0, so that it begins as the router alone.
    fn prepare(&mut self, hidden: usize) {
        let experts = self.logits.len();
        if self.input.len() == hidden * UNITS && self.bias.len() == experts {
            return;
        }
        let mut state = SEED;
        let spread = (3.0 / hidden as f32).sqrt();
        let random = || {
            // xorshift64 (Marsaglia 2003)
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        self.input = std::iter::repeat_with(random).map(|r| r * spread).take(hidden * UNITS).collect();
        self.output = vec![0.0; experts * UNITS];
        self.bias = vec![0.0; experts];
    }

    /// Adds what was learned to `logits`, which are the router's.
    fn correct(&mut self, x: &[f32]) {
        self.before = [0.0; UNITS];
        for (weights, x) in self.input.as_chunks::<UNITS>().0.iter().zip(x) {
            for u in 0..UNITS {
                self.before[u] += x * weights[u];
            }
        }
        self.after = self.before.map(silu);
        let rows = self.output.as_chunks::<UNITS>().0.iter().zip(&self.bias);
        for (logit, (weights, bias)) in self.logits.iter_mut().zip(rows) {
            *logit += bias + (0..UNITS).map(|u| weights[u] * self.after[u]).sum::<f32>();
        }
        self.x.clear();
        self.x.extend_from_slice(x);
    }

    /// Learns from the true logits of what it guessed last: a step down the slope of the cross-entropy between both softmaxes, each
    /// matrix by a share of its own input's power, so that no model needs a rate of its own.
    fn learn(&mut self, truth: &[f32], target: &mut Vec<f32>) {
        if self.x.is_empty() || truth.len() != self.logits.len() {
            return;
        }
        softmax(truth, target);
        let mut guessed = Vec::new();
        softmax(&self.logits, &mut guessed);
        let power: f32 = self.after.iter().map(|a| a * a).sum();
        let rate_out = RATE_OUT / (power + NORM_MIN).max(1.0);
        let mut slopes = [0f32; UNITS];
        for ((weights, bias), (guessed, target)) in self
            .output
            .as_chunks_mut::<UNITS>()
            .0
            .iter_mut()
            .zip(&mut self.bias)
            .zip(guessed.iter().zip(&*target))
        {
            // Scaled by the number of experts: the mean of the errors' sizes does not depend on it.
            let error = (guessed - target) * truth.len() as f32;
            for u in 0..UNITS {
                slopes[u] += error * weights[u];
                weights[u] -= rate_out * error * self.after[u];
            }
            *bias -= RATE_BIAS * error;
        }
        let power: f32 = self.x.iter().map(|x| x * x).sum();
        let rate_in = RATE_IN / (power + NORM_MIN) / truth.len() as f32;
        let steps: [f32; UNITS] = std::array::from_fn(|u| rate_in * slopes[u] * silu_slope(self.before[u]));
        for (weights, x) in self.input.as_chunks_mut::<UNITS>().0.iter_mut().zip(&self.x) {
            for u in 0..UNITS {
                weights[u] -= x * steps[u];
            }
        }
        self.x.clear();
    }
}

impl Learned {
    /// Memory that it takes for a model of this width, in bytes.
    pub fn memory_bytes(layers: &[LayerSize], hidden: usize) -> u64 {
        let of_layer = |layer: &LayerSize| (hidden * (UNITS + 1) + layer.experts * (UNITS + 2)) as u64;
        layers.iter().map(of_layer).sum::<u64>() * size_of::<f32>() as u64
    }
}

impl Predict for Learned {
    fn name(&self) -> &'static str {
        "learned"
    }

    fn sequence_begins(&mut self) {
        self.residual.clear();
        self.networks.iter_mut().for_each(|network| network.x.clear());
    }

    fn observe(&mut self, routed: &Routed<'_>) {
        let Some(inside) = routed.inside else { return };
        grown(&mut self.networks, routed.layer).learn(inside.logits, &mut self.target);
        self.layer = routed.layer;
        self.residual.clear();
        self.residual.extend_from_slice(inside.residual);
        let power: f32 = self.residual.iter().map(|r| r * r).sum();
        let scale = 1.0 / (power / self.residual.len() as f32 + NORM_MIN).sqrt();
        self.normed.clear();
        self.normed.extend(self.residual.iter().map(|r| r * scale));
    }

    fn predict(&mut self, layer: u32, tokens_ahead: u32, gates: &mut dyn Gates, out: &mut Vec<Guess>) {
        if tokens_ahead > 0 || layer <= self.layer || self.residual.is_empty() {
            return;
        }
        let network = grown(&mut self.networks, layer);
        gates.logits(layer, &self.residual, &mut network.logits);
        network.prepare(self.residual.len());
        network.correct(&self.normed);
        gates.choose(layer, &network.logits, &mut self.experts);
        let guess = |&expert| Guess { expert, tokens_ahead, probability: 1.0 };
        out.extend(self.experts.iter().map(guess));
    }
}
