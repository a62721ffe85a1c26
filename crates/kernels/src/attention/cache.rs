//! Keys and values of everything a timeline has seen, as attention reads them.
//!
//! Sixty-four positions of a head lie together: what a pass over one head takes at a time, it reads in a row. What is kept is f16
//! or f32; see [`super::exact`] for what f16 makes possible.

use std::ops::Range;

use calypte_quant::formats::{LANES, f16_to_f32};

use super::Visible;
use super::ahead::{Ahead, Vectors};
use super::exact::half_of;
use crate::Isa;
use crate::isa::for_each_isa;
use crate::scratch::Lines;
use crate::wide::{Wide, for_each_wide};

/// Positions of a head that lie together.
pub const BLOCK_POSITIONS: usize = 64;

/// What cached numbers are stored as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    /// IEEE 754 half precision, as llama.cpp keeps them. Numbers beyond ±65504 become that.
    #[default]
    F16,
    /// Single precision: nothing is rounded.
    F32,
}

impl KvType {
    /// Bytes of a number.
    pub fn bytes(self) -> usize {
        match self {
            KvType::F16 => 2,
            KvType::F32 => 4,
        }
    }

    /// The name, as options spell it.
    pub fn name(self) -> &'static str {
        match self {
            KvType::F16 => "f16",
            KvType::F32 => "f32",
        }
    }
}

/// How the positions of a block lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// `[width, 64]`: number d of all of them, then number d + 1. For keys that few queries meet.
    Lanes,
    /// `[64, width]`: one position after the other. For values, and for keys that are values too.
    Rows,
}

#[derive(Debug)]
enum Store {
    F16(Lines<u16>),
    F32(Lines<f32>),
}

/// A growing list of positions with a vector for each of some heads: `[positions / 64, heads, 64 · width]`.
#[derive(Debug)]
pub struct KvCache {
    order: Order,
    heads: usize,
    width: usize,
    len: usize,
    store: Store,
}

for_each_isa! { fn narrow_isa(from: &[f32], to: &mut [u16]) = narrow_body }

#[inline(always)]
fn narrow_body(from: &[f32], to: &mut [u16]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = half_of(*from);
    }
}

impl KvCache {
    /// An empty cache of `heads` vectors of `width` numbers a position, with memory for `positions` of them; it grows if
    /// more come.
    pub fn new(kind: KvType, order: Order, heads: usize, width: usize, positions: usize) -> KvCache {
        let numbers = positions.next_multiple_of(BLOCK_POSITIONS) * heads * width;
        let store = match kind {
            KvType::F16 => Store::F16(Lines::with_capacity(numbers)),
            KvType::F32 => Store::F32(Lines::with_capacity(numbers)),
        };
        KvCache { order, heads, width, len: 0, store }
    }

    /// Positions held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends `[positions, heads · width]`.
    pub fn push(&mut self, rows: &[f32]) {
        let row_width = self.heads * self.width;
        if row_width == 0 {
            return;
        }
        assert_eq!(rows.len() % row_width, 0, "rows of a cache have another width");
        let (first, count) = (self.len, rows.len() / row_width);
        self.len += count;
        let numbers = self.len.next_multiple_of(BLOCK_POSITIONS) * row_width;
        let (order, heads, width) = (self.order, self.heads, self.width);
        match &mut self.store {
            Store::F16(store) => {
                store.resize(numbers);
                let mut narrow = vec![0u16; row_width];
                for (i, row) in rows.chunks_exact(row_width).enumerate() {
                    narrow_isa(Isa::get(), row, &mut narrow);
                    put(store, order, heads, width, first + i, &narrow);
                }
            }
            Store::F32(store) => {
                store.resize(numbers);
                for (i, row) in rows.chunks_exact(row_width).enumerate() {
                    put(store, order, heads, width, first + i, row);
                }
            }
        }
    }

    /// Forgets everything from position `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        let numbers = self.len.next_multiple_of(BLOCK_POSITIONS) * self.heads * self.width;
        match &mut self.store {
            Store::F16(store) => store.resize(numbers),
            Store::F32(store) => store.resize(numbers),
        }
    }

    /// The vectors of one head, or only the first `width` numbers of each.
    pub fn view(&self, head: usize, width: usize) -> Cached<'_> {
        assert!(head < self.heads && width <= self.width, "no such head, or not as wide");
        Cached { cache: self, head, start: 0, width }
    }
}

/// Writes the heads of one position.
fn put<T: Copy>(store: &mut [T], order: Order, heads: usize, width: usize, position: usize, row: &[T]) {
    let (block, i) = (position / BLOCK_POSITIONS, position % BLOCK_POSITIONS);
    let of_block = BLOCK_POSITIONS * width;
    let blocks = store[block * heads * of_block..].chunks_exact_mut(of_block);
    for (head, block) in row.chunks_exact(width).zip(blocks) {
        match order {
            Order::Rows => block[i * width..(i + 1) * width].copy_from_slice(head),
            Order::Lanes => {
                block[i..].iter_mut().step_by(BLOCK_POSITIONS).zip(head).for_each(|(to, v)| *to = *v)
            }
        }
    }
}

/// The vectors of one head of a cache, or some of their numbers.
#[derive(Clone, Copy)]
pub struct Cached<'a> {
    cache: &'a KvCache,
    head: usize,
    /// The first number of each vector that counts, and how many do.
    start: usize,
    width: usize,
}

/// Where the vectors of some positions begin in a store, `count` of them.
pub(super) struct Places {
    at: [usize; BLOCK_POSITIONS],
    count: usize,
}

impl Places {
    fn of(count: usize, at: impl Fn(usize) -> usize) -> Places {
        let mut places = Places { at: [0; BLOCK_POSITIONS], count };
        places.at[..count].iter_mut().enumerate().for_each(|(i, place)| *place = at(i));
        places
    }
}

for_each_wide! { fn widen_isa(store: &[u16], at: &[usize], width: usize, to: &mut [f32], to_stride: usize) = widen_body }

/// f32s of `width` f16s from each of some places on.
///
/// # Safety
/// The processor must have the instructions of `W`.
#[inline(always)]
unsafe fn widen_body<W: Wide>(store: &[u16], at: &[usize], width: usize, to: &mut [f32], to_stride: usize) {
    for (at, to) in at.iter().zip(to.chunks_mut(to_stride)) {
        let (whole, rest) = store[*at..*at + width].as_chunks::<LANES>();
        let (to_whole, to_rest) = to[..width].as_chunks_mut::<LANES>();
        for (from, to) in whole.iter().zip(to_whole) {
            // SAFETY: both are sixteen numbers; the rest is promised by the caller.
            unsafe { W::load_half(from.as_ptr()).store(to.as_mut_ptr()) };
        }
        for (from, to) in rest.iter().zip(to_rest) {
            *to = f16_to_f32(*from);
        }
    }
}

impl<'a> Cached<'a> {
    /// Numbers of a vector.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Only these numbers of each vector.
    pub(super) fn columns(self, columns: Range<usize>) -> Cached<'a> {
        assert!(columns.start <= columns.end && columns.end <= self.width, "vectors are not as wide");
        Cached { start: self.start + columns.start, width: columns.len(), ..self }
    }

    /// Whether of each vector so little counts that all of it should not be asked for.
    fn is_narrow(&self) -> bool {
        2 * self.width <= self.cache.width
    }

    /// Positions there are.
    pub(super) fn len(&self) -> usize {
        self.cache.len
    }

    pub(super) fn order(&self) -> Order {
        self.cache.order
    }

    /// Whether products of these with rounded numbers are exact.
    pub(super) fn exact(&self) -> bool {
        matches!(self.cache.store, Store::F16(_))
    }

    /// Where block `block` starts in the store.
    fn block_at(&self, block: usize) -> usize {
        (block * self.cache.heads + self.head) * BLOCK_POSITIONS * self.cache.width
    }

    /// Number d of a position.
    fn number(&self, position: usize, d: usize) -> f32 {
        let (block, i) = (position / BLOCK_POSITIONS, position % BLOCK_POSITIONS);
        let d = self.start + d;
        let inside = match self.cache.order {
            Order::Rows => i * self.cache.width + d,
            Order::Lanes => d * BLOCK_POSITIONS + i,
        };
        match &self.cache.store {
            Store::F16(store) => f16_to_f32(store[self.block_at(block) + inside]),
            Store::F32(store) => store[self.block_at(block) + inside],
        }
    }

    /// `width` numbers from each of these places on, as f32s that lie `stride` apart.
    fn copy(&self, isa: Isa, at: &[usize], width: usize, to: &mut [f32], stride: usize) {
        match &self.cache.store {
            Store::F16(store) => widen_isa(isa, store, at, width, to, stride),
            Store::F32(store) => {
                for (at, to) in at.iter().zip(to.chunks_mut(stride)) {
                    to[..width].copy_from_slice(&store[*at..*at + width]);
                }
            }
        }
    }

    /// Numbers `numbers` of the `count` keys number `first ..` of the list, side by side: the first of them at `to[.. count]`, the next
    /// one from `to[BLOCK_POSITIONS]` on. In a range both `first` and the range start with a block; what stands behind the last key is
    /// unspecified.
    pub(super) fn lanes(
        &self,
        isa: Isa,
        list: Visible<'_>,
        first: usize,
        count: usize,
        numbers: Range<usize>,
        to: &mut [f32],
    ) {
        let stride = BLOCK_POSITIONS;
        match (list, self.cache.order) {
            (Visible::Range { start, .. }, Order::Lanes) => {
                // All of it in one row.
                let at = self.block_at((start + first) / stride) + (self.start + numbers.start) * stride;
                self.copy(isa, &[at], numbers.len() * stride, to, numbers.len() * stride);
            }
            _ => {
                for (d, to) in numbers.zip(to.chunks_mut(stride)) {
                    (0..count).for_each(|i| to[i] = self.number(list.position(first + i), d));
                }
            }
        }
    }

    /// Where vectors number `first .. first + count` of the list lie, of which [`Cached::rows`] gives the numbers.
    pub(super) fn places(&self, list: Visible<'_>, first: usize, count: usize) -> Places {
        Places::of(count, |i| {
            let position = list.position(first + i);
            let (block, inside) = (position / BLOCK_POSITIONS, position % BLOCK_POSITIONS);
            let inside = match self.cache.order {
                Order::Rows => inside * self.cache.width + self.start,
                Order::Lanes => self.start * BLOCK_POSITIONS + inside,
            };
            self.block_at(block) + inside
        })
    }

    /// Numbers `numbers` of the vectors at some places, one vector after the other at `to[i · stride ..]`.
    pub(super) fn rows(&self, isa: Isa, at: &Places, numbers: Range<usize>, to: &mut [f32], stride: usize) {
        match self.cache.order {
            Order::Rows => {
                let begin = at.at.map(|place| place + numbers.start);
                self.copy(isa, &begin[..at.count], numbers.len(), to, stride);
            }
            Order::Lanes => {
                for (at, to) in at.at[..at.count].iter().zip(to.chunks_mut(stride)) {
                    for (d, to) in numbers.clone().zip(to) {
                        self.copy(isa, &[at + d * BLOCK_POSITIONS], 1, std::slice::from_mut(to), 1);
                    }
                }
            }
        }
    }

    /// The vectors of the tile that starts with number `first` of the list, to be asked for.
    pub(super) fn ahead<'l>(&self, list: Visible<'l>, first: usize) -> Ahead<'l>
    where
        'a: 'l,
    {
        let last = list.len().min(first + BLOCK_POSITIONS);
        if first >= last {
            return Ahead::of::<u8>(&[]);
        }
        match &self.cache.store {
            Store::F16(store) => self.ahead_in(store, list, first, last),
            Store::F32(store) => self.ahead_in(store, list, first, last),
        }
    }

    fn ahead_in<'l, T>(&self, store: &'l [T], list: Visible<'l>, first: usize, last: usize) -> Ahead<'l> {
        let of_block = BLOCK_POSITIONS * self.cache.width;
        match (list, self.cache.order) {
            (Visible::Range { start, .. }, _) if !self.is_narrow() => {
                let at = self.block_at((start + first) / BLOCK_POSITIONS);
                Ahead::of(&store[at..at + of_block])
            }
            (_, Order::Rows) => {
                let vectors = Vectors {
                    origin: store[self.block_at(0) + self.start..].as_ptr().cast(),
                    block_stride_bytes: self.cache.heads * of_block * size_of::<T>(),
                    stride_bytes: self.cache.width * size_of::<T>(),
                    bytes: self.width * size_of::<T>(),
                };
                Ahead::each(vectors, list, first, last)
            }
            (_, Order::Lanes) => Ahead::of::<u8>(&[]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::noise;
    use super::*;

    /// A cache that was cut and filled again is what it would be without.
    #[test]
    fn cutting_forgets() {
        for (kind, order) in
            [(KvType::F16, Order::Lanes), (KvType::F16, Order::Rows), (KvType::F32, Order::Lanes)]
        {
            let (row, rows) = (2 * 5, noise(150 * 10, 1));
            let mut cut = KvCache::new(kind, order, 2, 5, 0);
            cut.push(&rows[..100 * row]);
            cut.push(&noise(40 * row, 2));
            cut.truncate(100);
            assert_eq!(cut.len(), 100);
            cut.push(&rows[100 * row..]);
            let mut whole = KvCache::new(kind, order, 2, 5, 150);
            rows.chunks(row).for_each(|row| whole.push(row));
            for (position, head, d) in
                (0..150).flat_map(|p| (0..2).flat_map(move |h| (0..5).map(move |d| (p, h, d))))
            {
                let (got, want) =
                    (cut.view(head, 5).number(position, d), whole.view(head, 5).number(position, d));
                assert_eq!(got, want, "{kind:?} {order:?} {position} {head} {d}");
                assert!((want - rows[position * row + head * 5 + d]).abs() < 1e-3);
            }
        }
    }
}
