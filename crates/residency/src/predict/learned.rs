//! The next layer's router plus a correction that learns on line what it gets wrong: the idea of PROBE (arXiv 2602.00509), whose
//! router is frozen too and whose true router is the teacher, token by token.
//!
//! PROBE corrects by a small network; here it is a bias for each expert and a linear map of a *sketch* of the residual stream (feature
//! hashing, Weinberger et al., ICML 2009: numbers added up in a few hundred buckets, with signs). In the first hundreds of tokens,
//! which is what a conversation has, the network of 16 or 32 units learned less than the bias alone on every model that was tried
//! (docs/residency.md); the map is convex, starts as the router, and costs as much as a small router.

use super::{Gates, Guess, Predict, Routed};
use crate::LayerSize;
use crate::per_expert::grown;

/// Buckets of a sketch.
const BUCKETS: usize = 256;
/// Share of an error that one step takes back by the map, whatever the size of the sketch.
const RATE_MAP: f32 = 0.1;
/// Share of an error that one step takes back by the biases.
const RATE_BIAS: f32 = 0.02;
/// What a wrong logit counts against a wrong side of the boundary between chosen and not.
const LOGIT_WEIGHT: f32 = 0.3;
/// How sharp the boundary is, in standard deviations of the logits.
const BOUNDARY_SLOPE: f32 = 8.0;
/// Keeps a division from blowing up.
const POWER_MIN: f32 = 1e-6;

/// Guesses by `router(residual) + bias + map · sketch(residual)`, where the residual stream is one or more layers old.
#[derive(Debug, Default)]
pub struct Learned {
    /// Where the latest token was observed last, its residual stream there, and the sketch of it.
    layer: u32,
    residual: Vec<f32>,
    sketch: Vec<f32>,
    /// Per layer that is guessed for, by how many layers there are up to it.
    corrections: Vec<Vec<Correction>>,
    experts: Vec<u32>,
}

/// What was learned of a layer that is guessed for from so many layers before.
#[derive(Debug, Default)]
struct Correction {
    /// `[experts, BUCKETS]`
    map: Vec<f32>,
    bias: Vec<f32>,
    /// Of the latest guess: its logits, and its sketch, empty when it was judged.
    logits: Vec<f32>,
    sketch: Vec<f32>,
    sorted: Vec<f32>,
}

/// Adds up numbers in buckets, with signs, both by a hash of their place; over their root mean square.
fn sketch(residual: &[f32], sketch: &mut Vec<f32>) {
    sketch.clear();
    sketch.resize(BUCKETS, 0.0);
    let power: f32 = residual.iter().map(|r| r * r).sum();
    let scale = 1.0 / (power / residual.len() as f32 + POWER_MIN).sqrt();
    for (place, r) in (1u32..).zip(residual) {
        // The high bits of a product with an odd number mix best (Knuth's multiplicative hashing).
        let hash = place.wrapping_mul(0x9E37_79B1);
        let sign = if hash >> 31 == 0 { scale } else { -scale };
        sketch[(hash >> 16) as usize % BUCKETS] += sign * r;
    }
}

impl Correction {
    /// Adds what was learned to `logits`, which are the router's.
    fn correct(&mut self, sketch: &[f32]) {
        let experts = self.logits.len();
        if self.bias.len() != experts {
            (self.bias, self.map) = (vec![0.0; experts], vec![0.0; experts * BUCKETS]);
        }
        for ((logit, bias), row) in self.logits.iter_mut().zip(&self.bias).zip(self.map.chunks_exact(BUCKETS))
        {
            *logit += bias + dot(row, sketch);
        }
        self.sketch.clear();
        self.sketch.extend_from_slice(sketch);
    }

    /// Learns from the true logits, and from who was chosen by them, what its last guess should have been.
    fn learn(&mut self, truth: &[f32], chosen: &[u32]) {
        if self.sketch.is_empty() || truth.len() != self.logits.len() {
            return;
        }
        let power: f32 = self.sketch.iter().map(|s| s * s).sum();
        let rate = RATE_MAP / (power + POWER_MIN);
        let boundary = self.boundary(truth, chosen);
        for (expert, (row, bias)) in self.map.chunks_exact_mut(BUCKETS).zip(&mut self.bias).enumerate() {
            let logit = self.logits[expert];
            let error = match boundary {
                // A logistic step at the boundary: whoever is on the wrong side, or close to it, is moved.
                Some((middle, spread)) => {
                    let above = 1.0 / (1.0 + (-(logit - middle) / spread * BOUNDARY_SLOPE).exp());
                    let side = above - f32::from(u8::from(chosen.contains(&(expert as u32))));
                    LOGIT_WEIGHT * (logit - truth[expert]) + spread * side
                }
                None => logit - truth[expert],
            };
            let step = rate * error;
            row.iter_mut().zip(&self.sketch).for_each(|(weight, s)| *weight -= step * s);
            *bias -= RATE_BIAS * error;
        }
        self.sketch.clear();
    }

    /// Between the last that would be chosen by the guessed logits and the first that would not, and the standard deviation of all. `None`
    /// if the router does not simply choose the highest logits (biases for selection, groups): where its boundary lies is then
    /// not known here.
    fn boundary(&mut self, truth: &[f32], chosen: &[u32]) -> Option<(f32, f32)> {
        let lowest =
            chosen.iter().filter_map(|&e| truth.get(e as usize)).fold(f32::INFINITY, |m, l| m.min(*l));
        let others = (0u32..).zip(truth).filter(|(expert, _)| !chosen.contains(expert));
        let plain = others.fold(true, |plain, (_, logit)| plain && *logit <= lowest);
        if !plain || chosen.is_empty() || chosen.len() >= truth.len() {
            return None;
        }
        self.sorted.clear();
        self.sorted.extend_from_slice(&self.logits);
        self.sorted.sort_unstable_by(|a, b| b.total_cmp(a));
        let middle = (self.sorted[chosen.len() - 1] + self.sorted[chosen.len()]) / 2.0;
        let mean = self.logits.iter().sum::<f32>() / self.logits.len() as f32;
        let variance = self.logits.iter().map(|l| (l - mean) * (l - mean)).sum::<f32>();
        Some((middle, (variance / self.logits.len() as f32).sqrt() + POWER_MIN))
    }
}

/// In sixteen sums side by side, which vectors need. How it rounds decides nothing that matters.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0f32; 16];
    for (a, b) in a.as_chunks::<16>().0.iter().zip(b.as_chunks::<16>().0) {
        for i in 0..16 {
            sums[i] += a[i] * b[i];
        }
    }
    sums.iter().sum()
}

impl Predict for Learned {
    fn name(&self) -> &'static str {
        "learned"
    }

    fn memory_bytes(&self, layers: &[LayerSize], layers_ahead: usize) -> u64 {
        let of_layer = |layer: &LayerSize| (layer.experts * (BUCKETS + 3) + BUCKETS) as u64;
        layers.iter().map(of_layer).sum::<u64>() * (layers_ahead * size_of::<f32>()) as u64
    }

    fn sequence_begins(&mut self) {
        self.residual.clear();
        self.corrections.iter_mut().flatten().for_each(|correction| correction.sketch.clear());
    }

    fn observe(&mut self, routed: &Routed<'_>) {
        let Some(inside) = routed.inside else { return };
        for correction in grown(&mut self.corrections, routed.layer) {
            correction.learn(inside.logits, routed.experts);
        }
        self.layer = routed.layer;
        self.residual.clear();
        self.residual.extend_from_slice(inside.residual);
        sketch(&self.residual, &mut self.sketch);
    }

    fn predict(&mut self, layer: u32, tokens_ahead: u32, gates: &mut dyn Gates, out: &mut Vec<Guess>) {
        if tokens_ahead > 0 || layer <= self.layer || self.residual.is_empty() {
            return;
        }
        let correction = grown(grown(&mut self.corrections, layer), layer - self.layer - 1);
        gates.logits(layer, &self.residual, &mut correction.logits);
        correction.correct(&self.sketch);
        gates.choose(layer, &correction.logits, &mut self.experts);
        let guess = |&expert| Guess { expert, tokens_ahead, probability: 1.0 };
        out.extend(self.experts.iter().map(guess));
    }
}
