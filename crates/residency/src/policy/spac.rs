//! The utility of MoE-SpAc (arXiv 2603.09983): a small state per expert that follows, with hysteresis, how many tokens of
//! the draft window route to it.

use super::{Evict, PerExpert, Ranked, grown};
use crate::Key;
use crate::predict::Guess;

/// States go from 0 to here.
const STATE_MAX: u32 = 5;
/// How far demand must exceed a state to raise it. The authors' code has 5, which hardly differs from LRU on our traces;
/// see docs/residency.md.
const UP_DEFAULT: u32 = 1;
/// How far demand must fall below a state to lower it.
const DOWN_DEFAULT: u32 = 1;

/// Evicts the expert in the lowest state, then the one used the longest ago (the paper orders by number). Demand is the
/// number of tokens, of the current one and those of the draft window, that route to the expert; without a window it is
/// 1 or 0. O(n) for the first victim of a step, O(log n) for each other.
///
/// The authors, whose cache is shared by all layers, also put the experts of a layer into state 0 once it has run, since
/// its turn is then the farthest; here every layer has slots of its own, and states last.
#[derive(Debug)]
pub struct Spac {
    up: u32,
    down: u32,
    layers: Vec<Layer>,
    candidates: Ranked<(u32, u64)>,
    last_step: PerExpert<u64>,
    states: PerExpert<u32>,
}

#[derive(Debug, Default)]
struct Layer {
    /// Tokens of the window that route to each expert.
    window: Vec<u32>,
    /// Experts in a state above 0.
    raised: Vec<u32>,
}

impl Default for Spac {
    fn default() -> Self {
        Spac::new(UP_DEFAULT, DOWN_DEFAULT)
    }
}

impl Spac {
    /// With the differences of demand and state that raise and lower a state by one, both at least 1.
    pub fn new(up: u32, down: u32) -> Spac {
        Spac {
            up: up.max(1),
            down: down.max(1),
            layers: Vec::new(),
            candidates: Ranked::default(),
            last_step: PerExpert::default(),
            states: PerExpert::default(),
        }
    }

    fn layer(&mut self, layer: u32) -> &mut Layer {
        grown(&mut self.layers, layer)
    }
}

impl Evict for Spac {
    fn name(&self) -> &'static str {
        "spac"
    }

    fn expects(&mut self, layer: u32, guesses: &[Guess]) {
        let window = &mut self.layer(layer).window;
        window.fill(0);
        for guess in guesses {
            *grown(window, guess.expert) += 1;
        }
    }

    fn touched(&mut self, key: Key, step: u64) {
        *self.last_step.get_mut(key) = step;
    }

    fn step_touched(&mut self, layer: u32, _step: u64, union: &[u32]) {
        let this = grown(&mut self.layers, layer);
        let mut demand = this.window.clone();
        for &expert in union {
            *grown(&mut demand, expert) += 1;
        }
        let asked =
            demand.iter().enumerate().filter(|(_, count)| **count > 0).map(|(expert, _)| expert as u32);
        // Those asked for, and those that may have to be lowered.
        let mut concerned: Vec<u32> = asked.chain(this.raised.drain(..)).collect();
        concerned.sort_unstable();
        concerned.dedup();
        for expert in concerned {
            let count = demand.get(expert as usize).copied().unwrap_or(0);
            let state = self.states.get_mut(Key { layer, expert });
            if count >= *state + self.up {
                *state = (*state + 1).min(STATE_MAX);
            } else if *state >= count + self.down {
                *state -= 1;
            }
            if *state > 0 {
                this.raised.push(expert);
            }
        }
        self.candidates.changed(layer);
    }

    fn pinned(&mut self, key: Key) {
        self.candidates.remove(key);
    }

    fn unpinned(&mut self, key: Key) {
        self.candidates.insert(key, || (self.states.get(key), self.last_step.get(key)));
    }

    fn victim(&mut self, layers: &[u32]) -> Option<Key> {
        self.candidates.lowest(layers, |key| (self.states.get(key), self.last_step.get(key)))
    }
}
