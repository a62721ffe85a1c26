//! Memory that is kept from use to use.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::fetch::CACHE_LINE_BYTES;

/// Makes room for `len` values at least; what they are is unspecified. Nothing gets shorter: whoever made it shorter and longer
/// by turns would write zeros each time.
pub fn grow<T: Copy + Default>(values: &mut Vec<T>, len: usize) {
    if values.len() < len {
        values.resize(len, T::default());
    }
}

/// Numbers that a [`Lines`] may hold.
///
/// # Safety
/// Every pattern of bits is one of these, no byte is padding, and the size divides a cache line.
pub unsafe trait Plain: Copy {}
// SAFETY: so they are.
unsafe impl Plain for f32 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; CACHE_LINE_BYTES]);

const EMPTY: Line = Line([0; CACHE_LINE_BYTES]);

/// Numbers of which the first begins a cache line, so that a vector that begins at a multiple of its size never lies in two: reading
/// such a vector takes twice as long, and writing it longer still. Memory from the allocator begins anywhere.
#[derive(Debug)]
pub struct Lines<T> {
    lines: Vec<Line>,
    len: usize,
    what: PhantomData<T>,
}

impl<T> Default for Lines<T> {
    fn default() -> Self {
        Lines { lines: Vec::new(), len: 0, what: PhantomData }
    }
}

impl<T: Plain> Lines<T> {
    const PER_LINE: usize = CACHE_LINE_BYTES / size_of::<T>();

    /// None, with memory for so many.
    pub fn with_capacity(len: usize) -> Self {
        Lines { lines: Vec::with_capacity(len.div_ceil(Self::PER_LINE)), ..Self::default() }
    }

    /// Makes room for `len` numbers at least; what those behind the present ones are is unspecified.
    pub fn grow(&mut self, len: usize) {
        if self.len < len {
            self.resize(len);
        }
    }

    /// Makes them so many; what those behind the present ones are is unspecified.
    pub fn resize(&mut self, len: usize) {
        self.lines.resize(len.div_ceil(Self::PER_LINE), EMPTY);
        self.len = len;
    }
}

impl<T: Plain> Deref for Lines<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the lines have room for so many, and any bytes are numbers.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl<T: Plain> DerefMut for Lines<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_begin_a_cache_line_and_keep_what_they_hold() {
        let mut numbers = Lines::<f32>::with_capacity(3);
        for len in [1, 3, 17, 500, 20_000] {
            numbers.grow(len);
            assert_eq!((numbers.len(), numbers.as_ptr().align_offset(CACHE_LINE_BYTES)), (len, 0));
            numbers[len - 1] = len as f32;
            assert_eq!(numbers[0], 1.0);
        }
        numbers.grow(2);
        assert_eq!((numbers.len(), numbers[19_999]), (20_000, 20_000.0));
        numbers.resize(2);
        assert_eq!(*numbers, [1.0, 0.0]);
    }
}
