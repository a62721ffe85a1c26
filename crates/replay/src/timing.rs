//! Disk and compute as far as a replay needs them.

/// One disk that serves reads in order, and compute that takes the same time for every expert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// What the disk reads per second, in bytes.
    pub bandwidth_bytes_s: f64,
    /// From the end of a transfer until its bytes can be used, in seconds; transfers overlap it.
    pub latency_s: f64,
    /// Bytes of an expert in layers for which the trace does not say.
    pub expert_bytes: u64,
    /// Time to compute a layer for one token, in seconds. A step with more experts takes longer in proportion.
    pub compute_s: f64,
}

impl Default for Timing {
    /// A fast disk, and Qwen3-30B-A3B in four bits on two processor cores.
    fn default() -> Self {
        Timing { bandwidth_bytes_s: 3e9, latency_s: 100e-6, expert_bytes: 3 << 20, compute_s: 0.7e-3 }
    }
}

/// The clock of a replay.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    now_s: f64,
    disk_free_s: f64,
    /// End of the step under way.
    end_s: f64,
    /// Time in which nothing was computed.
    pub stall_s: f64,
    /// Share of the time during which the disk was busy with what steps asked for, a moving average.
    busy: f64,
}

/// Share by which the moving average follows each step.
const BUSY_RATE: f64 = 1.0 / 64.0;

impl Clock {
    /// A step of one layer that computes `experts`, of which `misses` have to be read. Prefetches may follow until
    /// [`Clock::end`].
    pub fn begin(&mut self, timing: &Timing, bytes: u64, misses: usize, experts: usize, top_k: usize) {
        let compute_s = timing.compute_s * experts as f64 / top_k.max(1) as f64;
        let read_s = bytes as f64 / timing.bandwidth_bytes_s;
        let computed_s = self.now_s + compute_s;
        let mut end_s = computed_s;
        self.disk_free_s = self.disk_free_s.max(self.now_s) + read_s * misses as f64;
        if misses > 0 {
            // The last to arrive is computed last.
            let arrival_s = self.disk_free_s + timing.latency_s;
            end_s = end_s.max(arrival_s + compute_s / experts.max(1) as f64);
        }
        self.stall_s += end_s - computed_s;
        let busy = (read_s * misses as f64 / (end_s - self.now_s).max(f64::MIN_POSITIVE)).min(1.0);
        self.busy += (busy - self.busy) * BUSY_RATE;
        self.end_s = end_s;
    }

    /// Whether an expert of these bytes would arrive before the step under way ends.
    pub fn has_time(&self, timing: &Timing, bytes: u64) -> bool {
        self.disk_free_s + bytes as f64 / timing.bandwidth_bytes_s + timing.latency_s <= self.end_s
    }

    /// Whether reading on a guess pays: `p · saved > (1 − p) · cost · load`, with the time of a read for both.
    pub fn worth_it(&self, probability: f32) -> bool {
        f64::from(probability) > (1.0 - f64::from(probability)) * self.busy
    }

    /// Reads on a guess.
    pub fn prefetch(&mut self, timing: &Timing, bytes: u64) {
        self.disk_free_s += bytes as f64 / timing.bandwidth_bytes_s;
    }

    /// The step is over.
    pub fn end(&mut self) {
        self.now_s = self.end_s;
    }
}
