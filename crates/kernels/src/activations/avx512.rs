//! Rounding with AVX-512: what [`calypte_quant::q8::quantize_row`] says, sixteen blocks at a time.
//!
//! Compilers vectorise that, but not the sums: they spend most of its time there.

use std::arch::x86_64::*;

use calypte_quant::formats::BLOCK;
use calypte_quant::q8::{Q8RowMut, ROUND};
use calypte_quant::reference::LANES;

use crate::wide::{Avx512Floats, Wide};

/// # Safety
/// The processor must have AVX-512 F, BW and VL; lengths as [`calypte_quant::q8::quantize_row`] says.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2")]
pub(super) unsafe fn quantize_row(x: &[f32], out: &mut Q8RowMut<'_>) {
    let blocks = x.len() / BLOCK;
    assert!(out.q.len() == x.len() && out.scale.len() == blocks && out.sum.len() == blocks);
    assert!(out.total.len() == blocks && out.halves.len() == blocks);
    let (zero, round) = (_mm512_setzero_ps(), _mm512_set1_ps(ROUND));
    let (most, least) = (_mm512_set1_ps(127.0), _mm512_set1_ps(-127.0));
    for first in (0..blocks).step_by(LANES) {
        let count = (blocks - first).min(LANES);
        let x = &x[first * BLOCK..(first + count) * BLOCK];
        let q = &mut out.q[first * BLOCK..(first + count) * BLOCK];
        let mut magnitude = [0u32; LANES];
        for b in 0..count {
            // SAFETY: block b is inside the slice.
            let halves = unsafe { halves_of(x.as_ptr().add(b * BLOCK)) };
            // As integers, magnitudes order the same, and NaNs come out on top.
            let signless = _mm512_set1_epi32(0x7fff_ffff);
            let low = _mm512_and_si512(_mm512_castps_si512(halves[0]), signless);
            let high = _mm512_and_si512(_mm512_castps_si512(halves[1]), signless);
            magnitude[b] = _mm512_reduce_max_epu32(_mm512_max_epu32(low, high));
        }
        // SAFETY: the array has sixteen values.
        let magnitude = unsafe { _mm512_loadu_ps(magnitude.as_ptr().cast()) };
        let scale = _mm512_div_ps(magnitude, most);
        let positive = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(scale, zero);
        let mut inverse = [0f32; LANES];
        // SAFETY: as above.
        unsafe {
            let quotient = _mm512_maskz_div_ps(positive, _mm512_set1_ps(1.0), scale);
            _mm512_storeu_ps(inverse.as_mut_ptr(), quotient);
        }
        // Integers as floats, in which sums are exact, of the first and the second halves of the blocks.
        let mut rounded = [[zero; LANES]; 2];
        for b in 0..count {
            // SAFETY: block b is inside the slices, which have the same length.
            unsafe {
                let halves = halves_of(x.as_ptr().add(b * BLOCK));
                for half in 0..2 {
                    let v = _mm512_mul_ps(halves[half], _mm512_set1_ps(inverse[b]));
                    // A subnormal scale can make this overflow, and that of zero a NaN: saturate, NaN to zero.
                    let v = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_ORD_Q>(v, v), v);
                    let v = _mm512_max_ps(_mm512_min_ps(v, most), least);
                    let v = _mm512_add_ps(v, round);
                    let integers = _mm512_sub_epi32(_mm512_castps_si512(v), _mm512_castps_si512(round));
                    let to = q.as_mut_ptr().add(b * BLOCK + half * LANES);
                    _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(integers));
                    rounded[half][b] = _mm512_sub_ps(v, round);
                }
            }
        }
        // SAFETY: this function runs only where AVX-512 is; `count` blocks from `first` on are in the slices, as was checked.
        unsafe {
            let (a, b) = (sums_of(&rounded[0]), sums_of(&rounded[1]));
            let total = _mm512_add_ps(a, b);
            // As many of the sixteen as there are blocks.
            let these = ((1u32 << count) - 1) as u16;
            _mm512_mask_storeu_ps(out.scale.as_mut_ptr().add(first), these, scale);
            _mm512_mask_storeu_ps(out.sum.as_mut_ptr().add(first), these, _mm512_mul_ps(scale, total));
            _mm512_mask_storeu_epi32(out.total.as_mut_ptr().add(first), these, _mm512_cvtps_epi32(total));
            let mut halves = [[0i32; LANES]; 2];
            _mm512_storeu_si512(halves[0].as_mut_ptr().cast(), _mm512_cvtps_epi32(a));
            _mm512_storeu_si512(halves[1].as_mut_ptr().cast(), _mm512_cvtps_epi32(b));
            for (b, of_block) in out.halves[first..first + count].iter_mut().enumerate() {
                *of_block = [halves[0][b], halves[1][b]];
            }
        }
    }
}

/// # Safety
/// 32 values must be there; the processor must have AVX-512 F.
#[inline(always)]
unsafe fn halves_of(block: *const f32) -> [__m512; 2] {
    // SAFETY: promised by the caller.
    unsafe { [_mm512_loadu_ps(block), _mm512_loadu_ps(block.add(LANES))] }
}

/// Lane i is the sum of vector i.
///
/// # Safety
/// The processor must have AVX-512 F.
#[inline(always)]
unsafe fn sums_of(vectors: &[__m512; LANES]) -> __m512 {
    // SAFETY: promised by the caller.
    unsafe {
        let mut all = [Avx512Floats::splat(0.0); LANES];
        for i in 0..LANES {
            all[i] = Avx512Floats(vectors[i]);
        }
        Avx512Floats::reduce(&all).0
    }
}
