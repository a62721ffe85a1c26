//! Vectors of a cache that are asked for before they are needed, while something else is computed.

use super::Visible;
use super::cache::BLOCK_POSITIONS;
use crate::fetch::{CACHE_LINE_BYTES, prefetch};

/// Where the vectors of one head lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vectors {
    /// The first number of position 0 that counts.
    pub origin: *const u8,
    /// From a block of positions to the next.
    pub block_stride_bytes: usize,
    /// From a position to the next in a block.
    pub stride_bytes: usize,
    /// Of a vector, what counts.
    pub bytes: usize,
}

/// Memory to ask for bit by bit: a processor has only so many requests under way, and waits for one to end before it takes the
/// next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ahead<'a> {
    at: *const u8,
    end: *const u8,
    vectors: Vectors,
    list: Visible<'a>,
    /// Vectors of the list that come after what is asked for now.
    next: usize,
    last: usize,
    /// Cache lines that a step asks for.
    step_lines: usize,
}

impl<'a> Ahead<'a> {
    /// Cache lines of a step where memory lies in a row.
    const STEP_LINES: usize = 2;
    /// Cache lines of a step where it lies in pieces, which cost more to bring.
    const STEP_LINES_OF_PIECES: usize = 1;

    /// Memory that lies in a row.
    pub fn of<T>(memory: &'a [T]) -> Ahead<'a> {
        let range = memory.as_ptr_range();
        let (at, end) = (range.start.cast(), range.end.cast());
        let vectors = Vectors { origin: at, block_stride_bytes: 0, stride_bytes: 0, bytes: 0 };
        let list = Visible::Selected(&[]);
        Ahead { at, end, vectors, list, next: 0, last: 0, step_lines: Self::STEP_LINES }
    }

    /// Vectors `next..last` of a list, from all over a cache.
    pub fn each(vectors: Vectors, list: Visible<'a>, next: usize, last: usize) -> Ahead<'a> {
        let (at, step_lines) = (vectors.origin, Self::STEP_LINES_OF_PIECES);
        Ahead { at, end: at, vectors, list, next, last, step_lines }
    }

    /// Asks for a little more, if there is any.
    #[inline(always)]
    pub fn step(&mut self) {
        if self.at >= self.end {
            if self.next >= self.last {
                return;
            }
            let position = self.list.position(self.next);
            let offset = position / BLOCK_POSITIONS * self.vectors.block_stride_bytes
                + position % BLOCK_POSITIONS * self.vectors.stride_bytes;
            self.next += 1;
            self.at = self.vectors.origin.wrapping_add(offset);
            self.end = self.at.wrapping_add(self.vectors.bytes);
        }
        for _ in 0..self.step_lines {
            prefetch(self.at);
            self.at = self.at.wrapping_add(CACHE_LINE_BYTES);
        }
    }
}
