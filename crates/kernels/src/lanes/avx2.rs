//! x86-64 with AVX2 and F16C: eight lanes.

use std::arch::x86_64::*;

use calypte_quant::Matrix;

use super::many::{self, Job};
use super::simd::dword;
use super::{Shape, Simd, Unpack};
use crate::Activations;
use crate::matmul::{Out, Share};

/// The instructions of this tier.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// [`super::int_rows`], compiled for this tier.
///
/// # Safety
/// As there.
#[target_feature(enable = "avx2,f16c")]
pub(crate) unsafe fn int_rows<F: Unpack>(w: &Matrix<'_>, share: Share<'_>, x: &Activations, out: Out) {
    // SAFETY: passed on.
    unsafe { super::int_rows::<Avx2, F>(w, share, x, out) }
}

/// # Safety
/// As [`many::multiply`].
#[target_feature(enable = "avx2,f16c")]
unsafe fn multiply<S: Shape>(job: &Job<'_, Avx2>) {
    // SAFETY: passed on.
    unsafe { many::multiply::<Avx2, S>(job) }
}

/// A count for the shifts, which take it from a vector; a constant ends up in the instruction.
#[inline(always)]
fn count(bits: u32) -> __m128i {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_cvtsi32_si128(bits as i32) }
}

/// Four lanes of [`Simd::gather`].
///
/// # Safety
/// The processor must have SSE4.1; the bytes must be readable.
#[inline(always)]
unsafe fn gather_four(start: *const u8, stride: usize) -> __m128i {
    // SAFETY: promised by the caller.
    unsafe {
        let at = |row: usize| dword(start.add(row * stride));
        let v = _mm_insert_epi32::<1>(_mm_cvtsi32_si128(at(0)), at(1));
        _mm_insert_epi32::<3>(_mm_insert_epi32::<2>(v, at(2)), at(3))
    }
}

impl Simd for Avx2 {
    const LANES: usize = 8;
    const PARTS: usize = 2;
    const TILE: usize = 2;
    const SIGNED_ABOVE: u8 = 0;
    type I = __m256i;
    type F = __m256;

    #[inline(always)]
    unsafe fn turn(start: *const u8, stride: usize) -> [__m256i; 4] {
        // SAFETY: promised by the caller.
        unsafe {
            let mut z = [_mm256_setzero_si256(); 4];
            for i in 0..4 {
                // The lower half of vector i is row i, the upper row 4 + i: then each half is a square to be transposed.
                let at = |p: usize| start.add((4 * p + i) * stride).cast();
                z[i] = _mm256_castsi128_si256(_mm_loadu_si128(at(0)));
                z[i] = _mm256_inserti128_si256::<1>(z[i], _mm_loadu_si128(at(1)));
            }
            let (a, b) = (_mm256_unpacklo_epi32(z[0], z[1]), _mm256_unpacklo_epi32(z[2], z[3]));
            let (c, d) = (_mm256_unpackhi_epi32(z[0], z[1]), _mm256_unpackhi_epi32(z[2], z[3]));
            [
                _mm256_unpacklo_epi64(a, b),
                _mm256_unpackhi_epi64(a, b),
                _mm256_unpacklo_epi64(c, d),
                _mm256_unpackhi_epi64(c, d),
            ]
        }
    }

    #[inline(always)]
    unsafe fn gather(start: *const u8, stride: usize) -> __m256i {
        // SAFETY: promised by the caller.
        unsafe { _mm256_set_m128i(gather_four(start.add(4 * stride), stride), gather_four(start, stride)) }
    }

    #[inline(always)]
    unsafe fn splat(v: i32) -> __m256i {
        // SAFETY: promised by the caller.
        unsafe { _mm256_set1_epi32(v) }
    }

    #[inline(always)]
    unsafe fn and(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: promised by the caller.
        unsafe { _mm256_and_si256(a, b) }
    }

    #[inline(always)]
    unsafe fn or(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: promised by the caller.
        unsafe { _mm256_or_si256(a, b) }
    }

    #[inline(always)]
    unsafe fn shift_left(v: __m256i, bits: u32) -> __m256i {
        // SAFETY: promised by the caller.
        unsafe { _mm256_sll_epi32(v, count(bits)) }
    }

    #[inline(always)]
    unsafe fn shift_right(v: __m256i, bits: u32) -> __m256i {
        // SAFETY: promised by the caller.
        unsafe { _mm256_srl_epi32(v, count(bits)) }
    }

    #[inline(always)]
    unsafe fn shift_right_signed(v: __m256i, bits: u32) -> __m256i {
        // SAFETY: promised by the caller.
        unsafe { _mm256_sra_epi32(v, count(bits)) }
    }

    #[inline(always)]
    unsafe fn sub_i32(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: promised by the caller.
        unsafe { _mm256_sub_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn look_up(table: &[i8; 16], codes: __m256i) -> __m256i {
        // SAFETY: promised by the caller.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            _mm256_shuffle_epi8(table, codes)
        }
    }

    /// Pairs are added as 16-bit numbers: 2 · 127 · 127 fits.
    #[inline(always)]
    unsafe fn dot(acc: __m256i, codes: __m256i, quad: i32) -> __m256i {
        // SAFETY: promised by the caller.
        unsafe {
            let pairs = _mm256_maddubs_epi16(codes, _mm256_set1_epi32(quad));
            _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }

    #[inline(always)]
    unsafe fn signed(v: __m256i) -> __m256i {
        v
    }

    /// The instruction wants one factor unsigned, so the weights' signs are moved over to the activations: |w| · (sign(w) · a)
    /// is w · a. With |w| ≤ 128 and |a| ≤ 127 a pair is at most 32,512 and fits.
    #[inline(always)]
    unsafe fn dot_signed(acc: __m256i, codes: __m256i, quad: i32) -> __m256i {
        // SAFETY: promised by the caller.
        unsafe {
            let signed = _mm256_sign_epi8(_mm256_set1_epi32(quad), codes);
            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes), signed);
            _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }

    #[inline(always)]
    unsafe fn load_f(from: *const f32) -> __m256 {
        // SAFETY: promised by the caller.
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store_f(to: *mut f32, v: __m256) {
        // SAFETY: promised by the caller.
        unsafe { _mm256_storeu_ps(to, v) }
    }

    #[inline(always)]
    unsafe fn splat_f(v: f32) -> __m256 {
        // SAFETY: promised by the caller.
        unsafe { _mm256_set1_ps(v) }
    }

    #[inline(always)]
    unsafe fn as_f(v: __m256i) -> __m256 {
        // SAFETY: promised by the caller.
        unsafe { _mm256_castsi256_ps(v) }
    }

    #[inline(always)]
    unsafe fn to_f(v: __m256i) -> __m256 {
        // SAFETY: promised by the caller.
        unsafe { _mm256_cvtepi32_ps(v) }
    }

    #[inline(always)]
    unsafe fn low_f16(v: __m256i) -> __m256 {
        // SAFETY: promised by the caller.
        unsafe {
            // The low halves to the bottom of each 128 bits, then these together.
            let low = _mm256_setr_epi8(
                0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1, //
                0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1,
            );
            let together = _mm256_permute4x64_epi64::<0b10_00>(_mm256_shuffle_epi8(v, low));
            _mm256_cvtph_ps(_mm256_castsi256_si128(together))
        }
    }

    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        // SAFETY: promised by the caller.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn sub(a: __m256, b: __m256) -> __m256 {
        // SAFETY: promised by the caller.
        unsafe { _mm256_sub_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: promised by the caller.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn multiply<S: Shape>(job: &Job<'_, Self>) {
        // SAFETY: promised by the caller.
        unsafe { multiply::<S>(job) }
    }
}
