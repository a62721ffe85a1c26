//! A request between its submission and its completion, shared by the threads that work on it.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::backend::{Completion, Counters, FailedRead, Loaded, Times};
use crate::files::Source;
use crate::landing::Landing;
use crate::transfer::{Read, Segment, Step};
use crate::{Buffer, DiskError, Extent, Failure};

/// What all flights of a backend share.
pub(crate) struct Shared {
    pub source: Arc<dyn Source>,
    pub deadline: Duration,
    start: Instant,
    /// When any read last came to an end, in nanoseconds since `start`.
    progress_ns: AtomicU64,
    reads: AtomicU64,
    bytes_transferred: AtomicU64,
    retries: AtomicU64,
}

/// What becomes of a segment after a read.
#[derive(Debug)]
pub(crate) enum Verdict {
    Done,
    Again(Duration),
    Failed(DiskError),
}

impl Shared {
    pub fn new(source: Arc<dyn Source>, deadline: Duration) -> Shared {
        let zero = || AtomicU64::new(0);
        Shared {
            source,
            deadline,
            start: Instant::now(),
            progress_ns: zero(),
            reads: zero(),
            bytes_transferred: zero(),
            retries: zero(),
        }
    }

    pub fn counters(&self) -> Counters {
        Counters {
            reads: self.reads.load(Ordering::Relaxed),
            bytes_transferred: self.bytes_transferred.load(Ordering::Relaxed),
            retries: self.retries.load(Ordering::Relaxed),
        }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX - 1)
    }

    /// Something moved: nobody is stuck.
    pub fn touch(&self) {
        self.progress_ns.store(self.now_ns(), Ordering::Relaxed);
    }

    /// Decides what the outcome of a read means for its segment.
    pub fn judge(&self, flight: &Flight, segment: &mut Segment, outcome: io::Result<usize>) -> Verdict {
        flight.touch(self);
        if let Ok(came) = outcome
            && came > 0
        {
            self.reads.fetch_add(1, Ordering::Relaxed);
            self.bytes_transferred.fetch_add(came as u64, Ordering::Relaxed);
            flight.bytes_transferred.fetch_add(came as u64, Ordering::Relaxed);
        }
        let step = match segment.apply(outcome) {
            Step::NothingCame => self.explain_nothing(segment),
            step => step,
        };
        let (pause, cause) = match step {
            Step::Done => return Verdict::Done,
            Step::NothingCame => {
                let file_bytes = self.source.file_bytes(segment.file).unwrap_or(segment.missing_from());
                return Verdict::Failed(self.failure(flight, segment, Failure::Truncated { file_bytes }));
            }
            Step::Failed(error) => {
                return Verdict::Failed(self.failure(flight, segment, Failure::from_io(error)));
            }
            Step::Again => (Duration::ZERO, None),
            Step::AgainAfter(pause, error) => (pause, Some(error)),
        };
        self.retries.fetch_add(1, Ordering::Relaxed);
        if segment.clock(Instant::now()) + pause < self.deadline {
            return Verdict::Again(pause);
        }
        let cause = cause.map_or("it only came in small pieces".to_owned(), |error| error.to_string());
        Verdict::Failed(self.failure(flight, segment, self.timed_out(cause)))
    }

    /// A read that brought nothing means the end of the file, if the file's size agrees; otherwise the file system is
    /// merely odd, and asking again may help.
    fn explain_nothing(&self, segment: &mut Segment) -> Step {
        match self.source.file_bytes(segment.file) {
            Ok(file_bytes) if file_bytes >= segment.needed_end() => segment.back_off(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!(
                    "a read at {} brought nothing though the file has {file_bytes} bytes",
                    segment.missing_from()
                ),
            )),
            _ => Step::NothingCame,
        }
    }

    pub fn timed_out(&self, cause: String) -> Failure {
        Failure::TimedOut { deadline_ms: u64::try_from(self.deadline.as_millis()).unwrap_or(u64::MAX), cause }
    }

    /// Names the first extent that the segment still lacks bytes of. When the path is missing by now, that is the better explanation for
    /// whatever the system said.
    fn failure(&self, flight: &Flight, segment: &Segment, failure: Failure) -> DiskError {
        let rest = segment.missing_from()..segment.needed_end();
        // Laid out, so that the ends of extents fit in their numbers.
        let wants =
            |e: &&Extent| e.file == segment.file && e.offset < rest.end && rest.start < e.offset + e.len;
        let whole = Extent { file: segment.file, offset: segment.offset, len: segment.needed as u64 };
        let extent = flight.extents.iter().filter(wants).min_by_key(|e| e.offset).copied().unwrap_or(whole);
        let failure = if self.source.is_missing(segment.file) { Failure::Gone } else { failure };
        failure.at(self.source.path(segment.file), extent.offset, extent.len)
    }
}

/// A request on its way.
///
/// The buffer stays inside until the last segment has come to rest, and every reader that has a read under way holds an
/// `Arc` of its flight: so the memory outlives every write to it by construction, whatever the submitter does meanwhile.
pub(crate) struct Flight {
    pub id: u64,
    ticket: u64,
    pub extents: Vec<Extent>,
    views: Vec<Range<usize>>,
    /// The buffer's memory.
    start: NonNull<u8>,
    capacity: usize,
    landing: Landing<Buffer, DiskError>,
    /// Segments that a reader has taken out of the line.
    under_way: AtomicUsize,
    /// Nanoseconds on `Shared`'s clock of the first thing that happened to it, plus 1; 0 when nothing has.
    issued_ns: AtomicU64,
    /// The same of the last thing.
    progress_ns: AtomicU64,
    /// Bytes that its reads returned, alignment and repetitions included.
    bytes_transferred: AtomicU64,
}

// SAFETY: `start` points into the buffer in `landing`, which is `Send`; it is only dereferenced through `piece` under its contract and
// by the kernel, for segments that do not overlap.
unsafe impl Send for Flight {}
// SAFETY: as above; everything else is atomic or behind a mutex.
unsafe impl Sync for Flight {}

impl Flight {
    /// `segments` must not be 0, and all of them must lie in the buffer.
    pub fn new(
        id: u64,
        ticket: u64,
        extents: Vec<Extent>,
        views: Vec<Range<usize>>,
        buffer: Buffer,
        segments: usize,
    ) -> Flight {
        Flight {
            id,
            ticket,
            extents,
            views,
            start: buffer.start(),
            capacity: buffer.capacity(),
            landing: Landing::new(buffer, segments),
            under_way: AtomicUsize::new(0),
            issued_ns: AtomicU64::new(0),
            progress_ns: AtomicU64::new(0),
            bytes_transferred: AtomicU64::new(0),
        }
    }

    pub fn ticket(&self) -> u64 {
        self.ticket
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Where a read has to write to; `None` when that is not inside the buffer, which layout and `Front` exclude.
    ///
    /// The pointer is valid until this segment is reported to [`Flight::land`], and no other segment covers the memory.
    pub fn target(&self, read: &Read) -> Option<NonNull<u8>> {
        let end = read.at.checked_add(read.len)?;
        // SAFETY: `at <= end <= capacity`, so the result stays inside the allocation or one past it.
        (end <= self.capacity).then(|| unsafe { self.start.add(read.at) })
    }

    /// The same as a slice.
    ///
    /// # Safety
    /// The caller works on the segment of this read, has not reported it to [`Flight::land`], and holds no other slice
    /// of it.
    #[expect(clippy::mut_from_ref, reason = "segments are disjoint, and each is worked on by one thread")]
    pub unsafe fn piece(&self, read: &Read) -> Option<&mut [u8]> {
        let start = self.target(read)?;
        // SAFETY: in bounds by `target`; initialised since the buffer was made; exclusive because the spans of a layout
        // do not overlap, the segments of a span do not either, and the caller vouches for this one. The buffer cannot
        // leave `self.landing` before this segment lands.
        Some(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), read.len) })
    }

    /// Whether segments not yet issued may be skipped.
    pub fn is_over(&self) -> bool {
        self.landing.is_over()
    }

    /// Gives the flight up: what is not issued never will be.
    pub fn give_up(&self) {
        self.landing.give_up();
    }

    pub fn touch(&self, shared: &Shared) {
        let now_ns = shared.now_ns();
        if self.issued_ns.load(Ordering::Relaxed) == 0 {
            self.issued_ns.store(now_ns + 1, Ordering::Relaxed);
        }
        self.progress_ns.store(now_ns + 1, Ordering::Relaxed);
        shared.progress_ns.store(now_ns, Ordering::Relaxed);
    }

    /// A reader took one of its segments out of the line.
    pub fn begin(&self) {
        self.under_way.fetch_add(1, Ordering::Relaxed);
    }

    /// A segment that a reader had taken is at rest.
    pub fn end(&self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }

    /// How long nothing has happened to it; while all that is left of it waits behind others, as hints may for long, how
    /// long nothing has happened at all.
    pub fn silent_for(&self, shared: &Shared) -> Duration {
        let waits = self.under_way.load(Ordering::Relaxed) == 0;
        let last_ns = match self.progress_ns.load(Ordering::Relaxed) {
            own if waits || own == 0 => shared.progress_ns.load(Ordering::Relaxed),
            own => own - 1,
        };
        Duration::from_nanos(shared.now_ns().saturating_sub(last_ns))
    }

    /// When it was issued and when its last read ended, as far as that has happened.
    pub fn times(&self, shared: &Shared) -> Times {
        let at = |plus_one: &AtomicU64| {
            let ns = plus_one.load(Ordering::Relaxed).checked_sub(1)?;
            Some(shared.start + Duration::from_nanos(ns))
        };
        Times {
            issued: at(&self.issued_ns),
            ended: at(&self.progress_ns),
            bytes_transferred: self.bytes_transferred.load(Ordering::Relaxed),
        }
    }

    /// A segment has come to rest: no read of it is under way or will be. The completion when it was the last one.
    pub fn land(&self, error: Option<DiskError>) -> Option<Completion> {
        let result = match self.landing.land(error)? {
            Ok(buffer) => Ok(Loaded::new(buffer, self.views.clone())?),
            Err((error, buffer)) => Err(FailedRead { error, buffer }),
        };
        Some(Completion { ticket: self.ticket, result })
    }
}
