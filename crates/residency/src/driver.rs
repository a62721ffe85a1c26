//! The driver: executes the machine's commands on a disk and owns the memory.
//!
//! A buffer has one owner at every moment: the idle pool, a read in flight, or a slot's [`Arc`]. Leases are clones of
//! that `Arc`, and a buffer only comes back out of it when no clone is left, so that leased weights cannot be
//! overwritten even if the machine were wrong.

mod ahead;
mod hints;
mod layer;
mod pool;
mod recorder;
mod warm;

use std::sync::Arc;
use std::time::Instant;

use calypte_disk::{Buffer, Completion, Disk, DiskStats, Failure, Loaded, Priority, ReadRequest};

use crate::budget::{floor_bytes, whole_bytes};
use crate::{CacheStats, Command, Event, Evict, Key, Machine, ResidencyError, SlotState};
use ahead::Ahead;
use hints::Hints;
use layer::{Room, sizes};
use pool::BufferPool;
use recorder::Recorder;
use warm::Warm;

pub use layer::{Arrange, LayerExperts, Lease};

/// The experts of a model, as many of them in memory as a budget allows.
///
/// One step at a time: [`ExpertCache::begin`], then [`ExpertCache::ready`] until it says `false`, releasing leases in
/// between. The answer never depends on the budget or the policy: every expert of the union is handed out exactly once,
/// with exactly its bytes.
pub struct ExpertCache {
    machine: Machine,
    rooms: Vec<Room>,
    disk: Disk,
    pool: BufferPool,
    hints: Hints,
    ahead: Ahead,
    warm: Warm,
    /// What the reads are that the machine asks for at the moment.
    priority: Priority,
    /// Leases that the next `ready` returns.
    handed_out: Vec<Lease>,
    commands: Vec<Command>,
    /// The union in reading order; kept for its memory.
    union: Vec<u32>,
    /// Where matrices are put together that are not stored as the arithmetic reads them; kept for its memory.
    arranged: Vec<u8>,
    /// What the next `ready` reports: the step could not begin, or could not go on.
    pending_error: Option<ResidencyError>,
    /// Leases that callers hold.
    leases_out: u64,
    reads_failed: u64,
    wait_ns: u64,
    disk_stats_at_reset: DiskStats,
    recorder: Option<Recorder>,
}

impl ExpertCache {
    /// The least budget that works: one token's experts of every layer, in bytes of memory.
    pub fn floor_bytes(layers: &[LayerExperts], disk: &Disk) -> u64 {
        floor_bytes(&sizes(layers, disk))
    }

    /// The budget from which on nothing is read twice, in bytes of memory.
    pub fn whole_bytes(layers: &[LayerExperts], disk: &Disk) -> u64 {
        whole_bytes(&sizes(layers, disk))
    }

    /// A cache with nothing resident. Memory is allocated as experts arrive, and never more than `budget_bytes`.
    ///
    /// # Errors
    /// [`ResidencyError::BelowFloor`] when `budget_bytes` is below [`ExpertCache::floor_bytes`].
    pub fn new(
        layers: Vec<LayerExperts>,
        budget_bytes: u64,
        policy: Box<dyn Evict>,
        disk: Disk,
    ) -> Result<ExpertCache, ResidencyError> {
        let sizes = sizes(&layers, &disk);
        let machine = Machine::new(&sizes, budget_bytes, policy)?;
        let rooms = layers.into_iter().zip(sizes);
        let rooms: Vec<Room> = rooms.map(|(layer, size)| Room::new(layer, size)).collect();
        Ok(ExpertCache {
            machine,
            hints: Hints::new(rooms.len()),
            ahead: Ahead::default(),
            warm: Warm::new(rooms.len()),
            priority: Priority::Demand,
            rooms,
            disk_stats_at_reset: disk.stats(),
            disk,
            pool: BufferPool::new(budget_bytes),
            handed_out: Vec::new(),
            commands: Vec::new(),
            union: Vec::new(),
            arranged: Vec::new(),
            pending_error: None,
            leases_out: 0,
            reads_failed: 0,
            wait_ns: 0,
            recorder: None,
        })
    }

    /// Starts a step: the experts of `union` (in any order; repeated ones count once) of MoE layer `layer` are needed.
    /// Missing ones are read at once, in the order of their file offsets, as far as there are slots.
    ///
    /// A step that was not finished is aborted first. Experts that do not exist make the next
    /// [`ExpertCache::ready`] fail.
    pub fn begin(&mut self, layer: usize, union: &[u32]) {
        if self.machine.step_layer().is_some() || self.leases_out > 0 || !self.handed_out.is_empty() {
            self.abort();
        }
        self.pending_error = None;
        let from = self.recorder.as_ref().map(|_| Instant::now());
        self.ahead.clear();
        self.judge_guesses(layer, union);
        self.make_way(layer, union);
        if let (Some(recorder), Some(from)) = (&self.recorder, from) {
            recorder.judged(layer, from);
        }
        if let Err(error) = self.take_landed() {
            // Nobody waited for it: no step was under way.
            tracing::debug!(%error, "what a read on a guess brought could not be used");
        }
        let from = self.recorder.as_ref().map(|_| Instant::now());
        let mut ordered = std::mem::take(&mut self.union);
        ordered.clear();
        ordered.extend_from_slice(union);
        if let Some(room) = self.rooms.get(layer) {
            let rank = |expert: &u32| room.read_rank.get(*expert as usize).copied();
            ordered.sort_unstable_by_key(rank);
        }
        let event = Event::Begin { layer: u32::try_from(layer).unwrap_or(u32::MAX), union: &ordered };
        self.pending_error = self.machine.apply(event, &mut self.commands).err();
        self.union = ordered;
        self.execute();
        self.read_warm();
        if let (Some(recorder), Some(from)) = (&self.recorder, from) {
            recorder.placed(layer, from, union.len());
        }
    }

    /// What comes has nothing to do with what was: another conversation. Only the policy cares.
    pub fn sequence_begins(&mut self) {
        self.tell(Event::Sequence);
    }

    /// Appends leases to `out`: at first those of the experts that are resident, without waiting; after that it waits
    /// until at least one read has landed and hands out all that have. `false`, with nothing appended, when every
    /// expert of the union was handed out.
    ///
    /// When the union exceeds the slots, the rest is read as leases are released; release them before the next call.
    ///
    /// # Errors
    /// [`ResidencyError::Read`] when an expert could not be read, [`ResidencyError::StepFailed`] when one could not
    /// before, [`ResidencyError::NoMemory`] when the system refused a buffer, [`ResidencyError::UnknownExpert`] when `begin` was given one that does not exist,
    /// [`ResidencyError::AllLeased`] when the caller holds the leases of every usable slot. Call
    /// [`ExpertCache::abort`] then; the same step may be begun again.
    pub fn ready(&mut self, out: &mut Vec<Lease>) -> Result<bool, ResidencyError> {
        self.check_pending_error()?;
        loop {
            self.take_landed()?;
            if !self.handed_out.is_empty() {
                self.leases_out += self.handed_out.len() as u64;
                out.append(&mut self.handed_out);
                return Ok(true);
            }
            let Some(layer) = self.machine.step_layer() else {
                return Ok(false);
            };
            if self.machine.step_failed() {
                let layer = layer as usize;
                return Err(ResidencyError::StepFailed { layer });
            }
            self.wait_for_one(layer)?;
        }
    }

    /// Gives a lease back; the expert stays resident until its slot is needed.
    pub fn release(&mut self, lease: Lease) {
        let key = lease.key();
        let slot = self.loaded_mut(key);
        let ours = matches!(slot, Some(Some(loaded)) if Arc::ptr_eq(loaded, &lease.loaded));
        drop(lease);
        if ours {
            self.leases_out = self.leases_out.saturating_sub(1);
            self.tell(Event::Released(key));
            self.read_ahead();
        }
    }

    /// Ends the step, after an error or when its result is no longer wanted: waits for the reads in flight (what lands
    /// stays resident) and drops what was not handed out. Leases that the caller dropped instead of releasing them stop
    /// protecting their slots; those that it still holds go on doing so. The cache is usable as before.
    pub fn abort(&mut self) {
        self.pending_error = None;
        self.tell(Event::Abort);
        for lease in std::mem::take(&mut self.handed_out) {
            let key = lease.key();
            drop(lease);
            self.tell(Event::Released(key));
        }
        self.ahead.clear();
        self.cancel_hints();
        self.cancel_warm();
        while self.disk.in_flight() > 0 {
            let Some(completion) = self.disk.wait() else {
                break;
            };
            if let Err(error) = self.complete(completion) {
                tracing::debug!(%error, "a read of an aborted step failed");
            }
        }
        if self.leases_out > 0 {
            self.forget_dropped_leases();
        }
    }

    /// From now on the cache holds at most `budget_bytes`, or its floor if that is more, and gives what is beyond back to the system. It never
    /// grows again. An unfinished step is aborted; leases that are out are not taken away, and hold the memory until the next call.
    pub fn shrink(&mut self, budget_bytes: u64) {
        self.abort();
        self.tell(Event::Shrink { budget_bytes });
        self.pool.shrink(self.machine.budget_bytes());
    }

    /// What was counted since the cache was made or the counters were reset.
    pub fn stats(&self) -> CacheStats {
        let counts = self.machine.counts();
        let (now, then) = (self.disk.stats(), self.disk_stats_at_reset);
        CacheStats {
            steps: counts.steps,
            hits: counts.hits,
            misses: counts.misses,
            evictions: counts.evictions,
            reads_failed: self.reads_failed,
            buffers_allocated: self.pool.allocated(),
            bytes_read: now.bytes_transferred - then.bytes_transferred,
            bytes_useful: now.bytes_useful - then.bytes_useful,
            wait_ns: self.wait_ns,
            guesses: self.hints.guesses,
            guesses_right: self.hints.guesses_right,
            guesses_needed: self.hints.guesses_needed,
            prefetches: counts.prefetches,
            prefetches_used: counts.prefetches_used,
            prefetches_wasted: counts.prefetches_wasted,
        }
    }

    /// Sets all counters to 0; what is resident and what the policy learned stay.
    pub fn reset_stats(&mut self) {
        self.machine.reset_counts();
        self.hints.reset_counts();
        self.pool.reset_allocated();
        self.reads_failed = 0;
        self.wait_ns = 0;
        self.disk_stats_at_reset = self.disk.stats();
    }

    /// Whether an expert is READY.
    pub fn resident(&self, layer: usize, expert: u32) -> bool {
        u32::try_from(layer).is_ok_and(|layer| self.machine.state(Key { layer, expert }) == SlotState::Ready)
    }

    /// Memory that the cache holds for experts now, idle buffers included, in bytes. Never above
    /// [`ExpertCache::budget_bytes`].
    pub fn resident_bytes(&self) -> u64 {
        self.pool.held_bytes()
    }

    /// The budget it was made with, or shrunk to.
    pub fn budget_bytes(&self) -> u64 {
        self.machine.budget_bytes()
    }

    /// Memory of one slot of a layer, in bytes; 0 when there is no such layer.
    pub fn slot_bytes(&self, layer: usize) -> u64 {
        self.rooms.get(layer).map_or(0, |r| r.slot_bytes as u64)
    }

    /// Name of the eviction policy.
    pub fn policy_name(&self) -> &'static str {
        self.machine.policy_name()
    }

    /// The disk it reads from.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    fn loaded_mut(&mut self, key: Key) -> Option<&mut Option<Arc<Loaded>>> {
        let room = self.rooms.get_mut(key.layer as usize)?;
        room.loaded.get_mut(key.expert as usize)
    }

    /// For events whose keys come from the machine or from leases of this cache.
    fn tell(&mut self, event: Event<'_>) {
        if let Err(error) = self.machine.apply(event, &mut self.commands) {
            tracing::error!(%error, ?event, "the residency machine refused an event of its own driver");
        }
        self.execute();
    }

    /// As [`ExpertCache::tell`]; what the machine wants read because of it is no demand.
    fn tell_as(&mut self, priority: Priority, event: Event<'_>) {
        self.priority = priority;
        self.tell(event);
        self.priority = Priority::Demand;
    }

    /// Evictions come before the loads that use their memory: the machine's order.
    fn execute(&mut self) {
        let mut commands = std::mem::take(&mut self.commands);
        for command in commands.drain(..) {
            match command {
                Command::Evict(key) => self.evict(key),
                Command::Load(key) => self.load(key),
                Command::HandOut(key) => self.hand_out(key),
            }
        }
        self.commands = commands;
    }

    fn evict(&mut self, key: Key) {
        let Some(loaded) = self.loaded_mut(key).and_then(Option::take) else {
            return;
        };
        match Arc::try_unwrap(loaded) {
            Ok(loaded) => self.pool.give_back(loaded.into_buffer()),
            // The machine never evicts leased slots; should it, the lease keeps its memory and we take other memory.
            Err(leased) => {
                tracing::error!(?key, "a leased expert was evicted");
                self.pool.lost(self.slot_bytes(key.layer as usize));
                drop(leased);
            }
        }
    }

    fn load(&mut self, key: Key) {
        let Some(room) = self.rooms.get(key.layer as usize) else {
            return;
        };
        let Some(extents) = room.extents.get(key.expert as usize) else {
            return;
        };
        match self.pool.take(room.slot_bytes) {
            Some(buffer) => {
                let (ticket, extents) = (ticket(key), extents.clone());
                match self.priority {
                    Priority::Demand => {}
                    Priority::Hint => self.hints.submitted(key),
                    Priority::Idle => self.warm.submitted(key),
                }
                self.disk.submit(ReadRequest { ticket, priority: self.priority, extents, buffer })
            }
            None if self.priority != Priority::Demand => self.fail(key),
            None => {
                self.pending_error = Some(ResidencyError::NoMemory {
                    layer: key.layer as usize,
                    expert: key.expert,
                    bytes: room.slot_bytes as u64,
                });
                self.fail(key);
            }
        }
    }

    /// Tells the machine only: a failure has no commands, and this runs while commands are executed.
    fn fail(&mut self, key: Key) {
        let mut none = Vec::new();
        if let Err(error) = self.machine.apply(Event::Failed(key), &mut none) {
            tracing::error!(%error, "the residency machine refused a failure");
        }
        debug_assert!(none.is_empty(), "{none:?}");
    }

    fn hand_out(&mut self, key: Key) {
        if let Some(Some(loaded)) = self.loaded_mut(key) {
            let loaded = Arc::clone(loaded);
            self.handed_out.push(Lease { expert: key.expert, layer: key.layer, loaded });
        }
    }

    /// Takes in every read that has ended, without waiting. Of several failures the first is reported.
    fn take_landed(&mut self) -> Result<(), ResidencyError> {
        let mut result = Ok(());
        while let Some(completion) = self.disk.poll() {
            let completed = self.complete(completion);
            result = result.and(completed);
        }
        result
    }

    fn check_pending_error(&mut self) -> Result<(), ResidencyError> {
        self.pending_error.take().map_or(Ok(()), Err)
    }

    /// The next read to end, or `None` when there is none; meanwhile memory for others is made ready.
    fn wait_usefully(&mut self, layer: usize) -> Option<Completion> {
        let slot_bytes = self.rooms.get(layer).map_or(0, |room| room.slot_bytes);
        while self.disk.in_flight() > 0 {
            if let Some(completion) = self.disk.poll() {
                return Some(completion);
            }
            if !self.pool.make_ready(slot_bytes) {
                break;
            }
        }
        self.disk.wait()
    }

    fn wait_for_one(&mut self, layer: u32) -> Result<(), ResidencyError> {
        if !self.machine.step_reads() {
            // What is under way, if anything is, are guesses: the step waits for none of them while it can help itself.
            self.tell(Event::Stalled);
            self.check_pending_error()?;
        }
        let waited = Stopwatch::start();
        let completion = self.wait_usefully(layer as usize);
        let wait_ns = waited.elapsed_ns();
        self.wait_ns += wait_ns;
        if let (Some(recorder), Some(started)) = (&self.recorder, waited.started()) {
            recorder.waited(layer, started, wait_ns);
        }
        match completion {
            Some(completion) => self.complete(completion),
            None => {
                Err(ResidencyError::AllLeased { layer: layer as usize, pending: self.machine.step_left() })
            }
        }
    }

    fn complete(&mut self, completion: Completion) -> Result<(), ResidencyError> {
        let key = key_of(completion.ticket);
        let guessed = self.hints.completed(key) | self.warm.completed(key);
        if let (Some(recorder), Some(life)) = (&self.recorder, self.disk.last_life()) {
            recorder.read(key, &life);
        }
        match completion.result {
            Ok(loaded) => match self.arrange(key, loaded) {
                Ok(loaded) => {
                    if let Some(slot) = self.loaded_mut(key) {
                        *slot = Some(Arc::new(loaded));
                    }
                    self.tell(Event::Landed(key));
                    Ok(())
                }
                Err((message, buffer)) => {
                    self.reads_failed += 1;
                    self.pool.give_back(buffer);
                    let awaited = self.machine.awaited(key);
                    self.fail(key);
                    if guessed && !awaited {
                        tracing::debug!(?key, message, "what a read on a guess brought could not be used");
                        return Ok(());
                    }
                    let layer = key.layer as usize;
                    Err(ResidencyError::Arrange { layer, expert: key.expert, message })
                }
            },
            Err(failed) if matches!(failed.error.failure, Failure::Cancelled) => {
                self.pool.give_back(failed.buffer);
                match self.machine.awaited(key) {
                    // Called off, and then needed after all. The machine's read goes on.
                    true => self.load(key),
                    false => self.fail(key),
                }
                Ok(())
            }
            Err(failed) => {
                self.reads_failed += 1;
                self.pool.give_back(failed.buffer);
                let awaited = self.machine.awaited(key);
                self.fail(key);
                if guessed && !awaited {
                    // Who needs it will find out by a read of his own.
                    tracing::debug!(error = %failed.error, "a read on a guess failed");
                    return Ok(());
                }
                Err(ResidencyError::Read {
                    layer: key.layer as usize,
                    expert: key.expert,
                    source: failed.error,
                })
            }
        }
    }

    /// What arrived, as the arithmetic reads it. It is put together beside the slot and copied back into it, so that a slot
    /// never needs room for both forms.
    fn arrange(&mut self, key: Key, loaded: Loaded) -> Result<Loaded, (String, Buffer)> {
        let arrange = self.rooms.get(key.layer as usize).and_then(|room| room.arrange.clone());
        let Some(arrange) = arrange else { return Ok(loaded) };
        let from = self.recorder.as_ref().map(|_| Instant::now());
        let pieces: Vec<&[u8]> = (0..loaded.len()).map(|i| loaded.view(i)).collect();
        let matrix_bytes = arrange.matrix_bytes();
        let total = matrix_bytes.iter().sum();
        self.arranged.resize(total, 0);
        let outcome = arrange.arrange(&pieces, &mut self.arranged);
        let mut buffer = loaded.into_buffer();
        match (outcome, buffer.as_mut_slice().get_mut(..total)) {
            (Ok(()), Some(slot)) => slot.copy_from_slice(&self.arranged),
            (Ok(()), None) => return Err((format!("{total} bytes do not fit the slot"), buffer)),
            (Err(message), _) => return Err((message, buffer)),
        }
        if let (Some(recorder), Some(from)) = (&self.recorder, from) {
            recorder.arranged(key, from);
        }
        let mut start = 0;
        let views = matrix_bytes.map(|bytes| {
            start += bytes;
            start - bytes..start
        });
        // The views lie inside the part that was just written.
        Loaded::new(buffer, views.to_vec())
            .ok_or_else(|| ("the matrices do not fit the slot".to_owned(), Buffer::with_capacity(0)))
    }

    /// A lease that was dropped would protect its slot for ever. Only runs while leases are out between steps, which
    /// is the case after errors.
    fn forget_dropped_leases(&mut self) {
        let mut dropped = Vec::new();
        for (layer, room) in self.rooms.iter().enumerate() {
            for (expert, loaded) in room.loaded.iter().enumerate() {
                let Some(loaded) = loaded else { continue };
                let key = Key { layer: layer as u32, expert: expert as u32 };
                let held = Arc::strong_count(loaded) - 1;
                let lost = (self.machine.leases(key) as usize).saturating_sub(held);
                dropped.extend(std::iter::repeat_n(key, lost));
            }
        }
        for key in dropped {
            self.leases_out = self.leases_out.saturating_sub(1);
            self.tell(Event::Released(key));
        }
    }
}

impl std::fmt::Debug for ExpertCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExpertCache")
            .field("machine", &self.machine)
            .field("resident_bytes", &self.resident_bytes())
            .finish_non_exhaustive()
    }
}

fn ticket(key: Key) -> u64 {
    u64::from(key.layer) << 32 | u64::from(key.expert)
}

fn key_of(ticket: u64) -> Key {
    Key { layer: (ticket >> 32) as u32, expert: ticket as u32 }
}

/// Measures waits; `wasm32-unknown-unknown` has no clock, and asking for one there aborts the program.
struct Stopwatch {
    #[cfg(not(target_family = "wasm"))]
    started: Instant,
}

impl Stopwatch {
    fn start() -> Stopwatch {
        Stopwatch {
            #[cfg(not(target_family = "wasm"))]
            started: Instant::now(),
        }
    }

    fn started(&self) -> Option<Instant> {
        #[cfg(not(target_family = "wasm"))]
        return Some(self.started);
        #[cfg(target_family = "wasm")]
        return None;
    }

    fn elapsed_ns(&self) -> u64 {
        #[cfg(not(target_family = "wasm"))]
        return u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        #[cfg(target_family = "wasm")]
        return 0;
    }
}
