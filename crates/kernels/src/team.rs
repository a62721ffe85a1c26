//! The compute team: persistent threads that help the caller through a list of tasks.
//!
//! The caller works too, and waits only for helpers that have *claimed* a task: on a busy machine a helper that is not
//! scheduled costs nothing. Helpers spin for a bounded time between jobs, since the next job of a token usually comes
//! within microseconds, and then sleep.
//!
//! One word, the *gate*, holds the state: a generation counter, an open bit, and the number of helpers inside the
//! current job. A helper enters by adding one to an open gate (compare-and-swap); the caller closes the gate when no
//! task is left and waits for the count to fall to zero; only then may the job's borrowed closure go away.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Threads that one team may have, the caller included.
pub const THREADS_MAX: usize = 1024;
/// Turns a helper spins for before it sleeps: 20 to 100 µs, as long as the processor's pause takes; two jobs of a token
/// are usually closer together than that.
const SPIN_TURNS: usize = 2_000;

const OPEN: u64 = 1 << 16;
const INSIDE: u64 = OPEN - 1;
const GENERATION: u64 = 1 << 17;

/// A borrowed closure with its lifetime erased.
type Task = dyn Fn(usize) + Sync + 'static;

struct Shared {
    gate: AtomicU64,
    next: AtomicUsize,
    /// Written only while the gate is closed and nobody is inside.
    job: Mutex<Option<Job>>,
    sleepers: AtomicUsize,
    bed: Mutex<bool>,
    wake: Condvar,
    panic: Mutex<Option<Box<dyn std::any::Any + Send>>>,
}

#[derive(Clone, Copy)]
struct Job {
    run: *const Task,
    tasks: usize,
}

// SAFETY: the pointer is to a `Sync` closure, and the gate protocol keeps it alive while any helper can reach it.
unsafe impl Send for Job {}

/// A fixed number of threads, the caller's included, that run the tasks of one job at a time.
pub struct Team {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
    /// Held while a job runs: jobs of one team never overlap.
    busy: Mutex<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panicking task is caught and carried to the caller, so a poisoned lock holds nothing half-written.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Team {
    /// A team of `threads` (at least one, the caller; at most `THREADS_MAX`). Where threads cannot be had
    /// (WebAssembly, or the system refuses) it is smaller, and results are the same.
    pub fn new(threads: usize) -> Team {
        let shared = Arc::new(Shared {
            gate: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            job: Mutex::new(None),
            sleepers: AtomicUsize::new(0),
            bed: Mutex::new(false),
            wake: Condvar::new(),
            panic: Mutex::new(None),
        });
        let wanted = if cfg!(target_arch = "wasm32") { 0 } else { threads.clamp(1, THREADS_MAX) - 1 };
        let helpers = (0..wanted)
            .map_while(|i| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new()
                    .name(format!("calypte-compute-{}", i + 1))
                    .spawn(move || help(&shared))
                    .ok()
            })
            .collect();
        Team { shared, helpers, busy: Mutex::new(()) }
    }

    /// Threads that work on a job, the caller included.
    pub fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Runs `task(0)` … `task(tasks − 1)`, each exactly once, in any order and on any thread, and returns when all are
    /// done. A panic in a task is passed on to the caller after the others have finished.
    pub fn run(&self, tasks: usize, task: impl Fn(usize) + Sync) {
        if tasks <= 1 || self.helpers.is_empty() {
            (0..tasks).for_each(task);
            return;
        }
        let _busy = lock(&self.busy);
        let shared = &*self.shared;
        let borrowed: &(dyn Fn(usize) + Sync) = &task;
        // SAFETY: only the lifetime is erased. `Close` below does not let this function return or unwind before the
        // gate is closed and the last helper has left, and no helper keeps the pointer after leaving.
        let run: *const Task =
            unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static Task>(borrowed) };
        *lock(&shared.job) = Some(Job { run, tasks });
        shared.next.store(0, Ordering::Relaxed);
        {
            let _close = Close(shared);
            let closed = shared.gate.load(Ordering::Relaxed);
            shared.gate.store((closed & !(OPEN | INSIDE)).wrapping_add(GENERATION) | OPEN, Ordering::SeqCst);
            if shared.sleepers.load(Ordering::SeqCst) > 0 {
                drop(lock(&shared.bed));
                shared.wake.notify_all();
            }
            work(shared, borrowed, tasks);
        }
        if let Some(payload) = lock(&shared.panic).take() {
            resume_unwind(payload);
        }
    }

    /// Cuts `out` into pieces of `piece_len` (the last may be shorter) and runs `task(i, piece_i)` for each.
    pub fn run_pieces<T: Send>(
        &self,
        out: &mut [T],
        piece_len: usize,
        task: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let (len, piece_len) = (out.len(), piece_len.max(1));
        let base = SendPtr(out.as_mut_ptr());
        self.run(len.div_ceil(piece_len), |i| {
            let start = i * piece_len;
            let n = piece_len.min(len - start);
            // SAFETY: `run` hands out each i once, so the pieces are disjoint parts of `out`, which is borrowed for
            // the whole call.
            let piece = unsafe { std::slice::from_raw_parts_mut(base.get().add(start), n) };
            task(i, piece);
        });
    }
}

/// A pointer that tasks may share; every use says why its accesses are disjoint.
#[derive(Clone, Copy)]
pub(crate) struct SendPtr<T>(pub(crate) *mut T);
// SAFETY: it is only a number; the user of `get` answers for what is done with it.
unsafe impl<T: Send> Send for SendPtr<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SendPtr<T> {}

impl<T> SendPtr<T> {
    /// The pointer. A method, so that closures capture the wrapper and not the bare field.
    pub(crate) fn get(&self) -> *mut T {
        self.0
    }
}

/// Closes the gate and waits for the helpers inside, also when the caller's own task panics.
struct Close<'a>(&'a Shared);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        self.0.next.store(usize::MAX / 2, Ordering::Relaxed);
        self.0.gate.fetch_and(!OPEN, Ordering::SeqCst);
        let mut turns = 0usize;
        while self.0.gate.load(Ordering::Acquire) & INSIDE != 0 {
            turns += 1;
            // A helper may have been descheduled inside its last task: give it the core.
            if turns > SPIN_TURNS { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        *lock(&self.0.job) = None;
    }
}

/// Claims and runs tasks until none is left; a panic is kept for the caller, who must see it only once all are out.
fn work(shared: &Shared, task: &(dyn Fn(usize) + Sync), tasks: usize) {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        loop {
            let i = shared.next.fetch_add(1, Ordering::Relaxed);
            if i >= tasks {
                break;
            }
            task(i);
        }
    }));
    if let Err(payload) = outcome {
        lock(&shared.panic).get_or_insert(payload);
    }
}

fn help(shared: &Shared) {
    let mut seen = 0u64;
    while let Some(generation) = enter(shared, seen) {
        seen = generation;
        let job = *lock(&shared.job);
        if let Some(job) = job {
            // SAFETY: this helper is counted inside an open gate, and the caller does not return before the count is
            // zero; see `Team::run`.
            work(shared, unsafe { &*job.run }, job.tasks);
        }
        shared.gate.fetch_sub(1, Ordering::Release);
    }
}

/// Waits for a job newer than `seen` and steps inside it. `None` when the team is being taken down.
fn enter(shared: &Shared, seen: u64) -> Option<u64> {
    let mut turns = 0usize;
    loop {
        let gate = shared.gate.load(Ordering::SeqCst);
        let generation = gate / GENERATION;
        if gate & OPEN != 0 && generation != seen {
            let entered = shared.gate.compare_exchange(gate, gate + 1, Ordering::SeqCst, Ordering::Relaxed);
            if entered.is_ok() {
                return Some(generation);
            }
            continue;
        }
        turns += 1;
        if turns < SPIN_TURNS {
            std::hint::spin_loop();
            continue;
        }
        // Announce first, look again, then sleep: a job opened in between is seen by one side or the other.
        let mut leaving = lock(&shared.bed);
        shared.sleepers.fetch_add(1, Ordering::SeqCst);
        loop {
            let gate = shared.gate.load(Ordering::SeqCst);
            if *leaving || (gate & OPEN != 0 && gate / GENERATION != seen) {
                break;
            }
            leaving = shared.wake.wait(leaving).unwrap_or_else(PoisonError::into_inner);
        }
        shared.sleepers.fetch_sub(1, Ordering::SeqCst);
        if *leaving {
            return None;
        }
        turns = 0;
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        *lock(&self.shared.bed) = true;
        self.shared.wake.notify_all();
        for helper in self.helpers.drain(..) {
            let _ = helper.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every task exactly once, for team sizes around and far above the number of cores.
    #[track_caller]
    fn check(threads: usize, jobs: usize, tasks: usize) {
        let team = Team::new(threads);
        for _ in 0..jobs {
            let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
            team.run(tasks, |i| {
                counts[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn runs_every_task_once() {
        for threads in [1, 2, 3, 9] {
            for tasks in [0, 1, 2, 7, 100] {
                check(threads, 50, tasks);
            }
        }
    }

    #[test]
    fn helpers_that_fell_asleep_wake_up() {
        let team = Team::new(3);
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            let n = AtomicUsize::new(0);
            team.run(64, |_| {
                n.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(n.into_inner(), 64);
        }
    }

    #[test]
    fn pieces_are_disjoint_and_complete() {
        let team = Team::new(3);
        let mut out = vec![0u32; 1003];
        team.run_pieces(&mut out, 10, |i, piece| piece.iter_mut().for_each(|v| *v += i as u32 + 1));
        assert!(out.iter().enumerate().all(|(j, v)| *v == j as u32 / 10 + 1));
    }

    /// Not where a panic ends the program at once, as on WebAssembly.
    #[cfg(panic = "unwind")]
    #[test]
    fn a_panic_reaches_the_caller_and_the_team_lives_on() {
        let team = Team::new(3);
        for culprit in [0, 5, 99] {
            let caught = catch_unwind(AssertUnwindSafe(|| team.run(100, |i| assert_ne!(i, culprit))));
            assert!(caught.is_err());
            check(2, 1, 10);
            let n = AtomicUsize::new(0);
            team.run(10, |_| {
                n.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(n.into_inner(), 10);
        }
    }
}
