//! The seam between those who want bytes and those who fetch them.

use std::ops::Range;
use std::time::Instant;

use crate::{Buffer, DiskError, Extent, FileId, IoMode};

/// How urgent a read is. The order is that of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Somebody waits for it.
    Demand,
    /// Somebody may want it. It is read while the disk has little else to do ([`crate::HINT_DEPTH_MAX`]), and can be made
    /// a demand or cancelled until then.
    Hint,
    /// As a hint, but behind all hints: nobody expects to want it soon.
    Idle,
}

/// Extents to read into one buffer.
#[derive(Debug)]
pub struct ReadRequest {
    /// The caller's own number; it comes back with the completion, and names the request to [`Backend::promote`] and
    /// [`Backend::cancel`]. No two requests in flight may have the same.
    pub ticket: u64,
    /// Whether it may wait.
    pub priority: Priority,
    /// What to read, in any order, from any files, at any offsets.
    pub extents: Vec<Extent>,
    /// Where to: at least [`crate::Disk::buffer_bytes`] large. It belongs to the backend until the completion brings it
    /// back, so that nobody can touch it while the system writes to it.
    pub buffer: Buffer,
}

/// The end of a request, good or bad. Completions arrive in the order in which reads end, not in that of submission.
#[derive(Debug)]
pub struct Completion {
    /// The number from the [`ReadRequest`].
    pub ticket: u64,
    /// Every byte, or why not.
    pub result: Result<Loaded, FailedRead>,
}

/// A request that failed. No byte of the buffer means anything.
#[derive(Debug)]
pub struct FailedRead {
    /// Why.
    pub error: DiskError,
    /// The request's buffer, to use again. After [`crate::Failure::TimedOut`] it may be fresh zeroed memory of the same
    /// capacity instead, because the stuck read may still write to the old one.
    pub buffer: Buffer,
}

/// A buffer in which every extent of the request is complete.
#[derive(Debug)]
pub struct Loaded {
    buffer: Buffer,
    views: Vec<Range<usize>>,
}

impl Loaded {
    /// For implementors of [`Backend`]: `views[i]` is where the bytes of extent `i` lie in `buffer`. `None` when a view
    /// does not lie in the buffer.
    pub fn new(buffer: Buffer, views: Vec<Range<usize>>) -> Option<Loaded> {
        let fits = |view: &Range<usize>| view.start <= view.end && view.end <= buffer.capacity();
        if views.iter().all(fits) { Some(Loaded { buffer, views }) } else { None }
    }

    /// Exactly the bytes of the request's extent `i`: an interior of the aligned read, at any address.
    ///
    /// # Panics
    /// When the request had no extent `i`.
    pub fn view(&self, i: usize) -> &[u8] {
        &self.buffer.as_slice()[self.range(i)]
    }

    /// Where the bytes of extent `i` lie in the buffer, for callers that keep the buffer and cut it up themselves.
    ///
    /// # Panics
    /// When the request had no extent `i`.
    pub fn range(&self, i: usize) -> Range<usize> {
        self.views[i].clone()
    }

    /// Number of extents.
    pub fn len(&self) -> usize {
        self.views.len()
    }

    /// Whether the request had no extents.
    pub fn is_empty(&self) -> bool {
        self.views.is_empty()
    }

    /// Bytes of all extents together, without alignment.
    pub fn useful_bytes(&self) -> u64 {
        self.views.iter().map(|view| view.len() as u64).sum()
    }

    /// The buffer, to use again.
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }
}

/// What a backend did so far, counted at the system call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Reads that returned data.
    pub reads: u64,
    /// Bytes that these returned, alignment and re-reads included.
    pub bytes_transferred: u64,
    /// Reads that had to be issued again: short, interrupted, or failed for the moment.
    pub retries: u64,
}

/// What a backend noted of one request on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// When its first read was given to the system; `None` when none was.
    pub issued: Option<Instant>,
    /// When its last read ended; `None` when there was none.
    pub ended: Option<Instant>,
    /// Bytes that its reads returned, alignment and repetitions included.
    pub bytes_transferred: u64,
}

/// Fetches bytes. Tests inject faults by implementing or wrapping this.
pub trait Backend: Send {
    /// Takes a request. Whatever is wrong with it is reported by its completion.
    fn submit(&mut self, request: ReadRequest);

    /// The next completion if there is one. Never blocks.
    fn poll(&mut self) -> Option<Completion>;

    /// Blocks until a request completes, well or badly; the deadline bounds the wait. `None` when nothing is in flight.
    fn wait(&mut self) -> Option<Completion>;

    /// The hint with this ticket is needed now: what was not issued of it is demand from here on. Nothing happens to
    /// requests that are demand already, that have ended, or that do not exist; backends without priorities do nothing.
    fn promote(&mut self, ticket: u64) {
        let _ = ticket;
    }

    /// The hint with this ticket is not wanted any more: what was not issued of it never will be. `true` when there was
    /// such a part; the request then completes with [`crate::Failure::Cancelled`] (or with a failure that came before),
    /// and its buffer comes back as always. `false` when there was none (it is complete or wholly under way, it is no
    /// hint, or there is no such request): what exists completes as if nothing had been said. Backends without
    /// priorities cancel nothing.
    fn cancel(&mut self, ticket: u64) -> bool {
        let _ = ticket;
        false
    }

    /// Requests submitted whose completion has not been handed out.
    fn in_flight(&self) -> usize;

    /// How bytes come.
    fn mode(&self) -> IoMode;

    /// What offsets and lengths of reads from `file` are multiples of, in bytes: 1 for buffered reads, memory and files
    /// it does not know.
    fn align_bytes(&self, file: FileId) -> usize;

    /// From now on at most `depth` reads under way, and no more than the backend was opened with; requests submitted from now
    /// on are cut into reads of at most `segment_bytes`. Backends without a queue do nothing.
    fn tune(&mut self, depth: usize, segment_bytes: usize) {
        let _ = (depth, segment_bytes);
    }

    /// What was transferred so far. Zero for those that do not count.
    fn counters(&self) -> Counters {
        Counters::default()
    }

    /// What was noted of the request whose completion was handed out last. `None` for those that take no note.
    fn times(&self) -> Option<Times> {
        None
    }
}
