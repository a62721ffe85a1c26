//! WebAssembly with SIMD128, as far as all engines agree on its results (nothing "relaxed"): four lanes.

use std::arch::wasm32::*;

use calypte_quant::Matrix;

use super::many::{self, Job};
use super::simd::dword;
use super::{Shape, Simd, Unpack};
use crate::Activations;
use crate::matmul::{Out, Share};

/// The instructions of this tier.
#[derive(Clone, Copy)]
pub(crate) struct Simd128;

/// [`super::int_rows`] on this tier.
///
/// # Safety
/// As there.
pub(crate) unsafe fn int_rows<F: Unpack>(w: &Matrix<'_>, share: Share<'_>, x: &Activations, out: Out) {
    // SAFETY: passed on.
    unsafe { super::int_rows::<Simd128, F>(w, share, x, out) }
}

/// # Safety
/// As [`many::multiply`].
#[inline(never)]
unsafe fn multiply<S: Shape>(job: &Job<'_, Simd128>) {
    // SAFETY: passed on.
    unsafe { many::multiply::<Simd128, S>(job) }
}

/// The even and the odd bytes, signed, as 16-bit numbers.
#[inline(always)]
fn halves(v: v128) -> [v128; 2] {
    [i16x8_shr(i16x8_shl(v, 8), 8), i16x8_shr(v, 8)]
}

impl Simd for Simd128 {
    const LANES: usize = 4;
    const PARTS: usize = 2;
    const TILE: usize = 4;
    const SIGNED_ABOVE: u8 = 0;
    type I = v128;
    type F = v128;

    #[inline(always)]
    unsafe fn turn(start: *const u8, stride: usize) -> [v128; 4] {
        let mut z = [i32x4_splat(0); 4];
        for i in 0..4 {
            // SAFETY: promised by the caller.
            z[i] = unsafe { v128_load(start.add(i * stride).cast()) };
        }
        let (a, b) = (i32x4_shuffle::<0, 4, 1, 5>(z[0], z[1]), i32x4_shuffle::<0, 4, 1, 5>(z[2], z[3]));
        let (c, d) = (i32x4_shuffle::<2, 6, 3, 7>(z[0], z[1]), i32x4_shuffle::<2, 6, 3, 7>(z[2], z[3]));
        [
            i64x2_shuffle::<0, 2>(a, b),
            i64x2_shuffle::<1, 3>(a, b),
            i64x2_shuffle::<0, 2>(c, d),
            i64x2_shuffle::<1, 3>(c, d),
        ]
    }

    #[inline(always)]
    unsafe fn gather(start: *const u8, stride: usize) -> v128 {
        // SAFETY: promised by the caller.
        let at = |row: usize| unsafe { dword(start.add(row * stride)) };
        i32x4(at(0), at(1), at(2), at(3))
    }

    #[inline(always)]
    unsafe fn splat(v: i32) -> v128 {
        i32x4_splat(v)
    }

    #[inline(always)]
    unsafe fn and(a: v128, b: v128) -> v128 {
        v128_and(a, b)
    }

    #[inline(always)]
    unsafe fn or(a: v128, b: v128) -> v128 {
        v128_or(a, b)
    }

    #[inline(always)]
    unsafe fn shift_left(v: v128, bits: u32) -> v128 {
        i32x4_shl(v, bits)
    }

    #[inline(always)]
    unsafe fn shift_right(v: v128, bits: u32) -> v128 {
        u32x4_shr(v, bits)
    }

    #[inline(always)]
    unsafe fn shift_right_signed(v: v128, bits: u32) -> v128 {
        i32x4_shr(v, bits)
    }

    #[inline(always)]
    unsafe fn sub_i32(a: v128, b: v128) -> v128 {
        i32x4_sub(a, b)
    }

    #[inline(always)]
    unsafe fn look_up(table: &[i8; 16], codes: v128) -> v128 {
        // SAFETY: the table is as long as a vector.
        let table = unsafe { v128_load(table.as_ptr().cast()) };
        i8x16_swizzle(table, codes)
    }

    /// Codes below 128 are the same signed. The instruction multiplies 16-bit numbers and adds pairs of products: the bytes
    /// of a lane are two pairs, and those of the codes are taken apart once for all activation rows of a tile.
    #[inline(always)]
    unsafe fn dot(acc: v128, codes: v128, quad: i32) -> v128 {
        let ([even, odd], quad) = (halves(codes), halves(i32x4_splat(quad)));
        i32x4_add(acc, i32x4_add(i32x4_dot_i16x8(even, quad[0]), i32x4_dot_i16x8(odd, quad[1])))
    }

    #[inline(always)]
    unsafe fn signed(v: v128) -> v128 {
        v
    }

    #[inline(always)]
    unsafe fn dot_signed(acc: v128, codes: v128, quad: i32) -> v128 {
        // SAFETY: promised by the caller.
        unsafe { Self::dot(acc, codes, quad) }
    }

    #[inline(always)]
    unsafe fn load_f(from: *const f32) -> v128 {
        // SAFETY: promised by the caller.
        unsafe { v128_load(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store_f(to: *mut f32, v: v128) {
        // SAFETY: promised by the caller.
        unsafe { v128_store(to.cast(), v) }
    }

    #[inline(always)]
    unsafe fn splat_f(v: f32) -> v128 {
        f32x4_splat(v)
    }

    #[inline(always)]
    unsafe fn as_f(v: v128) -> v128 {
        v
    }

    #[inline(always)]
    unsafe fn to_f(v: v128) -> v128 {
        f32x4_convert_i32x4(v)
    }

    /// There is no instruction for it: [`calypte_quant::formats::f16_to_f32`] explains the arithmetic.
    #[inline(always)]
    unsafe fn low_f16(v: v128) -> v128 {
        let (sign, magnitude) = (v128_and(v, i32x4_splat(0x8000)), v128_and(v, i32x4_splat(0x7fff)));
        let special = v128_and(i32x4_ge(magnitude, i32x4_splat(0x7c00)), i32x4_splat(0x7f80_0000));
        let rebias = f32x4_splat(f32::from_bits((127 + 112) << 23));
        let value = f32x4_mul(i32x4_shl(magnitude, 13), rebias);
        v128_or(v128_or(value, special), i32x4_shl(sign, 16))
    }

    #[inline(always)]
    unsafe fn add(a: v128, b: v128) -> v128 {
        f32x4_add(a, b)
    }

    #[inline(always)]
    unsafe fn sub(a: v128, b: v128) -> v128 {
        f32x4_sub(a, b)
    }

    #[inline(always)]
    unsafe fn mul(a: v128, b: v128) -> v128 {
        f32x4_mul(a, b)
    }

    #[inline(always)]
    unsafe fn multiply<S: Shape>(job: &Job<'_, Self>) {
        // SAFETY: promised by the caller.
        unsafe { multiply::<S>(job) }
    }
}
