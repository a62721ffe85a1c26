//! The hand-off: how a job gets from the caller to the helpers and back. No thread is started here.
//!
//! One word, the *gate*, holds the state: a generation counter, an open bit, and the number of helpers inside the
//! current job. A helper enters by adding one to an open gate (compare-and-swap); the caller closes the gate when no
//! task is left and waits for the count to fall to zero; only then may the job's borrowed closure go away.
//!
//! What it synchronises with comes from `crate::sync`. That is the standard library here; `tests/handoff.rs` compiles
//! this file a second time over loom's, which goes through the orders in which its steps can happen.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::PoisonError;

use crate::sync::{
    AtomicU64, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, SPIN_TURNS, UnsafeCell, fence, spin_loop,
    yield_now,
};

const OPEN: u64 = 1 << 16;
const INSIDE: u64 = OPEN - 1;
const GENERATION: u64 = 1 << 17;

const AWAKE: u64 = 1;
const ASLEEP: u64 = 1 << 32;

/// Beyond every number of tasks, and no sum of helpers' claims wraps round from it.
const NO_TASK: usize = usize::MAX / 2;

/// A borrowed closure with its lifetime erased.
type Task = dyn Fn(usize) + Sync + 'static;

#[derive(Clone, Copy)]
struct Job {
    run: *const Task,
    tasks: usize,
}

/// What the caller and the helpers of one team share.
pub(crate) struct Handoff {
    gate: AtomicU64,
    /// The number of the next task that nobody has claimed.
    next: AtomicUsize,
    /// Written only while the gate is closed and nobody is inside.
    job: UnsafeCell<Option<Job>>,
    /// Helpers that are inside or look at the gate, and in the upper half those that sleep, or will unless they see an
    /// open gate.
    helpers: AtomicU64,
    /// Helpers worth keeping awake: more than there are cores would take them from each other and from the caller.
    awake_max: u64,
    /// Whether the team is being taken down. Held from a last look at the gate until asleep.
    leaving: Mutex<bool>,
    wake: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` alone needs it. It is written while the gate is closed and nobody is inside, and read inside; opening and
// entering the gate, leaving it and seeing it empty are release and acquire. The closure it points to is `Sync`, and the
// gate keeps it alive while a helper can reach it.
unsafe impl Send for Handoff {}
// SAFETY: as above.
unsafe impl Sync for Handoff {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panicking task is caught and carried to the caller, so a poisoned lock holds nothing half-written.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Handoff {
    /// Of any number of helpers, `awake_max` are woken for jobs and spin between them; the others sleep.
    pub(crate) fn new(awake_max: usize) -> Handoff {
        Handoff {
            gate: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            helpers: AtomicU64::new(0),
            awake_max: awake_max as u64,
            leaving: Mutex::new(false),
            wake: Condvar::new(),
            panic: Mutex::new(None),
        }
    }

    /// Runs `task(0)` … `task(tasks − 1)` with whatever helpers come, each exactly once, and returns when all are done
    /// and every helper is out. After a panic in a task no further one is begun; those under way are waited for, then
    /// the caller gets the panic. Two calls must not overlap.
    pub(crate) fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        // SAFETY: only the lifetime is erased. `Close` below does not let this function return or unwind before the
        // gate is closed and the last helper has left, and no helper keeps the pointer after leaving.
        let run: *const Task = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static Task>(task) };
        // SAFETY: the gate is closed and nobody is inside: the last `Close` saw to that.
        self.job.with_mut(|job| unsafe { *job = Some(Job { run, tasks }) });
        self.next.store(0, Ordering::Relaxed);
        {
            let _close = Close(self);
            let closed = self.gate.load(Ordering::Relaxed);
            self.gate.store((closed & !(OPEN | INSIDE)).wrapping_add(GENERATION) | OPEN, Ordering::Release);
            // Between this opening and the look at the sleepers; its partner is in `sleep`. Of two sides that each
            // write and then look, separated by such fences, at least one sees what the other wrote.
            fence(Ordering::SeqCst);
            let helpers = self.helpers.load(Ordering::Relaxed);
            let wanted = self.awake_max.min(tasks.saturating_sub(1) as u64);
            let to_wake = wanted.saturating_sub(helpers % ASLEEP).min(helpers / ASLEEP);
            if to_wake > 0 {
                // Nobody is between a last look at the gate and sleep while the lock is held.
                drop(lock(&self.leaving));
                (0..to_wake).for_each(|_| self.wake.notify_one());
            }
            self.work(task, tasks);
        }
        // Taken out first: unwinding with the lock held would poison it.
        let panic = lock(&self.panic).take();
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    /// The life of a helper: job after job, until [`Handoff::take_down`].
    pub(crate) fn help(&self) {
        self.helpers.fetch_add(AWAKE, Ordering::Relaxed);
        let mut seen = 0u64;
        while let Some(generation) = self.enter(seen) {
            seen = generation;
            // SAFETY: this helper is counted inside an open gate, and nobody writes before the count is zero.
            let job = self.job.with(|job| unsafe { *job });
            if let Some(job) = job {
                // SAFETY: as above: the caller does not return before the count is zero; see `Handoff::run`.
                self.work(unsafe { &*job.run }, job.tasks);
            }
            self.gate.fetch_sub(1, Ordering::Release);
        }
    }

    /// Ends [`Handoff::help`] in all helpers. Not while a job runs.
    pub(crate) fn take_down(&self) {
        *lock(&self.leaving) = true;
        self.wake.notify_all();
    }

    /// Claims and runs tasks until none is left; a panic is kept for the caller, who must see it only once all are out.
    fn work(&self, task: &(dyn Fn(usize) + Sync), tasks: usize) {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let i = self.next.fetch_add(1, Ordering::Relaxed);
                if i >= tasks {
                    break;
                }
                task(i);
            }
        }));
        if let Err(payload) = outcome {
            self.next.store(NO_TASK, Ordering::Relaxed);
            lock(&self.panic).get_or_insert(payload);
        }
    }

    /// Waits for a job newer than `seen` and steps inside it. `None` when the team is being taken down.
    fn enter(&self, seen: u64) -> Option<u64> {
        let mut turns = 0usize;
        loop {
            let gate = self.gate.load(Ordering::Relaxed);
            if is_newer(gate, seen) {
                let entered =
                    self.gate.compare_exchange(gate, gate + 1, Ordering::Acquire, Ordering::Relaxed);
                if entered.is_ok() {
                    return Some(gate / GENERATION);
                }
                continue;
            }
            let is_crowded = || self.helpers.load(Ordering::Relaxed) % ASLEEP > self.awake_max;
            if turns != SPIN_TURNS && !is_crowded() {
                turns += 1;
                spin_loop();
                continue;
            }
            if self.sleep(seen) {
                return None;
            }
            turns = 0;
        }
    }

    /// Sleeps until woken, unless a job newer than `seen` is there. One who comes too late for the job it was woken for
    /// should look out for the next, so it does not sleep again at once. True when the team is being taken down.
    fn sleep(&self, seen: u64) -> bool {
        let mut leaving = lock(&self.leaving);
        // Announce first, look again, then sleep: a job opened in between is seen by one side or the other.
        self.helpers.fetch_add(ASLEEP - AWAKE, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !*leaving && !is_newer(self.gate.load(Ordering::Relaxed), seen) {
            leaving = self.wake.wait(leaving).unwrap_or_else(PoisonError::into_inner);
        }
        self.helpers.fetch_sub(ASLEEP - AWAKE, Ordering::Relaxed);
        *leaving
    }
}

/// Whether the gate is open for a job that the helper who has seen `seen` was not inside.
fn is_newer(gate: u64, seen: u64) -> bool {
    gate & OPEN != 0 && gate / GENERATION != seen
}

/// Closes the gate and waits for the helpers inside, also when the caller's own task panics.
struct Close<'a>(&'a Handoff);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        self.0.gate.fetch_and(!OPEN, Ordering::Relaxed);
        let mut turns = 0usize;
        while self.0.gate.load(Ordering::Acquire) & INSIDE != 0 {
            turns += 1;
            // A helper may have been descheduled inside its last task: give it the core.
            if turns > SPIN_TURNS { yield_now() } else { spin_loop() }
        }
    }
}
