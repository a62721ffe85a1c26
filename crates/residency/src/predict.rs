//! Who will be needed next. One file per predictor; adding one is one file and one line in [`by_name`].
//!
//! A guess changes no answer: it may keep an expert in memory ([`crate::Evict::expects`]) or have it read early
//! ([`crate::Event::Prefetch`]). Predictors must be deterministic.

mod calibrated;
mod gate_ahead;
mod learned;
mod prev_token;
mod trajectory;

pub use calibrated::Calibrated;
pub use gate_ahead::GateAhead;
pub use learned::Learned;
pub use prev_token::PrevToken;
pub use trajectory::Trajectory;

use crate::LayerSize;

/// Names that [`by_name`] knows, `none` apart. Guesses from draft tokens are simulated by `calypte-replay`.
pub const NAMES: &[&str] = &["prev_token", "trajectory", "gate_ahead", "learned"];

/// Those of [`NAMES`] that guess from routing alone; the others need a running model.
pub const OF_ROUTING: &[&str] = &["prev_token", "trajectory"];

/// The predictor of the engine.
pub const DEFAULT: &str = "learned";

/// One expert that is expected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guess {
    /// The expert, in the layer that was asked about.
    pub expert: u32,
    /// The token that will use it, counted from the one whose routing was observed last (0).
    pub tokens_ahead: u32,
    /// How likely that is, 0 to 1, as far as the predictor knows.
    pub probability: f32,
}

impl Guess {
    /// Its probability, times `decay` for every token that it is further away than the next.
    pub(crate) fn worth(&self, decay: f32) -> f32 {
        (0..self.tokens_ahead.saturating_sub(1)).fold(self.probability, |worth, _| worth * decay)
    }
}

/// What a router decided.
#[derive(Clone, Copy, Debug)]
pub struct Routed<'a> {
    /// MoE layer, counted from 0 over the layers that have experts.
    pub layer: u32,
    /// Experts of the last row of the step, best first.
    pub experts: &'a [u32],
    /// What the router saw and said, if whoever tells has it; traces of ids do not.
    pub inside: Option<Inside<'a>>,
}

/// What only a running model knows of the last row of a step.
#[derive(Clone, Copy, Debug)]
pub struct Inside<'a> {
    /// The residual stream before the layer's mixture, `[hidden]`.
    pub residual: &'a [f32],
    /// What the router made of it, `[experts]`, before any score function and without a bias for selection.
    pub logits: &'a [f32],
}

/// The routers of a running model, for predictors that run them early.
pub trait Gates {
    /// The logits that the router of MoE layer `layer` would give, `[experts]`, if the residual stream `[hidden]` came before it as it
    /// is.
    fn logits(&mut self, layer: u32, residual: &[f32], logits: &mut Vec<f32>);

    /// The experts that it would choose by these logits, best first.
    fn choose(&mut self, layer: u32, logits: &[f32], experts: &mut Vec<u32>);
}

/// Where there are no routers: every layer chooses nothing.
impl Gates for () {
    fn logits(&mut self, _layer: u32, _residual: &[f32], logits: &mut Vec<f32>) {
        logits.clear();
    }

    fn choose(&mut self, _layer: u32, _logits: &[f32], experts: &mut Vec<u32>) {
        experts.clear();
    }
}

/// A predictor of routing, over all layers of a model.
pub trait Predict: Send {
    /// The name that [`by_name`] accepts.
    fn name(&self) -> &'static str;

    /// Memory that it takes for these layers beside some numbers an expert, in bytes, if it is asked for so many layers ahead: what a
    /// budget should know of.
    fn memory_bytes(&self, _layers: &[LayerSize], _layers_ahead: usize) -> u64 {
        0
    }

    /// What comes has nothing to do with what was: another conversation.
    fn sequence_begins(&mut self) {}

    /// A router decided. Layers come in order; after the last one the next token's first one.
    fn observe(&mut self, routed: &Routed<'_>);

    /// Appends the experts of `layer` that are expected when the token `tokens_ahead` after the last one observed gets there,
    /// likeliest first, each at most once. With 0 for `tokens_ahead`, `layer` is one that the token has still to reach.
    fn predict(&mut self, layer: u32, tokens_ahead: u32, gates: &mut dyn Gates, out: &mut Vec<Guess>);
}

/// The predictor called `name` with its default parameters, or `None` when there is none of that name (see [`NAMES`]).
pub fn by_name(name: &str) -> Option<Box<dyn Predict>> {
    match name {
        "prev_token" => Some(Box::<PrevToken>::default()),
        "trajectory" => Some(Box::<Trajectory>::default()),
        "gate_ahead" => Some(Box::<GateAhead>::default()),
        "learned" => Some(Box::<Learned>::default()),
        _ => None,
    }
}
