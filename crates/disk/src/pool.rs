//! Reader threads with positional reads, direct or through the page cache: every Unix and Windows.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::IoMode;
use crate::files::Source;
use crate::flight::{Shared, Verdict};
use crate::front::{Carrier, Landed};
use crate::line::{Line, Op};

/// The threads.
pub(crate) struct Pool {
    mode: IoMode,
    line: Arc<Line>,
    threads: Vec<JoinHandle<()>>,
    /// Disconnects when the last thread has ended.
    ended: Receiver<()>,
}

impl Pool {
    /// One thread for each of `sources`. They are one and the same where a handle can be shared; on Windows each thread
    /// has handles of its own, because reads through one handle wait for each other there.
    ///
    /// # Errors
    /// When the system gives not a single thread.
    pub fn start(
        mode: IoMode,
        sources: Vec<Arc<dyn Source>>,
        line: Arc<Line>,
        shared: &Arc<Shared>,
        landed: Sender<Landed>,
    ) -> io::Result<Pool> {
        let (end, ended) = channel();
        let mut threads = Vec::with_capacity(sources.len());
        for source in sources {
            let (line, shared, landed, end) = (line.clone(), shared.clone(), landed.clone(), end.clone());
            let work = move || {
                while let Some(op) = line.take() {
                    carry(&*source, &line, &shared, &landed, op);
                }
                drop(end);
            };
            match thread::Builder::new().name("calypte-read".into()).spawn(work) {
                Ok(thread) => threads.push(thread),
                Err(error) if threads.is_empty() => return Err(error),
                // Fewer readers are slower, nothing else.
                Err(_) => break,
            }
        }
        Ok(Pool { mode, line, threads, ended })
    }
}

/// Reads one segment to its end, good or bad.
fn carry(source: &dyn Source, line: &Line, shared: &Shared, landed: &Sender<Landed>, mut op: Op) {
    let Op { flight, segment } = &mut op;
    let error = loop {
        if flight.is_over() {
            break None;
        }
        segment.clock(Instant::now());
        flight.touch(shared);
        let read = segment.next_read();
        // SAFETY: this thread took the segment out of the line and alone works on it; it lands below, after the last use.
        let outcome = match unsafe { flight.piece(&read) } {
            Some(piece) => source.read_at(segment.file, piece, read.offset),
            None => Err(io::Error::other("a segment lies outside of its buffer")),
        };
        match shared.judge(flight, segment, outcome) {
            Verdict::Done => break None,
            Verdict::Again(pause) => thread::sleep(pause),
            Verdict::Failed(error) => break Some(error),
        }
    };
    let flight = line.rest(op);
    if let Some(completion) = flight.land(error) {
        // The front is gone only when nobody wants the completion.
        let _ = landed.send((flight.id, completion));
    }
}

impl Carrier for Pool {
    /// The threads sleep in the line itself, which wakes them.
    fn wake(&self) {}

    fn stop(&mut self, patience: Duration) {
        self.line.stop();
        if self.ended.recv_timeout(patience) == Err(RecvTimeoutError::Disconnected) {
            for thread in self.threads.drain(..) {
                // A panic of a reader was reported when it happened.
                let _ = thread.join();
            }
        }
    }

    fn mode(&self) -> IoMode {
        self.mode
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashSet, VecDeque};
    use std::path::Path;
    use std::sync::{Condvar, Mutex};

    use super::*;
    use crate::open::pool_over;
    use crate::sync::lock;
    use crate::{
        Buffer, Disk, Extent, FileId, HINT_DEPTH_MAX, Priority, ReadRequest, SEGMENT_BYTES_DEFAULT,
        WeightPath,
    };

    /// What one read does.
    #[derive(Clone, Copy)]
    enum Act {
        Short(usize),
        Errno(i32),
    }
    use Act::{Errno, Short};

    /// A file of `bytes` whose first reads follow a script and whose reads at some offsets wait at a gate.
    struct Scripted {
        bytes: Vec<u8>,
        size_now: u64,
        align: usize,
        missing: bool,
        script: Mutex<VecDeque<Act>>,
        closed: Mutex<HashSet<u64>>,
        opened: Condvar,
        /// Offsets of the reads that have begun.
        begun: Mutex<Vec<u64>>,
    }

    const FILE: FileId = FileId(0);
    const LONG: Duration = Duration::from_secs(30);

    impl Scripted {
        fn new(align: usize, script: &[Act]) -> Scripted {
            let bytes: Vec<u8> = (0..10_000u32).map(|i| (i % 251) as u8).collect();
            Scripted {
                size_now: bytes.len() as u64,
                bytes,
                align,
                missing: false,
                script: Mutex::new(script.iter().copied().collect()),
                closed: Mutex::default(),
                opened: Condvar::new(),
                begun: Mutex::default(),
            }
        }

        /// A source whose reads at these offsets wait until the gates are opened.
        fn closed_at(offsets: impl IntoIterator<Item = u64>) -> Arc<Scripted> {
            let source = Scripted::new(512, &[]);
            lock(&source.closed).extend(offsets);
            Arc::new(source)
        }

        /// Returns once a read at `offset` has begun.
        fn wait_for(&self, offset: u64) {
            while !lock(&self.begun).contains(&offset) {
                thread::yield_now();
            }
        }

        fn open_gates(&self) {
            lock(&self.closed).clear();
            self.opened.notify_all();
        }
    }

    impl Source for Scripted {
        fn files(&self) -> usize {
            1
        }
        fn path(&self, _: FileId) -> &Path {
            Path::new("scripted.gguf")
        }
        fn align_bytes(&self, _: FileId) -> usize {
            self.align
        }
        fn file_bytes(&self, _: FileId) -> io::Result<u64> {
            Ok(self.size_now)
        }
        fn is_missing(&self, _: FileId) -> bool {
            self.missing
        }
        fn read_at(&self, _: FileId, into: &mut [u8], offset: u64) -> io::Result<usize> {
            assert_eq!((offset as usize % self.align, into.len() % self.align), (0, 0));
            lock(&self.begun).push(offset);
            let mut closed = lock(&self.closed);
            while closed.contains(&offset) {
                closed = self.opened.wait(closed).expect("gate");
            }
            drop(closed);
            let limit = match lock(&self.script).pop_front() {
                Some(Errno(errno)) => return Err(io::Error::from_raw_os_error(errno)),
                Some(Short(bytes)) => bytes,
                None => usize::MAX,
            };
            let end = self.bytes.len().min(self.size_now as usize);
            let rest = self.bytes.get(offset as usize..end).unwrap_or(&[]);
            let came = rest.len().min(into.len()).min(limit);
            into[..came].copy_from_slice(&rest[..came]);
            Ok(came)
        }
    }

    fn disk(source: &Arc<Scripted>, threads: usize, deadline: Duration) -> Disk {
        let sources = (0..threads).map(|_| source.clone() as Arc<dyn Source>).collect();
        let pool = pool_over(IoMode::PreadDirect, source.clone(), sources, deadline, SEGMENT_BYTES_DEFAULT)
            .expect("threads");
        let name = WeightPath { path: "scripted.gguf".into(), size_bytes: 10_000 };
        Disk::from_backend(pool, vec![name])
    }

    fn submit(disk: &mut Disk, ticket: u64, offset: u64, len: u64) {
        submit_all(disk, ticket, Priority::Demand, &[offset], len);
    }

    /// One request for `len` bytes at each of `offsets`.
    fn submit_all(disk: &mut Disk, ticket: u64, priority: Priority, offsets: &[u64], len: u64) {
        let extents: Vec<_> = offsets.iter().map(|&offset| Extent { file: FILE, offset, len }).collect();
        let buffer = Buffer::with_capacity(disk.buffer_bytes(&extents));
        disk.submit(ReadRequest { ticket, priority, extents, buffer });
    }

    /// Reads bytes 700 to 4700: "ok" with all of them, or the failure's code; and how often it was tried again.
    fn check(source: Scripted, deadline: Duration, expected: &str, retries: impl Into<Option<u64>>) {
        let source = Arc::new(source);
        let mut disk = disk(&source, 2, deadline);
        let outcome = disk.read_now(&[Extent { file: FILE, offset: 700, len: 4000 }]);
        let said = match &outcome {
            Ok(loaded) => {
                assert!(loaded.view(0) == &source.bytes[700..4700]);
                "ok"
            }
            Err(error) => {
                assert_eq!((error.offset, error.len), (700, 4000));
                error.failure.code()
            }
        };
        assert_eq!(said, expected);
        if let Some(retries) = retries.into() {
            assert_eq!(disk.stats().retries, retries);
        }
        assert_eq!(disk.in_flight(), 0);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn trouble_is_overcome_or_named() {
        let (eintr, eio, eagain, eacces, einval) = (Errno(4), Errno(5), Errno(11), Errno(13), Errno(22));
        check(Scripted::new(512, &[]), LONG, "ok", 0);
        check(Scripted::new(512, &[Short(100), Short(1000)]), LONG, "ok", 2);
        check(Scripted::new(1, &[Short(100), Short(1000), Short(1)]), LONG, "ok", 3);
        check(Scripted::new(512, &[eintr, eintr, eio, eagain]), LONG, "ok", 4);
        check(Scripted::new(512, &[eio; 7]), LONG, "io", 6);
        // The first pause is longer than the deadline.
        check(Scripted::new(512, &[eagain; 7]), Duration::from_millis(1), "timed-out", None);
        check(Scripted::new(512, &[eacces]), LONG, "permission", 0);
        check(Scripted::new(512, &[einval]), LONG, "io", 0);
        // Nothing came, though the file is long enough: asked again.
        check(Scripted::new(512, &[Short(0), Short(0)]), LONG, "ok", 2);
        check(Scripted::new(512, &[Short(0); 7]), LONG, "io", 6);
        check(Scripted { size_now: 4699, ..Scripted::new(512, &[]) }, LONG, "truncated", 1);
        check(Scripted { size_now: 4699, ..Scripted::new(1, &[]) }, LONG, "truncated", 1);
        check(Scripted { size_now: 0, ..Scripted::new(512, &[]) }, LONG, "truncated", 0);
        check(Scripted { missing: true, ..Scripted::new(512, &[eio; 7]) }, LONG, "gone", 6);
        check(Scripted { missing: true, ..Scripted::new(512, &[]) }, LONG, "ok", 0);
    }

    #[test]
    fn completions_come_in_the_order_in_which_reads_end() {
        let source = Arc::new(Scripted::new(512, &[]));
        lock(&source.closed).insert(512);
        let mut disk = disk(&source, 2, LONG);
        submit(&mut disk, 1, 700, 10);
        submit(&mut disk, 2, 5000, 10);
        submit(&mut disk, 3, 9000, 10);
        assert_eq!([disk.wait(), disk.wait()].map(|c| c.map(|c| c.ticket)), [Some(2), Some(3)]);
        assert!(disk.poll().is_none());
        assert_eq!(disk.in_flight(), 1);
        source.open_gates();
        assert_eq!(disk.wait().map(|c| c.ticket), Some(1));
        assert!(disk.wait().is_none());
    }

    #[test]
    fn a_demand_finds_a_reader_behind_any_number_of_hints() {
        let source = Scripted::closed_at((0..10_000).step_by(512));
        let mut disk = disk(&source, 8, LONG);
        for ticket in 0..18 {
            submit_all(&mut disk, ticket, Priority::Hint, &[512 * ticket], 10);
        }
        // No read ends, and yet these two begin.
        source.wait_for(512 * (HINT_DEPTH_MAX as u64 - 1));
        submit(&mut disk, 100, 512 * 18, 10);
        source.wait_for(512 * 18);
        disk.promote(17);
        source.wait_for(512 * 17);
        let hints = (0..HINT_DEPTH_MAX as u64).map(|n| 512 * n);
        let expected: HashSet<u64> = hints.chain([512 * 17, 512 * 18]).collect();
        assert_eq!(lock(&source.begun).iter().copied().collect::<HashSet<_>>(), expected);
        source.open_gates();
        assert_eq!(std::iter::from_fn(|| disk.wait()).filter(|c| c.result.is_ok()).count(), 19);
        let stats = disk.stats();
        assert_eq!((stats.bytes_useful, stats.bytes_hinted), (190, 170));
    }

    #[test]
    fn a_hint_is_cancelled_between_its_segments() {
        let source = Scripted::closed_at([0, 5120]);
        let mut disk = disk(&source, 1, LONG);
        submit_all(&mut disk, 1, Priority::Hint, &[0, 2048, 4096], 10);
        submit_all(&mut disk, 2, Priority::Hint, &[5120], 10);
        source.wait_for(0);
        assert!(disk.cancel(1), "two of its segments wait");
        assert!(!disk.cancel(1), "they do no more");
        assert!(disk.poll().is_none(), "the buffer is still being written");
        lock(&source.closed).remove(&0);
        source.opened.notify_all();
        source.wait_for(5120);
        assert!(!disk.cancel(2), "wholly under way");
        source.open_gates();
        let said = std::iter::from_fn(|| disk.wait()).map(|completion| match completion.result {
            Ok(_) => (completion.ticket, "ok"),
            Err(failed) => {
                assert_eq!((failed.error.offset, failed.buffer.capacity()), (0, 3 * 512));
                (completion.ticket, failed.error.failure.code())
            }
        });
        assert_eq!(said.collect::<Vec<_>>(), [(1, "cancelled"), (2, "ok")]);
        assert_eq!(*lock(&source.begun), [0, 5120]);
        let stats = disk.stats();
        assert_eq!((stats.requests, stats.requests_failed, stats.requests_cancelled), (1, 0, 1));
    }

    /// A hint may wait for longer than any deadline behind demand: that is no fault.
    #[test]
    fn a_hint_that_waits_does_not_time_out() {
        let deadline = Duration::from_millis(80);
        let source = Scripted::closed_at([0]);
        let mut disk = disk(&source, 1, deadline);
        // It has begun, and then its second segment waits.
        submit_all(&mut disk, 1, Priority::Hint, &[0, 2048], 10);
        source.wait_for(0);
        submit(&mut disk, 2, 512, 10);
        let end = Instant::now() + 3 * deadline;
        let mut ticket = 10;
        source.open_gates();
        while Instant::now() < end {
            submit(&mut disk, ticket, 1024, 10);
            submit(&mut disk, ticket + 1, 1024, 10);
            ticket += 2;
            while disk.demand_in_flight() > 1 {
                let completion = disk.wait().expect("one");
                assert!(completion.result.is_ok(), "{completion:?}");
            }
        }
        assert!(std::iter::from_fn(|| disk.wait()).all(|completion| completion.result.is_ok()));
    }

    #[test]
    fn a_read_that_is_never_answered_times_out_and_keeps_its_memory() {
        let source = Arc::new(Scripted::new(512, &[]));
        lock(&source.closed).insert(512);
        let mut disk = disk(&source, 1, Duration::from_millis(250));
        // The only thread is stuck with the first, so the second never starts.
        submit(&mut disk, 1, 700, 10);
        submit(&mut disk, 2, 5000, 10);
        for ticket in [1, 2] {
            let completion = disk.wait().expect("in time");
            let failed = completion.result.expect_err("stuck");
            assert_eq!((completion.ticket, failed.error.failure.code()), (ticket, "timed-out"));
            assert_eq!(
                (failed.error.offset, failed.buffer.capacity()),
                ([700, 5000][ticket as usize - 1], 512)
            );
        }
        // It recovers, and the late answers are nobody's.
        source.open_gates();
        submit(&mut disk, 3, 9000, 10);
        let completion = disk.wait().expect("one");
        assert_eq!(completion.ticket, 3);
        assert!(completion.result.is_ok());
        assert!(disk.wait().is_none());
    }

    #[test]
    fn dropping_does_not_wait_for_ever_for_a_stuck_reader() {
        let source = Arc::new(Scripted::new(512, &[]));
        lock(&source.closed).insert(512);
        let mut disk = disk(&source, 2, Duration::from_millis(20));
        submit(&mut disk, 1, 700, 10);
        submit(&mut disk, 2, 5000, 10);
        drop(disk);
        // The stuck reader ends on its own when it is answered, and only then lets go of the source.
        source.open_gates();
        while Arc::strong_count(&source) > 1 {
            thread::yield_now();
        }
    }
}
