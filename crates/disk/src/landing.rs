//! How what several threads work on comes back: whoever brings the last segment to rest takes it out.
//!
//! What it synchronises with comes from `crate::sync`. That is the standard library here; `tests/handover.rs` compiles
//! this file and the line a second time over loom's, which goes through the orders in which their steps can happen.

use crate::sync::{AtomicBool, AtomicUsize, Mutex, Ordering, lock};

/// Something that segments are read into, with the count of those that are not at rest.
pub(crate) struct Landing<T, E> {
    /// Taken out exactly once: when `left` reaches 0.
    inside: Mutex<Option<T>>,
    /// Segments that have not come to rest.
    left: AtomicUsize,
    error: Mutex<Option<E>>,
    /// Nobody waits for it any more, it was cancelled, or a segment has failed: segments not yet issued need not be.
    over: AtomicBool,
}

/// What the last segment found: everything is there, or the first error.
pub(crate) type Landed<T, E> = Result<T, (E, T)>;

impl<T, E> Landing<T, E> {
    /// `segments` must not be 0.
    pub fn new(inside: T, segments: usize) -> Landing<T, E> {
        Landing {
            inside: Mutex::new(Some(inside)),
            left: AtomicUsize::new(segments),
            error: Mutex::new(None),
            over: AtomicBool::new(false),
        }
    }

    /// Whether segments not yet issued may be skipped.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// What is not issued never will be, and unless something has failed nobody wants to hear of the end.
    pub fn give_up(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// A segment has come to rest: no read of it is under way or will be. What comes of all of them when it was the last one, unless
    /// it was given up.
    pub fn land(&self, error: Option<E>) -> Option<Landed<T, E>> {
        if let Some(error) = error {
            self.give_up();
            // The first failure explains the others.
            lock(&self.error).get_or_insert(error);
        }
        // Release, so that what this thread wrote is visible to the one that takes it out; acquire for that one.
        if self.left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return None;
        }
        let inside = lock(&self.inside).take()?;
        match lock(&self.error).take() {
            Some(error) => Some(Err((error, inside))),
            None if self.is_over() => None,
            None => Some(Ok(inside)),
        }
    }
}
