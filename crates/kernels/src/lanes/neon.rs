//! AArch64 with NEON, which every such processor has: eight lanes in two registers; and the same with the dot product
//! instruction (`sdot`) that most of them have.
//!
//! Two registers, because then each quad of activations that is read serves two instructions, and the codes of a block (16
//! registers) still leave half of the 32 for everything else.

use std::arch::aarch64::*;
use std::arch::asm;

use calypte_quant::Matrix;

use super::many::{self, Job};
use super::simd::dword;
use super::{Shape, Simd, Unpack};
use crate::Activations;
use crate::matmul::{Out, Share};

/// The instructions of this tier, with or without `sdot`.
#[derive(Clone, Copy)]
pub(crate) struct Neon<const SDOT: bool>;

/// Registers of a vector.
const REGISTERS: usize = 2;

/// [`super::int_rows`], compiled for this tier.
///
/// # Safety
/// As there.
pub(crate) unsafe fn int_rows<F: Unpack>(w: &Matrix<'_>, share: Share<'_>, x: &Activations, out: Out) {
    // SAFETY: passed on.
    unsafe { super::int_rows::<Neon<false>, F>(w, share, x, out) }
}

/// [`super::int_rows`], compiled for this tier with `sdot`.
///
/// # Safety
/// As there.
#[target_feature(enable = "dotprod")]
pub(crate) unsafe fn int_rows_sdot<F: Unpack>(w: &Matrix<'_>, share: Share<'_>, x: &Activations, out: Out) {
    // SAFETY: passed on.
    unsafe { super::int_rows::<Neon<true>, F>(w, share, x, out) }
}

/// # Safety
/// As [`many::multiply`].
#[inline(never)]
unsafe fn multiply<V: Simd, S: Shape>(job: &Job<'_, V>) {
    // SAFETY: passed on.
    unsafe { many::multiply::<V, S>(job) }
}

/// # Safety
/// As [`many::multiply`].
#[target_feature(enable = "dotprod")]
unsafe fn multiply_sdot<V: Simd, S: Shape>(job: &Job<'_, V>) {
    // SAFETY: passed on.
    unsafe { many::multiply::<V, S>(job) }
}

/// One function for each register of some vectors. A macro, since closures do not inherit the instructions.
macro_rules! each {
    ($f:ident($first:expr $(, $more:expr)*)) => {{
        let mut out = [$f($first[0] $(, $more[0])*); REGISTERS];
        for r in 1..REGISTERS {
            out[r] = $f($first[r] $(, $more[r])*);
        }
        out
    }};
}

/// The dot products of four bytes each, added to `acc`.
///
/// # Safety
/// The processor must have `sdot` if that is asked for.
#[inline(always)]
unsafe fn dot<const SDOT: bool>(mut acc: int32x4_t, codes: int32x4_t, quad: int32x4_t) -> int32x4_t {
    // SAFETY: promised by the caller.
    unsafe {
        let (codes, quad) = (vreinterpretq_s8_s32(codes), vreinterpretq_s8_s32(quad));
        if SDOT {
            // Rust's function for it, `vdotq_s32`, is not stable.
            asm!(
                "sdot {acc:v}.4s, {codes:v}.16b, {quad:v}.16b",
                acc = inout(vreg) acc,
                codes = in(vreg) codes,
                quad = in(vreg) quad,
                options(pure, nomem, nostack, preserves_flags),
            );
            acc
        } else {
            // Pairs are added as 16-bit numbers: 2 · 128 · 127, the largest activation, fits.
            let low = vmull_s8(vget_low_s8(codes), vget_low_s8(quad));
            vpadalq_s16(acc, vpaddq_s16(low, vmull_high_s8(codes, quad)))
        }
    }
}

/// A shift to the left, or to the right by what is negative; a constant ends up in the instruction.
#[inline(always)]
fn shift_unsigned(v: int32x4_t, bits: int32x4_t) -> int32x4_t {
    // SAFETY: NEON is part of AArch64.
    unsafe { vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(v), bits)) }
}

#[inline(always)]
fn low_f16(v: int32x4_t) -> float32x4_t {
    // SAFETY: NEON is part of AArch64.
    unsafe { vcvt_f32_f16(vreinterpret_f16_s16(vmovn_s32(v))) }
}

impl<const SDOT: bool> Simd for Neon<SDOT> {
    const LANES: usize = 4 * REGISTERS;
    const PARTS: usize = 2;
    const TILE: usize = 4;
    const SIGNED_ABOVE: u8 = 0;
    type I = [int32x4_t; REGISTERS];
    type F = [float32x4_t; REGISTERS];

    #[inline(always)]
    unsafe fn turn(start: *const u8, stride: usize) -> [Self::I; 4] {
        // SAFETY: promised by the caller.
        unsafe {
            let mut turned = [[vdupq_n_s32(0); REGISTERS]; 4];
            for r in 0..REGISTERS {
                // Four rows, a square to be transposed.
                let mut z = [vdupq_n_s32(0); 4];
                for i in 0..4 {
                    z[i] = vreinterpretq_s32_u8(vld1q_u8(start.add((4 * r + i) * stride)));
                }
                let low = [vtrn1q_s32(z[0], z[1]), vtrn2q_s32(z[0], z[1])];
                let high = [vtrn1q_s32(z[2], z[3]), vtrn2q_s32(z[2], z[3])];
                for k in 0..2 {
                    let (low, high) = (vreinterpretq_s64_s32(low[k]), vreinterpretq_s64_s32(high[k]));
                    turned[k][r] = vreinterpretq_s32_s64(vtrn1q_s64(low, high));
                    turned[k + 2][r] = vreinterpretq_s32_s64(vtrn2q_s64(low, high));
                }
            }
            turned
        }
    }

    #[inline(always)]
    unsafe fn gather(start: *const u8, stride: usize) -> Self::I {
        let mut v = [0i32; 4 * REGISTERS];
        // SAFETY: promised by the caller; the array is as long as the registers.
        unsafe {
            for i in 0..4 * REGISTERS {
                v[i] = dword(start.add(i * stride));
            }
            let mut registers = [vdupq_n_s32(0); REGISTERS];
            for r in 0..REGISTERS {
                registers[r] = vld1q_s32(v[4 * r..].as_ptr());
            }
            registers
        }
    }

    #[inline(always)]
    unsafe fn splat(v: i32) -> Self::I {
        // SAFETY: promised by the caller.
        [unsafe { vdupq_n_s32(v) }; REGISTERS]
    }

    #[inline(always)]
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I {
        // SAFETY: promised by the caller.
        unsafe { each!(vandq_s32(a, b)) }
    }

    #[inline(always)]
    unsafe fn or(a: Self::I, b: Self::I) -> Self::I {
        // SAFETY: promised by the caller.
        unsafe { each!(vorrq_s32(a, b)) }
    }

    #[inline(always)]
    unsafe fn shift_left(v: Self::I, bits: u32) -> Self::I {
        // SAFETY: promised by the caller.
        unsafe { each!(vshlq_s32(v, Self::splat(bits as i32))) }
    }

    #[inline(always)]
    unsafe fn shift_right(v: Self::I, bits: u32) -> Self::I {
        // SAFETY: promised by the caller.
        unsafe { each!(shift_unsigned(v, Self::splat(-(bits as i32)))) }
    }

    #[inline(always)]
    unsafe fn shift_right_signed(v: Self::I, bits: u32) -> Self::I {
        // SAFETY: promised by the caller.
        unsafe { each!(vshlq_s32(v, Self::splat(-(bits as i32)))) }
    }

    #[inline(always)]
    unsafe fn sub_i32(a: Self::I, b: Self::I) -> Self::I {
        // SAFETY: promised by the caller.
        unsafe { each!(vsubq_s32(a, b)) }
    }

    #[inline(always)]
    unsafe fn look_up(table: &[i8; 16], mut codes: Self::I) -> Self::I {
        // SAFETY: promised by the caller.
        unsafe {
            let table = vld1q_s8(table.as_ptr());
            for r in 0..REGISTERS {
                codes[r] = vreinterpretq_s32_s8(vqtbl1q_s8(table, vreinterpretq_u8_s32(codes[r])));
            }
            codes
        }
    }

    /// Codes below 128 are the same signed.
    #[inline(always)]
    unsafe fn dot(mut acc: Self::I, codes: Self::I, quad: i32) -> Self::I {
        // SAFETY: promised by the caller.
        unsafe {
            let quad = vdupq_n_s32(quad);
            for r in 0..REGISTERS {
                acc[r] = dot::<SDOT>(acc[r], codes[r], quad);
            }
            acc
        }
    }

    #[inline(always)]
    unsafe fn signed(v: Self::I) -> Self::I {
        v
    }

    #[inline(always)]
    unsafe fn dot_signed(acc: Self::I, codes: Self::I, quad: i32) -> Self::I {
        // SAFETY: promised by the caller.
        unsafe { Self::dot(acc, codes, quad) }
    }

    #[inline(always)]
    unsafe fn load_f(from: *const f32) -> Self::F {
        // SAFETY: promised by the caller.
        unsafe {
            let mut out = Self::splat_f(0.0);
            for r in 0..REGISTERS {
                out[r] = vld1q_f32(from.add(4 * r));
            }
            out
        }
    }

    #[inline(always)]
    unsafe fn store_f(to: *mut f32, v: Self::F) {
        for r in 0..REGISTERS {
            // SAFETY: promised by the caller.
            unsafe { vst1q_f32(to.add(4 * r), v[r]) };
        }
    }

    #[inline(always)]
    unsafe fn splat_f(v: f32) -> Self::F {
        // SAFETY: promised by the caller.
        [unsafe { vdupq_n_f32(v) }; REGISTERS]
    }

    #[inline(always)]
    unsafe fn as_f(v: Self::I) -> Self::F {
        // SAFETY: promised by the caller.
        unsafe { each!(vreinterpretq_f32_s32(v)) }
    }

    #[inline(always)]
    unsafe fn to_f(v: Self::I) -> Self::F {
        // SAFETY: promised by the caller.
        unsafe { each!(vcvtq_f32_s32(v)) }
    }

    #[inline(always)]
    unsafe fn low_f16(v: Self::I) -> Self::F {
        each!(low_f16(v))
    }

    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: promised by the caller.
        unsafe { each!(vaddq_f32(a, b)) }
    }

    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: promised by the caller.
        unsafe { each!(vsubq_f32(a, b)) }
    }

    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: promised by the caller.
        unsafe { each!(vmulq_f32(a, b)) }
    }

    #[inline(always)]
    unsafe fn exact_mul_add(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: promised by the caller.
        unsafe { each!(vfmaq_f32(c, a, b)) }
    }

    #[inline(always)]
    unsafe fn multiply<S: Shape>(job: &Job<'_, Self>) {
        // SAFETY: promised by the caller.
        unsafe {
            match SDOT {
                true => multiply_sdot::<Self, S>(job),
                false => multiply::<Self, S>(job),
            }
        }
    }
}
