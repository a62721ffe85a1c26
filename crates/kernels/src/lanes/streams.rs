//! Weights that are asked for before they are needed.

use crate::fetch::{CACHE_LINE_BYTES, prefetch};

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
