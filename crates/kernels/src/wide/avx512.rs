//! x86-64 with AVX-512 F.

use std::arch::x86_64::*;

use calypte_quant::reference::LANES;

use super::Wide;

/// Sixteen floats in one register.
#[derive(Clone, Copy)]
pub(crate) struct Avx512Floats(pub(crate) __m512);

impl Wide for Avx512Floats {
    const ACCUMULATORS: usize = 24;

    #[inline(always)]
    unsafe fn splat(v: f32) -> Self {
        // SAFETY: promised by the caller.
        Avx512Floats(unsafe { _mm512_set1_ps(v) })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: promised by the caller.
        Avx512Floats(unsafe { _mm512_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: promised by the caller.
        unsafe { _mm512_storeu_ps(to, self.0) };
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: promised by the caller.
        Avx512Floats(unsafe { _mm512_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: promised by the caller.
        Avx512Floats(unsafe { _mm512_mul_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn add_exact(self, a: Self, b: Self) -> Self {
        // SAFETY: promised by the caller.
        Avx512Floats(unsafe { _mm512_fmadd_ps(a.0, b.0, self.0) })
    }

    #[inline(always)]
    unsafe fn load_half(from: *const u16) -> Self {
        // SAFETY: promised by the caller.
        Avx512Floats(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) })
    }

    #[inline(always)]
    unsafe fn reduce(all: &[Self; LANES]) -> Self {
        // SAFETY: promised by the caller.
        unsafe {
            let mut quads = [_mm512_setzero_ps(); 4];
            for i in 0..4 {
                // Vectors i, i + 4, i + 8 and i + 12 end up in the four 128-bit parts of one.
                let [a, b, c, d] = [all[i].0, all[i + 4].0, all[i + 8].0, all[i + 12].0];
                let ab = _mm512_add_ps(
                    _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b),
                    _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b),
                );
                let cd = _mm512_add_ps(
                    _mm512_shuffle_f32x4::<0b01_00_01_00>(c, d),
                    _mm512_shuffle_f32x4::<0b11_10_11_10>(c, d),
                );
                quads[i] = _mm512_add_ps(
                    _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd),
                    _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd),
                );
            }
            // From here on inside each part: pairs of vectors i and i + 1, then all four.
            let pairs = [
                _mm512_add_ps(
                    _mm512_shuffle_ps::<0b01_00_01_00>(quads[0], quads[1]),
                    _mm512_shuffle_ps::<0b11_10_11_10>(quads[0], quads[1]),
                ),
                _mm512_add_ps(
                    _mm512_shuffle_ps::<0b01_00_01_00>(quads[2], quads[3]),
                    _mm512_shuffle_ps::<0b11_10_11_10>(quads[2], quads[3]),
                ),
            ];
            Avx512Floats(_mm512_add_ps(
                _mm512_shuffle_ps::<0b10_00_10_00>(pairs[0], pairs[1]),
                _mm512_shuffle_ps::<0b11_01_11_01>(pairs[0], pairs[1]),
            ))
        }
    }
}
