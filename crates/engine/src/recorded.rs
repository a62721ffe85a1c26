//! Steps on a timeline: how long each took, and what the expert cache made of it.

use calypte_residency::timeline::{Begun, Lane, Recording};
use calypte_residency::{CacheStats, ExpertCache};

/// The beginning of a step.
pub(crate) struct StepBegun {
    begun: Begun,
    /// What the cache had counted; zeros when nothing is recorded.
    before: CacheStats,
}

impl StepBegun {
    pub fn new(recording: Recording<'_>, experts: &ExpertCache) -> StepBegun {
        StepBegun { before: counts(recording, experts), begun: recording.begin() }
    }

    /// The step of `rows` rows from `position` on has ended, well or badly.
    pub fn end(self, recording: Recording<'_>, experts: &ExpertCache, position: usize, rows: usize) {
        let now = counts(recording, experts);
        recording.end(
            self.begun,
            Lane::Step,
            if rows == 1 { "token" } else { "tokens" },
            &["position", "rows", "hits", "misses", "stall_ns", "resident_bytes"],
            [
                position as u64,
                rows as u64,
                now.hits.saturating_sub(self.before.hits),
                now.misses.saturating_sub(self.before.misses),
                now.wait_ns.saturating_sub(self.before.wait_ns),
                experts.resident_bytes(),
            ],
        );
    }
}

fn counts(recording: Recording<'_>, experts: &ExpertCache) -> CacheStats {
    recording.0.map_or_else(CacheStats::default, |_| experts.stats())
}
