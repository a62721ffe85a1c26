//! Integer products with as many rows of weights side by side as a vector has 32-bit lanes.
//!
//! A dot product is a sequence of additions, so the lanes of a vector must hold different dot products, not parts of one.
//! Weights lie row after row; sixteen bytes of each row at a time are turned round in registers ([`Simd::turn`]), so that
//! each lane holds four neighbouring weights of its own row, and one instruction (or a few) multiplies all lanes with the
//! same four activations. No weight is ever stored in another order.
//!
//! Few activation rows: what was turned round is multiplied at once (`few.rs`), and weights pass through once. Many: some
//! rows of weights × up to 1,024 columns are unpacked into a scratch *panel* that stays in the first-level cache, and all activation
//! rows meet it there (`many.rs`).
//!
//! All of this is written once, over [`Simd`], the instructions of one tier; a tier is one file (`avx512.rs`, `avx2.rs`, `neon.rs`,
//! `simd128.rs`).
//!
//! The instructions want one factor unsigned. Most formats store integers below 128 that stand for less by a constant; they
//! are used as stored, and the constant times the sum of the activations is what the sum starts from, negative. Formats
//! with all eight bits are handed on signed, and each tier knows how to multiply these.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod few;
mod formats;
mod many;
#[cfg(target_arch = "aarch64")]
mod neon;
mod rows;
mod simd;
#[cfg(target_arch = "wasm32")]
mod simd128;
mod streams;

use std::mem::MaybeUninit;

use calypte_quant::Matrix;
use calypte_quant::formats::BLOCK;

use crate::matmul::{Out, PANEL_X_ROWS_MIN, Share};
use crate::{Activations, Isa};
use formats::Unpack;
use rows::{Rows, parts};
use simd::Simd;

/// Vectors of codes of one block: four columns each.
const QUADS: usize = BLOCK / 4;

/// Computes output columns `share.rows` for all rows of `x` with the vectors of the tier. False, and nothing done, where it has none
/// or the matrix has fewer rows than they have lanes.
///
/// # Safety
/// `out` as in [`Out::at`].
pub(crate) unsafe fn int_rows_isa<F: Unpack>(
    isa: Isa,
    w: &Matrix<'_>,
    share: Share<'_>,
    x: &Activations,
    out: Out,
) -> bool {
    // SAFETY: a tier is only ever made by `Isa::available`, which asked the processor; there are rows enough; the rest is
    // promised by the caller.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if w.rows >= avx512::Avx512::LANES => avx512::int_rows::<F>(w, share, x, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::Avx512 if w.rows >= avx2::Avx2::LANES => avx2::int_rows::<F>(w, share, x, out),
            #[cfg(target_arch = "aarch64")]
            Isa::Dotprod if w.rows >= neon::Neon::<true>::LANES => neon::int_rows_sdot::<F>(w, share, x, out),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon if w.rows >= neon::Neon::<false>::LANES => neon::int_rows::<F>(w, share, x, out),
            #[cfg(target_arch = "wasm32")]
            Isa::Simd128 if w.rows >= simd128::Simd128::LANES => simd128::int_rows::<F>(w, share, x, out),
            _ => return false,
        }
    }
    true
}

/// Computes output columns `share.rows` for all rows of `x`. The matrix must have as many rows as `V` has lanes.
///
/// # Safety
/// The processor must have the instructions of `V`; `out` as in [`Out::at`].
#[inline(always)]
pub(crate) unsafe fn int_rows<V: Simd, F: Unpack>(
    w: &Matrix<'_>,
    share: Share<'_>,
    x: &Activations,
    out: Out,
) {
    assert!(w.rows >= V::LANES && x.is_quantized());
    // SAFETY: passed on.
    unsafe {
        match x.rows() {
            0 => {}
            n if n < PANEL_X_ROWS_MIN => few::int_rows::<V, F>(w, share, x, out),
            _ => many::int_rows::<V, F>(w, share.rows, x, out),
        }
    }
}

/// What the sums of a block are multiplied with, row by row; which parts of it count depends on the format.
#[derive(Clone, Copy)]
pub(crate) struct Factors<V: Simd> {
    scale: V::F,
    min: V::F,
    halves: [V::F; 2],
    min_halves: [V::F; 2],
}

impl<V: Simd> Factors<V> {
    /// # Safety
    /// The processor must have the instructions of `V`.
    #[inline(always)]
    unsafe fn scaled(scale: V::F) -> Self {
        // SAFETY: promised by the caller.
        let zero = unsafe { V::splat_f(0.0) };
        Factors { scale, min: zero, halves: [zero; 2], min_halves: [zero; 2] }
    }

    /// Copies the factors that the shape has.
    ///
    /// # Safety
    /// The pointers must be valid for that, `from` for reading those factors.
    #[inline(always)]
    unsafe fn copy<S: Shape>(to: *mut Self, from: *const Self) {
        // SAFETY: promised by the caller.
        unsafe {
            (&raw mut (*to).scale).write((*from).scale);
            if S::HAS_MIN {
                (&raw mut (*to).min).write((*from).min);
            }
            if S::HAS_HALVES {
                (&raw mut (*to).halves).write((*from).halves);
            }
            if S::HAS_MIN_HALVES {
                (&raw mut (*to).min_halves).write((*from).min_halves);
            }
        }
    }
}

/// How the integers of a format are handed on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Codes {
    /// Unsigned, below 128, and each this much too high: 0 or a power of two.
    Above(u8),
    /// As they are, −128 to 127.
    Signed,
}

/// What the arithmetic has to know of a format: its codes, and which factors its blocks have.
pub(crate) trait Shape {
    const CODES: Codes;
    const HAS_MIN: bool;
    const HAS_HALVES: bool;
    const HAS_MIN_HALVES: bool;

    /// How much the codes that the instructions of `V` see are too high.
    #[inline(always)]
    fn above<V: Simd>() -> u8 {
        match Self::CODES {
            Codes::Above(n) => n,
            Codes::Signed => V::SIGNED_ABOVE,
        }
    }
}

macro_rules! shapes {
    ($($(#[$doc:meta])* $name:ident $(<$offset:ident>)?: $codes:expr, $min:literal $halves:literal $min_halves:literal;)*) => {
        $($(#[$doc])*
        pub(crate) struct $name $(<const $offset: u8>)?;
        impl $(<const $offset: u8>)? Shape for $name $(<$offset>)? {
            const CODES: Codes = $codes;
            const HAS_MIN: bool = $min;
            const HAS_HALVES: bool = $halves;
            const HAS_MIN_HALVES: bool = $min_halves;
        })*
    };
}

shapes! {
    /// All eight bits, one scale.
    Signed: Codes::Signed, false false false;
    /// One scale.
    Scaled<ABOVE>: Codes::Above(ABOVE), false false false;
    /// One scale and one minimum.
    WithMin: Codes::Above(0), true false false;
    /// A scale for each half.
    Halved<ABOVE>: Codes::Above(ABOVE), false true false;
    /// A scale and a minimum for each half.
    HalvedWithMin: Codes::Above(0), true true true;
}

/// Takes the blocks of some rows of weights, in their order.
pub(crate) trait Sink<V: Simd, F: Unpack> {
    /// Lane i of `codes[k]` holds columns 4k to 4k + 3 of row i, a byte each, as [`Shape::CODES`] says; signed ones as
    /// [`Simd::signed`] keeps them.
    ///
    /// # Safety
    /// The processor must have the instructions of `V`; `block` must be one of the row.
    unsafe fn take(&mut self, block: usize, codes: &[V::I; QUADS], factors: &Factors<V>);
}

/// Rounded activations from one row and one block on.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    q: *const i8,
    scale: *const f32,
    sum: *const f32,
    total: *const i32,
    halves: *const [i32; 2],
    cols: usize,
    blocks: usize,
}

impl Tile {
    fn new(x: &Activations, row: usize, block: usize) -> Tile {
        let rows = x.q8_from(row);
        Tile {
            q: rows.q[block * BLOCK..].as_ptr(),
            scale: rows.scale[block..].as_ptr(),
            sum: rows.sum[block..].as_ptr(),
            total: rows.total[block..].as_ptr(),
            halves: rows.halves[block..].as_ptr(),
            cols: x.cols(),
            blocks: x.cols() / BLOCK,
        }
    }

    /// Columns 4k to 4k + 3 of a block.
    ///
    /// # Safety
    /// Row and block must be there.
    #[inline(always)]
    unsafe fn quad(&self, row: usize, block: usize, k: usize) -> i32 {
        // SAFETY: promised by the caller.
        unsafe { self.q.add(row * self.cols + block * BLOCK + 4 * k).cast::<i32>().read_unaligned() }
    }

    /// # Safety
    /// As [`Tile::quad`].
    #[inline(always)]
    unsafe fn scale(&self, row: usize, block: usize) -> f32 {
        // SAFETY: promised by the caller.
        unsafe { *self.scale.add(row * self.blocks + block) }
    }

    /// # Safety
    /// As [`Tile::quad`].
    #[inline(always)]
    unsafe fn sum(&self, row: usize, block: usize) -> f32 {
        // SAFETY: promised by the caller.
        unsafe { *self.sum.add(row * self.blocks + block) }
    }

    /// The sum of the integers of one half of a block.
    ///
    /// # Safety
    /// As [`Tile::quad`].
    #[inline(always)]
    unsafe fn half(&self, row: usize, block: usize, half: usize) -> i32 {
        // SAFETY: promised by the caller.
        unsafe { (*self.halves.add(row * self.blocks + block))[half] }
    }

    /// What the sum of products of a block begins with, or of each half of one where the format has halves, so that it
    /// comes out as that of the integers that the codes stand for.
    ///
    /// # Safety
    /// As [`Tile::quad`].
    #[inline(always)]
    unsafe fn start<V: Simd, S: Shape>(&self, row: usize, block: usize, half: usize) -> i32 {
        let at = row * self.blocks + block;
        // SAFETY: promised by the caller.
        let total = unsafe { if S::HAS_HALVES { (*self.halves.add(at))[half] } else { *self.total.add(at) } };
        -(S::above::<V>() as i32) * total
    }

    /// [`Tile::start`] of the first blocks: as many as `out` has room for, where there are halves two for each block.
    ///
    /// # Safety
    /// As [`Tile::quad`], for all of the blocks.
    #[inline(always)]
    unsafe fn starts<V: Simd, S: Shape>(&self, row: usize, out: &mut [MaybeUninit<i32>]) {
        let first = row * self.blocks;
        // SAFETY: promised by the caller.
        let totals = unsafe {
            match S::HAS_HALVES {
                true => std::slice::from_raw_parts(self.halves.add(first).cast(), out.len()),
                false => std::slice::from_raw_parts(self.total.add(first), out.len()),
            }
        };
        for (start, total) in out.iter_mut().zip(totals) {
            start.write(-(S::above::<V>() as i32) * total);
        }
    }
}

/// `sum` with the products of one quad of columns.
///
/// # Safety
/// The processor must have the instructions of `V`.
#[inline(always)]
unsafe fn dot<V: Simd, S: Shape>(sum: V::I, codes: V::I, quad: i32) -> V::I {
    // SAFETY: promised by the caller.
    unsafe {
        match S::CODES {
            Codes::Above(_) => V::dot(sum, codes, quad),
            Codes::Signed => V::dot_signed(sum, codes, quad),
        }
    }
}

/// `acc` with one more block: the canonical sequence of [`calypte_quant::reference`], in every lane. `sums` are the integer
/// sums of the two halves, or of the whole block in the first.
///
/// # Safety
/// The processor must have the instructions of `V`; row and block must be there.
#[inline(always)]
unsafe fn add_block<V: Simd, S: Shape>(
    acc: V::F,
    sums: [V::I; 2],
    f: &Factors<V>,
    x: &Tile,
    row: usize,
    block: usize,
) -> V::F {
    // SAFETY: promised by the caller.
    unsafe {
        let sum = V::to_f(sums[0]);
        // A half's sum has at most 17 bits and its factor 8, so the products are exact as floats, and their sum is rounded
        // once, as the integer would be.
        let sum = match S::HAS_HALVES {
            true => V::exact_mul_add(sum, f.halves[0], V::mul(V::to_f(sums[1]), f.halves[1])),
            false => sum,
        };
        let x_scale = V::splat_f(x.scale(row, block));
        let acc = V::add(acc, V::mul(sum, V::mul(f.scale, x_scale)));
        if S::HAS_MIN_HALVES {
            let (low, high) =
                (V::splat_f(x.half(row, block, 0) as f32), V::splat_f(x.half(row, block, 1) as f32));
            // Exact for the same reason.
            let sum = V::exact_mul_add(low, f.min_halves[0], V::mul(high, f.min_halves[1]));
            V::sub(acc, V::mul(sum, V::mul(f.min, x_scale)))
        } else if S::HAS_MIN {
            V::sub(acc, V::mul(f.min, V::splat_f(x.sum(row, block))))
        } else {
            acc
        }
    }
}
