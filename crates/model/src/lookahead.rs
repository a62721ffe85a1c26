//! Guessing while the model runs: what a predictor is told, and what is done with what it says.
//!
//! Guesses decide when experts are read, never which are used: the router of a layer decides that when its time comes.

use calypte_kernels::Activations;
use calypte_residency::ExpertCache;
use calypte_residency::predict::{Calibrated, Gates, Guess, Inside, Predict, Routed};

use crate::model::Model;
use crate::moe::{MoeBlock, MoeScratch};
use crate::{Compute, Observer};

/// Rows of a step that are asked which experts of the next layer they will go to, at most. Of hundreds of tokens this many
/// name more experts than there is time to read.
const ROWS_ASKED_MAX: usize = 32;

/// A predictor at work, with how it is used.
#[derive(Default)]
pub struct Lookahead {
    predictor: Option<Calibrated>,
    /// Layers ahead for which it is asked.
    layers: usize,
    /// Whether experts are read on its guesses, or only kept.
    read: bool,
    guesses: Vec<Guess>,
    /// What is guessed for a step of many rows.
    many: Vec<u32>,
    normed: Activations,
    logits: Vec<f32>,
}

/// The routers of a model, on the residual stream as it is.
struct ModelGates<'a> {
    compute: &'a Compute<'a>,
    model: &'a Model,
    normed: &'a mut Activations,
    logits: &'a mut Vec<f32>,
}

impl Gates for ModelGates<'_> {
    fn logits(&mut self, layer: u32, residual: &[f32], logits: &mut Vec<f32>) {
        logits.clear();
        let Some((norm, block)) = self.model.mixture(layer as usize) else { return };
        let ModelGates { compute, model, normed, .. } = self;
        compute.rms_norm(residual, norm, model.arch().norms.eps, normed.fill(1, residual.len()));
        block.logits(compute, normed, logits);
    }

    fn choose(&mut self, layer: u32, logits: &[f32], experts: &mut Vec<u32>) {
        experts.clear();
        let Some((_, block)) = self.model.mixture(layer as usize) else { return };
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        experts.extend(block.choose(self.logits));
    }
}

impl ModelGates<'_> {
    /// Experts of `layer` that some of `rows` rows of `residual` will probably go to, ascending.
    fn choose_of_many(&mut self, layer: u32, residual: &[f32], rows: usize, experts: &mut Vec<u32>) {
        let hidden = residual.len() / rows;
        let mut logits = Vec::new();
        let mut of_row = Vec::new();
        experts.clear();
        for row in residual.chunks_exact(hidden).step_by(rows.div_ceil(ROWS_ASKED_MAX)) {
            self.logits(layer, row, &mut logits);
            self.choose(layer, &logits, &mut of_row);
            experts.extend(&of_row);
        }
        experts.sort_unstable();
        experts.dedup();
    }
}

impl Lookahead {
    /// Asks `predictor` for as many layers ahead. With `read`, experts are read on its guesses.
    pub fn new(predictor: Box<dyn Predict>, layers: usize, read: bool) -> Lookahead {
        Lookahead { predictor: Some(Calibrated::new(predictor)), layers, read, ..Lookahead::default() }
    }

    /// Whether there is a predictor.
    pub fn is_on(&self) -> bool {
        self.predictor.is_some()
    }

    /// What comes has nothing to do with what was.
    pub fn sequence_begins(&mut self) {
        if let Some(predictor) = &mut self.predictor {
            predictor.sequence_begins();
        }
    }

    /// The mixture of `block` was routed and its reads are under way; `residual` is the stream before it, `[rows, hidden]`. Guesses
    /// for the layers ahead if the step has one row. Many rows need nearly everything of every layer: no predictor is asked what, and
    /// all that matters is that the next layer's router names some of it early.
    pub(crate) fn routed(
        &mut self,
        compute: &Compute<'_>,
        model: &Model,
        block: &MoeBlock,
        residual: &[f32],
        rows: usize,
        scratch: &MoeScratch,
        experts: &mut ExpertCache,
        observer: &mut dyn Observer,
    ) {
        let Lookahead { predictor: Some(predictor), layers, read, guesses, many, normed, logits } = self
        else {
            return;
        };
        let begun = compute.recording.begin();
        let layer = block.number_in_cache();
        let last = &residual[residual.len() - residual.len() / rows..];
        let (chosen, of_router) = scratch.last_routed();
        let inside = Some(Inside { residual: last, logits: of_router });
        predictor.observe(&Routed { layer: layer as u32, experts: chosen, inside });
        let mut gates = ModelGates { compute, model, normed, logits };
        if rows > 1 {
            if *read && layer + 1 < model.mixtures() {
                gates.choose_of_many(layer as u32 + 1, residual, rows, many);
                experts.expect_many(layer, layer + 1, many);
                compute.computed(begun, "lookahead", block.number());
            }
            return;
        }
        for target in (layer + 1..model.mixtures()).take(*layers) {
            guesses.clear();
            predictor.predict(target as u32, 0, &mut gates, guesses);
            experts.expect(target, guesses, *read);
            if let Some((_, block)) = model.mixture(target) {
                observer.guessed(block.number(), guesses);
            }
        }
        compute.computed(begun, "lookahead", block.number());
    }
}
