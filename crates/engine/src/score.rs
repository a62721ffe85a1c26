//! Teacher-forced scoring: how likely a model finds a given text.

use std::sync::atomic::AtomicBool;

use calypte_kernels::ops;
use calypte_model::Observer;
use sha2::{Digest, Sha256};

use crate::{Engine, EngineError};

/// The score of a sequence of tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Scoring {
    /// Tokens given.
    pub tokens: usize,
    /// Mean negative log-likelihood of tokens 1.. in nats, each given those before it.
    pub nll: f64,
    /// e to the `nll`.
    pub ppl: f64,
    /// The likeliest next token after each token.
    pub argmax: Vec<u32>,
    /// SHA-256 over the logits of all rows, little-endian f32, row by row.
    pub logits_sha256: [u8; 32],
}

impl Engine {
    /// Scores `ids` from an empty timeline. `sink` is given every row of logits in order.
    pub fn score(
        &mut self,
        ids: &[u32],
        sink: &mut dyn FnMut(&[f32]),
        progress: &mut dyn FnMut(usize, usize),
        observer: &mut dyn Observer,
        cancelled: &AtomicBool,
    ) -> Result<Scoring, EngineError> {
        self.check_ids(ids)?;
        if ids.len() < 2 {
            return Err(EngineError::TooShort { tokens: ids.len() });
        }
        let mut session = self.session();
        let mut digest = Sha256::new();
        let (mut total, mut argmax, mut bytes) = (0f64, Vec::new(), Vec::new());
        for chunk in ids.chunks(self.options().prefill_chunk.get()) {
            let mut row = |position: usize, row: &[f32]| {
                bytes.clear();
                row.iter().for_each(|v| bytes.extend_from_slice(&v.to_le_bytes()));
                digest.update(&bytes);
                sink(row);
                argmax.push(ops::argmax(row) as u32);
                if let Some(next) = ids.get(position + 1) {
                    total += negative_log_likelihood(row, *next);
                }
            };
            self.advance_all(&mut session, chunk, &mut row, observer, cancelled)?;
            progress(session.tokens().len(), ids.len());
        }
        let nll = total / (ids.len() - 1) as f64;
        Ok(Scoring {
            tokens: ids.len(),
            nll,
            ppl: libm::exp(nll),
            argmax,
            logits_sha256: digest.finalize().into(),
        })
    }
}

/// `−log softmax(row)[token]` in nats, in f64 so that long sums keep their digits; infinite for a token that is no column.
pub fn negative_log_likelihood(row: &[f32], token: u32) -> f64 {
    let max = row.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v)) as f64;
    let sum: f64 = row.iter().map(|v| libm::exp(*v as f64 - max)).sum();
    let logit = row.get(token as usize).map_or(f64::NEG_INFINITY, |v| *v as f64);
    libm::log(sum) + max - logit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn likelihoods_are_those_of_the_softmax() {
        let ln = |v: f64| libm::log(v) as f32;
        for (row, token, p) in
            [(&[ln(1.0), ln(3.0)][..], 1, 0.75), (&[5.0; 4], 2, 0.25), (&[1000.0, 0.0], 0, 1.0)]
        {
            assert!((negative_log_likelihood(row, token) + libm::log(p)).abs() < 1e-6);
        }
        assert_eq!(negative_log_likelihood(&[1.0], 1), f64::INFINITY, "no column, no chance");
    }
}
