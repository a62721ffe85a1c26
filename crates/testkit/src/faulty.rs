//! A disk that fails on command.
//!
//! [`FaultyBackend`] wraps any [`Backend`] and, following a [`FaultScript`], makes chosen reads fail, come in two pieces,
//! come late or come out of order. Everything it does is decided by the script and the order of submissions, never by
//! the clock ([`Fault::Delay`] apart), so a test that fails does so again.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use calypte_disk::{
    Backend, Completion, Counters, DiskError, Extent, FailedRead, Failure, FileId, IoMode, Priority,
    ReadRequest,
};

/// What a buffer is filled with between the two halves of [`Fault::ShortThenOk`]: nobody may see it.
const GARBAGE: u8 = 0xA5;

/// Why a read fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// [`Failure::Truncated`], in the middle of the first extent.
    Truncated,
    /// [`Failure::Gone`].
    Gone,
    /// [`Failure::Permission`].
    Permission,
    /// [`Failure::OutOfDescriptors`].
    OutOfDescriptors,
    /// [`Failure::TimedOut`].
    TimedOut,
    /// [`Failure::Io`].
    Io,
}

/// What happens to a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails, and the wrapped backend never sees it.
    Fail(FaultKind),
    /// Half of its first extent is read at first; then the buffer is spoilt and the whole is read again.
    ShortThenOk,
    /// It completes, but no earlier than this after it really did.
    Delay(Duration),
    /// It completes, but only after this many other reads have, or when nothing else is left in flight.
    HoldBack(usize),
}

/// Which read suffers which fault. Reads are numbered from 0 in the order of submission.
#[derive(Clone, Debug, Default)]
pub struct FaultScript {
    faults: BTreeMap<u64, Fault>,
    every_from: Option<(u64, Fault)>,
    shuffle: Option<u64>,
}

impl FaultScript {
    /// Nothing happens.
    pub fn new() -> FaultScript {
        FaultScript::default()
    }

    /// Read number `read` suffers `fault`.
    pub fn at(mut self, read: u64, fault: Fault) -> FaultScript {
        self.faults.insert(read, fault);
        self
    }

    /// Every read from number `read` on suffers `fault`, unless [`FaultScript::at`] says otherwise.
    pub fn from(mut self, read: u64, fault: Fault) -> FaultScript {
        self.every_from = Some((read, fault));
        self
    }

    /// Reads that have completed are handed out in an order drawn from this seed.
    pub fn shuffle(mut self, seed: u64) -> FaultScript {
        self.shuffle = Some(seed);
        self
    }

    fn fault(&self, read: u64) -> Option<Fault> {
        let every = self.every_from.filter(|(from, _)| read >= *from).map(|(_, fault)| fault);
        self.faults.get(&read).copied().or(every)
    }
}

/// A read in the wrapped backend.
struct Under {
    ticket: u64,
    priority: Priority,
    fault: Option<Fault>,
    /// What is really wanted, while only a part of it is being read.
    whole: Option<Vec<Extent>>,
}

/// A completion on its way out.
struct Held {
    completion: Completion,
    until: Option<Instant>,
    behind: usize,
}

/// A [`Backend`] with faults. See the module.
pub struct FaultyBackend {
    inner: Box<dyn Backend>,
    script: FaultScript,
    next_read: u64,
    /// By the ticket that the wrapped backend knows: the number of the read.
    under: HashMap<u64, Under>,
    held: VecDeque<Held>,
    random: u64,
}

impl FaultyBackend {
    /// Wraps `inner`. Use with [`calypte_disk::Disk::map_backend`].
    pub fn new(inner: Box<dyn Backend>, script: FaultScript) -> FaultyBackend {
        let random = script.shuffle.unwrap_or(0);
        FaultyBackend { inner, script, next_read: 0, under: HashMap::new(), held: VecDeque::new(), random }
    }

    /// Reads submitted so far.
    pub fn reads(&self) -> u64 {
        self.next_read
    }

    /// The number of the read with the caller's `ticket`, while the wrapped backend has it.
    fn read_of(&self, ticket: u64) -> Option<u64> {
        self.under.iter().find(|(_, under)| under.ticket == ticket).map(|(read, _)| *read)
    }

    fn hold(&mut self, completion: Completion, fault: Option<Fault>) {
        let (until, behind) = match fault {
            Some(Fault::Delay(delay)) => (Some(Instant::now() + delay), 0),
            Some(Fault::HoldBack(reads)) => (None, reads),
            _ => (None, 0),
        };
        self.held.push_back(Held { completion, until, behind });
    }

    /// Takes a completion of the wrapped backend.
    fn absorb(&mut self, completion: Completion) {
        let Some(under) = self.under.remove(&completion.ticket) else {
            return;
        };
        match (completion.result, under.whole) {
            (Ok(part), Some(extents)) => {
                let mut buffer = part.into_buffer();
                buffer.as_mut_slice().fill(GARBAGE);
                self.under.insert(completion.ticket, Under { whole: None, ..under });
                self.inner.submit(ReadRequest {
                    ticket: completion.ticket,
                    priority: under.priority,
                    extents,
                    buffer,
                });
            }
            (result, _) => self.hold(Completion { ticket: under.ticket, result }, under.fault),
        }
    }

    /// Hands out a completion whose time has come. `nothing_else`: the wrapped backend has nothing more to come.
    fn hand_out(&mut self, nothing_else: bool) -> Option<Completion> {
        let now = Instant::now();
        let due = |held: &Held| held.until.is_none_or(|until| until <= now);
        let mut free: Vec<usize> =
            (0..self.held.len()).filter(|&i| self.held[i].behind == 0 && due(&self.held[i])).collect();
        if free.is_empty() && nothing_else && self.held.iter().all(|held| held.until.is_none()) {
            // Everything left waits for others that will never come.
            free.extend((0..self.held.len()).take(1));
        }
        let pick = match self.script.shuffle {
            Some(_) if !free.is_empty() => free[(self.next_random() % free.len() as u64) as usize],
            _ => *free.first()?,
        };
        let held = self.held.remove(pick)?;
        for other in &mut self.held {
            other.behind = other.behind.saturating_sub(1);
        }
        Some(held.completion)
    }

    /// SplitMix64.
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

impl Backend for FaultyBackend {
    fn submit(&mut self, request: ReadRequest) {
        let read = self.next_read;
        self.next_read += 1;
        let fault = self.script.fault(read);
        let ReadRequest { ticket, priority, extents, buffer } = request;
        if let Some(Fault::Fail(kind)) = fault {
            let result = Err(FailedRead { error: error(kind, &extents), buffer });
            return self.hold(Completion { ticket, result }, None);
        }
        let (now, whole) = match (fault, extents.first()) {
            (Some(Fault::ShortThenOk), Some(first)) => {
                (vec![Extent { len: first.len / 2, ..*first }], Some(extents))
            }
            _ => (extents, None),
        };
        self.under.insert(read, Under { ticket, priority, fault, whole });
        self.inner.submit(ReadRequest { ticket: read, priority, extents: now, buffer });
    }

    fn promote(&mut self, ticket: u64) {
        if let Some(read) = self.read_of(ticket) {
            if let Some(under) = self.under.get_mut(&read) {
                under.priority = Priority::Demand;
            }
            self.inner.promote(read);
        }
    }

    fn cancel(&mut self, ticket: u64) -> bool {
        self.read_of(ticket).is_some_and(|read| self.inner.cancel(read))
    }

    fn poll(&mut self) -> Option<Completion> {
        while let Some(completion) = self.inner.poll() {
            self.absorb(completion);
        }
        self.hand_out(self.inner.in_flight() == 0)
    }

    fn wait(&mut self) -> Option<Completion> {
        loop {
            if let Some(completion) = self.poll() {
                return Some(completion);
            }
            if let Some(completion) = self.inner.wait() {
                self.absorb(completion);
                continue;
            }
            let next = self.held.iter().filter_map(|held| held.until).min();
            match next {
                Some(until) => std::thread::sleep(until.saturating_duration_since(Instant::now())),
                None if self.held.is_empty() => return None,
                None => {}
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.under.len() + self.held.len()
    }

    fn mode(&self) -> IoMode {
        self.inner.mode()
    }

    fn align_bytes(&self, file: FileId) -> usize {
        self.inner.align_bytes(file)
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }
}

/// The error that a read of `extents` fails with.
fn error(kind: FaultKind, extents: &[Extent]) -> DiskError {
    let first = extents.first().copied().unwrap_or(Extent { file: FileId(0), offset: 0, len: 0 });
    let failure = match kind {
        FaultKind::Truncated => Failure::Truncated { file_bytes: first.offset + first.len / 2 },
        FaultKind::Gone => Failure::Gone,
        FaultKind::Permission => Failure::Permission,
        FaultKind::OutOfDescriptors => Failure::OutOfDescriptors,
        FaultKind::TimedOut => Failure::TimedOut { deadline_ms: 0, cause: "injected".to_owned() },
        FaultKind::Io => Failure::Io(io::Error::other("injected")),
    };
    let path = Path::new("faulty").join(first.file.0.to_string());
    DiskError { path, offset: first.offset, len: first.len, failure }
}

#[cfg(test)]
mod tests {
    use super::*;
    use calypte_disk::{Buffer, Disk};
    use std::sync::Arc;

    const READS: u64 = 4;

    /// Submits four reads and writes down what comes back: the ticket, with the failure's code if it failed.
    fn check(script: FaultScript, by_polling: bool, expected: &str) {
        let bytes: Arc<[u8]> = (0..1000u32).map(|i| (i % 249) as u8).collect();
        let disk = Disk::from_memory(vec![("a".into(), bytes.clone())]);
        let mut disk = disk.map_backend(|inner| Box::new(FaultyBackend::new(inner, script)));
        for ticket in 0..READS {
            let extents = vec![
                Extent { file: FileId(0), offset: 10 + 200 * ticket, len: 100 },
                Extent { file: FileId(0), offset: 150 + 200 * ticket, len: 3 },
            ];
            let buffer = Buffer::with_capacity(disk.buffer_bytes(&extents));
            disk.submit(ReadRequest { ticket, priority: Priority::Demand, extents, buffer });
        }
        let mut said = Vec::new();
        while disk.in_flight() > 0 {
            let next = if by_polling { disk.poll() } else { disk.wait() };
            let Some(Completion { ticket, result }) = next else {
                continue;
            };
            said.push(match result {
                Ok(loaded) => {
                    let start = 200 * ticket as usize;
                    assert_eq!(loaded.view(0), &bytes[start + 10..start + 110]);
                    assert_eq!(loaded.view(1), &bytes[start + 150..start + 153]);
                    ticket.to_string()
                }
                Err(failed) => {
                    assert!(failed.buffer.capacity() >= 103);
                    format!("{ticket} {}", failed.error.failure.code())
                }
            });
        }
        assert_eq!(said.join(", "), expected);
        assert!(disk.wait().is_none());
    }

    fn check_both(script: FaultScript, expected: &str) {
        check(script.clone(), false, expected);
        check(script, true, expected);
    }

    #[test]
    fn faults_happen_where_the_script_says() {
        let s = FaultScript::new;
        check_both(s(), "0, 1, 2, 3");
        // A failure is known at once, before anything was read.
        check_both(s().at(1, Fault::Fail(FaultKind::Io)), "1 io, 0, 2, 3");
        check_both(s().from(2, Fault::Fail(FaultKind::Gone)), "2 gone, 3 gone, 0, 1");
        let kinds =
            [FaultKind::Truncated, FaultKind::Permission, FaultKind::OutOfDescriptors, FaultKind::TimedOut];
        let all = kinds.iter().zip(0..).fold(s(), |script, (kind, read)| script.at(read, Fault::Fail(*kind)));
        check_both(all, "0 truncated, 1 permission, 2 out-of-descriptors, 3 timed-out");
        check_both(s().at(0, Fault::HoldBack(2)), "1, 2, 0, 3");
        check_both(s().at(3, Fault::HoldBack(9)), "0, 1, 2, 3");
        check_both(s().from(0, Fault::HoldBack(9)), "0, 1, 2, 3");
        check_both(s().at(0, Fault::ShortThenOk), "1, 2, 3, 0");
        check_both(s().from(0, Fault::ShortThenOk), "0, 1, 2, 3");
        check_both(s().at(1, Fault::Delay(Duration::from_millis(30))), "0, 2, 3, 1");
        check_both(s().shuffle(5), "2, 1, 3, 0");
    }
}
