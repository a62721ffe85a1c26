//! The clairvoyant policies, which say what is the most that any policy could reach.

use std::collections::BTreeSet;
use std::sync::Arc;

use calypte_residency::per_expert::PerExpert;
use calypte_residency::policy::order::Candidates;
use calypte_residency::{Evict, Key};

use crate::Trace;

/// When every expert is used: per layer and expert, the steps (from 1), ascending.
#[derive(Debug)]
pub struct Uses {
    layers: Vec<Vec<Vec<u32>>>,
}

impl Uses {
    /// The uses of a trace.
    pub fn of(trace: &Trace) -> Uses {
        let of_layer = |layer: usize| {
            let mut experts = vec![Vec::new(); trace.layers()[layer].experts as usize];
            for step in 0..trace.steps().len() {
                for &expert in trace.routed(step, layer) {
                    let uses: &mut Vec<u32> = &mut experts[usize::from(expert)];
                    if uses.last() != Some(&(step as u32 + 1)) {
                        uses.push(step as u32 + 1);
                    }
                }
            }
            experts
        };
        Uses { layers: (0..trace.layers().len()).map(of_layer).collect() }
    }

    /// The first use after `step`, or `u32::MAX`.
    fn next(&self, key: Key, step: u64) -> u32 {
        let uses = self.layers.get(key.layer as usize).and_then(|layer| layer.get(key.expert as usize));
        let after =
            |uses: &Vec<u32>| uses.get(uses.partition_point(|&use_| u64::from(use_) <= step)).copied();
        uses.and_then(after).unwrap_or(u32::MAX)
    }
}

/// Belady's rule ("A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5, 1966): evict what
/// is used again last. What a step needs always gets a slot, as in the engine.
#[derive(Debug)]
pub struct Belady {
    uses: Arc<Uses>,
    /// Steps until the end of the trace from the next use: the lower, the later. `None`: not used so far.
    rank: PerExpert<Option<u32>>,
    candidates: Candidates<u32>,
}

impl Belady {
    /// The rule for the trace that these uses are of.
    pub fn new(uses: Arc<Uses>) -> Belady {
        Belady { uses, rank: PerExpert::default(), candidates: Candidates::default() }
    }

    fn rank_after(&self, key: Key, step: u64) -> u32 {
        u32::MAX - self.uses.next(key, step)
    }

    fn rank(&self, key: Key) -> u32 {
        self.rank.get(key).unwrap_or_else(|| self.rank_after(key, 0))
    }
}

impl Evict for Belady {
    fn name(&self) -> &'static str {
        "belady"
    }

    fn touched(&mut self, key: Key, step: u64) {
        *self.rank.get_mut(key) = Some(self.rank_after(key, step));
    }

    fn pinned(&mut self, key: Key) {
        self.candidates.remove(key, self.rank(key));
    }

    fn unpinned(&mut self, key: Key) {
        self.candidates.insert(key, self.rank(key));
    }

    fn victim(&mut self, layers: &[u32]) -> Option<Key> {
        self.candidates.lowest(layers, |_, rank| rank)
    }
}

/// Hits of Belady's rule with bypass, per layer: what a step needs may be used from memory of its own and not enter the slots
/// of its layer (`slots` by layer) at all. No cache of that many slots can do better. Uses of a step count once, as in the
/// engine.
pub fn bypass_hits(trace: &Trace, uses: &Uses, slots: &[usize]) -> Vec<u64> {
    let of_layer = |(layer, &slots): (usize, &usize)| {
        let mut kept: BTreeSet<(u32, u16)> = BTreeSet::new();
        // The next use with which an expert is kept.
        let mut next_of = vec![None; trace.layers()[layer].experts as usize];
        let mut hits = 0;
        for step in 0..trace.steps().len() {
            let mut union = trace.routed(step, layer).to_vec();
            union.sort_unstable();
            union.dedup();
            for expert in union {
                let was: Option<u32> = next_of[usize::from(expert)].take();
                if let Some(next) = was {
                    hits += 1;
                    kept.remove(&(next, expert));
                }
                let key = Key { layer: layer as u32, expert: u32::from(expert) };
                let next = uses.next(key, step as u64 + 1);
                kept.insert((next, expert));
                next_of[usize::from(expert)] = Some(next);
            }
            while kept.len() > slots {
                let Some((_, expert)) = kept.pop_last() else { break };
                next_of[usize::from(expert)] = None;
            }
        }
        hits
    };
    slots.iter().enumerate().take(trace.layers().len()).map(of_layer).collect()
}
