//! What took how long: named spans of time, kept in memory until somebody draws them.
//!
//! Off, a [`Recording`] is an empty option: no clock is read and nothing is kept. On, a span costs two readings of the clock
//! and a lock that nobody else holds. Which file a timeline becomes is its reader's business.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Most spans that a timeline keeps; later ones are counted only. Together they take 56 MiB, which come as they are needed, beside the
/// memory budget.
pub const SPANS_MAX: usize = 1 << 19;

/// Most numbers that a span carries.
pub const FIELDS_MAX: usize = 6;

/// Spans that memory is taken for at once, so that a long timeline is never moved.
const CHUNK_SPANS: usize = 1 << 12;

/// Where a span belongs. Spans of one lane do not overlap, except on [`Lane::Disk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Whole steps: the tokens of a prompt computed at once, or one token.
    Step,
    /// What the thread that runs the model computes; its helpers work within the same spans.
    Compute,
    /// Waits for the disk with nothing left to compute: what [`crate::CacheStats::wait_ns`] counts.
    Stall,
    /// Reads from their submission to their end.
    Disk,
}

/// Something that took time.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Where it belongs.
    pub lane: Lane,
    /// What it was.
    pub name: &'static str,
    /// When it began, in nanoseconds since the timeline was made.
    pub start_ns: u64,
    /// When it ended; never before it began.
    pub end_ns: u64,
    names: &'static [&'static str],
    values: [u64; FIELDS_MAX],
}

impl Span {
    /// Its numbers with their names.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.names.iter().copied().zip(self.values)
    }

    /// The number with this name.
    pub fn field(&self, name: &str) -> Option<u64> {
        self.fields().find(|(other, _)| *other == name).map(|(_, value)| value)
    }
}

/// Spans in the order in which they ended, as far as there was room.
#[derive(Debug)]
pub struct Timeline {
    start: Instant,
    spans_max: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    chunks: Vec<Vec<Span>>,
    dropped: u64,
}

impl Timeline {
    /// An empty timeline of at most [`SPANS_MAX`] spans; its time begins now. Absent where there is no clock.
    #[cfg(not(target_family = "wasm"))]
    pub fn start() -> Timeline {
        Timeline::with_room(SPANS_MAX)
    }

    /// The same with room for `spans_max` spans.
    #[cfg(not(target_family = "wasm"))]
    pub fn with_room(spans_max: usize) -> Timeline {
        Timeline { start: Instant::now(), spans_max, kept: Mutex::default() }
    }

    /// Keeps a span, if there is room. `names` are those of its numbers. Times before the timeline's start count as its start.
    pub fn add<const N: usize>(
        &self,
        lane: Lane,
        name: &'static str,
        (from, to): (Instant, Instant),
        names: &'static [&'static str; N],
        numbers: [u64; N],
    ) {
        const { assert!(N <= FIELDS_MAX) }
        let since_start = |at: Instant| {
            u64::try_from(at.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX)
        };
        let (start_ns, end_ns) = (since_start(from), since_start(to.max(from)));
        let mut values = [0; FIELDS_MAX];
        values[..N].copy_from_slice(&numbers);
        self.lock().push(Span { lane, name, start_ns, end_ns, names, values }, self.spans_max);
    }

    /// All spans kept so far, in the order in which they ended, and how many more there were. Afterwards it is empty.
    pub fn take(&self) -> (Vec<Span>, u64) {
        let Kept { chunks, dropped } = std::mem::take(&mut *self.lock());
        (chunks.into_iter().flatten().collect(), dropped)
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // Whole at every moment, so a panic elsewhere does not spoil it.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn push(&mut self, span: Span, spans_max: usize) {
        let full_chunks = self.chunks.len().saturating_sub(1) * CHUNK_SPANS;
        let kept = full_chunks + self.chunks.last().map_or(0, Vec::len);
        if kept >= spans_max {
            self.dropped += 1;
            return;
        }
        match self.chunks.last_mut() {
            Some(chunk) if chunk.len() < CHUNK_SPANS => chunk.push(span),
            _ => {
                let mut chunk = Vec::with_capacity(CHUNK_SPANS);
                chunk.push(span);
                self.chunks.push(chunk);
            }
        }
    }
}

/// A timeline, or nothing at all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recording<'a>(pub Option<&'a Timeline>);

/// When a span began; nothing when nothing is recorded.
#[derive(Clone, Copy, Debug)]
#[must_use = "a span is recorded when it ends"]
pub struct Begun(Option<Instant>);

impl Recording<'_> {
    /// A span begins.
    #[inline]
    pub fn begin(self) -> Begun {
        Begun(self.0.map(|_| Instant::now()))
    }

    /// It ends, and turns out to be this.
    #[inline]
    pub fn end<const N: usize>(
        self,
        begun: Begun,
        lane: Lane,
        name: &'static str,
        names: &'static [&'static str; N],
        numbers: [u64; N],
    ) {
        if let (Some(timeline), Begun(Some(from))) = (self.0, begun) {
            timeline.add(lane, name, (from, Instant::now()), names, numbers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records `spans` spans where there is room for `room`.
    #[track_caller]
    fn check(spans: usize, room: usize, expected: (usize, u64)) {
        let timeline = Timeline::with_room(room);
        let recording = Recording(Some(&timeline));
        for i in 0..spans {
            recording.end(recording.begin(), Lane::Compute, "work", &["i"], [i as u64]);
        }
        let (kept, dropped) = timeline.take();
        assert_eq!((kept.len(), dropped), expected, "{spans} spans, room for {room}");
        let numbers = kept.iter().map(|span| span.field("i"));
        assert!(numbers.eq((0..room.min(spans) as u64).map(Some)), "in order, the first ones");
        assert!(kept.windows(2).all(|pair| pair[0].end_ns <= pair[1].start_ns));
        assert!(timeline.take().0.is_empty());
    }

    #[test]
    fn the_first_spans_are_kept_and_the_others_counted() {
        check(0, 3, (0, 0));
        check(3, 3, (3, 0));
        check(5, 3, (3, 2));
        check(5, 0, (0, 5));
        check(2 * CHUNK_SPANS + 7, 2 * CHUNK_SPANS + 1, (2 * CHUNK_SPANS + 1, 6));
    }

    #[test]
    fn without_a_timeline_no_clock_is_read() {
        let recording = Recording::default();
        let begun = recording.begin();
        assert!(begun.0.is_none());
        recording.end(begun, Lane::Step, "step", &[], []);
    }
}
