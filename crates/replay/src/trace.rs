//! A recorded run: which experts the routers chose.

use calypte_residency::LayerSize;
use calypte_residency::predict::Guess;

/// One layer with experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceLayer {
    /// Number of the layer in the model.
    pub number: u32,
    /// Routed experts.
    pub experts: u32,
    /// Experts chosen for a token.
    pub top_k: u32,
    /// Memory of one expert in bytes; 0 when that is not known.
    pub slot_bytes: u64,
}

/// One step of the engine, over all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Tokens computed together: of a chunk of the prompt, or 1.
    pub rows: u32,
    /// Whether another conversation begins with it.
    pub begins_sequence: bool,
}

/// What a predictor said while a token of the run was computed, alone in its step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expected {
    /// Index of the layer that had just been routed.
    pub after: u32,
    /// Index of the later layer that the guesses are of.
    pub layer: u32,
    /// Likeliest first, all of the token under way.
    pub guesses: Vec<Guess>,
}

/// The routing of a run, and what was guessed of it if anybody guessed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// Of the model's tensors; zeros when unknown.
    pub fingerprint: [u8; 32],
    /// Memory for experts during the run, in bytes; 0 when unknown.
    pub budget_bytes: u64,
    /// Who guessed during the run, as the engine names it, in at most [`PREDICTOR_BYTES_MAX`] bytes; empty when nobody did.
    pub predictor: String,
    layers: Vec<TraceLayer>,
    steps: Vec<Step>,
    /// Of every step: its first token.
    starts: Vec<usize>,
    tokens: usize,
    /// Per layer: `[tokens, top_k]`, best first.
    experts: Vec<Vec<u16>>,
    /// Of every step, in the order of the run.
    expected: Vec<Vec<Expected>>,
}

/// Bytes that the name of a predictor may have.
pub const PREDICTOR_BYTES_MAX: usize = 32;

impl TraceLayer {
    /// Layer `number` of a model, as its expert cache sees it.
    pub fn new(number: usize, size: LayerSize) -> TraceLayer {
        TraceLayer {
            number: number as u32,
            experts: size.experts as u32,
            top_k: size.top_k as u32,
            slot_bytes: size.slot_bytes,
        }
    }
}

impl Trace {
    /// An empty trace of a model with these layers. Ids must fit 16 bits, which every model's do.
    pub fn new(layers: Vec<TraceLayer>) -> Trace {
        Trace { experts: vec![Vec::new(); layers.len()], layers, ..Trace::default() }
    }

    /// The layers, in the order in which a token passes them.
    pub fn layers(&self) -> &[TraceLayer] {
        &self.layers
    }

    /// The steps, in the order of the run.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Tokens of all steps.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Experts of `layer` in `step`: `[rows, top_k]`, best first. Empty when there is no such step or layer.
    pub fn routed(&self, step: usize, layer: usize) -> &[u16] {
        let (Some(found), Some(start)) = (self.steps.get(step), self.starts.get(step)) else { return &[] };
        let Some(width) = self.layers.get(layer).map(|l| l.top_k as usize) else { return &[] };
        let all = &self.experts[layer];
        all.get(start * width..(start + found.rows as usize) * width).unwrap_or(&[])
    }

    /// What was guessed during `step`, in the order of the run. Empty when there is no such step.
    pub fn expected(&self, step: usize) -> &[Expected] {
        self.expected.get(step).map_or(&[], Vec::as_slice)
    }

    /// Those of them that were guessed when `layer` had just been routed.
    pub(crate) fn expected_after(&self, step: usize, layer: usize) -> impl Iterator<Item = &Expected> {
        self.expected(step).iter().filter(move |expected| expected.after as usize == layer)
    }

    /// Adds what was guessed during the last step; `false`, and nothing is added, when that step had several tokens, or layers,
    /// experts or probabilities are none that can be.
    pub fn expect(&mut self, expected: Vec<Expected>) -> bool {
        let fits = |e: &Expected| {
            let Some(layer) = self.layers.get(e.layer as usize) else { return false };
            let fine = |guess: &Guess| {
                guess.expert < layer.experts
                    && guess.tokens_ahead == 0
                    && (0.0..=1.0).contains(&guess.probability)
            };
            e.after < e.layer && e.guesses.iter().all(fine)
        };
        let (Some(step), Some(of_step)) = (self.steps.last(), self.expected.last()) else { return false };
        if !of_step.is_empty() || step.rows != 1 || !expected.iter().all(fits) {
            return false;
        }
        self.expected.pop();
        self.expected.push(expected);
        true
    }

    /// Appends a step. `routed` has, per layer, `[rows, top_k]` ids; `false`, and nothing is appended, when its shape or an id
    /// does not fit.
    pub fn push(&mut self, step: Step, routed: &[Vec<u16>]) -> bool {
        let fits = |(layer, ids): (&TraceLayer, &Vec<u16>)| {
            ids.len() == layer.top_k as usize * step.rows as usize
                && ids.iter().all(|&id| u32::from(id) < layer.experts)
        };
        if step.rows == 0 || routed.len() != self.layers.len() || !self.layers.iter().zip(routed).all(fits) {
            return false;
        }
        for (all, ids) in self.experts.iter_mut().zip(routed) {
            all.extend_from_slice(ids);
        }
        self.steps.push(step);
        self.starts.push(self.tokens);
        self.expected.push(Vec::new());
        self.tokens += step.rows as usize;
        true
    }

    /// The layers as the cache sees them, with slots of one byte if their size is unknown.
    pub fn sizes(&self) -> Vec<LayerSize> {
        let size = |layer: &TraceLayer| LayerSize {
            experts: layer.experts as usize,
            top_k: layer.top_k as usize,
            slot_bytes: layer.slot_bytes.max(1),
        };
        self.layers.iter().map(size).collect()
    }
}
