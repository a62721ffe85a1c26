//! The façade: one backend and exact accounting.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::backend::{Backend, Completion, Loaded, Priority, ReadRequest};
use crate::layout::lay_out;
use crate::memory::MemoryBackend;
use crate::watch::{ReadLife, Watch};
use crate::{
    Buffer, DiskError, DiskOptions, Extent, Failure, FileId, IoMode, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN,
    WeightPath,
};

/// Exact counts since the disk was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Requests that completed with every byte.
    pub requests: u64,
    /// Requests that failed; cancelled ones are none.
    pub requests_failed: u64,
    /// Hints and idle reads that were cancelled before all of them was issued.
    pub requests_cancelled: u64,
    /// Reads that returned data, counted at the system call (one for each segment, and for each repetition).
    pub reads: u64,
    /// Bytes that these returned, alignment and repetitions included.
    pub bytes_transferred: u64,
    /// Bytes of the extents of requests that completed.
    pub bytes_useful: u64,
    /// The part of them that completed as hints or idle reads, never having been demanded while under way.
    pub bytes_hinted: u64,
    /// Reads that had to be issued again: short, interrupted, or failed for the moment.
    pub retries: u64,
}

/// Open weight files and the way to read them.
///
/// Dropping it ends its threads. Reads still under way are waited for, at most for the deadline: memory that the system
/// may still write to is never freed, it stays with the stuck reader instead.
pub struct Disk {
    backend: Box<dyn Backend>,
    files: Vec<WeightPath>,
    fallback_reason: Option<String>,
    stats: DiskStats,
    /// What every request in flight is by now, by its ticket.
    priorities: BTreeMap<u64, Priority>,
    /// When reads began, for those who want to know.
    watch: Option<Watch>,
}

impl Disk {
    /// Opens every file, finds out by real reads what works, and starts the readers.
    ///
    /// The mode asked for (or `uring-direct`) is tried first, then the slower ones: `uring-direct`, `pread-direct`,
    /// `pread-buffered`. What was achieved is [`Disk::mode`], and why it is not what was asked for is
    /// [`Disk::fallback_reason`].
    ///
    /// # Errors
    /// A file that is missing, unreadable, no regular file, or not of the size that the catalogue read; no descriptors
    /// left; no mode works.
    pub fn open(files: &[WeightPath], options: &DiskOptions) -> Result<Disk, DiskError> {
        let (backend, fallback_reason) = open_backend(files, options)?;
        Ok(Disk { fallback_reason, ..Disk::from_backend(backend, files.to_vec()) })
    }

    /// A disk over any backend; `files` only name what errors speak of.
    pub fn from_backend(backend: Box<dyn Backend>, files: Vec<WeightPath>) -> Disk {
        Disk {
            backend,
            files,
            fallback_reason: None,
            stats: DiskStats::default(),
            priorities: BTreeMap::new(),
            watch: None,
        }
    }

    /// A disk over names and contents, on every target.
    pub fn from_memory(files: Vec<(PathBuf, Arc<[u8]>)>) -> Disk {
        let name = |(path, bytes): &(PathBuf, Arc<[u8]>)| WeightPath {
            path: path.clone(),
            size_bytes: bytes.len() as u64,
        };
        let names = files.iter().map(name).collect();
        Disk::from_backend(Box::new(MemoryBackend::new(files)), names)
    }

    /// The same disk with its backend wrapped, for tests that inject faults.
    pub fn map_backend(self, wrap: impl FnOnce(Box<dyn Backend>) -> Box<dyn Backend>) -> Disk {
        Disk { backend: wrap(self.backend), ..self }
    }

    /// How bytes come: the mode achieved.
    pub fn mode(&self) -> IoMode {
        self.backend.mode()
    }

    /// Why [`Disk::mode`] is not the mode that was tried first; `None` when it is.
    pub fn fallback_reason(&self) -> Option<&str> {
        self.fallback_reason.as_deref()
    }

    /// The open files; the place in the list is the [`FileId`].
    pub fn files(&self) -> &[WeightPath] {
        &self.files
    }

    /// What reads from `file` are aligned to, in bytes.
    pub fn align_bytes(&self, file: FileId) -> usize {
        self.backend.align_bytes(file)
    }

    /// Capacity that a [`Buffer`] needs for these extents in this mode, in bytes. 0 for extents whose numbers do not fit
    /// in memory; submitting these is refused by name.
    pub fn buffer_bytes(&self, extents: &[Extent]) -> usize {
        lay_out(extents, |file| self.backend.align_bytes(file)).map_or(0, |layout| layout.bytes)
    }

    /// Starts a read. Whatever is wrong with it is reported by its completion.
    ///
    /// The ticket must be no other's that is in flight: the two could not be told apart.
    pub fn submit(&mut self, request: ReadRequest) {
        let other = self.priorities.insert(request.ticket, request.priority);
        debug_assert!(other.is_none(), "ticket {} is in flight twice", request.ticket);
        if let Some(watch) = &mut self.watch {
            watch.submitted(request.ticket, request.priority);
        }
        self.backend.submit(request);
    }

    /// The hint (or idle read) with this ticket is needed now: what was not issued of it is demand from here on. Nothing happens to other
    /// tickets.
    pub fn promote(&mut self, ticket: u64) {
        if let Some(priority @ (Priority::Hint | Priority::Idle)) = self.priorities.get_mut(&ticket) {
            *priority = Priority::Demand;
            if let Some(watch) = &mut self.watch {
                watch.promoted(ticket);
            }
            self.backend.promote(ticket);
        }
    }

    /// Calls a hint (or an idle read) off. `true` when a part of it was not issued yet: that never will be, and the request completes with
    /// [`Failure::Cancelled`], or with a failure that came before. `false` when there is nothing to call off: it is wholly under way or complete, is a
    /// demand, or does not exist; what exists completes as if nothing had been said. Its buffer comes back with the
    /// completion in every case.
    pub fn cancel(&mut self, ticket: u64) -> bool {
        let may_wait = self.priorities.get(&ticket).is_some_and(|&priority| priority != Priority::Demand);
        may_wait && self.backend.cancel(ticket)
    }

    /// The next completion if there is one. Never blocks.
    pub fn poll(&mut self) -> Option<Completion> {
        let completion = self.backend.poll()?;
        self.account(&completion);
        Some(completion)
    }

    /// Blocks until a request completes, well or badly; the deadline bounds the wait. `None` when nothing is in flight.
    pub fn wait(&mut self) -> Option<Completion> {
        let completion = self.backend.wait()?;
        self.account(&completion);
        Some(completion)
    }

    /// Requests submitted whose completion has not been handed out.
    pub fn in_flight(&self) -> usize {
        self.backend.in_flight()
    }

    /// From now on at most `depth` reads under way (and no more than it was opened with), of at most `segment_bytes` each for
    /// requests submitted from now on. The limits are those of [`DiskOptions`].
    pub fn tune(&mut self, depth: usize, segment_bytes: usize) {
        self.backend.tune(depth.max(1), segment_bytes.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX));
    }

    /// Those of them that are demand by now. While this is 0, nobody waits for the disk.
    pub fn demand_in_flight(&self) -> usize {
        self.priorities.values().filter(|&&priority| priority == Priority::Demand).count()
    }

    /// Reads extents into a fresh buffer and waits for them: for resident weights.
    ///
    /// # Errors
    /// As any read; and refused while requests are in flight, whose completions it would have to throw away.
    pub fn read_now(&mut self, extents: &[Extent]) -> Result<Loaded, DiskError> {
        if self.in_flight() > 0 {
            let reason =
                format!("read_now while {} requests are in flight: wait for them first", self.in_flight());
            return Err(self.refused(extents, reason));
        }
        let bytes = self.buffer_bytes(extents);
        let Some(buffer) = Buffer::try_with_capacity(bytes) else {
            return Err(self.refused(extents, format!("no memory for a buffer of {bytes} bytes")));
        };
        let priority = Priority::Demand;
        self.submit(ReadRequest { ticket: 0, priority, extents: extents.to_vec(), buffer });
        match self.wait() {
            Some(completion) => completion.result.map_err(|failed| failed.error),
            None => Err(self.refused(extents, "the backend lost the request".to_owned())),
        }
    }

    /// Exact counts since the disk was opened.
    pub fn stats(&self) -> DiskStats {
        let counters = self.backend.counters();
        DiskStats {
            reads: counters.reads,
            bytes_transferred: counters.bytes_transferred,
            retries: counters.retries,
            ..self.stats
        }
    }

    /// From now on [`Disk::last_life`] and [`Disk::lives`] know when reads began and ended. Does nothing where there is no
    /// clock.
    pub fn watch(&mut self) {
        if cfg!(not(target_family = "wasm")) {
            self.watch.get_or_insert_default();
        }
    }

    /// The life of the request whose completion was handed out last; `None` when it is not watched, or was submitted before
    /// it was.
    pub fn last_life(&self) -> Option<ReadLife> {
        self.watch.as_ref().and_then(Watch::last)
    }

    /// The requests in flight with their tickets, as if each ended now without a byte; none when they are not watched.
    pub fn lives(&self) -> impl Iterator<Item = (u64, ReadLife)> {
        self.watch.iter().flat_map(Watch::open)
    }

    fn account(&mut self, completion: &Completion) {
        if let Some(watch) = &mut self.watch {
            watch.completed(completion, self.backend.times());
        }
        let priority = self.priorities.remove(&completion.ticket);
        match &completion.result {
            Ok(loaded) => {
                self.stats.requests += 1;
                self.stats.bytes_useful += loaded.useful_bytes();
                if priority.is_some_and(|priority| priority != Priority::Demand) {
                    self.stats.bytes_hinted += loaded.useful_bytes();
                }
            }
            Err(failed) if matches!(failed.error.failure, Failure::Cancelled) => {
                self.stats.requests_cancelled += 1;
            }
            Err(_) => self.stats.requests_failed += 1,
        }
    }

    fn refused(&self, extents: &[Extent], reason: String) -> DiskError {
        let first = extents.first().copied().unwrap_or(Extent { file: FileId(0), offset: 0, len: 0 });
        let path =
            self.files.get(first.file.0 as usize).map_or(Path::new("(unknown file)"), |file| &file.path);
        Failure::refused(reason).at(path, first.offset, first.len)
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk")
            .field("mode", &self.mode())
            .field("files", &self.files.len())
            .field("in_flight", &self.in_flight())
            .finish()
    }
}

#[cfg(any(unix, windows))]
use crate::open::open_backend;

/// Where there are no files there is only [`Disk::from_memory`].
#[cfg(not(any(unix, windows)))]
fn open_backend(
    files: &[WeightPath],
    _options: &DiskOptions,
) -> Result<(Box<dyn Backend>, Option<String>), DiskError> {
    let path = files.first().map_or(Path::new("(no file)"), |file| &file.path);
    Err(Failure::refused("this target has no files: use `Disk::from_memory`").at(path, 0, 0))
}
