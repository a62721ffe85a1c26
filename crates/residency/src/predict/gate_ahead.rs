//! The router of a later layer, run early on today's residual stream (the guess of Mixtral-Offloading, arXiv 2312.17238, and of
//! most systems since): what the layers between will add is small beside what is there already.

use super::{Gates, Guess, Predict, Routed};

/// Guesses what a later layer's router would choose if it came now. Knows nothing of the next token.
#[derive(Debug, Default)]
pub struct GateAhead {
    residual: Vec<f32>,
    layer: u32,
    logits: Vec<f32>,
    experts: Vec<u32>,
}

impl Predict for GateAhead {
    fn name(&self) -> &'static str {
        "gate_ahead"
    }

    fn sequence_begins(&mut self) {
        self.residual.clear();
    }

    fn observe(&mut self, routed: &Routed<'_>) {
        self.layer = routed.layer;
        self.residual.clear();
        self.residual.extend_from_slice(routed.inside.map_or(&[], |inside| inside.residual));
    }

    fn predict(&mut self, layer: u32, tokens_ahead: u32, gates: &mut dyn Gates, out: &mut Vec<Guess>) {
        if tokens_ahead > 0 || layer <= self.layer || self.residual.is_empty() {
            return;
        }
        gates.logits(layer, &self.residual, &mut self.logits);
        gates.choose(layer, &self.logits, &mut self.experts);
        let guess = |&expert| Guess { expert, tokens_ahead, probability: 1.0 };
        out.extend(self.experts.iter().map(guess));
    }
}
