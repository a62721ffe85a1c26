//! How often a predictor is right, measured as it goes: the account that says whether its guesses pay.

use super::{Gates, Guess, Predict, Routed};
use crate::LayerSize;
use crate::per_expert::grown;

/// Share by which the measured probability follows each new judgement: half of it is forgotten after about 44 tokens.
const RATE: f32 = 1.0 / 64.0;
/// What a guess is believed to be worth before it was ever judged.
const PROBABILITY_AT_FIRST: f32 = 0.5;

/// A predictor whose guesses carry the share of times that guesses of the same layer, distance and rank were right. One that does not pay is
/// soon not believed, and is believed again when it is right again: it goes on guessing, which costs next to nothing, since nobody
/// reads for it.
pub struct Calibrated {
    predictor: Box<dyn Predict>,
    /// Where the token under way was routed last.
    layer: u32,
    /// Per layer that is guessed for, by how many layers there are up to it: guesses from further away are right less often.
    accounts: Vec<Vec<Account>>,
}

#[derive(Debug, Default)]
struct Account {
    /// Guessed for the token under way, best first.
    guessed: Vec<u32>,
    /// Per rank.
    right: Vec<f32>,
}

impl std::fmt::Debug for Calibrated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Calibrated").field(&self.predictor.name()).finish()
    }
}

impl Calibrated {
    /// Watches a predictor.
    pub fn new(predictor: Box<dyn Predict>) -> Calibrated {
        Calibrated { predictor, layer: 0, accounts: Vec::new() }
    }
}

impl Predict for Calibrated {
    fn name(&self) -> &'static str {
        self.predictor.name()
    }

    fn memory_bytes(&self, layers: &[LayerSize], layers_ahead: usize) -> u64 {
        self.predictor.memory_bytes(layers, layers_ahead)
    }

    fn sequence_begins(&mut self) {
        self.accounts.iter_mut().flatten().for_each(|account| account.guessed.clear());
        self.predictor.sequence_begins();
    }

    fn observe(&mut self, routed: &Routed<'_>) {
        self.layer = routed.layer;
        for Account { guessed, right } in grown(&mut self.accounts, routed.layer) {
            for (rank, expert) in guessed.drain(..).enumerate() {
                if rank == right.len() {
                    right.push(PROBABILITY_AT_FIRST);
                }
                let now = f32::from(u8::from(routed.experts.contains(&expert)));
                right[rank] += (now - right[rank]) * RATE;
            }
        }
        self.predictor.observe(routed);
    }

    fn predict(&mut self, layer: u32, tokens_ahead: u32, gates: &mut dyn Gates, out: &mut Vec<Guess>) {
        let before = out.len();
        self.predictor.predict(layer, tokens_ahead, gates, out);
        if tokens_ahead > 0 {
            return;
        }
        let distance = layer.saturating_sub(self.layer);
        let Account { guessed, right } = grown(grown(&mut self.accounts, layer), distance);
        guessed.clear();
        for (rank, guess) in out[before..].iter_mut().enumerate() {
            guess.probability = right.get(rank).copied().unwrap_or(PROBABILITY_AT_FIRST);
            guessed.push(guess.expert);
        }
    }
}
