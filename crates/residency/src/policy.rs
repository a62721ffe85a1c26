//! Who loses its slot. One file per policy; adding one is one file and one line in [`by_name`].

mod decay;
mod dfreq;
mod eam;
mod elb;
mod expert_map;
mod forecast;
mod least_stale;
mod lfru;
mod lfu;
mod lru;
pub mod order;
mod s3fifo;
mod spac;
mod successor;

pub use dfreq::{Dfreq, HALF_LIFE_STEPS_DEFAULT, HALF_LIFE_STEPS_MAX};
pub use eam::Eam;
pub use elb::Elb;
pub use expert_map::ExpertMap;
pub use forecast::Forecast;
pub use least_stale::LeastStale;
pub use lfru::Lfru;
pub use lfu::Lfu;
pub use lru::Lru;
pub use s3fifo::S3Fifo;
pub use spac::Spac;
pub use successor::Successor;

use order::{Candidates, Ranked};

use crate::per_expert::{Clocks, PerExpert, grown};
use crate::predict::Guess;
use crate::{Key, LayerSize};

/// Names that [`by_name`] knows.
pub const NAMES: &[&str] = &[
    "lru",
    "lfu",
    "dfreq",
    "lfru",
    "s3fifo",
    "least_stale",
    "eam",
    "expert_map",
    "spac",
    "elb",
    "successor",
    "forecast",
];

/// The policy of the engine: the best of those in docs/residency.md that need no look at the future.
pub const DEFAULT: &str = "forecast";

/// Experts of this many tokens, if all differed, are the most that a union has unless it is of a prompt.
const TOKENS_ALONE_MAX: usize = 2;

/// Policies whose counts do not fade take what earlier runs used as if it were this many steps: enough to tell favourites apart,
/// and soon outnumbered.
const SEED_STEPS: f32 = 16.0;

/// Uses that an expert of this share starts with where counts do not fade.
fn seed_uses(share: f32) -> u64 {
    (share * SEED_STEPS).round() as u64
}

/// Whether a step's union is of so many tokens together that it does not tell which of them went where.
fn of_prompt(union: &[u32], top_k: usize) -> bool {
    union.len() > top_k * TOKENS_ALONE_MAX
}

/// Those of a step's union that a layer of `experts` experts has, ascending.
fn known(union: &[u32], experts: usize) -> Vec<u32> {
    let mut known = union.to_vec();
    known.sort_unstable();
    known.retain(|&expert| (expert as usize) < experts);
    known
}

/// An eviction policy, in the vocabulary of buffer managers: keys are touched, inserted, pinned, unpinned, evicted, and
/// a victim is asked for.
///
/// A key is a *candidate* from [`Evict::unpinned`] until [`Evict::pinned`] or [`Evict::evicted`]. The machine touches a
/// key only while it is not a candidate, so that an ordered structure over the candidates never has to be re-sorted.
/// Policies see no bytes and no weights: they cannot change an answer. They must be deterministic, and what
/// they decide may depend on the steps in which keys were touched, but not on the order in which the keys of one step are
/// touched, inserted, pinned or unpinned: that order is a disk's.
pub trait Evict: Send {
    /// The name that [`by_name`] accepts.
    fn name(&self) -> &'static str;

    /// The layers there are. Said once, before anything else.
    fn prepare(&mut self, _layers: &[LayerSize]) {}

    /// Memory that it takes for these layers beside some numbers an expert, in bytes: what a budget should know of.
    fn memory_bytes(&self, _layers: &[LayerSize]) -> u64 {
        0
    }

    /// Share of tokens that used each expert of `layer` in earlier runs, `[experts]`, 0 to 1. Said at most once a layer, before its
    /// first step. It must fade as evidence of one's own does: after a change of subject, what earlier runs used is worth nothing.
    fn seed(&mut self, _layer: u32, _shares: &[f32]) {}

    /// What comes has nothing to do with what was: another conversation.
    fn sequence_begins(&mut self) {}

    /// What a predictor expects of `layer`: in the steps after the one that is about to begin, or, of a layer that the token
    /// under way has still to reach, in that one too (see [`Guess::tokens_ahead`]). Replaces what was expected of the layer
    /// before. Keys may be candidates.
    fn expects(&mut self, _layer: u32, _guesses: &[Guess]) {}

    /// `key` was routed to in step `step` of its layer (each layer counts its own steps, from 1), whether it is
    /// resident or not. At most once a step.
    fn touched(&mut self, key: Key, step: u64);

    /// All experts of step `step` of `layer` were touched: `union`, each once, in any order.
    fn step_touched(&mut self, _layer: u32, _step: u64, _union: &[u32]) {}

    /// The weights of `key` arrived.
    fn inserted(&mut self, _key: Key) {}

    /// `key` lost its slot and is no candidate any more.
    fn evicted(&mut self, key: Key) {
        self.pinned(key);
    }

    /// `key` is needed now and is no candidate any more.
    fn pinned(&mut self, key: Key);

    /// `key` became a candidate. This is also said of keys that are still to be read, when a step needs more slots than
    /// there are and the policy is asked which of its experts shall not stay.
    fn unpinned(&mut self, key: Key);

    /// The candidate that is worth least among those of `layers`, or `None` when none of these layers has one.
    ///
    /// `layers` is in the order of preference for ties: the layer that will be used last comes first. Ties within a
    /// layer go to the lowest expert. The victim stays a candidate until the machine says otherwise.
    fn victim(&mut self, layers: &[u32]) -> Option<Key>;
}

/// The policy that `spec` names, or `None` when there is none of that name (see [`NAMES`]) or its parameters are wrong.
///
/// Parameters are numbers after colons: `dfreq:32` (half-life in steps), `spac:1:1` (differences that raise and lower a
/// state), `elb:16` and `successor:6` (half-lives in steps).
pub fn by_name(spec: &str) -> Option<Box<dyn Evict>> {
    let mut parts = spec.split(':');
    let name = parts.next()?;
    let parameters: Vec<u32> = parts.map(|part| part.parse().ok()).collect::<Option<_>>()?;
    Some(match (name, &parameters[..]) {
        ("lru", []) => Box::<Lru>::default(),
        ("lfu", []) => Box::<Lfu>::default(),
        ("dfreq", []) => Box::<Dfreq>::default(),
        ("dfreq", &[half_life @ 1..=HALF_LIFE_STEPS_MAX]) => Box::new(Dfreq::new(half_life)),
        ("lfru", []) => Box::<Lfru>::default(),
        ("s3fifo", []) => Box::<S3Fifo>::default(),
        ("least_stale", []) => Box::<LeastStale>::default(),
        ("eam", []) => Box::<Eam>::default(),
        ("expert_map", []) => Box::<ExpertMap>::default(),
        ("spac", []) => Box::<Spac>::default(),
        ("spac", &[up, down]) if up > 0 && down > 0 => Box::new(Spac::new(up, down)),
        ("elb", []) => Box::<Elb>::default(),
        ("elb", &[half_life @ 1..=HALF_LIFE_STEPS_MAX]) => Box::new(Elb::new(half_life)),
        ("successor", []) => Box::<Successor>::default(),
        ("successor", &[half_life @ 1..=HALF_LIFE_STEPS_MAX]) => Box::new(Successor::new(half_life)),
        ("forecast", []) => Box::<Forecast>::default(),
        _ => return None,
    })
}
