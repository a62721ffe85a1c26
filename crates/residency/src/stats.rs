//! What the cache did, counted exactly.

/// What the state machine decided since the counters were last reset. The same events give the same counts on any
/// machine and with any disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineCounts {
    /// Steps begun (one layer, all rows of a step).
    pub steps: u64,
    /// Experts that were READY when their step began, each counted once a step.
    pub hits: u64,
    /// All other experts of the unions.
    pub misses: u64,
    /// Experts that lost their slot.
    pub evictions: u64,
    /// Experts read on a guess.
    pub prefetches: u64,
    /// Those of them that a step asked for while they had their slot, in memory or still on their way.
    pub prefetches_used: u64,
    /// Those of them that lost their slot before, or were never read.
    pub prefetches_wasted: u64,
}

/// What the cache did since it was made or since [`crate::ExpertCache::reset_stats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Steps begun (one layer, all rows of a step). A step begun again after an abort counts again.
    pub steps: u64,
    /// Experts that were resident when their step began, each counted once a step.
    pub hits: u64,
    /// All other experts of the unions; `hits + misses` is the sum of the unions' sizes.
    pub misses: u64,
    /// Experts that lost their slot.
    pub evictions: u64,
    /// Reads that failed for good.
    pub reads_failed: u64,
    /// Buffers newly allocated; 0 in a steady state of equal sizes.
    pub buffers_allocated: u64,
    /// Bytes that the disk really transferred, alignment included.
    pub bytes_read: u64,
    /// Bytes of experts among them.
    pub bytes_useful: u64,
    /// Time during which nothing was left to compute and a read had to be waited for, in nanoseconds. 0 where the
    /// platform has no clock.
    pub wait_ns: u64,
    /// Experts that were expected in steps that have begun.
    pub guesses: u64,
    /// Those of them that the steps needed.
    pub guesses_right: u64,
    /// Experts that these steps needed in all.
    pub guesses_needed: u64,
    /// Reads begun on a guess.
    pub prefetches: u64,
    /// Those of them that a step asked for while they had their slot, in memory or still on their way.
    pub prefetches_used: u64,
    /// Those of them that lost their slot before, or were called off.
    pub prefetches_wasted: u64,
}

impl CacheStats {
    /// What was done after `before` was counted, if there was no reset between.
    pub fn since(&self, before: &CacheStats) -> CacheStats {
        CacheStats {
            steps: self.steps - before.steps,
            hits: self.hits - before.hits,
            misses: self.misses - before.misses,
            evictions: self.evictions - before.evictions,
            reads_failed: self.reads_failed - before.reads_failed,
            buffers_allocated: self.buffers_allocated - before.buffers_allocated,
            bytes_read: self.bytes_read - before.bytes_read,
            bytes_useful: self.bytes_useful - before.bytes_useful,
            wait_ns: self.wait_ns - before.wait_ns,
            guesses: self.guesses - before.guesses,
            guesses_right: self.guesses_right - before.guesses_right,
            guesses_needed: self.guesses_needed - before.guesses_needed,
            prefetches: self.prefetches - before.prefetches,
            prefetches_used: self.prefetches_used - before.prefetches_used,
            prefetches_wasted: self.prefetches_wasted - before.prefetches_wasted,
        }
    }

    /// Hits as a share of all experts asked for, 0 to 1; `None` before the first one.
    pub fn hit_rate(&self) -> Option<f64> {
        let asked = self.hits + self.misses;
        (asked > 0).then(|| self.hits as f64 / asked as f64)
    }

    /// Share of what steps needed that had been expected, 0 to 1; `None` when nothing was.
    pub fn recall(&self) -> Option<f64> {
        (self.guesses_needed > 0).then(|| self.guesses_right as f64 / self.guesses_needed as f64)
    }

    /// Share of what was expected that was needed, 0 to 1; `None` when nothing was.
    pub fn precision(&self) -> Option<f64> {
        (self.guesses > 0).then(|| self.guesses_right as f64 / self.guesses as f64)
    }
}
