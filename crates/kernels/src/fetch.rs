//! Asking for memory before it is needed.

/// Bytes that memory hands over at once, on most processors.
pub(crate) const CACHE_LINE_BYTES: usize = 64;

/// Asks for the cache line at an address, into the second-level cache where there is an instruction for it. The address need not exist.
///
/// Not into the first level: that has room for fewer requests under way, and what is asked for here would fill it before it is used.
#[inline(always)]
pub(crate) fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that could be seen.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(at.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl2keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

/// Asks for all of some memory.
#[inline(always)]
pub(crate) fn fetch<T>(memory: &[T]) {
    let start = memory.as_ptr().cast::<u8>();
    (0..size_of_val(memory))
        .step_by(CACHE_LINE_BYTES)
        .for_each(|offset| prefetch(start.wrapping_add(offset)));
}

/// A stretch of memory to ask for bit by bit, as a few streams side by side, each of which is a part of it. One stream would
/// keep too few of a memory's banks busy, and lines from all over a page confuse a processor that looks for streams itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streams {
    at: *const u8,
    part_bytes: usize,
}

impl Streams {
    /// Streams side by side; 2 are slower, 8 and 16 no faster (docs/perf.md).
    const COUNT: usize = 4;

    /// Over `bytes` bytes from `start` on, which need not exist; as if `done_bytes` had been asked for.
    pub(crate) fn over(start: *const u8, bytes: usize, done_bytes: usize) -> Streams {
        Streams { at: start.wrapping_add(done_bytes / Self::COUNT), part_bytes: bytes / Self::COUNT }
    }

    /// Asks for the next `bytes` of the stretch, a share of them from each part.
    #[inline(always)]
    pub(crate) fn step(&mut self, bytes: usize) {
        let share_bytes = bytes / Self::COUNT;
        for stream in 0..Self::COUNT {
            for line in 0..share_bytes.div_ceil(CACHE_LINE_BYTES) {
                prefetch(self.at.wrapping_add(stream * self.part_bytes + line * CACHE_LINE_BYTES));
            }
        }
        self.at = self.at.wrapping_add(share_bytes);
    }
}

/// Memory to ask for bit by bit while something else is computed: a processor has only so many requests under way, and waits for
/// one to end before it takes the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    at: *const u8,
    end: *const u8,
}

impl Default for Ahead {
    fn default() -> Self {
        Ahead { at: std::ptr::null(), end: std::ptr::null() }
    }
}

impl Ahead {
    /// Cache lines of a step.
    const LINES: usize = 2;

    pub(crate) fn of<T>(memory: &[T]) -> Ahead {
        let range = memory.as_ptr_range();
        Ahead { at: range.start.cast(), end: range.end.cast() }
    }

    /// Asks for a little more, if there is any.
    #[inline(always)]
    pub(crate) fn step(&mut self) {
        if self.at < self.end {
            for line in 0..Self::LINES {
                prefetch(self.at.wrapping_add(line * CACHE_LINE_BYTES));
            }
            self.at = self.at.wrapping_add(Self::LINES * CACHE_LINE_BYTES);
        }
    }
}
