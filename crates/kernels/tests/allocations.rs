//! Handing a job to the compute team allocates nothing, on the caller's thread or a helper's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use calypte_kernels::Team;

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises about `layout` are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from the system's allocator, with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Rounds of which one must be free of allocations: the test harness has a thread of its own that may allocate beside
/// any of them, while a job that allocated would do so in all.
const ROUNDS: usize = 20;
const JOBS: usize = 200;

#[test]
fn a_job_allocates_nothing() {
    for threads in [1, 2, 9] {
        let team = Team::new(threads);
        let mut out = vec![0u32; 1000];
        let mut round = || {
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            for _ in 0..JOBS {
                team.run_pieces(&mut out, 10, |i, piece| piece.fill(i as u32));
            }
            // Long enough for helpers to fall asleep, so the next round wakes them.
            std::thread::sleep(std::time::Duration::from_millis(1));
            ALLOCATIONS.load(Ordering::Relaxed) - before
        };
        let fewest = (0..ROUNDS).map(|_| round()).min();
        assert_eq!(fewest, Some(0), "{threads} threads, {JOBS} jobs");
    }
}
