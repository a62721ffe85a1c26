//! What the driver tells a timeline: waits and reads, by the layers of the model.

use std::sync::Arc;
use std::time::{Duration, Instant};

use calypte_disk::{Priority, ReadEnd, ReadLife};

use super::{ExpertCache, key_of};
use crate::Key;
use crate::timeline::{Lane, Timeline};

/// A timeline and the names of layers on it.
pub(super) struct Recorder {
    timeline: Arc<Timeline>,
    /// The model's number of every MoE layer.
    layer_numbers: Vec<usize>,
}

impl ExpertCache {
    /// From now on every wait and every read goes to `timeline`. `layer_numbers[i]` is what MoE layer `i` is called there. Reads
    /// still under way when the cache is dropped are recorded then.
    pub fn record(&mut self, timeline: Arc<Timeline>, layer_numbers: Vec<usize>) {
        self.disk.watch();
        self.recorder = Some(Recorder { timeline, layer_numbers });
    }
}

impl Recorder {
    fn layer_number(&self, layer: u32) -> u64 {
        self.layer_numbers.get(layer as usize).map_or(u64::from(layer), |&number| number as u64)
    }

    /// A wait for an expert of MoE layer `layer`, as it was counted.
    pub fn waited(&self, layer: u32, from: Instant, wait_ns: u64) {
        let times = (from, from + Duration::from_nanos(wait_ns));
        self.timeline.add(Lane::Stall, "stall", times, &["layer"], [self.layer_number(layer)]);
    }

    /// Reads on guesses for MoE layer `layer` were promoted or called off, since `from`.
    pub fn judged(&self, layer: usize, from: Instant) {
        let layer = self.layer_number(u32::try_from(layer).unwrap_or(u32::MAX));
        self.timeline.add(Lane::Compute, "judge", (from, Instant::now()), &["layer"], [layer]);
    }

    /// The experts of a step of MoE layer `layer` were looked up, others evicted, and reads submitted, since `from`.
    pub fn placed(&self, layer: usize, from: Instant, experts: usize) {
        let layer = self.layer_number(u32::try_from(layer).unwrap_or(u32::MAX));
        let times = (from, Instant::now());
        self.timeline.add(Lane::Compute, "place", times, &["layer", "experts"], [layer, experts as u64]);
    }

    /// The matrices of an expert were put together since `from`.
    pub fn arranged(&self, key: Key, from: Instant) {
        let numbers = [self.layer_number(key.layer), u64::from(key.expert)];
        let times = (from, Instant::now());
        self.timeline.add(Lane::Compute, "arrange", times, &["layer", "expert"], numbers);
    }

    /// The end of the read of an expert. `in_line_ns` is how long it waited for its first read to be issued: all its life
    /// when none was.
    pub fn read(&self, key: Key, life: &ReadLife) {
        let in_line = life.issued.unwrap_or(life.ended).saturating_duration_since(life.submitted);
        self.timeline.add(
            Lane::Disk,
            name_of(life.end, life.priority, life.promoted),
            (life.submitted, life.ended),
            &["layer", "expert", "bytes", "in_line_ns"],
            [
                self.layer_number(key.layer),
                u64::from(key.expert),
                life.bytes_transferred,
                u64::try_from(in_line.as_nanos()).unwrap_or(u64::MAX),
            ],
        );
    }
}

/// What became of a read. Demands are not called off, and idle reads are those of a warm start.
fn name_of(end: ReadEnd, priority: Priority, promoted: bool) -> &'static str {
    match (end, priority, promoted) {
        (ReadEnd::Failed, ..) => "failed read",
        (ReadEnd::Open, ..) => "unfinished read",
        (ReadEnd::Cancelled, Priority::Idle, _) => "warm, called off",
        (ReadEnd::Cancelled, ..) => "hint, called off",
        (ReadEnd::Complete, Priority::Demand, _) => "demand",
        (ReadEnd::Complete, Priority::Hint, true) => "hint, then demand",
        (ReadEnd::Complete, Priority::Hint, false) => "hint",
        (ReadEnd::Complete, Priority::Idle, _) => "warm",
    }
}

impl Drop for ExpertCache {
    /// What landed unnoticed and what is under way belongs on the timeline too.
    fn drop(&mut self) {
        let Some(recorder) = self.recorder.take() else { return };
        while let Some(completion) = self.disk.poll() {
            self.disk.last_life().iter().for_each(|life| recorder.read(key_of(completion.ticket), life));
        }
        self.disk.lives().for_each(|(ticket, life)| recorder.read(key_of(ticket), &life));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_called_what_they_were() {
        for (end, priority, promoted, name) in [
            (ReadEnd::Complete, Priority::Demand, false, "demand"),
            (ReadEnd::Complete, Priority::Hint, false, "hint"),
            (ReadEnd::Complete, Priority::Hint, true, "hint, then demand"),
            (ReadEnd::Complete, Priority::Idle, false, "warm"),
            (ReadEnd::Cancelled, Priority::Hint, false, "hint, called off"),
            (ReadEnd::Cancelled, Priority::Idle, false, "warm, called off"),
            (ReadEnd::Failed, Priority::Idle, false, "failed read"),
            (ReadEnd::Open, Priority::Hint, true, "unfinished read"),
        ] {
            assert_eq!(name_of(end, priority, promoted), name);
        }
    }
}
