//! AArch64 with NEON.

use std::arch::aarch64::*;

use calypte_quant::reference::LANES;

use super::Wide;

/// Sixteen floats in four registers: lanes 0 to 3, 4 to 7, and so on.
#[derive(Clone, Copy)]
pub(crate) struct NeonFloats([float32x4_t; 4]);

impl Wide for NeonFloats {
    const ACCUMULATORS: usize = 6;

    #[inline(always)]
    unsafe fn splat(v: f32) -> Self {
        // SAFETY: promised by the caller.
        NeonFloats([unsafe { vdupq_n_f32(v) }; 4])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: promised by the caller.
        NeonFloats(unsafe {
            [vld1q_f32(from), vld1q_f32(from.add(4)), vld1q_f32(from.add(8)), vld1q_f32(from.add(12))]
        })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        for i in 0..4 {
            // SAFETY: promised by the caller.
            unsafe { vst1q_f32(to.add(4 * i), self.0[i]) };
        }
    }

    #[inline(always)]
    unsafe fn add(mut self, other: Self) -> Self {
        for i in 0..4 {
            // SAFETY: promised by the caller.
            self.0[i] = unsafe { vaddq_f32(self.0[i], other.0[i]) };
        }
        self
    }

    #[inline(always)]
    unsafe fn mul(mut self, other: Self) -> Self {
        for i in 0..4 {
            // SAFETY: promised by the caller.
            self.0[i] = unsafe { vmulq_f32(self.0[i], other.0[i]) };
        }
        self
    }

    #[inline(always)]
    unsafe fn add_exact(mut self, a: Self, b: Self) -> Self {
        for i in 0..4 {
            // SAFETY: promised by the caller.
            self.0[i] = unsafe { vfmaq_f32(self.0[i], a.0[i], b.0[i]) };
        }
        self
    }

    #[inline(always)]
    unsafe fn reduce(all: &[Self; LANES]) -> Self {
        // SAFETY: promised by the caller.
        unsafe {
            let mut sums = Self::splat(0.0);
            for i in 0..4 {
                let mut pairs = [vdupq_n_f32(0.0); 2];
                for pair in 0..2 {
                    let mut fours = [vdupq_n_f64(0.0); 2];
                    for v in 0..2 {
                        let [a, b, c, d] = all[4 * i + 2 * pair + v].0;
                        fours[v] = vreinterpretq_f64_f32(vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d)));
                    }
                    // Two vectors side by side: what is left of each are two sums.
                    let low = vreinterpretq_f32_f64(vtrn1q_f64(fours[0], fours[1]));
                    let high = vreinterpretq_f32_f64(vtrn2q_f64(fours[0], fours[1]));
                    pairs[pair] = vaddq_f32(low, high);
                }
                sums.0[i] = vpaddq_f32(pairs[0], pairs[1]);
            }
            sums
        }
    }
}
