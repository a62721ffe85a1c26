//! How the blocks of each format are unpacked, a lane for each row.
//!
//! The layouts are those of `calypte_quant::formats`, where each is written down. A format without a method of its own here
//! is unpacked row by row and then turned round.

use std::ops::Range;

use calypte_quant::formats::*;

use super::rows::{LANES_MAX, Rows};
use super::{Factors, Halved, HalvedWithMin, QUADS, Scaled, Shape, Signed, Simd, Sink, WithMin};

/// An integer format, as many rows at once as a vector has lanes.
pub(crate) trait Unpack: IntFormat + Sized {
    /// How its codes are handed on, and which factors its blocks have.
    type Shape: Shape;

    /// Hands the given blocks to `sink`, in order.
    ///
    /// # Safety
    /// The processor must have the instructions of `V`; the blocks must be in the rows, and where blocks are stored eight
    /// together the range must start and end between those.
    unsafe fn unpack<V: Simd, S: Sink<V, Self>>(rows: &Rows<'_, V>, blocks: Range<usize>, sink: &mut S);
}

/// The formats whose codes are handed on signed, row by row.
///
/// # Safety
/// As [`Unpack::unpack`].
#[inline(always)]
unsafe fn row_by_row<V: Simd, F: Unpack<Shape = Signed>, S: Sink<V, F>>(
    rows: &Rows<'_, V>,
    blocks: Range<usize>,
    sink: &mut S,
) {
    for b in blocks {
        let (mut q, mut scale) = ([[0i8; BLOCK]; LANES_MAX], [0f32; LANES_MAX]);
        for lane in 0..V::LANES {
            let block = F::block(rows.row(lane), b);
            (q[lane], scale[lane]) = (block.q, block.scale);
        }
        // SAFETY: loads come from arrays of that size; the rest is promised by the caller.
        unsafe {
            let start = q.as_ptr().cast::<u8>();
            let codes = signed::<V>(both(V::turn(start, BLOCK), V::turn(start.add(16), BLOCK)));
            sink.take(b, &codes, &Factors::scaled(V::load_f(scale.as_ptr())));
        }
    }
}

/// Eight vectors of two halves.
#[inline(always)]
fn both<I: Copy>([a, b, c, d]: [I; 4], [e, f, g, h]: [I; 4]) -> [I; QUADS] {
    [a, b, c, d, e, f, g, h]
}

/// The same byte everywhere.
///
/// # Safety
/// The processor must have the instructions of `V`.
#[inline(always)]
unsafe fn splat_byte<V: Simd>(v: u8) -> V::I {
    // SAFETY: promised by the caller.
    unsafe { V::splat(i32::from_ne_bytes([v; 4])) }
}

/// # Safety
/// The processor must have the instructions of `V`.
#[inline(always)]
unsafe fn signed<V: Simd>(mut codes: [V::I; QUADS]) -> [V::I; QUADS] {
    for k in 0..QUADS {
        // SAFETY: promised by the caller.
        codes[k] = unsafe { V::signed(codes[k]) };
    }
    codes
}

/// Codes of a block whose values 4k and 16 + 4k lie in the low and high nibbles of `quads[k]`.
///
/// # Safety
/// The processor must have the instructions of `V`.
#[inline(always)]
unsafe fn nibbles<V: Simd>(quads: [V::I; 4]) -> [V::I; QUADS] {
    // SAFETY: promised by the caller.
    unsafe { both(bits::<V, 4>(&quads, 0, 15), bits::<V, 4>(&quads, 4, 15)) }
}

/// `(v >> shift) & mask` of each byte; the mask keeps out what comes in from the neighbours.
///
/// # Safety
/// The processor must have the instructions of `V`.
#[inline(always)]
unsafe fn bits<V: Simd, const N: usize>(v: &[V::I; N], shift: u32, mask: u8) -> [V::I; N] {
    // SAFETY: promised by the caller.
    unsafe {
        let mask = splat_byte::<V>(mask);
        let mut out = *v;
        for k in 0..N {
            out[k] = V::and(if shift == 0 { v[k] } else { V::shift_right(v[k], shift) }, mask);
        }
        out
    }
}

/// `low | (high >> shift & mask) << up` of each byte.
///
/// # Safety
/// The processor must have the instructions of `V`.
#[inline(always)]
unsafe fn with_upper<V: Simd>(
    low: &[V::I; QUADS],
    high: &[V::I; QUADS],
    [shift, up]: [u32; 2],
    mask: u8,
) -> [V::I; QUADS] {
    // SAFETY: promised by the caller.
    unsafe {
        let mask = splat_byte::<V>(mask << up);
        let mut out = *low;
        for k in 0..QUADS {
            let moved = match shift > up {
                true => V::shift_right(high[k], shift - up),
                false => V::shift_left(high[k], up - shift),
            };
            out[k] = V::or(low[k], V::and(moved, mask));
        }
        out
    }
}

/// What codes below 16 stand for.
///
/// # Safety
/// The processor must have the instructions of `V`.
#[inline(always)]
unsafe fn look_up<V: Simd, F: IntFormat>(codes: [V::I; QUADS]) -> [V::I; QUADS] {
    let table = F::CODEBOOK.unwrap_or_default();
    let mut values = codes;
    for k in 0..QUADS {
        // SAFETY: promised by the caller.
        values[k] = unsafe { V::look_up(&table, codes[k]) };
    }
    values
}

/// Adds a fifth bit: that of value j is bit j of the lane of `high`.
///
/// # Safety
/// The processor must have the instructions of `V`.
#[inline(always)]
unsafe fn add_fifth_bits<V: Simd>(codes: &mut [V::I; QUADS], high: V::I) {
    // SAFETY: promised by the caller.
    unsafe {
        for k in 0..QUADS {
            // Four bits, of which copies are moved so that each reaches the bottom of a byte of its own.
            let four = V::and(V::shift_right(high, 4 * k as u32), V::splat(15));
            let two = V::or(four, V::shift_left(four, 7));
            let one = V::and(V::or(two, V::shift_left(two, 14)), splat_byte::<V>(1));
            codes[k] = V::or(codes[k], V::shift_left(one, 4));
        }
    }
}

/// Byte `index` of each lane as a float; unsigned.
///
/// # Safety
/// The processor must have the instructions of `V`.
#[inline(always)]
unsafe fn byte<V: Simd>(v: V::I, index: usize) -> V::F {
    // SAFETY: promised by the caller.
    unsafe { V::to_f(V::and(V::shift_right(v, 8 * index as u32), V::splat(0xff))) }
}

/// Byte `index` of each lane as a float; signed.
///
/// # Safety
/// The processor must have the instructions of `V`.
#[inline(always)]
unsafe fn signed_byte<V: Simd>(v: V::I, index: usize) -> V::F {
    // SAFETY: promised by the caller.
    unsafe { V::to_f(V::shift_right_signed(V::shift_left(v, 24 - 8 * index as u32), 24)) }
}

/// The f16 in the high half of each lane.
///
/// # Safety
/// The processor must have the instructions of `V`.
#[inline(always)]
unsafe fn high_f16<V: Simd>(v: V::I) -> V::F {
    // SAFETY: promised by the caller.
    unsafe { V::low_f16(V::shift_right(v, 16)) }
}

/// Scale and minimum of the formats that add it: low and high half of each lane.
///
/// # Safety
/// The processor must have the instructions of `V`.
#[inline(always)]
unsafe fn scale_and_added<V: Simd>(v: V::I) -> Factors<V> {
    // SAFETY: promised by the caller.
    unsafe { Factors { min: V::mul(high_f16::<V>(v), V::splat_f(-1.0)), ..Factors::scaled(V::low_f16(v)) } }
}

/// Declares how a format is unpacked.
macro_rules! unpack {
    ($format:ident as $shape:ty, |$rows:ident, $blocks:ident, $sink:ident| $body:block) => {
        impl Unpack for $format {
            type Shape = $shape;

            #[inline(always)]
            unsafe fn unpack<V: Simd, S: Sink<V, Self>>(
                $rows: &Rows<'_, V>,
                $blocks: Range<usize>,
                $sink: &mut S,
            ) $body
        }
    };
}

/// Declares how one block of a format is unpacked: `$at` is its offset in the row.
macro_rules! unpack_blocks {
    ($format:ident as $shape:ty, |$rows:ident, $at:ident| $body:block) => {
        unpack!($format as $shape, |$rows, blocks, sink| {
            for b in blocks {
                let block_bytes = Self::DTYPE.block_bytes();
                let $at = b * block_bytes;
                // SAFETY: what is read lies inside the block; the rest is promised by the caller.
                unsafe {
                    let (codes, factors): ([V::I; QUADS], Factors<V>) = $body;
                    sink.take(b, &codes, &factors);
                }
            }
        });
    };
}

unpack_blocks!(Q8_0 as Signed, |rows, at| {
    let scale = V::low_f16(rows.dword(at));
    (signed::<V>(both(rows.dwords(at + 2), rows.dwords(at + 18))), Factors::scaled(scale))
});

unpack_blocks!(Q4_0 as Scaled<8>, |rows, at| {
    let scale = V::low_f16(rows.dword(at));
    (nibbles::<V>(rows.dwords(at + 2)), Factors::scaled(scale))
});

unpack_blocks!(Int4 as Scaled<8>, |rows, at| {
    let scale = V::as_f(V::shift_left(rows.dword(at), 16));
    (nibbles::<V>(rows.dwords(at + 2)), Factors::scaled(scale))
});

unpack_blocks!(Iq4Nl as Signed, |rows, at| {
    let scale = V::low_f16(rows.dword(at));
    let codes = look_up::<V, Self>(nibbles::<V>(rows.dwords(at + 2)));
    (signed::<V>(codes), Factors::scaled(scale))
});

unpack_blocks!(Mxfp4 as Signed, |rows, at| {
    let e = V::and(rows.dword(at), V::splat(0xff));
    let codes = look_up::<V, Self>(nibbles::<V>(rows.dwords(at + 1)));
    (signed::<V>(codes), Factors::scaled(half_power_of_two::<V>(e)))
});

unpack_blocks!(Q4_1 as WithMin, |rows, at| {
    let factors = scale_and_added::<V>(rows.dword(at));
    (nibbles::<V>(rows.dwords(at + 4)), factors)
});

unpack_blocks!(Q5_0 as Scaled<16>, |rows, at| {
    let head = rows.dwords(at);
    let mut codes = nibbles::<V>(rows.dwords(at + 6));
    add_fifth_bits::<V>(&mut codes, V::or(V::shift_right(head[0], 16), V::shift_left(head[1], 16)));
    (codes, Factors::scaled(V::low_f16(head[0])))
});

unpack_blocks!(Q5_1 as WithMin, |rows, at| {
    let head = rows.dwords(at);
    let mut codes = nibbles::<V>(rows.dwords(at + 8));
    add_fifth_bits::<V>(&mut codes, head[1]);
    (codes, scale_and_added::<V>(head[0]))
});

/// `2^(e − 128)`, subnormal at both ends of what an f32 can hold: a product of two powers that are not.
///
/// # Safety
/// The processor must have the instructions of `V`.
#[inline(always)]
unsafe fn half_power_of_two<V: Simd>(e: V::I) -> V::F {
    // SAFETY: promised by the caller.
    unsafe {
        let (half, bias) = (V::shift_right(e, 1), V::splat(-63));
        let first = V::shift_left(V::sub_i32(half, bias), 23);
        let second = V::shift_left(V::sub_i32(V::sub_i32(e, half), bias), 23);
        V::mul(V::as_f(first), V::as_f(second))
    }
}

/// Sub-blocks that are stored together.
const SUBS: usize = 8;

/// Bytes `at .. at + 32` of each row.
///
/// # Safety
/// As [`Rows::dwords`].
#[inline(always)]
unsafe fn run<V: Simd>(rows: &Rows<'_, V>, at: usize) -> [V::I; QUADS] {
    // SAFETY: promised by the caller.
    unsafe { both(rows.dwords(at), rows.dwords(at + 16)) }
}

/// Declares how one super-block of a format is unpacked: `$at` is its offset in the row, `$first` the number of
/// its first block.
macro_rules! unpack_super_blocks {
    ($format:ident as $shape:ty, |$rows:ident, $at:ident, $sink:ident, $first:ident| $body:block) => {
        unpack!($format as $shape, |$rows, blocks, $sink| {
            for $first in blocks.step_by(SUBS) {
                let block_bytes = Self::DTYPE.block_bytes();
                let $at = $first / SUBS * block_bytes;
                // SAFETY: what is read lies inside the super-block; the rest is promised by the caller.
                unsafe { $body }
            }
        });
    };
}

/// The factors of eight sub-blocks with 6-bit scales and minima, as Q4_K and Q5_K have them.
struct SixBits<V: Simd> {
    d: V::F,
    m: V::F,
    scales: [V::I; 2],
    mins: [V::I; 2],
}

impl<V: Simd> SixBits<V> {
    /// # Safety
    /// As [`Rows::dwords`].
    #[inline(always)]
    unsafe fn read(rows: &Rows<'_, V>, at: usize) -> Self {
        // SAFETY: promised by the caller.
        unsafe {
            let [dm, low_scales, low_mins, mixed] = rows.dwords(at);
            let (six, four, two) = (splat_byte::<V>(63), splat_byte::<V>(15), splat_byte::<V>(0b11_0000));
            let top_scales = V::and(V::shift_right(low_scales, 2), two);
            let top_mins = V::and(V::shift_right(low_mins, 2), two);
            let mixed_mins = V::shift_right(mixed, 4);
            SixBits {
                d: V::low_f16(dm),
                m: high_f16::<V>(dm),
                scales: [V::and(low_scales, six), V::or(V::and(mixed, four), top_scales)],
                mins: [V::and(low_mins, six), V::or(V::and(mixed_mins, four), top_mins)],
            }
        }
    }

    /// # Safety
    /// The processor must have the instructions of `V`.
    #[inline(always)]
    unsafe fn of(&self, sub: usize) -> Factors<V> {
        // SAFETY: promised by the caller.
        unsafe {
            let scale = V::mul(self.d, byte::<V>(self.scales[sub / 4], sub % 4));
            let min = V::mul(self.m, byte::<V>(self.mins[sub / 4], sub % 4));
            Factors { min, ..Factors::scaled(scale) }
        }
    }
}

unpack_super_blocks!(Q4K as WithMin, |rows, at, sink, first| {
    let factors = SixBits::read(rows, at);
    for pair in 0..SUBS / 2 {
        let both = run(rows, at + 16 + 32 * pair);
        for upper in 0..2 {
            let sub = 2 * pair + upper;
            sink.take(first + sub, &bits::<V, QUADS>(&both, 4 * upper as u32, 15), &factors.of(sub));
        }
    }
});

unpack_super_blocks!(Q5K as WithMin, |rows, at, sink, first| {
    let factors = SixBits::read(rows, at);
    let fifth = run(rows, at + 16);
    for pair in 0..SUBS / 2 {
        let both = run(rows, at + 48 + 32 * pair);
        for upper in 0..2 {
            let sub = 2 * pair + upper;
            let low = bits::<V, QUADS>(&both, 4 * upper as u32, 15);
            let codes = with_upper::<V>(&low, &fifth, [sub as u32, 4], 1);
            sink.take(first + sub, &codes, &factors.of(sub));
        }
    }
});

unpack_super_blocks!(Q6K as Halved<32>, |rows, at, sink, first| {
    let scales = rows.dwords(at + 192);
    let factors = Factors::scaled(high_f16::<V>(rows.dword(at + 206)));
    for half in 0..2 {
        let low = [run(rows, at + 64 * half), run(rows, at + 64 * half + 32)];
        let high = run(rows, at + 128 + 32 * half);
        for r in 0..4 {
            let nibble = bits::<V, QUADS>(&low[r % 2], r as u32 / 2 * 4, 15);
            let codes = with_upper::<V>(&nibble, &high, [2 * r as u32, 4], 3);
            let sub = 4 * half + r;
            let (scale, i) = (scales[sub / 2], sub % 2 * 2);
            let halves = [signed_byte::<V>(scale, i), signed_byte::<V>(scale, i + 1)];
            sink.take(first + sub, &codes, &Factors { halves, ..factors });
        }
    }
});

unpack_super_blocks!(Q3K as Halved<4>, |rows, at, sink, first| {
    // Two of the integers, the scales, d.
    let tail = rows.dwords(at + 94);
    let factors = Factors::scaled(high_f16::<V>(tail[3]));
    let mut packed = [tail[0]; 3];
    for i in 0..3 {
        packed[i] = V::or(V::shift_right(tail[i], 16), V::shift_left(tail[i + 1], 16));
    }
    let mut scales = [tail[0]; 4];
    for i in 0..4 {
        let low = bits::<V, 1>(&[packed[i % 2]], i as u32 / 2 * 4, 15)[0];
        let high = bits::<V, 1>(&[packed[2]], 2 * i as u32, 3)[0];
        scales[i] = V::or(low, V::shift_left(high, 4));
    }
    let (upper, zero) = (run(rows, at), V::splat_f(32.0));
    for half in 0..2 {
        let low = run(rows, at + 32 + 32 * half);
        for r in 0..4 {
            let sub = 4 * half + r;
            let codes = with_upper::<V>(&bits::<V, QUADS>(&low, 2 * r as u32, 3), &upper, [sub as u32, 2], 1);
            let (scale, i) = (scales[sub / 2], sub % 2 * 2);
            let halves = [V::sub(byte::<V>(scale, i), zero), V::sub(byte::<V>(scale, i + 1), zero)];
            sink.take(first + sub, &codes, &Factors { halves, ..factors });
        }
    }
});

unpack_super_blocks!(Q2K as HalvedWithMin, |rows, at, sink, first| {
    let (packed, dm) = (rows.dwords(at), rows.dword(at + 80));
    let factors = Factors { min: high_f16::<V>(dm), ..Factors::scaled(V::low_f16(dm)) };
    let (scales, mins) = (bits::<V, 4>(&packed, 0, 15), bits::<V, 4>(&packed, 4, 15));
    for half in 0..2 {
        let values = run(rows, at + 16 + 32 * half);
        for r in 0..4 {
            let sub = 4 * half + r;
            let (scale, min, i) = (scales[sub / 2], mins[sub / 2], sub % 2 * 2);
            let halves = [byte::<V>(scale, i), byte::<V>(scale, i + 1)];
            let min_halves = [byte::<V>(min, i), byte::<V>(min, i + 1)];
            let codes = bits::<V, QUADS>(&values, 2 * r as u32, 3);
            sink.take(first + sub, &codes, &Factors { halves, min_halves, ..factors });
        }
    }
});

unpack_super_blocks!(Iq4Xs as Signed, |rows, at, sink, first| {
    let head = rows.dwords(at);
    let d = V::low_f16(head[0]);
    for sub in 0..SUBS {
        let low = V::and(V::shift_right(head[1], 4 * sub as u32), V::splat(15));
        let high = V::and(V::shift_right(head[0], 16 + 2 * sub as u32), V::splat(3));
        let factor = V::sub_i32(V::or(low, V::shift_left(high, 4)), V::splat(32));
        let codes = look_up::<V, Self>(nibbles::<V>(rows.dwords(at + 8 + 16 * sub)));
        sink.take(first + sub, &signed::<V>(codes), &Factors::scaled(V::mul(d, V::to_f(factor))));
    }
});

/// Declares a format that is unpacked row by row.
macro_rules! unpack_rows {
    ($format:ident) => {
        unpack!($format as Signed, |rows, blocks, sink| {
            // SAFETY: passed on.
            unsafe { row_by_row(rows, blocks, sink) }
        });
    };
}

unpack_rows!(Tq1_0);
unpack_rows!(Tq2_0);
