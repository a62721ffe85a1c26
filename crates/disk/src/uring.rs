//! Linux: one thread with one ring, fed from the line.
//!
//! The thread sleeps in the kernel until a read completes or somebody writes to its wake descriptor, which the ring
//! polls like any other operation. At most `queue_depth` segments are in the ring; the others wait in line.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};
use rustix::event::{EventfdFlags, eventfd};

use crate::files::{OpenFiles, Source};
use crate::flight::{Shared, Verdict};
use crate::front::{Carrier, Landed};
use crate::line::{Line, Op};
use crate::{Buffer, IoMode};

/// Marks the completion of the poll on the wake descriptor; reads are marked by their place in the slots.
const WAKE: u64 = u64::MAX;

/// Longest sleep in the kernel when nothing says otherwise. Only a safety net: everything that matters wakes the thread.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Pause before the ring is entered again after the kernel refused it.
const ENTER_PAUSE: Duration = Duration::from_millis(5);

/// How long the first read through the ring may take.
const PROBE_DEADLINE: Duration = Duration::from_secs(10);

/// Errno of a wait that ended without a completion.
const ETIME: i32 = 62;

/// The submitter's end.
pub(crate) struct Uring {
    line: Arc<Line>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    /// Disconnects when the thread has ended.
    ended: Receiver<()>,
}

impl Uring {
    /// Sets a ring up, reads a block through it, and starts the thread; else says why that does not work.
    pub fn start(
        files: Arc<OpenFiles>,
        line: Arc<Line>,
        shared: &Arc<Shared>,
        landed: Sender<Landed>,
        queue_depth: usize,
    ) -> Result<Uring, String> {
        Uring::start_clipped(files, line, shared, landed, queue_depth, usize::MAX)
    }

    /// The same with reads of at most `clip_bytes`, a multiple of every alignment: what a kernel that returns short
    /// reads looks like.
    pub(crate) fn start_clipped(
        files: Arc<OpenFiles>,
        line: Arc<Line>,
        shared: &Arc<Shared>,
        landed: Sender<Landed>,
        queue_depth: usize,
        clip_bytes: usize,
    ) -> Result<Uring, String> {
        // One more for the poll on the wake descriptor.
        let entries = u32::try_from(queue_depth + 1).map_err(|e| e.to_string())?;
        let mut ring = IoUring::new(entries).map_err(|e| explain_setup(&e))?;
        if !ring.params().is_feature_ext_arg() {
            return Err("the kernel's io_uring is too old to wait with a time limit (5.11 has it)".to_owned());
        }
        probe(&mut ring, &files)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = Arc::new(wake.map_err(|e| format!("no eventfd: {e}"))?);
        let (end, ended) = channel();
        let mut rig = Rig {
            ring,
            files,
            shared: shared.clone(),
            landed,
            line: line.clone(),
            wake: wake.clone(),
            wake_armed: false,
            slots: (0..queue_depth).map(|_| None).collect(),
            free: (0..queue_depth).collect(),
            again: VecDeque::new(),
            pausing: Vec::new(),
            stopping: false,
            clip_bytes,
        };
        let run = move || {
            rig.run();
            drop(rig);
            drop(end);
        };
        let thread = thread::Builder::new().name("calypte-uring".into()).spawn(run);
        let thread = thread.map_err(|e| format!("its thread could not be started: {e}"))?;
        Ok(Uring { line, wake, thread: Some(thread), ended })
    }
}

impl Carrier for Uring {
    /// A dead thread is noticed by the front: the channel of completions is closed then.
    fn wake(&self) {
        // Fails only when the counter is full, and then the thread is about to wake anyway.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }

    fn stop(&mut self, patience: Duration) {
        self.line.stop();
        self.wake();
        if self.ended.recv_timeout(patience) == Err(RecvTimeoutError::Disconnected)
            && let Some(thread) = self.thread.take()
        {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }

    fn mode(&self) -> IoMode {
        IoMode::UringDirect
    }
}

/// Containers often forbid io_uring, and the bare error does not say so.
fn explain_setup(error: &io::Error) -> String {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            " (a container's seccomp profile or the sysctl kernel.io_uring_disabled forbids it)"
        }
        io::ErrorKind::Unsupported => " (the kernel was built without it)",
        io::ErrorKind::OutOfMemory => " (raise the limit on locked memory, `ulimit -l`)",
        _ => "",
    };
    format!("io_uring could not be set up: {error}{hint}")
}

/// Reads the first block of a file through the ring.
fn probe(ring: &mut IoUring, files: &OpenFiles) -> Result<(), String> {
    let Some(file) = files.first_with_bytes() else {
        return Ok(());
    };
    let descriptor = files.descriptor(file).ok_or("no descriptor")?;
    let len = files.align_bytes(file);
    let mut block = Buffer::with_capacity(len);
    let entry = opcode::Read::new(Fd(descriptor), block.as_mut_slice().as_mut_ptr(), len as u32).build();
    // SAFETY: `block` is valid for `len` bytes and outlives the read: it is dropped only after the completion has been
    // seen, and is leaked when that does not come. The descriptor stays open in `files`.
    unsafe { ring.submission().push(&entry) }.map_err(|e| e.to_string())?;
    let limit = Timespec::from(PROBE_DEADLINE);
    let start = Instant::now();
    let outcome = loop {
        let entered = ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&limit));
        if let Some(completion) = ring.completion().next() {
            break Some(completion.result());
        }
        match entered {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => break None,
            _ if start.elapsed() >= PROBE_DEADLINE => break None,
            _ => {}
        }
    };
    match outcome {
        Some(came) if came > 0 => Ok(()),
        Some(0) => Err("a read through the ring brought nothing".to_owned()),
        Some(errno) => {
            Err(format!("a read through the ring failed: {}", io::Error::from_raw_os_error(-errno)))
        }
        None => {
            std::mem::forget(block);
            Err("a read through the ring was not answered".to_owned())
        }
    }
}

/// The thread's own state.
struct Rig {
    ring: IoUring,
    files: Arc<OpenFiles>,
    shared: Arc<Shared>,
    landed: Sender<Landed>,
    line: Arc<Line>,
    wake: Arc<OwnedFd>,
    wake_armed: bool,
    /// What is in the ring. A read's mark is its place here. While an op stands here the kernel may write to the memory of
    /// its flight.
    slots: Vec<Option<Op>>,
    free: Vec<usize>,
    /// What was in the ring and goes there again before anything from the line.
    again: VecDeque<Op>,
    /// What may be tried again at a given time.
    pausing: Vec<(Instant, Op)>,
    stopping: bool,
    clip_bytes: usize,
}

impl Rig {
    fn run(&mut self) {
        loop {
            self.look_for_the_end();
            self.end_pauses();
            self.issue();
            if self.stopping && self.in_ring() == 0 {
                return;
            }
            self.arm_wake();
            let entered = self.enter();
            self.reap();
            if entered.is_err() {
                if self.stopping {
                    return;
                }
                // The front gives the requests up when this does not pass within the deadline.
                thread::sleep(ENTER_PAUSE);
            }
        }
    }

    fn in_ring(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// After the line was stopped nobody takes completions; what is not in the ring need not go there.
    fn look_for_the_end(&mut self) {
        if self.line.is_stopping() {
            self.stopping = true;
            self.again.clear();
            self.pausing.clear();
        }
    }

    /// What has paused long enough goes before the line: it has waited there before.
    fn end_pauses(&mut self) {
        let now = Instant::now();
        let (due, pausing): (Vec<_>, Vec<_>) = self.pausing.drain(..).partition(|(until, _)| *until <= now);
        self.pausing = pausing;
        for (_, op) in due.into_iter().rev() {
            self.again.push_front(op);
        }
    }

    /// Fills the ring from the line. Called before every sleep; a segment that joins later rings the wake descriptor first
    /// or after the poll on it is armed, so none is overslept.
    fn issue(&mut self) {
        while let Some(slot) = self.free.last().copied() {
            let Some(op) = self.again.pop_front().or_else(|| self.line.try_take()) else {
                return;
            };
            if op.flight.is_over() {
                self.land(op, None);
                continue;
            }
            if let Err(op) = self.push(slot, op) {
                // The submission queue is full: it is emptied by the next enter.
                self.again.push_front(op);
                return;
            }
        }
    }

    /// Puts one read into the submission queue and its op into the slot, or gives the op back.
    fn push(&mut self, slot: usize, mut op: Op) -> Result<(), Op> {
        let mut read = op.segment.next_read();
        read.len = read.len.min(self.clip_bytes);
        let (Some(target), Some(descriptor)) =
            (op.flight.target(&read), self.files.descriptor(op.segment.file))
        else {
            // Excluded by the layout and by the front's checks.
            self.conclude(op, Err(io::ErrorKind::InvalidInput.into()));
            return Ok(());
        };
        op.segment.clock(Instant::now());
        op.flight.touch(&self.shared);
        let entry = opcode::Read::new(Fd(descriptor), target.as_ptr(), read.len as u32)
            .offset(read.offset)
            .build()
            .user_data(slot as u64);
        // SAFETY: the kernel may write `read.len` bytes from `target` on until the completion with this mark is reaped.
        // Those bytes lie inside the flight's buffer (`Flight::target`) and belong to this segment alone; the buffer
        // cannot leave the flight before this segment lands, which happens after its completion; and the op put into the
        // slot below holds the flight until then. Ops that are still in slots when the thread ends are leaked (`Drop`). The descriptor stays open in `self.files`.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            return Err(op);
        }
        self.free.pop();
        self.slots[slot] = Some(op);
        Ok(())
    }

    fn arm_wake(&mut self) {
        if self.wake_armed {
            return;
        }
        const POLLIN: u32 = 1;
        let entry = opcode::PollAdd::new(Fd(self.wake.as_raw_fd()), POLLIN).build().user_data(WAKE);
        // SAFETY: refers to no memory; the descriptor lives as long as `self`.
        self.wake_armed = unsafe { self.ring.submission().push(&entry) }.is_ok();
    }

    /// Submits what was pushed and sleeps until something completes, a pause ends, or the safety net catches.
    fn enter(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let next = self.pausing.iter().map(|(until, _)| until.saturating_duration_since(now)).min();
        // Without a poll on the wake descriptor nothing would wake us for new work.
        let longest = if self.wake_armed { SLEEP_MAX } else { ENTER_PAUSE };
        let limit = Timespec::from(next.unwrap_or(longest).min(longest));
        match self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&limit)) {
            Ok(_) => Ok(()),
            Err(error) if error.raw_os_error() == Some(ETIME) => Ok(()),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ResourceBusy) =>
            {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Takes every completion out of the ring.
    fn reap(&mut self) {
        while let Some(completion) = { self.ring.completion().next() } {
            let (mark, result) = (completion.user_data(), completion.result());
            if mark == WAKE {
                self.wake_armed = false;
                // Empties the counter; it is drained of meaning because `issue` comes next.
                let _ = rustix::io::read(&*self.wake, &mut [0u8; 8]);
                continue;
            }
            let slot = mark as usize;
            let Some(op) = self.slots.get_mut(slot).and_then(Option::take) else {
                continue;
            };
            self.free.push(slot);
            let outcome = match usize::try_from(result) {
                Ok(came) => Ok(came),
                Err(_) => Err(io::Error::from_raw_os_error(-result)),
            };
            self.conclude(op, outcome);
        }
    }

    /// Acts on the outcome of a read that is not in the ring any more.
    fn conclude(&mut self, mut op: Op, outcome: io::Result<usize>) {
        match self.shared.judge(&op.flight, &mut op.segment, outcome) {
            Verdict::Done => self.land(op, None),
            Verdict::Failed(error) => self.land(op, Some(error)),
            Verdict::Again(_) if op.flight.is_over() => self.land(op, None),
            Verdict::Again(Duration::ZERO) => self.again.push_front(op),
            Verdict::Again(pause) => self.pausing.push((Instant::now() + pause, op)),
        }
    }

    fn land(&self, op: Op, error: Option<crate::DiskError>) {
        let flight = self.line.rest(op);
        if let Some(completion) = flight.land(error) {
            // The front is gone only when nobody wants the completion.
            let _ = self.landed.send((flight.id, completion));
        }
    }
}

impl Drop for Rig {
    /// When the kernel refused the ring to the end, or the thread panics, reads may be left in it: their memory must
    /// then stay valid for ever. Otherwise no slot is taken here.
    fn drop(&mut self) {
        for op in self.slots.drain(..).flatten() {
            std::mem::forget(op);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::io::Write;
    use std::sync::mpsc::channel;

    use crate::backend::Backend;
    use crate::front::Front;
    use crate::{Disk, Extent, FileId, Priority, ReadRequest, WeightPath};

    /// Reads everything in overlapping requests through a ring that returns at most `clip_bytes` at once.
    fn check(queue_depth: usize, clip_bytes: usize) {
        let bytes: Vec<u8> = (0..3_000_001u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let mut file = tempfile::NamedTempFile::new().expect("temporary file");
        file.write_all(&bytes).expect("written");
        let paths = [WeightPath { path: file.path().to_owned(), size_bytes: bytes.len() as u64 }];
        let Ok(files) = OpenFiles::open(&paths, true) else {
            return eprintln!("skipped: no direct reads in the temporary directory");
        };
        let files = Arc::new(files);
        let shared = Arc::new(Shared::new(files.clone(), Duration::from_secs(30)));
        let (landed, landings) = channel();
        let line = Arc::new(Line::new(queue_depth));
        let uring = match Uring::start_clipped(files, line.clone(), &shared, landed, queue_depth, clip_bytes)
        {
            Ok(uring) => uring,
            Err(why) => return eprintln!("skipped: {why}"),
        };
        let front: Box<dyn Backend> =
            Box::new(Front::new(Box::new(uring), line, crate::SEGMENT_BYTES_DEFAULT, shared, landings));
        let mut disk = Disk::from_backend(front, paths.to_vec());
        let extents: Vec<Extent> = [(1, 2_999_999), (0, 3_000_001), (1_500_000, 1), (2_000_000, 1_000_001)]
            .map(|(offset, len)| Extent { file: FileId(0), offset, len })
            .to_vec();
        for (ticket, extent) in extents.iter().enumerate() {
            let buffer = Buffer::with_capacity(disk.buffer_bytes(&[*extent]));
            let (ticket, priority) = (ticket as u64, Priority::Demand);
            disk.submit(ReadRequest { ticket, priority, extents: vec![*extent], buffer });
        }
        let mut seen = 0;
        while let Some(completion) = disk.wait() {
            let extent = extents[completion.ticket as usize];
            let loaded = completion.result.expect("read");
            assert!(loaded.view(0) == &bytes[extent.offset as usize..][..extent.len as usize], "{extent:?}");
            seen += 1;
        }
        assert_eq!(seen, extents.len());
        assert_eq!(disk.stats().retries > 0, clip_bytes < bytes.len());
    }

    #[test]
    fn the_ring_goes_on_after_short_reads_at_any_depth() {
        for (queue_depth, clip_bytes) in
            [(1, usize::MAX), (1, 65536), (3, 4096), (64, 8192), (64, usize::MAX)]
        {
            check(queue_depth, clip_bytes);
        }
    }

    #[test]
    fn a_refusal_is_explained() {
        for (errno, word) in
            [(1, "seccomp"), (38, "built without"), (12, "ulimit -l"), (22, "could not be set up")]
        {
            let text = explain_setup(&io::Error::from_raw_os_error(errno));
            assert!(text.contains(word), "{text:?} lacks {word:?}");
        }
    }
}
