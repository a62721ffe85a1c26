//! Integer dot products with 256-bit x86 instructions.
//!
//! Eight blocks at a time: each block's 32 products are summed to eight lanes by one instruction (AVX-512 VNNI) or two
//! (AVX2), a tree of horizontal additions turns eight such vectors into one vector of eight block sums, and these are
//! scaled together. Only the last step, adding them up, is a sequence, the canonical one. Integer sums are exact in any
//! order, so the result is the reference's to the bit.
//!
//! Both instructions want one factor unsigned. The weights' signs are moved over to the activations: |w| · (sign(w) · a)
//! is w · a, and with |w| ≤ 128 and |a| ≤ 127 a pair of products is at most 32,512, so AVX2's 16-bit sums never saturate.

use std::arch::x86_64::*;

use calypte_quant::formats::{BLOCK, CODES, Factors, IntFormat};
use calypte_quant::reference::Q8Row;

use crate::matmul::{IntDot, Portable};

/// Blocks whose sums fill one vector.
const GROUP: usize = 8;

/// How far ahead of the arithmetic weights are asked for. A dot product has too many instructions per cache line for the
/// processor to run ahead by itself, and not every (virtual) machine has a hardware prefetcher at work.
const PREFETCH_BYTES: usize = 2048;
const CACHE_LINE_BYTES: usize = 64;

/// For functions compiled with AVX2.
pub(crate) struct Avx2;
/// For functions compiled with AVX2, AVX-512 VL and VNNI.
pub(crate) struct Avx512Vnni;

/// Products of 32 pairs of bytes, summed to eight lanes of which the first four hold the first sixteen pairs.
trait Products {
    /// # Safety
    /// The processor must have the instructions that the implementor is named for.
    unsafe fn products(w: __m256i, a: __m256i) -> __m256i;
}

impl Products for Avx2 {
    #[inline(always)]
    unsafe fn products(w: __m256i, a: __m256i) -> __m256i {
        // SAFETY: promised by the caller.
        unsafe {
            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w));
            _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
        }
    }
}

impl Products for Avx512Vnni {
    #[inline(always)]
    unsafe fn products(w: __m256i, a: __m256i) -> __m256i {
        // SAFETY: promised by the caller.
        unsafe { _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_abs_epi8(w), _mm256_sign_epi8(a, w)) }
    }
}

impl IntDot for Avx2 {
    #[inline(always)]
    unsafe fn dot<F: IntFormat, const N: usize>(row: &[u8], x: &[Q8Row<'_>; N]) -> [f32; N] {
        // SAFETY: promised by the caller.
        unsafe { dot::<Avx2, F, N>(row, x) }
    }
}

impl IntDot for Avx512Vnni {
    #[inline(always)]
    unsafe fn dot<F: IntFormat, const N: usize>(row: &[u8], x: &[Q8Row<'_>; N]) -> [f32; N] {
        // SAFETY: promised by the caller.
        unsafe { dot::<Avx512Vnni, F, N>(row, x) }
    }
}

/// Asks for `bytes` bytes from `start` on. The next rows follow this one in memory; past the end of the matrix a prefetch is
/// harmless.
#[inline(always)]
fn prefetch(start: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(CACHE_LINE_BYTES) {
        // SAFETY: a prefetch reads nothing; any address will do.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(line * CACHE_LINE_BYTES).cast()) };
    }
}

/// # Safety
/// The processor must have AVX2 and the instructions of `P`.
#[inline(always)]
unsafe fn dot<P: Products, F: IntFormat, const N: usize>(row: &[u8], x: &[Q8Row<'_>; N]) -> [f32; N] {
    let blocks = x[0].scale.len();
    let mut acc = [0f32; N];
    let mut first = 0;
    let group_bytes = GROUP * BLOCK / F::DTYPE.block_len() * F::DTYPE.block_bytes();
    while first + GROUP <= blocks {
        prefetch(row.as_ptr().wrapping_add(first / GROUP * group_bytes + PREFETCH_BYTES), group_bytes);
        // Loops, not closures: a closure does not inherit the instructions that its surroundings are compiled with. And
        // one loop per step, so that the factors of all blocks are widened together.
        let mut quants = [[0i8; BLOCK]; GROUP];
        for i in 0..GROUP {
            quants[i] = F::codes(row, first + i);
        }
        if let Some(codebook) = F::CODEBOOK {
            // SAFETY: promised by the caller.
            unsafe { look_up(&codebook, &mut quants) };
        }
        let mut factors = [Factors::default(); GROUP];
        for i in 0..GROUP {
            factors[i] = F::factors(row, first + i);
        }
        let (mut w_scale, mut w_min) = ([0f32; GROUP], [0f32; GROUP]);
        for i in 0..GROUP {
            w_scale[i] = F::widen(factors[i].d) * factors[i].scale_factor as f32;
        }
        if F::HAS_MIN {
            for i in 0..GROUP {
                w_min[i] = F::widen(factors[i].m) * factors[i].min_factor as f32;
            }
        }
        // SAFETY: loads and stores go to and from arrays of exactly their size (slices are checked to be that long);
        // the processor has the instructions, as promised by the caller.
        unsafe {
            let (scale, min) = (_mm256_loadu_ps(w_scale.as_ptr()), _mm256_loadu_ps(w_min.as_ptr()));
            for t in 0..N {
                let q = &x[t].q[first * BLOCK..(first + GROUP) * BLOCK];
                let mut sums = [_mm256_setzero_si256(); GROUP];
                for i in 0..GROUP {
                    let a = _mm256_loadu_si256(q[i * BLOCK..(i + 1) * BLOCK].as_ptr().cast());
                    sums[i] = P::products(_mm256_loadu_si256(quants[i].as_ptr().cast()), a);
                    if F::HAS_HALVES {
                        let [low, high] = F::halves(row, first + i);
                        let halves = _mm256_setr_epi32(low, low, low, low, high, high, high, high);
                        sums[i] = _mm256_mullo_epi32(sums[i], halves);
                    }
                }
                let x_scale = _mm256_loadu_ps(x[t].scale[first..first + GROUP].as_ptr());
                let scaled =
                    _mm256_mul_ps(_mm256_cvtepi32_ps(block_sums(sums)), _mm256_mul_ps(scale, x_scale));
                let mut terms = [0f32; GROUP];
                _mm256_storeu_ps(terms.as_mut_ptr(), scaled);
                let mut offsets = [0f32; GROUP];
                if F::HAS_MIN {
                    let offset = if F::HAS_MIN_HALVES {
                        let sums = _mm256_cvtepi32_ps(min_sums::<P, F>(row, q, first));
                        _mm256_mul_ps(sums, _mm256_mul_ps(min, x_scale))
                    } else {
                        _mm256_mul_ps(min, _mm256_loadu_ps(x[t].sum[first..first + GROUP].as_ptr()))
                    };
                    _mm256_storeu_ps(offsets.as_mut_ptr(), offset);
                }
                for i in 0..GROUP {
                    acc[t] += terms[i];
                    if F::HAS_MIN {
                        acc[t] -= offsets[i];
                    }
                }
            }
        }
        first += GROUP;
    }
    Portable::continue_from::<F, N>(row, x, first, acc)
}

/// Replaces codes by the integers they stand for.
///
/// # Safety
/// The processor must have AVX2.
#[inline(always)]
unsafe fn look_up(codebook: &[i8; CODES], codes: &mut [[i8; BLOCK]; GROUP]) {
    // SAFETY: loads and stores go to and from arrays of exactly their size; the rest is promised by the caller.
    unsafe {
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(codebook.as_ptr().cast()));
        for i in 0..GROUP {
            let q = _mm256_shuffle_epi8(table, _mm256_loadu_si256(codes[i].as_ptr().cast()));
            _mm256_storeu_si256(codes[i].as_mut_ptr().cast(), q);
        }
    }
}

/// Lane i of the result is the sum of the 32 activations of block `first + i`, each times the integer factor of its half's
/// minimum. `q` holds the activations of these blocks.
///
/// # Safety
/// The processor must have AVX2 and the instructions of `P`.
#[inline(always)]
unsafe fn min_sums<P: Products, F: IntFormat>(row: &[u8], q: &[i8], first: usize) -> __m256i {
    // SAFETY: loads come from slices of exactly their size; the rest is promised by the caller.
    unsafe {
        let mut sums = [_mm256_setzero_si256(); GROUP];
        for i in 0..GROUP {
            let a = _mm256_loadu_si256(q[i * BLOCK..(i + 1) * BLOCK].as_ptr().cast());
            let [low, high] = F::min_halves(row, first + i);
            let (low, high) = (_mm_set1_epi8(low as i8), _mm_set1_epi8(high as i8));
            sums[i] = P::products(_mm256_set_m128i(high, low), a);
        }
        block_sums(sums)
    }
}

/// Lane i of the result is the sum of the eight lanes of `s[i]`.
///
/// # Safety
/// The processor must have AVX2.
#[inline(always)]
unsafe fn block_sums(s: [__m256i; GROUP]) -> __m256i {
    // SAFETY: promised by the caller.
    unsafe {
        // Horizontal additions stay within halves: these hold the sums of lanes 0–3 and 4–7 of four vectors.
        let first = _mm256_hadd_epi32(_mm256_hadd_epi32(s[0], s[1]), _mm256_hadd_epi32(s[2], s[3]));
        let second = _mm256_hadd_epi32(_mm256_hadd_epi32(s[4], s[5]), _mm256_hadd_epi32(s[6], s[7]));
        let low = _mm256_permute2x128_si256::<0x20>(first, second);
        let high = _mm256_permute2x128_si256::<0x31>(first, second);
        _mm256_add_epi32(low, high)
    }
}
