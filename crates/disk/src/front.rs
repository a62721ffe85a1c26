//! The submitter's side of the backends that have threads: checks requests, keeps the books, and never waits in vain.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use crate::backend::{Backend, Completion, Counters, FailedRead, ReadRequest};
use crate::flight::{Flight, Shared};
use crate::layout::{Layout, lay_out};
use crate::memory::{loaded, too_large, too_small, unknown_file};
use crate::transfer::Segment;
use crate::{Buffer, DiskError, Failure, FileId, IoMode};

/// How a finished flight comes back: its id and its completion.
pub(crate) type Landed = (u64, Completion);

/// Threads that carry segments out.
pub(crate) trait Carrier: Send {
    /// Takes the segments of a flight; each of them will land.
    fn start(&mut self, flight: Arc<Flight>, segments: Vec<Segment>);

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
    shared: Arc<Shared>,
    landed: Receiver<Landed>,
    /// In the order of submission.
    flying: BTreeMap<u64, Arc<Flight>>,
    /// Completions that needed no reader.
    ready: VecDeque<Completion>,
    next_id: u64,
    watched: Instant,
}

impl Front {
    pub fn new(carrier: Box<dyn Carrier>, shared: Arc<Shared>, landed: Receiver<Landed>) -> Front {
        Front {
            carrier,
            shared,
            landed,
            flying: BTreeMap::new(),
            ready: VecDeque::new(),
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
        self.flying.remove(&id).map(|_| completion)
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
        let first = flight.extents.iter().find(|extent| extent.len > 0);
        let Some(extent) = first else { return };
        let error = failure.at(self.shared.source.path(extent.file), extent.offset, extent.len);
        let buffer = Buffer::try_with_capacity(flight.capacity()).unwrap_or_else(|| Buffer::with_capacity(0));
        let result = Err(FailedRead { error, buffer });
        self.ready.push_back(Completion { ticket: flight.ticket(), result });
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
                return self.ready.push_back(Completion { ticket: request.ticket, result });
            }
        };
        let align = |file| self.shared.source.align_bytes(file);
        let segments: Vec<Segment> =
            layout.spans.iter().flat_map(|span| Segment::cut(span, align(span.file))).collect();
        if segments.is_empty() {
            let result = loaded(request.buffer, layout);
            return self.ready.push_back(Completion { ticket: request.ticket, result });
        }
        if self.flying.is_empty() {
            // After an idle time the clock of "nothing has happened at all" starts now.
            self.shared.touch();
        }
        let id = self.next_id;
        self.next_id += 1;
        let ReadRequest { ticket, extents, buffer } = request;
        let flight = Arc::new(Flight::new(id, ticket, extents, layout.views, buffer, segments.len()));
        self.flying.insert(id, flight.clone());
        self.carrier.start(flight, segments);
    }

    fn poll(&mut self) -> Option<Completion> {
        loop {
            if let Some(completion) = self.ready.pop_front() {
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
                    return self.ready.pop_front();
                }
                Err(TryRecvError::Disconnected) => {
                    self.give_up_all();
                    return self.ready.pop_front();
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

    fn counters(&self) -> Counters {
        self.shared.counters()
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
