//! Which rows lie in the lanes.

use std::marker::PhantomData;
use std::ops::Range;

use calypte_quant::Matrix;
use calypte_quant::formats::BLOCK;

use super::streams::Streams;
use super::{Simd, Unpack};

/// Neighbouring rows of a matrix, one for each lane.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a, V> {
    bytes: &'a [u8],
    stride: usize,
    lanes: PhantomData<V>,
}

impl<'a, V: Simd> Rows<'a, V> {
    /// The rows of `w` from `first` on.
    pub fn new(w: &Matrix<'a>, first: usize) -> Self {
        let stride = w.row_bytes();
        Rows { bytes: &w.bytes[first * stride..(first + V::LANES) * stride], stride, lanes: PhantomData }
    }

    /// All bytes of row `lane`.
    #[inline(always)]
    pub fn row(&self, lane: usize) -> &'a [u8] {
        &self.bytes[lane * self.stride..(lane + 1) * self.stride]
    }

    /// Lane i of vector k: bytes `at + 4k .. at + 4k + 4` of row i.
    ///
    /// # Safety
    /// `at + 16` bytes must be in a row; the processor must have the instructions of `V`.
    #[inline(always)]
    pub unsafe fn dwords(&self, at: usize) -> [V::I; 4] {
        debug_assert!(at + 16 <= self.stride);
        // SAFETY: the range is inside each row, as promised by the caller.
        unsafe { V::turn(self.bytes.as_ptr().add(at), self.stride) }
    }

    /// Lane i: bytes `at .. at + 4` of row i.
    ///
    /// # Safety
    /// These bytes must be in a row; the processor must have the instructions of `V`.
    #[inline(always)]
    pub unsafe fn dword(&self, at: usize) -> V::I {
        debug_assert!(at + 4 <= self.stride);
        // SAFETY: the range is inside each row, as promised by the caller.
        unsafe { V::gather(self.bytes.as_ptr().add(at), self.stride) }
    }

    /// Asks for `then`, or if it is empty for the rows `vectors` vectors of rows further on, or what lies there past the end of
    /// the matrix; a step for each block of columns, of which `first` are done. A dot product has too many instructions per cache
    /// line for the processor to run ahead by itself, and not every (virtual) machine has a hardware prefetcher at work.
    pub fn ahead<F: Unpack>(&self, vectors: usize, first: usize, then: &[u8]) -> RowsAhead<F, V> {
        let start = match then.is_empty() {
            true => self.bytes.as_ptr().wrapping_add(vectors * self.bytes.len()),
            false => then.as_ptr(),
        };
        let streams = Streams::over(start, self.bytes.len(), first * RowsAhead::<F, V>::STEP_BYTES);
        RowsAhead { streams, what: PhantomData }
    }
}

/// Rows of a format that are asked for before it is their turn.
pub(crate) struct RowsAhead<F, V> {
    streams: Streams,
    what: PhantomData<(F, V)>,
}

impl<F: Unpack, V: Simd> RowsAhead<F, V> {
    /// Bytes of a block of columns of all the rows.
    const STEP_BYTES: usize = V::LANES * F::DTYPE.block_bytes() * BLOCK / F::DTYPE.block_len();

    /// Asks for as many bytes as a block of columns has.
    #[inline(always)]
    pub fn step(&mut self) {
        self.streams.step(Self::STEP_BYTES);
    }
}

/// The rows in the lanes of one vector, and which of them are asked for: all lanes are always filled, also where fewer rows
/// are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Row of lane 0.
    pub first: usize,
    /// First lane that is asked for.
    pub start: usize,
    /// After the last one.
    pub end: usize,
}

/// `rows` as parts of `lanes` lanes; the matrix has at least that many rows, `all` in number.
pub(super) fn parts(all: usize, lanes: usize, rows: Range<usize>) -> impl Iterator<Item = Part> {
    let last = all - lanes;
    rows.clone().step_by(lanes).map(move |start| {
        let (first, end) = (start.min(last), (start + lanes).min(rows.end));
        Part { first, start: start - first, end: end - first }
    })
}

impl Part {
    /// Puts the lanes that are asked for where `to` would be that of lane 0.
    ///
    /// # Safety
    /// `to + start .. to + end` must be writable; the processor must have the instructions of `V`.
    #[inline(always)]
    pub unsafe fn store<V: Simd>(&self, to: *mut f32, v: V::F) {
        // SAFETY: promised by the caller; the array has room for every lane.
        unsafe {
            if self.start == 0 && self.end == V::LANES {
                V::store_f(to, v);
            } else {
                let mut lanes = [0f32; LANES_MAX];
                V::store_f(lanes.as_mut_ptr(), v);
                copy_lanes(to, lanes.as_ptr(), self.start..self.end);
            }
        }
    }

    /// What [`Part::store`] has put there.
    ///
    /// # Safety
    /// As [`Part::store`], but readable.
    #[inline(always)]
    pub unsafe fn load<V: Simd>(&self, from: *const f32) -> V::F {
        // SAFETY: as above.
        unsafe {
            if self.start == 0 && self.end == V::LANES {
                V::load_f(from)
            } else {
                let mut lanes = [0f32; LANES_MAX];
                copy_lanes(lanes.as_mut_ptr(), from, self.start..self.end);
                V::load_f(lanes.as_ptr())
            }
        }
    }
}

/// Rare, and large when it is inlined into every tile.
///
/// # Safety
/// The lanes must be readable and writable.
#[inline(never)]
unsafe fn copy_lanes(to: *mut f32, from: *const f32, lanes: Range<usize>) {
    for i in lanes {
        // SAFETY: promised by the caller.
        unsafe { to.add(i).write(from.add(i).read()) };
    }
}

/// Lanes of the widest vector.
pub(crate) const LANES_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_reaches_back() {
        let check = |all, rows, expected: &[(usize, usize, usize)]| {
            let got: Vec<_> = parts(all, 16, rows).map(|p| (p.first, p.start, p.end)).collect();
            assert_eq!(got, expected);
        };
        check(32, 0..32, &[(0, 0, 16), (16, 0, 16)]);
        check(40, 0..40, &[(0, 0, 16), (16, 0, 16), (24, 8, 16)]);
        check(40, 16..20, &[(16, 0, 4)]);
        check(17, 16..17, &[(1, 15, 16)]);
        check(16, 0..0, &[]);
    }
}
