//! Reads on guesses: begun when a guess comes, promoted when it was right, called off when it was not.

use calypte_disk::Priority;

use super::{ExpertCache, ticket};
use crate::predict::Guess;
use crate::{Event, Key, SlotState};

/// A guess that is less likely than this is not read for. What it costs is a resident of little worth, and the disk for as long as
/// nobody else wants it; what it gains is a read that somebody would wait for.
const READ_PROBABILITY_MIN: f32 = 0.5;

/// What was guessed and not judged so far.
#[derive(Debug, Default)]
pub(super) struct Hints {
    /// Per layer: experts guessed for its next step.
    guessed: Vec<Vec<u32>>,
    /// Hints that were submitted and have not completed; some of them may be called off.
    flying: Vec<Key>,
    pub guesses: u64,
    pub guesses_right: u64,
    pub guesses_needed: u64,
}

impl Hints {
    pub fn new(layers: usize) -> Hints {
        Hints { guessed: vec![Vec::new(); layers], ..Hints::default() }
    }

    pub fn reset_counts(&mut self) {
        (self.guesses, self.guesses_right, self.guesses_needed) = (0, 0, 0);
    }

    pub fn submitted(&mut self, key: Key) {
        self.flying.push(key);
    }

    /// Returns whether it was a hint.
    pub fn completed(&mut self, key: Key) -> bool {
        let before = self.flying.len();
        self.flying.retain(|other| *other != key);
        self.flying.len() < before
    }
}

impl ExpertCache {
    /// Experts that the next step of MoE layer `layer` will probably need, likeliest first; replaces what was expected of it before.
    /// Residents among them keep their slots rather than others. With `read`, likely ones that are missing are read while the
    /// disk has nothing else to do.
    ///
    /// Changes no answer: a guess is neither needed nor believed. A list that names an unknown expert or layer is ignored.
    pub fn expect(&mut self, layer: usize, guesses: &[Guess], read: bool) {
        let Some(guessed) = self.hints.guessed.get_mut(layer) else { return };
        let experts = self.rooms[layer].extents.len();
        guessed.clear();
        if guesses.iter().any(|guess| guess.expert as usize >= experts) {
            return;
        }
        guessed.extend(guesses.iter().map(|guess| guess.expert));
        let layer = layer as u32;
        self.tell(Event::Expect { layer, guesses });
        for guess in guesses.iter().filter(|guess| read && guess.probability >= READ_PROBABILITY_MIN) {
            let key = Key { layer, expert: guess.expert };
            if self.machine.state(key) == SlotState::Free {
                self.tell_as(Priority::Hint, Event::Prefetch(key));
            }
        }
    }

    /// Judges what was guessed for a step that is about to begin: reads on right guesses are promoted, others called off.
    pub(super) fn judge_guesses(&mut self, layer: usize, union: &[u32]) {
        let Some(guessed) = self.hints.guessed.get_mut(layer) else { return };
        if !guessed.is_empty() {
            let right = guessed.iter().filter(|expert| union.contains(expert)).count();
            self.hints.guesses += guessed.len() as u64;
            self.hints.guesses_right += right as u64;
            self.hints.guesses_needed += union.len() as u64;
            guessed.clear();
            self.tell(Event::Expect { layer: layer as u32, guesses: &[] });
        }
        for &key in self.hints.flying.iter().filter(|key| key.layer as usize == layer) {
            match union.contains(&key.expert) {
                true => self.disk.promote(ticket(key)),
                // If it is wholly under way it lands as if nothing had been said.
                false => _ = self.disk.cancel(ticket(key)),
            }
        }
    }

    /// Calls off all reads on guesses.
    pub(super) fn cancel_hints(&mut self) {
        for &key in &self.hints.flying {
            self.disk.cancel(ticket(key));
        }
    }
}
