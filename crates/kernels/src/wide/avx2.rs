//! x86-64 with AVX2.

use std::arch::x86_64::*;

use calypte_quant::reference::LANES;

use super::Wide;

/// Sixteen floats in two registers: lanes 0 to 7 and 8 to 15.
#[derive(Clone, Copy)]
pub(crate) struct Avx2Floats([__m256; 2]);

impl Wide for Avx2Floats {
    const ACCUMULATORS: usize = 6;

    #[inline(always)]
    unsafe fn splat(v: f32) -> Self {
        // SAFETY: promised by the caller.
        Avx2Floats([unsafe { _mm256_set1_ps(v) }; 2])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: promised by the caller.
        Avx2Floats(unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: promised by the caller.
        unsafe {
            _mm256_storeu_ps(to, self.0[0]);
            _mm256_storeu_ps(to.add(8), self.0[1]);
        }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        let (a, b) = (self.0, other.0);
        // SAFETY: promised by the caller.
        Avx2Floats(unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] })
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        let (a, b) = (self.0, other.0);
        // SAFETY: promised by the caller.
        Avx2Floats(unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] })
    }

    #[inline(always)]
    unsafe fn add_exact(self, a: Self, b: Self) -> Self {
        let (a, b, c) = (a.0, b.0, self.0);
        // SAFETY: promised by the caller.
        Avx2Floats(unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] })
    }

    #[inline(always)]
    unsafe fn load_half(from: *const u16) -> Self {
        // SAFETY: promised by the caller.
        Avx2Floats(unsafe {
            [
                _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(from.add(8).cast())),
            ]
        })
    }

    #[inline(always)]
    unsafe fn reduce(all: &[Self; LANES]) -> Self {
        // SAFETY: promised by the caller.
        unsafe {
            let mut sums = [_mm256_setzero_ps(); 2];
            for half in 0..2 {
                let mut quads = [_mm256_setzero_ps(); 4];
                for i in 0..4 {
                    // Vectors i and i + 4 of this half end up in the two 128-bit parts of one.
                    let [a, b] = [all[8 * half + i].0, all[8 * half + i + 4].0];
                    let (a, b) = (_mm256_add_ps(a[0], a[1]), _mm256_add_ps(b[0], b[1]));
                    quads[i] = _mm256_add_ps(
                        _mm256_permute2f128_ps::<0x20>(a, b),
                        _mm256_permute2f128_ps::<0x31>(a, b),
                    );
                }
                let low = _mm256_add_ps(
                    _mm256_shuffle_ps::<0b01_00_01_00>(quads[0], quads[1]),
                    _mm256_shuffle_ps::<0b11_10_11_10>(quads[0], quads[1]),
                );
                let high = _mm256_add_ps(
                    _mm256_shuffle_ps::<0b01_00_01_00>(quads[2], quads[3]),
                    _mm256_shuffle_ps::<0b11_10_11_10>(quads[2], quads[3]),
                );
                sums[half] = _mm256_add_ps(
                    _mm256_shuffle_ps::<0b10_00_10_00>(low, high),
                    _mm256_shuffle_ps::<0b11_01_11_01>(low, high),
                );
            }
            Avx2Floats(sums)
        }
    }
}
