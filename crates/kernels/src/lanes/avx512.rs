//! x86-64 with AVX-512 F, BW, VL and VNNI: sixteen lanes.

use std::arch::x86_64::*;

use calypte_quant::Matrix;

use super::avx2::Avx2;
use super::many::{self, Job};
use super::{Shape, Simd, Unpack};
use crate::Activations;
use crate::matmul::{Out, Share};

/// The instructions of this tier.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

/// [`super::int_rows`], compiled for this tier.
///
/// # Safety
/// As there.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,f16c")]
pub(crate) unsafe fn int_rows<F: Unpack>(w: &Matrix<'_>, share: Share<'_>, x: &Activations, out: Out) {
    // SAFETY: passed on.
    unsafe { super::int_rows::<Avx512, F>(w, share, x, out) }
}

/// # Safety
/// As [`many::multiply`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,f16c")]
unsafe fn multiply<S: Shape>(job: &Job<'_, Avx512>) {
    // SAFETY: passed on.
    unsafe { many::multiply::<Avx512, S>(job) }
}

/// A count for the shifts, which take it from a vector; a constant ends up in the instruction.
#[inline(always)]
fn count(bits: u32) -> __m128i {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_cvtsi32_si128(bits as i32) }
}

impl Simd for Avx512 {
    const LANES: usize = 16;
    const PARTS: usize = 2;
    const TILE: usize = 6;
    const SIGNED_ABOVE: u8 = 128;
    type I = __m512i;
    type F = __m512;

    #[inline(always)]
    unsafe fn turn(start: *const u8, stride: usize) -> [__m512i; 4] {
        // SAFETY: promised by the caller.
        unsafe {
            let mut z = [_mm512_setzero_si512(); 4];
            for i in 0..4 {
                // 128-bit part p of vector i is row 4p + i: then each part is a square to be transposed.
                let at = |p: usize| start.add((4 * p + i) * stride).cast();
                z[i] = _mm512_castsi128_si512(_mm_loadu_si128(at(0)));
                z[i] = _mm512_inserti32x4::<1>(z[i], _mm_loadu_si128(at(1)));
                z[i] = _mm512_inserti32x4::<2>(z[i], _mm_loadu_si128(at(2)));
                z[i] = _mm512_inserti32x4::<3>(z[i], _mm_loadu_si128(at(3)));
            }
            let (a, b) = (_mm512_unpacklo_epi32(z[0], z[1]), _mm512_unpacklo_epi32(z[2], z[3]));
            let (c, d) = (_mm512_unpackhi_epi32(z[0], z[1]), _mm512_unpackhi_epi32(z[2], z[3]));
            [
                _mm512_unpacklo_epi64(a, b),
                _mm512_unpackhi_epi64(a, b),
                _mm512_unpacklo_epi64(c, d),
                _mm512_unpackhi_epi64(c, d),
            ]
        }
    }

    /// By plain loads: with the instruction that gathers, products in a cache were a quarter slower (docs/perf.md).
    #[inline(always)]
    unsafe fn gather(start: *const u8, stride: usize) -> __m512i {
        // SAFETY: promised by the caller.
        unsafe {
            let eight = |row: usize| Avx2::gather(start.add(row * stride), stride);
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(eight(0)), eight(8))
        }
    }

    #[inline(always)]
    unsafe fn splat(v: i32) -> __m512i {
        // SAFETY: promised by the caller.
        unsafe { _mm512_set1_epi32(v) }
    }

    #[inline(always)]
    unsafe fn and(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: promised by the caller.
        unsafe { _mm512_and_si512(a, b) }
    }

    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: promised by the caller.
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    unsafe fn shift_left(v: __m512i, bits: u32) -> __m512i {
        // SAFETY: promised by the caller.
        unsafe { _mm512_sll_epi32(v, count(bits)) }
    }

    #[inline(always)]
    unsafe fn shift_right(v: __m512i, bits: u32) -> __m512i {
        // SAFETY: promised by the caller.
        unsafe { _mm512_srl_epi32(v, count(bits)) }
    }

    #[inline(always)]
    unsafe fn shift_right_signed(v: __m512i, bits: u32) -> __m512i {
        // SAFETY: promised by the caller.
        unsafe { _mm512_sra_epi32(v, count(bits)) }
    }

    #[inline(always)]
    unsafe fn sub_i32(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: promised by the caller.
        unsafe { _mm512_sub_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn look_up(table: &[i8; 16], codes: __m512i) -> __m512i {
        // SAFETY: promised by the caller.
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, codes)
        }
    }

    #[inline(always)]
    unsafe fn dot(acc: __m512i, codes: __m512i, quad: i32) -> __m512i {
        // SAFETY: promised by the caller.
        unsafe { _mm512_dpbusd_epi32(acc, codes, _mm512_set1_epi32(quad)) }
    }

    /// Moved up by 128, since the instruction takes unsigned weights.
    #[inline(always)]
    unsafe fn signed(v: __m512i) -> __m512i {
        // SAFETY: promised by the caller.
        unsafe { _mm512_xor_si512(v, _mm512_set1_epi8(-128)) }
    }

    #[inline(always)]
    unsafe fn dot_signed(acc: __m512i, codes: __m512i, quad: i32) -> __m512i {
        // SAFETY: promised by the caller.
        unsafe { Self::dot(acc, codes, quad) }
    }

    #[inline(always)]
    unsafe fn load_f(from: *const f32) -> __m512 {
        // SAFETY: promised by the caller.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store_f(to: *mut f32, v: __m512) {
        // SAFETY: promised by the caller.
        unsafe { _mm512_storeu_ps(to, v) }
    }

    #[inline(always)]
    unsafe fn splat_f(v: f32) -> __m512 {
        // SAFETY: promised by the caller.
        unsafe { _mm512_set1_ps(v) }
    }

    #[inline(always)]
    unsafe fn as_f(v: __m512i) -> __m512 {
        // SAFETY: promised by the caller.
        unsafe { _mm512_castsi512_ps(v) }
    }

    #[inline(always)]
    unsafe fn to_f(v: __m512i) -> __m512 {
        // SAFETY: promised by the caller.
        unsafe { _mm512_cvtepi32_ps(v) }
    }

    #[inline(always)]
    unsafe fn low_f16(v: __m512i) -> __m512 {
        // SAFETY: promised by the caller.
        unsafe { _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)) }
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: promised by the caller.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        // SAFETY: promised by the caller.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: promised by the caller.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn exact_mul_add(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: promised by the caller.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn multiply<S: Shape>(job: &Job<'_, Self>) {
        // SAFETY: promised by the caller.
        unsafe { multiply::<S>(job) }
    }
}
