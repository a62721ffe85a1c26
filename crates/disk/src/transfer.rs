//! One segment on its way: what to read next, and what the outcome of a read means. Pure, shared by all readers.

use std::io;
use std::time::{Duration, Instant};

use crate::FileId;
use crate::layout::Span;

/// How often a segment is tried again after errors that may pass (EIO, EAGAIN, …), unless it makes progress between them.
pub(crate) const RETRIES_MAX: u32 = 6;

/// First pause before trying again; it doubles each time. All pauses together take an eighth of a second: long enough for
/// a link reset, too short to be taken for a hang.
const BACKOFF_FIRST: Duration = Duration::from_millis(2);

/// A piece of a span: what one read asks for at first.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub file: FileId,
    /// First byte in the file; aligned.
    pub offset: u64,
    /// Bytes to ask for; a multiple of the alignment.
    pub len: usize,
    /// How many of these must come.
    pub needed: usize,
    /// First byte in the buffer.
    pub at: usize,
    align: usize,
    /// Bytes that have come, from the first on.
    done: usize,
    errors: u32,
    issued: Option<Instant>,
}

/// What to do after a read.
#[derive(Debug)]
pub(crate) enum Step {
    /// All needed bytes are there.
    Done,
    /// Go on with [`Segment::next_read`].
    Again,
    /// The same after a pause.
    AgainAfter(Duration, io::Error),
    /// The system returned nothing new: the file ends here, unless its size says otherwise.
    NothingCame,
    /// It will not work.
    Failed(io::Error),
}

/// One read: `len` bytes at `offset` in the file to `at` in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Read {
    pub offset: u64,
    pub at: usize,
    pub len: usize,
}

impl Segment {
    /// Cuts a span of a file with this alignment into segments of `bytes_max`, rounded down to a multiple of the alignment
    /// (at least one block), in ascending order.
    pub fn cut(span: &Span, align: usize, bytes_max: usize) -> impl Iterator<Item = Segment> + '_ {
        let align = align.max(1);
        let step = (bytes_max / align).max(1) * align;
        // `needed` is what the extents want; whole segments behind it would only be alignment.
        (0..span.needed).step_by(step).map(move |start| Segment {
            file: span.file,
            offset: span.offset + start as u64,
            len: step.min(span.len - start),
            needed: step.min(span.needed - start),
            at: span.at + start,
            align,
            done: 0,
            errors: 0,
            issued: None,
        })
    }

    /// The read that continues this segment. After a direct read came back short at an odd place it starts again at the
    /// last aligned one, because a direct read can start nowhere else.
    pub fn next_read(&self) -> Read {
        let from = self.done / self.align * self.align;
        Read { offset: self.offset + from as u64, at: self.at + from, len: self.len - from }
    }

    /// First byte in the file that has not come.
    pub fn missing_from(&self) -> u64 {
        self.offset + self.done as u64
    }

    /// First byte in the file behind what is needed.
    pub fn needed_end(&self) -> u64 {
        self.offset + self.needed as u64
    }

    /// Starts the clock at the first call, and says how long it has been running.
    pub fn clock(&mut self, now: Instant) -> Duration {
        now.saturating_duration_since(*self.issued.get_or_insert(now))
    }

    /// Takes note of the outcome of [`Segment::next_read`]: bytes that came, or an error.
    pub fn apply(&mut self, outcome: io::Result<usize>) -> Step {
        match outcome {
            Ok(came) => {
                let read = self.next_read();
                let reached = (read.at - self.at) + came.min(read.len);
                if reached <= self.done {
                    return Step::NothingCame;
                }
                self.done = reached;
                self.errors = 0;
                if self.done >= self.needed { Step::Done } else { Step::Again }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Step::Again,
            Err(error) if may_pass(&error) => self.back_off(error),
            Err(error) => Step::Failed(error),
        }
    }

    /// The pause before the next try, or the end of patience.
    pub fn back_off(&mut self, error: io::Error) -> Step {
        if self.errors >= RETRIES_MAX {
            return Step::Failed(error);
        }
        let pause = BACKOFF_FIRST * (1 << self.errors);
        self.errors += 1;
        Step::AgainAfter(pause, error)
    }
}

/// Errors after which the same read often succeeds: EAGAIN, EBUSY, ENOMEM, ETIMEDOUT, and EIO, which drives and network
/// file systems report during resets.
fn may_pass(error: &io::Error) -> bool {
    const EIO: i32 = 5;
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock
            | io::ErrorKind::ResourceBusy
            | io::ErrorKind::OutOfMemory
            | io::ErrorKind::TimedOut
    ) || (cfg!(unix) && error.raw_os_error() == Some(EIO))
}

#[cfg(test)]
mod tests {
    use super::*;

    const M: usize = crate::SEGMENT_BYTES_DEFAULT;

    fn span(len: usize, needed: usize) -> Span {
        Span { file: FileId(0), offset: 8192, len, needed, at: 64 }
    }

    fn check_cut(align: usize, len: usize, needed: usize, expected: &[(u64, usize, usize, usize)]) {
        let got: Vec<_> =
            Segment::cut(&span(len, needed), align, M).map(|s| (s.offset, s.len, s.needed, s.at)).collect();
        assert_eq!(got, expected, "align {align}, {needed} of {len}");
    }

    #[test]
    fn spans_are_cut_into_bounded_segments() {
        check_cut(512, 512, 1, &[(8192, 512, 1, 64)]);
        check_cut(1, M, M, &[(8192, M, M, 64)]);
        check_cut(1, M + 1, M + 1, &[(8192, M, M, 64), (8192 + M as u64, 1, 1, 64 + M)]);
        check_cut(512, M + 512, M + 3, &[(8192, M, M, 64), (8192 + M as u64, 512, 3, 64 + M)]);
        check_cut(512, M, M - 5, &[(8192, M, M - 5, 64)]);
        check_cut(
            512,
            3 * M,
            3 * M,
            &[(8192, M, M, 64), (8192 + M as u64, M, M, 64 + M), (8192 + 2 * M as u64, M, M, 64 + 2 * M)],
        );
    }

    /// Feeds outcomes (bytes, or an errno as a negative number) to a segment of 2048 bytes, 1700 needed, and writes down
    /// what it does.
    fn check(align: usize, outcomes: &[i64], expected: &str) {
        let mut segment = Segment::cut(&span(2048, 1700), align, M).next().expect("one");
        let mut said = Vec::new();
        for &outcome in outcomes {
            let read = segment.next_read();
            assert_eq!((read.at - 64) as u64, read.offset - 8192);
            let outcome = match usize::try_from(outcome) {
                Ok(bytes) => Ok(bytes),
                Err(_) => Err(io::Error::from_raw_os_error(-outcome as i32)),
            };
            let step = match segment.apply(outcome) {
                Step::Done => "done".to_owned(),
                Step::Again => format!("from {}", segment.next_read().at - 64),
                Step::AgainAfter(pause, _) => format!("pause {}", pause.as_millis()),
                Step::NothingCame => format!("nothing at {}", segment.missing_from() - 8192),
                Step::Failed(_) => "failed".to_owned(),
            };
            said.push(step);
        }
        assert_eq!(said.join(", "), expected);
    }

    #[test]
    fn short_reads_go_on_at_an_aligned_place() {
        check(512, &[2048], "done");
        check(512, &[1700], "done");
        check(512, &[1699], "from 1536");
        check(512, &[700, 1536], "from 512, done");
        check(1, &[700, 999, 1], "from 700, from 1699, done");
        // More than was asked for is not believed.
        check(512, &[1_000_000], "done");
    }

    #[test]
    fn the_end_of_the_file_is_noticed() {
        check(512, &[0], "nothing at 0");
        check(512, &[700, 188], "from 512, nothing at 700");
        check(1, &[700, 0], "from 700, nothing at 700");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn passing_errors_are_retried_and_others_are_not() {
        let (eintr, eio, eagain, einval, ebadf) = (-4, -5, -11, -22, -9);
        check(512, &[eintr, eintr, 2048], "from 0, from 0, done");
        check(512, &[eio, eagain, 2048], "pause 2, pause 4, done");
        check(512, &[eio, 512, eio, 2048], "pause 2, from 512, pause 2, done");
        check(
            512,
            &[eio, eio, eio, eio, eio, eio, eio],
            "pause 2, pause 4, pause 8, pause 16, pause 32, pause 64, failed",
        );
        check(512, &[einval], "failed");
        check(512, &[ebadf], "failed");
    }
}
