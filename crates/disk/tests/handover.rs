//! The hand-over of a slot's memory under loom: the line and the landing of the same source, over atomics, locks and threads whose
//! every order of steps is tried (up to a number of preemptions), weak memory included.
//!
//! The owner of a slot (the state machine of `calypte-residency` runs on its thread alone) gives its memory away with a request, FREE to
//! LOADING. Readers write its segments. It comes back with the completion, READY, is looked at, and goes away again with the next
//! request. Meanwhile the owner promotes the request, or calls it off. Loom reports two accesses to one place that nothing orders, which a
//! slot handed out too early or reused too early would be; a deadlock, which a completion lost is; and what the assertions find: each
//! request completes once.

#![cfg(any(unix, windows))]
#![allow(dead_code, reason = "of the line and the landing, what only the backends use")]

#[path = "../src/landing.rs"]
mod landing;
#[path = "../src/line.rs"]
mod line;

/// Loom's side of what the disk's own `sync` takes from the standard library.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().expect("nobody panics")
    }

    pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        condvar.wait(guard).expect("nobody panics")
    }
}

/// A request as the line sees it.
mod flight {
    use super::landing::Landing;
    use super::{Cancelled, Slot, sync};

    pub(crate) struct Flight {
        pub id: u64,
        pub landing: Landing<Slot, Cancelled>,
        /// Where readers write: the places of the slot inside.
        pub places: sync::Arc<[super::Place; super::SEGMENTS]>,
    }

    impl Flight {
        pub fn begin(&self) {}
        pub fn end(&self) {}
    }
}

/// A segment as the line sees it: the number of its place.
mod transfer {
    pub(crate) struct Segment(pub usize);
}

use std::collections::VecDeque;

use loom::cell::UnsafeCell;
use loom::thread;

use flight::Flight;
use landing::{Landed, Landing};
use line::Line;
use sync::{Arc, Condvar, Mutex, lock, wait};
use transfer::Segment;

/// As in the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Priority {
    Demand,
    Hint,
    Idle,
}

/// Hints under way at most; fewer than the disk's, so that they are kept waiting here too.
const HINT_DEPTH_MAX: usize = 1;
/// Segments of a request.
const SEGMENTS: usize = 2;
/// Times that a thread is interrupted where it could have gone on.
const PREEMPTIONS_MAX: usize = 2;

#[derive(Debug, PartialEq)]
struct Cancelled;

/// Memory of one segment; loom checks that accesses are ordered.
struct Place(UnsafeCell<u64>);

// SAFETY: loom reports every access that is not ordered with the others.
unsafe impl Sync for Place {}
// SAFETY: as above.
unsafe impl Send for Place {}

/// The right to the places of a slot, which is either with the owner or in a request.
struct Slot(Arc<[Place; SEGMENTS]>);

impl Slot {
    fn new() -> Slot {
        Slot(Arc::new([0; SEGMENTS].map(|n| Place(UnsafeCell::new(n)))))
    }

    fn read(&self) -> [u64; SEGMENTS] {
        // SAFETY: whoever has the slot reads, and loom would report it if somebody still wrote.
        [0, 1].map(|n| self.0[n].0.with(|place| unsafe { *place }))
    }
}

/// Completions on their way to the owner.
#[derive(Default)]
struct Landings {
    waiting: Mutex<VecDeque<(u64, Landed<Slot, Cancelled>)>>,
    came: Condvar,
}

impl Landings {
    fn new() -> Landings {
        Landings { waiting: Mutex::new(VecDeque::new()), came: Condvar::new() }
    }

    fn send(&self, id: u64, landed: Landed<Slot, Cancelled>) {
        lock(&self.waiting).push_back((id, landed));
        self.came.notify_all();
    }

    fn wait(&self) -> (u64, Landed<Slot, Cancelled>) {
        let mut waiting = lock(&self.waiting);
        loop {
            match waiting.pop_front() {
                Some(landed) => return landed,
                None => waiting = wait(&self.came, waiting),
            }
        }
    }
}

/// What a reader thread of the pool does, without a file: every place of request `id` becomes `id + 1`.
fn read(line: &Line, landings: &Landings) {
    while let Some(op) = line.take() {
        if !op.flight.landing.is_over() {
            let place = &op.flight.places[op.segment.0];
            // SAFETY: this thread took the segment, and loom would report another.
            place.0.with_mut(|place| unsafe { *place = op.flight.id + 1 });
        }
        let flight = line.rest(op);
        if let Some(landed) = flight.landing.land(None) {
            landings.send(flight.id, landed);
        }
    }
}

fn submit(line: &Line, id: u64, slot: Slot, priority: Priority) -> Arc<Flight> {
    let places = slot.0.clone();
    let flight = Arc::new(Flight { id, landing: Landing::new(slot, SEGMENTS), places });
    line.join(&flight, (0..SEGMENTS).map(Segment).collect(), priority);
    flight
}

/// What the front does: takes out what waits and lands it. The completion if that was all of it.
fn cancel(line: &Line, flight: &Flight) -> Option<Landed<Slot, Cancelled>> {
    let mut landed = None;
    for n in 0..line.withdraw(flight.id).len() {
        landed = landed.or(flight.landing.land((n == 0).then_some(Cancelled)));
    }
    landed
}

/// Goes through the orders of steps of an owner and `readers` readers.
fn check(readers: usize, owner: fn(&Line, &Landings)) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS_MAX);
    model.check(move || {
        let (line, landings) = (Arc::new(Line::new(readers)), Arc::new(Landings::new()));
        let reader = |_| {
            let (line, landings) = (line.clone(), landings.clone());
            thread::spawn(move || read(&line, &landings))
        };
        let readers: Vec<_> = (0..readers).map(reader).collect();
        owner(&line, &landings);
        line.stop();
        for reader in readers {
            reader.join().expect("a reader ends by itself");
        }
        assert!(lock(&landings.waiting).is_empty(), "a request completes once");
    });
}

#[test]
fn a_slot_is_whole_when_it_comes_back_and_can_be_used_again() {
    for readers in [1, 2] {
        check(readers, |line, landings| {
            let mut slot = Slot::new();
            for id in 0..2 {
                submit(line, id, slot, Priority::Demand);
                let (of, landed) = landings.wait();
                slot = landed.unwrap_or_else(|_| panic!("nothing fails here"));
                assert_eq!((of, slot.read()), (id, [id + 1; SEGMENTS]));
            }
        });
    }
}

#[test]
fn a_hint_that_is_promoted_lands_like_a_demand() {
    for readers in [1, 2] {
        check(readers, |line, landings| {
            submit(line, 0, Slot::new(), Priority::Hint);
            line.promote(0);
            let (_, landed) = landings.wait();
            assert_eq!(landed.ok().map(|slot| slot.read()), Some([1; SEGMENTS]));
        });
    }
}

/// Wherever the readers are: either it was too late, or the memory comes back with the word that it was called off, once, and can be
/// read into again at once.
#[test]
fn a_hint_that_is_called_off_gives_its_slot_back_once() {
    for readers in [1, 2] {
        check(readers, |line, landings| {
            let flight = submit(line, 0, Slot::new(), Priority::Hint);
            let slot = match cancel(line, &flight).unwrap_or_else(|| landings.wait().1) {
                Ok(slot) => {
                    assert_eq!(slot.read(), [1; SEGMENTS]);
                    slot
                }
                Err((Cancelled, slot)) => slot,
            };
            submit(line, 1, slot, Priority::Demand);
            let (of, landed) = landings.wait();
            assert_eq!((of, landed.ok().map(|slot| slot.read())), (1, Some([2; SEGMENTS])));
        });
    }
}
