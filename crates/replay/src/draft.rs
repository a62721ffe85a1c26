//! Draft tokens, simulated: a trace has no draft model, but it has the future.

use std::sync::Arc;

use calypte_residency::predict::{Gates, Guess, Predict, Routed};

use crate::Trace;

/// Longest window: a draft much longer than what is ever accepted says nothing.
pub const DRAFT_WINDOW_MAX: u32 = 64;

/// How good the draft is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draft {
    /// Tokens drafted ahead of every token, 1 to [`DRAFT_WINDOW_MAX`].
    pub window: u32,
    /// Chance that a drafted token is the one that comes, given that those before it were.
    pub acceptance: f64,
    /// Chance that an expert foretold for the right token is one that it will use.
    pub accuracy: f64,
}

/// Four tokens, of which each is right with 0.7 given those before it: 1 + 0.7 + 0.49 + 0.34 = 2.5 tokens a forward of a draft
/// of three, the middle of what is reported for GLM-5.2's MTP head (2.2 to 2.8). Experts are foretold with 0.9, what MoE-SpeQ
/// (arXiv 2511.14102) and SP-MoE (arXiv 2510.10302) report.
pub const DRAFT_DEFAULT: Draft = Draft { window: 4, acceptance: 0.7, accuracy: 0.9 };

/// Guesses the experts of the next tokens from the trace itself, made worse on purpose. A token that the draft got wrong,
/// and all after it, are routed as some other token of the trace; of a right one, each expert is replaced by a random one
/// with the chance of 1 − accuracy. The same trace and parameters give the same guesses. SIMULATED: how good a real draft is
/// depends on model and text.
#[derive(Debug)]
pub struct DraftTokens {
    trace: Arc<Trace>,
    draft: Draft,
    step: usize,
    layer: Option<u32>,
}

impl DraftTokens {
    /// A draft of the tokens of `trace`, which must be the one that is replayed.
    pub fn new(trace: Arc<Trace>, draft: Draft) -> DraftTokens {
        DraftTokens { trace, draft, step: 0, layer: None }
    }

    /// How many drafted tokens are right when the draft is made after `step`.
    fn right(&self, step: usize) -> u32 {
        let kept = (1..=self.draft.window)
            .take_while(|&ahead| chance([step as u64, u64::from(ahead), 0, 0]) < self.draft.acceptance);
        kept.count() as u32
    }
}

impl Predict for DraftTokens {
    fn name(&self) -> &'static str {
        "draft_tokens"
    }

    fn observe(&mut self, routed: &Routed<'_>) {
        if self.layer.is_some_and(|last| routed.layer <= last) {
            self.step += 1;
        }
        self.layer = Some(routed.layer);
    }

    fn predict(&mut self, layer: u32, tokens_ahead: u32, _gates: &mut dyn Gates, out: &mut Vec<Guess>) {
        // Of the token under way, the routing was foretold when it was the first of the draft.
        let ahead = tokens_ahead.max(1);
        let known = tokens_ahead == 0;
        let step = self.step + tokens_ahead as usize;
        let Some(size) = self.trace.layers().get(layer as usize) else { return };
        let Some(made) = step.checked_sub(ahead as usize) else { return };
        if ahead > self.draft.window || step >= self.trace.steps().len() {
            return;
        }
        let right = known || ahead <= self.right(made);
        let source = if right {
            step
        } else {
            (chance([made as u64, u64::from(ahead), 1, 0]) * self.trace.steps().len() as f64) as usize
        };
        let routed = self.trace.routed(source, layer as usize);
        let last = &routed[routed.len().saturating_sub(size.top_k as usize)..];
        let accepted = (1..ahead).fold(1.0, |p, _| p * self.draft.acceptance);
        let accepted = if known { 1.0 } else { accepted * self.draft.acceptance };
        let mut named: Vec<u32> = Vec::with_capacity(last.len());
        for (rank, &expert) in last.iter().enumerate() {
            let place = [step as u64, u64::from(ahead), 2 + rank as u64, u64::from(layer)];
            let exact = chance(place) < self.draft.accuracy;
            let other = (chance([place[0], place[1], place[2] + (1 << 32), place[3]])
                * f64::from(size.experts)) as u32;
            let expert = if exact { u32::from(expert) } else { other };
            if !named.contains(&expert) {
                named.push(expert);
            }
        }
        let probability = (accepted * self.draft.accuracy) as f32;
        out.extend(named.into_iter().map(|expert| Guess { expert, tokens_ahead, probability }));
    }
}

/// A number from 0 to 1 that depends on nothing but `place` (SplitMix64, Steele, Lea, Flood 2014).
fn chance(place: [u64; 4]) -> f64 {
    let mixed = place.iter().fold(0x9E37_79B9_7F4A_7C15u64, |state, &word| {
        let mut z = (state ^ word).wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    });
    (mixed >> 11) as f64 / (1u64 << 53) as f64
}
