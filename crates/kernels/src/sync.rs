//! What the hand-off of the compute team synchronises with: the standard library's. `tests/handoff.rs` has a module of the
//! same name over loom's.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
pub(crate) use std::thread::yield_now;

/// Turns a helper spins for before it sleeps: 20 to 100 µs, as long as the processor's pause takes; two jobs of a token
/// are usually closer together than that.
pub(crate) const SPIN_TURNS: usize = 2_000;

/// `std::cell::UnsafeCell` with the two ways of access that loom's has.
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    /// A pointer to read through.
    pub(crate) fn with<R>(&self, access: impl FnOnce(*const T) -> R) -> R {
        access(self.0.get())
    }

    /// A pointer to write through.
    pub(crate) fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
        access(self.0.get())
    }
}
