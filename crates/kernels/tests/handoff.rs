//! The compute team's hand-off under loom: the same source, over atomics, locks and threads whose every order of steps is
//! tried (up to a number of preemptions), weak memory included.
//!
//! Two helpers and two jobs in a row. Loom reports a deadlock (which a lost wake-up is, wherever the test cannot end
//! without the sleeper), two accesses to one cell that nothing orders, and whatever the assertions find.

#![cfg(not(target_family = "wasm"))]

#[path = "../src/team/handoff.rs"]
mod handoff;

/// Loom's side of what the kernels' own `sync` takes from the standard library.
mod sync {
    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::hint::spin_loop;
    pub(crate) use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use loom::thread::yield_now;

    /// Helpers sleep at once: turns of a spin are one state looked at again.
    pub(crate) const SPIN_TURNS: usize = 0;
}

use std::panic::{AssertUnwindSafe, catch_unwind};

use loom::sync::Arc;
use loom::thread;

use handoff::Handoff;
use sync::{Condvar, Mutex, UnsafeCell};

const JOBS: usize = 2;
/// Times that a thread is interrupted where it could have gone on, in one order of steps, when there is one helper.
const PREEMPTIONS_MAX_ONE_HELPER: usize = 3;

/// Goes through the orders of steps of `caller` and two helpers, or one. With two, a thread is interrupted where it could
/// have gone on at most `preemptions_max` times: each more takes fifty times as long.
fn check(preemptions_max: usize, caller: fn(&Handoff)) {
    for (helpers, preemptions_max) in [(2, preemptions_max), (1, PREEMPTIONS_MAX_ONE_HELPER)] {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(preemptions_max);
        model.check(move || {
            let handoff = Arc::new(Handoff::new(helpers));
            let help = |_| {
                let handoff = Arc::clone(&handoff);
                thread::spawn(move || handoff.help())
            };
            let helpers: Vec<_> = (0..helpers).map(help).collect();
            caller(&handoff);
            handoff.take_down();
            for helper in helpers {
                helper.join().expect("a helper ends by itself");
            }
        });
    }
}

/// A place that one task writes and, after the job, the caller reads; loom checks that the two are ordered.
struct Place(UnsafeCell<usize>);

// SAFETY: loom reports every access that is not ordered with the others.
unsafe impl Sync for Place {}

impl Place {
    fn new(n: usize) -> Place {
        Place(UnsafeCell::new(n))
    }

    fn add(&self, n: usize) {
        // SAFETY: task i alone has place i, and loom would report another.
        self.0.with_mut(|p| unsafe { *p += n });
    }

    fn get(&self) -> usize {
        // SAFETY: the job is over, and loom would report it if it were not.
        self.0.with(|p| unsafe { *p })
    }
}

#[test]
fn every_task_runs_once_and_its_writes_are_seen() {
    check(2, |handoff| {
        for job in 1..=JOBS {
            // Dropped after each job: a helper that is still inside would touch what is gone.
            let places = [0, 0].map(Place::new);
            handoff.run(places.len(), &|i| places[i].add(job));
            assert!(places.iter().all(|p| p.get() == job));
        }
    });
}

#[test]
fn no_wake_up_is_lost() {
    check(1, |handoff| {
        for _ in 0..JOBS {
            // Neither task ends before the other has begun, so a helper has to come.
            let (begun, both) = (Mutex::new(0), Condvar::new());
            handoff.run(2, &|_| {
                let mut begun = begun.lock().expect("no panic");
                *begun += 1;
                both.notify_one();
                while *begun < 2 {
                    begun = both.wait(begun).expect("no panic");
                }
            });
        }
    });
}

#[test]
fn a_panic_reaches_the_caller_and_the_team_lives_on() {
    check(2, |handoff| {
        let places = [0, 0].map(Place::new);
        // Not by `panic!`, whose hook would print in every order of steps.
        let job = || {
            handoff.run(2, &|i| {
                if i == 0 { std::panic::resume_unwind(Box::new("task 0")) } else { places[i].add(1) }
            })
        };
        let caught = catch_unwind(AssertUnwindSafe(job)).expect_err("the caller gets the panic");
        assert_eq!(caught.downcast_ref(), Some(&"task 0"));
        assert!(places[1].get() <= 1);
        handoff.run(2, &|i| places[i].add(10));
        assert!(places.iter().all(|p| p.get() / 10 == 1));
    });
}

#[test]
fn a_team_without_a_job_is_taken_down() {
    check(2, |_| ());
}
