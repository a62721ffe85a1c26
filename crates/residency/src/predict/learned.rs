//! The next layer's router plus a correction that learns on line what it gets wrong: the idea of PROBE (arXiv 2602.00509), whose
//! router is frozen too and whose true router is the teacher, token by token.
//!
//! PROBE corrects by a small network; here it is a bias for each expert and a linear map, learned by normalised least mean squares (Widrow
//! and Hoff 1960; Nagumo and Noda 1967) from the true logits. In the first thousands of tokens, which is what a conversation has, a
//! network learned less than the map on every model that was tried (docs/residency.md). The map starts as nothing, so the first
//! guess is the router's.
//!
//! The map sees two *sketches* (feature hashing, Weinberger et al., ICML 2009: numbers added up in a few hundred buckets, with signs): of the
//! residual stream, and of what was added to the stream on the same way at the previous token. The second is there for the next
//! layer's attention, which nobody knows yet: it looks at much the same past as the previous token's did.

use super::{Gates, Guess, Predict, Routed};
use crate::LayerSize;
use crate::per_expert::grown;

/// Buckets of a sketch of the residual stream.
const BUCKETS: usize = 256;
/// Buckets of the sketch of what the previous token added: those of the stream, folded.
const BUCKETS_ADDED: usize = BUCKETS / 2;
/// What the map multiplies: both sketches.
const FEATURES: usize = BUCKETS + BUCKETS_ADDED;
/// Length of the sketch of what was added, where that of the stream has length 1.
const LENGTH_ADDED: f32 = 0.7;
/// Share of an error that one step takes back by the map, in the long run.
const RATE_MAP: f32 = 0.1;
/// The rate begins higher by this many times itself, when nearly everything is still to be learned and noise costs little…
const HASTE: f32 = 3.0;
/// … of which half is gone after so many guesses.
const HASTE_GUESSES: f32 = 100.0;
/// Share of an error that one step takes back by the biases.
const RATE_BIAS: f32 = 0.02;
/// Keeps a division from blowing up.
const POWER_MIN: f32 = 1e-6;

/// Guesses by `router(residual) + bias + map · features`, where the residual stream is one or more layers old.
#[derive(Debug, Default)]
pub struct Learned {
    /// Where the latest token was observed last, and its residual stream there, `[hidden]`, empty if there is none.
    layer: u32,
    residual: Vec<f32>,
    /// Per layer: the sketch of the stream that was observed there last, `[BUCKETS]`, empty if it was of another sequence.
    sketches: Vec<Vec<f32>>,
    /// Per layer that is guessed for, by how many layers there are up to it.
    corrections: Vec<Vec<Correction>>,
    experts: Vec<u32>,
}

/// What was learned of a layer that is guessed for from so many layers before.
#[derive(Debug, Default)]
struct Correction {
    /// `[experts, FEATURES]`
    map: Vec<f32>,
    /// `[experts]`
    bias: Vec<f32>,
    /// Of the latest guess, `[experts]`.
    logits: Vec<f32>,
    /// `[FEATURES]`: of the latest guess the sketch of the stream, of length 1, then that of what the token before it added, of length
    /// [`LENGTH_ADDED`], zeros if there was none. Empty before the first guess.
    features: Vec<f32>,
    /// Whether the latest guess has still to be judged.
    open: bool,
    /// Guesses that were judged.
    judged: u32,
}

/// Adds up numbers in buckets, with signs, both by a hash of their place. It is linear: the sketch of a difference is the difference of
/// sketches.
fn sketch(residual: &[f32], sketch: &mut Vec<f32>) {
    sketch.clear();
    sketch.resize(BUCKETS, 0.0);
    for (place, r) in (1u32..).zip(residual) {
        // The high bits of a product with an odd number mix best (Knuth's multiplicative hashing).
        let hash = place.wrapping_mul(0x9E37_79B1);
        let signed = if hash >> 31 == 0 { *r } else { -r };
        sketch[(hash >> 16) as usize % BUCKETS] += signed;
    }
}

/// Scales numbers to a length.
fn scale_to(length: f32, numbers: &mut [f32]) {
    let scale = length / (dot(numbers, numbers) + POWER_MIN).sqrt();
    numbers.iter_mut().for_each(|number| *number *= scale);
}

impl Correction {
    /// Adds what was learned to `logits`, which are the router's.
    fn correct(&mut self, sketch: &[f32]) {
        let experts = self.logits.len();
        if self.bias.len() != experts {
            (self.bias, self.map) = (vec![0.0; experts], vec![0.0; experts * FEATURES]);
        }
        self.features.resize(FEATURES, 0.0);
        let of_stream = &mut self.features[..BUCKETS];
        of_stream.copy_from_slice(sketch);
        scale_to(1.0, of_stream);
        let rows = self.map.chunks_exact(FEATURES);
        for ((logit, bias), row) in self.logits.iter_mut().zip(&self.bias).zip(rows) {
            *logit += bias + dot(row, &self.features);
        }
        self.open = true;
    }

    /// Learns from the true logits what its last guess should have been.
    fn learn(&mut self, truth: &[f32]) {
        if !std::mem::take(&mut self.open) || truth.len() != self.logits.len() {
            return;
        }
        let haste = HASTE / (1.0 + self.judged as f32 / HASTE_GUESSES);
        self.judged = self.judged.saturating_add(1);
        let rate = RATE_MAP * (1.0 + haste) / (dot(&self.features, &self.features) + POWER_MIN);
        let rows = self.map.chunks_exact_mut(FEATURES).zip(&mut self.bias);
        for ((row, bias), (logit, truth)) in rows.zip(self.logits.iter().zip(truth)) {
            let error = logit - truth;
            let step = rate * error;
            row.iter_mut().zip(&self.features).for_each(|(weight, feature)| *weight -= step * feature);
            *bias -= RATE_BIAS * error;
        }
    }

    /// Notes for the next token what this one added to the stream on the way from `before` to `now`, both sketches.
    fn note_added(&mut self, before: &[f32], now: &[f32]) {
        self.features.resize(FEATURES, 0.0);
        let added = &mut self.features[BUCKETS..];
        added.fill(0.0);
        for (bucket, (before, now)) in before.iter().zip(now).enumerate() {
            added[bucket % BUCKETS_ADDED] += now - before;
        }
        scale_to(LENGTH_ADDED, added);
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
        let of_correction = |layer: &LayerSize| (layer.experts * (FEATURES + 2) + FEATURES) as u64;
        let corrections = layers.iter().map(of_correction).sum::<u64>() * layers_ahead as u64;
        (corrections + (layers.len() * BUCKETS) as u64) * size_of::<f32>() as u64
    }

    fn sequence_begins(&mut self) {
        self.residual.clear();
        self.sketches.iter_mut().for_each(Vec::clear);
        for correction in self.corrections.iter_mut().flatten() {
            correction.open = false;
            correction.features.clear();
        }
    }

    fn observe(&mut self, routed: &Routed<'_>) {
        let Some(inside) = routed.inside else { return };
        let mut now = std::mem::take(grown(&mut self.sketches, routed.layer));
        sketch(inside.residual, &mut now);
        let layers_before = self.sketches[..routed.layer as usize].iter().rev();
        for (correction, before) in grown(&mut self.corrections, routed.layer).iter_mut().zip(layers_before) {
            correction.learn(inside.logits);
            correction.note_added(before, &now);
        }
        self.sketches[routed.layer as usize] = now;
        self.layer = routed.layer;
        self.residual.clear();
        self.residual.extend_from_slice(inside.residual);
    }

    fn predict(&mut self, layer: u32, tokens_ahead: u32, gates: &mut dyn Gates, out: &mut Vec<Guess>) {
        if tokens_ahead > 0 || layer <= self.layer || self.residual.is_empty() {
            return;
        }
        let correction = grown(grown(&mut self.corrections, layer), layer - self.layer - 1);
        gates.logits(layer, &self.residual, &mut correction.logits);
        correction.correct(&self.sketches[self.layer as usize]);
        gates.choose(layer, &correction.logits, &mut self.experts);
        let guess = |&expert| Guess { expert, tokens_ahead, probability: 1.0 };
        out.extend(self.experts.iter().map(guess));
    }
}

#[cfg(test)]
mod tests {
    use super::super::Inside;
    use super::*;

    const HIDDEN: usize = 40;

    /// A router of four experts that says the stream's first numbers, of layers that all have one.
    struct First;

    impl Gates for First {
        fn logits(&mut self, _layer: u32, residual: &[f32], logits: &mut Vec<f32>) {
            logits.clear();
            logits.extend_from_slice(&residual[..4]);
        }

        fn choose(&mut self, _layer: u32, logits: &[f32], experts: &mut Vec<u32>) {
            experts.clear();
            experts.push((0..4).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).expect("four") as u32);
        }
    }

    /// One token through three layers, guessed for from as far as there is; what was guessed, as it was asked.
    fn token(learned: &mut Learned, number: usize) -> Vec<u32> {
        let mut guesses = Vec::new();
        for layer in 0..3u32 {
            let value = |place: usize| ((number * 7 + place * (3 + layer as usize)) % 11) as f32 - 5.0;
            let residual: Vec<f32> = (0..HIDDEN).map(value).collect();
            let inside = Some(Inside { residual: &residual, logits: &residual[3..7] });
            learned.observe(&Routed { layer, experts: &[0], inside });
            (layer + 1..3).for_each(|target| learned.predict(target, 0, &mut First, &mut guesses));
        }
        guesses.iter().map(|guess| guess.expert).collect()
    }

    #[test]
    fn memory_is_what_was_told() {
        let mut learned = Learned::default();
        (0..3).for_each(|number| drop(token(&mut learned, number)));
        let of = |c: &Correction| c.map.len() + c.bias.len() + c.logits.len() + c.features.len();
        let sketches = learned.sketches.iter().map(Vec::len).sum::<usize>();
        let floats = learned.corrections.iter().flatten().map(of).sum::<usize>() + sketches;
        // Guessed from the first for both others and from the second for the third: as many corrections as layers.
        let layers = [LayerSize { experts: 4, top_k: 1, slot_bytes: 0 }; 3];
        let told = learned.memory_bytes(&layers, 1);
        assert_eq!(told as usize, floats * size_of::<f32>());
    }

    /// What the last token of one conversation got says nothing about the first of the next.
    #[test]
    fn another_sequence_starts_without_the_last_token() {
        let mut learned = Learned::default();
        (0..20).for_each(|number| drop(token(&mut learned, number)));
        learned.sequence_begins();
        assert!(learned.corrections.iter().flatten().all(|c| c.features.is_empty() && !c.open));
        assert!(learned.corrections.iter().flatten().any(|c| c.map.iter().any(|weight| *weight != 0.0)));
        assert_eq!(token(&mut learned, 20).len(), 3);
    }

    /// The sketch of a difference is the difference of the sketches, folded.
    #[test]
    fn what_was_added_is_a_sketch_of_the_difference() {
        let before: Vec<f32> = (0..HIDDEN).map(|i| (i * i % 13) as f32).collect();
        let added: Vec<f32> = (0..HIDDEN).map(|i| (i % 5) as f32 - 2.0).collect();
        let now: Vec<f32> = before.iter().zip(&added).map(|(b, a)| b + a).collect();
        let [mut of_before, mut of_now, mut of_added] = [const { Vec::new() }; 3];
        sketch(&before, &mut of_before);
        sketch(&now, &mut of_now);
        sketch(&added, &mut of_added);
        let mut correction = Correction::default();
        correction.note_added(&of_before, &of_now);
        let mut folded = [0.0; BUCKETS_ADDED];
        (0..BUCKETS).for_each(|bucket| folded[bucket % BUCKETS_ADDED] += of_added[bucket]);
        scale_to(LENGTH_ADDED, &mut folded);
        for (got, want) in correction.features[BUCKETS..].iter().zip(folded) {
            assert!((got - want).abs() < 1e-5, "{got} is not {want}");
        }
        let length = dot(&correction.features, &correction.features).sqrt();
        assert!((length - LENGTH_ADDED).abs() < 1e-3, "{length}");
    }
}
