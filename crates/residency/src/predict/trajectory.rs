//! Trajectory search (fMoE, arXiv 2502.05370): which earlier tokens took the same way through the layers so far, and where
//! did they go from here?
//!
//! The paper stores gate probabilities and embeddings; a trace of ids has neither, so a map holds which experts were chosen
//! and similarity is the number of choices in common (the cosine of such maps, as all have the same number of ones). The
//! store is a ring of the latest tokens instead of one that drops what is redundant: trace tables are bound to their
//! domain, and the latest tokens are of the right one.

use super::{Gates, Guess, Predict, Routed};
use crate::per_expert::grown;

/// Maps in the store, as in the paper.
const MAPS_MAX: usize = 1024;
/// Words of a set of maps.
const WORDS: usize = MAPS_MAX / u64::BITS as usize;
/// The most similar maps vote.
const VOTERS: usize = 16;
/// Guesses, as a multiple of the experts of a token.
const GUESSES_PER_CHOICE: usize = 2;

/// Guesses what the most similar earlier tokens used. An observation costs the number of choices in common, a guess a pass
/// over the store's scores and one over the voters' choices.
#[derive(Debug, Default)]
pub struct Trajectory {
    /// Experts of stored token `i % MAPS_MAX` in each layer.
    maps: Vec<Vec<Vec<u32>>>,
    /// Per layer and expert: the maps that hold it.
    holders: Vec<Vec<[u64; WORDS]>>,
    /// Choices in common with the token under way, per map.
    scores: Vec<u32>,
    /// The map of the token under way.
    current: Vec<Vec<u32>>,
    /// Tokens stored since the start.
    stored: usize,
    /// Layer observed last.
    layer: Option<u32>,
    /// The most similar maps, best first, while no observation has changed them.
    voters: Vec<usize>,
    votes: Vec<u32>,
}

impl Trajectory {
    /// Puts the finished token into the store, in place of the oldest.
    fn store(&mut self) {
        let slot = self.stored % MAPS_MAX;
        let (word, bit) = (slot / 64, 1u64 << (slot % 64));
        let map = std::mem::take(&mut self.current);
        if slot == self.maps.len() {
            self.maps.push(Vec::new());
            self.scores.push(0);
        }
        for (layer, experts) in self.maps[slot].iter().enumerate() {
            for &expert in experts {
                self.holders[layer][expert as usize][word] &= !bit;
            }
        }
        for (layer, experts) in map.iter().enumerate() {
            let holders = grown(&mut self.holders, layer as u32);
            for &expert in experts {
                grown(holders, expert)[word] |= bit;
            }
        }
        self.maps[slot] = map;
        self.stored += 1;
        self.scores.fill(0);
    }

    fn find_voters(&mut self) {
        if !self.voters.is_empty() || self.maps.is_empty() {
            return;
        }
        let mut best: Vec<usize> = (0..self.maps.len()).collect();
        let count = VOTERS.min(best.len());
        // The latest among equals.
        let (stored, scores) = (self.stored, &self.scores);
        let age = |slot: usize| (stored - 1 - slot) % MAPS_MAX;
        let order = |slot: &usize| (std::cmp::Reverse(scores[*slot]), age(*slot));
        if count < best.len() {
            best.select_nth_unstable_by_key(count, order);
            best.truncate(count);
        }
        best.sort_unstable_by_key(order);
        self.voters = best;
    }

    /// The slot of the token `ahead` after that of `slot`, unless it is not stored or of another conversation.
    fn later(&self, slot: usize, ahead: usize) -> Option<usize> {
        let age = (self.stored - 1 - slot) % MAPS_MAX;
        let after = |ahead| (slot + ahead) % MAPS_MAX;
        let goes_on = ahead <= age && (0..=ahead).all(|step| !self.maps[after(step)].is_empty());
        goes_on.then_some(after(ahead))
    }
}

impl Predict for Trajectory {
    fn name(&self) -> &'static str {
        "trajectory"
    }

    fn sequence_begins(&mut self) {
        if self.layer.take().is_some() {
            self.store();
            // A token that used nothing stands between two conversations: see `later`.
            self.store();
            self.voters.clear();
        }
    }

    fn observe(&mut self, routed: &Routed<'_>) {
        if self.layer.is_some_and(|last| routed.layer <= last) {
            self.store();
        }
        self.layer = Some(routed.layer);
        let current = grown(&mut self.current, routed.layer);
        current.clear();
        current.extend_from_slice(routed.experts);
        self.voters.clear();
        let Some(holders) = self.holders.get(routed.layer as usize) else { return };
        for holders in routed.experts.iter().filter_map(|&expert| holders.get(expert as usize)) {
            for (word, &bits) in holders.iter().enumerate() {
                let mut left = bits;
                while left != 0 {
                    self.scores[word * 64 + left.trailing_zeros() as usize] += 1;
                    left &= left - 1;
                }
            }
        }
    }

    fn predict(&mut self, layer: u32, tokens_ahead: u32, _gates: &mut dyn Gates, out: &mut Vec<Guess>) {
        self.find_voters();
        let mut votes = std::mem::take(&mut self.votes);
        votes.fill(0);
        let (mut cast, mut choices) = (0, 0);
        for slot in self.voters.iter().filter_map(|&slot| self.later(slot, tokens_ahead as usize)) {
            let Some(experts) = self.maps[slot].get(layer as usize) else { continue };
            for &expert in experts {
                *grown(&mut votes, expert) += 1;
            }
            cast += 1;
            choices = choices.max(experts.len());
        }
        let named = votes.iter().enumerate().filter(|(_, count)| **count > 0);
        let mut named: Vec<(u32, u32)> = named.map(|(expert, &count)| (count, expert as u32)).collect();
        named.sort_unstable_by_key(|&(count, expert)| (std::cmp::Reverse(count), expert));
        named.truncate(choices * GUESSES_PER_CHOICE);
        let guess = |(count, expert)| Guess { expert, tokens_ahead, probability: count as f32 / cast as f32 };
        out.extend(named.into_iter().map(guess));
        self.votes = votes;
    }
}
