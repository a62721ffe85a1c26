//! One timeline.

use calypte_model::Kv;

/// A timeline: every token seen so far with its keys and values. Cheap to drop; the weights are the engine's.
pub struct Session {
    pub(crate) kv: Kv,
    pub(crate) tokens: Vec<u32>,
    /// Logits after the last token.
    pub(crate) logits: Vec<f32>,
}

impl Session {
    /// The tokens seen so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Logits after the last token, `[vocab]`; empty at the very start.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// Forgets everything from token `len` on. The logits go too, unless nothing was cut.
    pub fn truncate(&mut self, len: usize) {
        if len < self.tokens.len() {
            self.tokens.truncate(len);
            self.kv.truncate(len);
            self.logits.clear();
        }
    }
}
