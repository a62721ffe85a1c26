//! The submitter's side of the backends that have threads: checks requests, keeps the books, and never waits in vain.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use crate::backend::{Backend, Completion, Counters, FailedRead, ReadRequest, Times};
use crate::flight::{Flight, Shared};
use crate::layout::{Layout, lay_out};
use crate::line::Line;
use crate::memory::{loaded, too_large, too_small, unknown_file};
use crate::transfer::Segment;
use crate::{Buffer, DiskError, Extent, Failure, FileId, IoMode};

/// How a finished flight comes back: its id and its completion.
pub(crate) type Landed = (u64, Completion);

/// Threads that carry segments out.
pub(crate) trait Carrier: Send {
    /// Something in the line has changed; each segment that stays in it will be taken and will land.
    fn wake(&self);

    /// Ends the threads: what is not issued never will be, what is under way is waited for, at most for `patience`.
    /// A thread that is still stuck then is left behind with the buffers it works on.
    fn stop(&mut self, patience: Duration);

    fn mode(&self) -> IoMode;
}

/// How often a waiting submitter looks whether a read is stuck.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);

/// A [`Backend`] made of a [`Carrier`].
pub(crate) struct Front {
    carrier: Box<dyn Carrier>,
    line: Arc<Line>,
    segment_bytes: usize,
    shared: Arc<Shared>,
    landed: Receiver<Landed>,
    /// In the order of submission.
    flying: BTreeMap<u64, Arc<Flight>>,
    /// Completions that no reader sent.
    ready: VecDeque<(Completion, Option<Times>)>,
    /// Of the completion that was handed out last.
    times: Option<Times>,
    next_id: u64,
    watched: Instant,
}

impl Front {
    /// `carrier`'s threads take from `line` and send to the other end of `landed`.
    pub fn new(
        carrier: Box<dyn Carrier>,
        line: Arc<Line>,
        segment_bytes: usize,
        shared: Arc<Shared>,
        landed: Receiver<Landed>,
    ) -> Front {
        Front {
            carrier,
            line,
            segment_bytes,
            shared,
            landed,
            flying: BTreeMap::new(),
            ready: VecDeque::new(),
            times: None,
            next_id: 0,
            watched: Instant::now(),
        }
    }

    /// Where everything goes, or why nothing can.
    fn check(&self, request: &ReadRequest) -> Result<Layout, DiskError> {
        let source = &self.shared.source;
        let files = source.files();
        let known = |file: FileId| (file.0 as usize) < files;
        if let Some(extent) = request.extents.iter().find(|e| e.len > 0 && !known(e.file)) {
            return Err(unknown_file(*extent, files));
        }
        let layout = lay_out(&request.extents, |file| source.align_bytes(file)).map_err(|bad| {
            too_large(&request.extents, bad.index, |file| known(file).then(|| source.path(file)))
        })?;
        let capacity = request.buffer.capacity();
        match layout.spans.first() {
            Some(span) if layout.bytes > capacity => Err(too_small(capacity, layout.bytes).at(
                source.path(span.file),
                span.offset,
                span.needed as u64,
            )),
            _ => Ok(layout),
        }
    }

    fn land(&mut self, (id, completion): Landed) -> Option<Completion> {
        // A flight that was given up is unknown here; its buffer is dropped now that nobody writes to it.
        let flight = self.flying.remove(&id)?;
        self.times = Some(flight.times(&self.shared));
        Some(completion)
    }

    fn next_ready(&mut self) -> Option<Completion> {
        let (completion, times) = self.ready.pop_front()?;
        self.times = times;
        Some(completion)
    }

    /// Gives up the flights that nothing has happened to for longer than the readers themselves would have allowed. That
    /// only happens when the system never answers a read, which no thread can call off.
    fn watch(&mut self) {
        if self.watched.elapsed() < WATCH_INTERVAL.min(self.shared.deadline / 4) {
            return;
        }
        self.watched = Instant::now();
        let patience = self.shared.deadline.saturating_add(self.shared.deadline / 4);
        let stuck = |flight: &Flight| flight.silent_for(&self.shared) > patience;
        let ids: Vec<u64> = self.flying.iter().filter(|(_, f)| stuck(f)).map(|(id, _)| *id).collect();
        for id in ids {
            let cause = "the system never answered the read".to_owned();
            self.give_up(id, self.shared.timed_out(cause));
        }
    }

    /// The buffer cannot come back, because the kernel may still write to it: the stuck reader keeps it, and the caller
    /// gets another one of the same size.
    fn give_up(&mut self, id: u64, failure: Failure) {
        let Some(flight) = self.flying.remove(&id) else {
            return;
        };
        flight.give_up();
        let error = self.failure(&flight, failure);
        let buffer = Buffer::try_with_capacity(flight.capacity()).unwrap_or_else(|| Buffer::with_capacity(0));
        let result = Err(FailedRead { error, buffer });
        let times = Some(flight.times(&self.shared));
        self.ready.push_back((Completion { ticket: flight.ticket(), result }, times));
    }

    /// A failure of the whole request: it names the first extent.
    fn failure(&self, flight: &Flight, failure: Failure) -> DiskError {
        let nothing = Extent { file: FileId(0), offset: 0, len: 0 };
        let extent = flight.extents.iter().find(|extent| extent.len > 0).copied().unwrap_or(nothing);
        failure.at(self.shared.source.path(extent.file), extent.offset, extent.len)
    }

    fn flight(&self, ticket: u64) -> Option<Arc<Flight>> {
        self.flying.values().find(|flight| flight.ticket() == ticket).cloned()
    }

    /// The readers have died, which only a bug makes them do: say so instead of waiting.
    fn give_up_all(&mut self) {
        let ids: Vec<u64> = self.flying.keys().copied().collect();
        for id in ids {
            self.give_up(id, Failure::Io(std::io::Error::other("the reader threads have ended")));
        }
    }
}

impl Backend for Front {
    fn submit(&mut self, request: ReadRequest) {
        let layout = match self.check(&request) {
            Ok(layout) => layout,
            Err(error) => {
                let result = Err(FailedRead { error, buffer: request.buffer });
                return self.ready.push_back((Completion { ticket: request.ticket, result }, None));
            }
        };
        let align = |file| self.shared.source.align_bytes(file);
        let segments: Vec<Segment> = layout
            .spans
            .iter()
            .flat_map(|span| Segment::cut(span, align(span.file), self.segment_bytes))
            .collect();
        if segments.is_empty() {
            let result = loaded(request.buffer, layout);
            return self.ready.push_back((Completion { ticket: request.ticket, result }, None));
        }
        if self.flying.is_empty() {
            // After an idle time the clock of "nothing has happened at all" starts now.
            self.shared.touch();
        }
        let id = self.next_id;
        self.next_id += 1;
        let ReadRequest { ticket, priority, extents, buffer } = request;
        let flight = Arc::new(Flight::new(id, ticket, extents, layout.views, buffer, segments.len()));
        self.flying.insert(id, flight.clone());
        self.line.join(&flight, segments, priority);
        self.carrier.wake();
    }

    fn promote(&mut self, ticket: u64) {
        if let Some(flight) = self.flight(ticket) {
            self.line.promote(flight.id);
            self.carrier.wake();
        }
    }

    fn cancel(&mut self, ticket: u64) -> bool {
        let Some(flight) = self.flight(ticket) else {
            return false;
        };
        let withdrawn = self.line.withdraw(flight.id).len();
        for n in 0..withdrawn {
            let error = (n == 0).then(|| self.failure(&flight, Failure::Cancelled));
            // The last one to land has the completion: this one, unless other segments are under way.
            if let Some(completion) = flight.land(error) {
                self.flying.remove(&flight.id);
                self.ready.push_back((completion, Some(flight.times(&self.shared))));
            }
        }
        withdrawn > 0
    }

    fn poll(&mut self) -> Option<Completion> {
        loop {
            if let Some(completion) = self.next_ready() {
                return Some(completion);
            }
            match self.landed.try_recv() {
                Ok(landed) => {
                    if let Some(completion) = self.land(landed) {
                        return Some(completion);
                    }
                }
                Err(TryRecvError::Empty) => {
                    self.watch();
                    return self.next_ready();
                }
                Err(TryRecvError::Disconnected) => {
                    self.give_up_all();
                    return self.next_ready();
                }
            }
        }
    }

    fn wait(&mut self) -> Option<Completion> {
        loop {
            if let Some(completion) = self.poll() {
                return Some(completion);
            }
            if self.flying.is_empty() {
                return None;
            }
            match self.landed.recv_timeout(WATCH_INTERVAL.min(self.shared.deadline / 4)) {
                Ok(landed) => {
                    if let Some(completion) = self.land(landed) {
                        return Some(completion);
                    }
                }
                Err(RecvTimeoutError::Timeout) => self.watch(),
                Err(RecvTimeoutError::Disconnected) => self.give_up_all(),
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.flying.len() + self.ready.len()
    }

    fn mode(&self) -> IoMode {
        self.carrier.mode()
    }

    fn align_bytes(&self, file: FileId) -> usize {
        self.shared.source.align_bytes(file)
    }

    fn tune(&mut self, depth: usize, segment_bytes: usize) {
        self.line.set_depth(depth);
        self.segment_bytes = segment_bytes;
        self.carrier.wake();
    }

    fn counters(&self) -> Counters {
        self.shared.counters()
    }

    fn times(&self) -> Option<Times> {
        self.times
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        for flight in self.flying.values() {
            flight.give_up();
        }
        self.carrier.stop(self.shared.deadline);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::mpsc::channel;

    use crate::files::{OpenFiles, Source};
    use crate::pool::Pool;
    use crate::{Disk, Extent, Priority, SEGMENT_BYTES_DEFAULT, WeightPath};

    const HINTS: u64 = 20;
    const BYTES: usize = SEGMENT_BYTES_DEFAULT + 4096;
    /// A ticket after all hints.
    const WANTED: u64 = 1000;

    /// A disk over a file of [`BYTES`] with `depth` reads under way at most, and the line before its readers, which is
    /// held back until the test lets it go. `None` where the mode does not work.
    fn stalled(mode: IoMode, depth: usize) -> Option<(Disk, Arc<Line>, tempfile::NamedTempFile)> {
        let file = tempfile::NamedTempFile::new().expect("temporary file");
        let content: Vec<u8> = (0..BYTES).map(byte).collect();
        std::fs::write(file.path(), &content).expect("written");
        file.as_file().sync_all().expect("synced");
        let paths = [WeightPath { path: file.path().to_owned(), size_bytes: BYTES as u64 }];
        let Ok(open) = OpenFiles::open(&paths, mode.is_direct()) else {
            eprintln!("skipped: no {mode} in the temporary directory");
            return None;
        };
        let open = Arc::new(open);
        let shared = Arc::new(Shared::new(open.clone(), Duration::from_secs(30)));
        let (landed, landings) = channel();
        let line = Arc::new(Line::new(depth));
        line.stall(true);
        let carrier: Box<dyn Carrier> = match mode {
            #[cfg(target_os = "linux")]
            IoMode::UringDirect => {
                match crate::uring::Uring::start(open, line.clone(), &shared, landed, depth) {
                    Ok(uring) => Box::new(uring),
                    Err(why) => {
                        eprintln!("skipped: {why}");
                        return None;
                    }
                }
            }
            _ => {
                let sources = (0..depth).map(|_| open.clone() as Arc<dyn Source>).collect();
                Box::new(Pool::start(mode, sources, line.clone(), &shared, landed).expect("threads"))
            }
        };
        let front = Front::new(carrier, line.clone(), SEGMENT_BYTES_DEFAULT, shared, landings);
        Some((Disk::from_backend(Box::new(front), paths.to_vec()), line, file))
    }

    fn byte(i: usize) -> u8 {
        ((i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33) as u8
    }

    fn submit(disk: &mut Disk, ticket: u64, priority: Priority, len: usize) {
        let extents = vec![Extent { file: FileId(0), offset: 7, len: len as u64 }];
        let buffer = Buffer::with_capacity(disk.buffer_bytes(&extents));
        disk.submit(ReadRequest { ticket, priority, extents, buffer });
    }

    /// A ticket, and the failure's code if it failed. The bytes of what did not fail are looked at.
    fn said(completion: Completion) -> String {
        match completion.result {
            Ok(loaded) => {
                let right = loaded.view(0).iter().enumerate().all(|(i, &b)| b == byte(7 + i));
                format!("{}{}", completion.ticket, if right { "" } else { " wrong bytes" })
            }
            Err(failed) => {
                assert!(failed.buffer.capacity() >= SEGMENT_BYTES_DEFAULT, "its own buffer");
                format!("{} {}", completion.ticket, failed.error.failure.code())
            }
        }
    }

    /// Submits [`HINTS`] hints (tickets from 0) and one demand while nothing is read, does `then`, and compares the first
    /// completions.
    /// One read at a time, so that they come in the order of issue.
    fn check(then: fn(&mut Disk), expected: &[&str]) {
        for mode in [IoMode::UringDirect, IoMode::PreadDirect, IoMode::PreadBuffered] {
            let Some((mut disk, line, _file)) = stalled(mode, 1) else { continue };
            for ticket in 0..HINTS {
                submit(&mut disk, ticket, Priority::Hint, SEGMENT_BYTES_DEFAULT);
            }
            submit(&mut disk, WANTED, Priority::Demand, SEGMENT_BYTES_DEFAULT);
            then(&mut disk);
            line.stall(false);
            // What a submission does; nothing else is submitted here.
            disk.promote(WANTED);
            let all: Vec<String> = std::iter::from_fn(|| disk.wait()).map(said).collect();
            assert_eq!(all.len() as u64, HINTS + 1, "{mode}");
            assert_eq!(all[..expected.len()], *expected, "{mode}");
            assert_eq!((disk.in_flight(), disk.demand_in_flight()), (0, 0));
        }
    }

    #[test]
    fn demand_overtakes_hints() {
        check(|_| {}, &["1000", "0", "1", "2"]);
        // A promoted hint was submitted before the demand.
        check(|disk| disk.promote(7), &["7", "1000", "0", "1"]);
        check(
            |disk| {
                assert!(disk.cancel(0) && disk.cancel(19));
                // Nothing more to cancel, a demand, nobody.
                assert!(!disk.cancel(0) && !disk.cancel(WANTED) && !disk.cancel(500));
                disk.promote(2);
                assert!(!disk.cancel(2));
                assert_eq!((disk.in_flight(), disk.demand_in_flight()), (21, 2));
            },
            &["0 cancelled", "19 cancelled", "2", "1000", "1", "3", "4"],
        );
    }
}
