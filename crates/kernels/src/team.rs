//! The compute team: persistent threads that help the caller through a list of tasks.
//!
//! The caller works too, and waits only for helpers that have *claimed* a task: on a busy machine a helper that is not
//! scheduled costs nothing. Helpers spin for a bounded time between jobs, since the next job of a token usually comes
//! within microseconds, and then sleep. How they meet is in `team/handoff.rs`.

mod handoff;

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use handoff::Handoff;

/// Threads that one team may have, the caller included.
pub const THREADS_MAX: usize = 1024;

/// A fixed number of threads, the caller's included, that run the tasks of one job at a time.
pub struct Team {
    handoff: Arc<Handoff>,
    helpers: Vec<JoinHandle<()>>,
    /// Held while a job runs: jobs of one team never overlap.
    busy: Mutex<()>,
}

impl Team {
    /// A team of `threads` (at least one, the caller; at most `THREADS_MAX`). Where threads cannot be had
    /// (WebAssembly, or the system refuses) it is smaller, and results are the same. Of more threads than the process
    /// has cores only as many are awake at a time.
    pub fn new(threads: usize) -> Team {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Team::with_awake(threads, threads.min(cores))
    }

    /// A team of `threads` of which at most `awake` are, the caller included.
    fn with_awake(threads: usize, awake: usize) -> Team {
        let handoff = Arc::new(Handoff::new(awake.saturating_sub(1)));
        let wanted = if cfg!(target_arch = "wasm32") { 0 } else { threads.clamp(1, THREADS_MAX) - 1 };
        let helpers = (0..wanted)
            .map_while(|i| {
                let handoff = Arc::clone(&handoff);
                std::thread::Builder::new()
                    .name(format!("calypte-compute-{}", i + 1))
                    .spawn(move || handoff.help())
                    .ok()
            })
            .collect();
        Team { handoff, helpers, busy: Mutex::new(()) }
    }

    /// Threads that work on a job, the caller included.
    pub fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Runs `task(0)` … `task(tasks − 1)`, each exactly once, in any order and on any thread, and returns when all are
    /// done. After a panic in a task no further one is begun; those under way are waited for, then the caller gets the
    /// panic. Allocates nothing.
    pub fn run(&self, tasks: usize, task: impl Fn(usize) + Sync) {
        if tasks <= 1 || self.helpers.is_empty() {
            (0..tasks).for_each(task);
            return;
        }
        // The lock guards no data, so one that a panic poisoned is as good as any.
        let _busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        self.handoff.run(tasks, &task);
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

impl Drop for Team {
    fn drop(&mut self) {
        self.handoff.take_down();
        for helper in self.helpers.drain(..) {
            let _ = helper.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    /// Every task exactly once.
    #[track_caller]
    fn check(team: &Team, jobs: usize, tasks: usize) {
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
                check(&Team::new(threads), 50, tasks);
            }
        }
    }

    /// Far more threads than most machines have cores, all awake or a few, alone and beside threads that never rest.
    #[test]
    #[cfg(not(target_family = "wasm"))] // it needs threads of its own
    fn many_threads_beside_a_busy_neighbour() {
        for awake in [0, 2, 16] {
            let team = Team::with_awake(16, awake);
            check(&team, 200, 40);
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        while !done.load(Ordering::Relaxed) {
                            std::hint::spin_loop();
                        }
                    });
                }
                let checked = catch_unwind(AssertUnwindSafe(|| check(&team, 100, 40)));
                // Also after a failure, or the scope would wait for the neighbours for ever.
                done.store(true, Ordering::Relaxed);
                checked.expect("every task once");
            });
        }
    }

    #[test]
    fn helpers_that_fell_asleep_wake_up() {
        let team = Team::new(3);
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            check(&team, 1, 64);
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
            check(&team, 1, 10);
        }
    }
}
