//! What the previous token used, the next one uses again: the guess that costs nothing. Every trace study reports its recall
//! (0.35 to 0.47 for the models of today), and better predictors have to beat it.

use super::{Gates, Guess, Predict, Routed};
use crate::per_expert::grown;

/// Share by which the measured probability follows each new observation.
const CALIBRATION_RATE: f32 = 1.0 / 64.0;

/// Guesses the experts that the layer used last.
#[derive(Debug, Default)]
pub struct PrevToken {
    layers: Vec<Layer>,
}

#[derive(Debug, Default)]
struct Layer {
    experts: Vec<u32>,
    /// Measured share of experts that are used again by the next token.
    reuse: f32,
}

impl Predict for PrevToken {
    fn name(&self) -> &'static str {
        "prev_token"
    }

    fn sequence_begins(&mut self) {
        self.layers.iter_mut().for_each(|layer| layer.experts.clear());
    }

    fn observe(&mut self, routed: &Routed<'_>) {
        let layer = grown(&mut self.layers, routed.layer);
        if !layer.experts.is_empty() {
            let again = layer.experts.iter().filter(|expert| routed.experts.contains(expert)).count();
            let share = again as f32 / layer.experts.len() as f32;
            layer.reuse += (share - layer.reuse) * CALIBRATION_RATE;
        }
        layer.experts.clear();
        layer.experts.extend_from_slice(routed.experts);
    }

    fn predict(&mut self, layer: u32, tokens_ahead: u32, _gates: &mut dyn Gates, out: &mut Vec<Guess>) {
        // It knows nothing about tokens that are farther away.
        if tokens_ahead > 1 {
            return;
        }
        if let Some(layer) = self.layers.get(layer as usize) {
            let guess = |&expert| Guess { expert, tokens_ahead, probability: layer.reuse };
            out.extend(layer.experts.iter().map(guess));
        }
    }
}
