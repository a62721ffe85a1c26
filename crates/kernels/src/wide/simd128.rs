//! WebAssembly with SIMD128.

use std::arch::wasm32::*;

use calypte_quant::reference::LANES;

use super::Wide;

/// Sixteen floats in four registers: lanes 0 to 3, 4 to 7, and so on.
#[derive(Clone, Copy)]
pub(crate) struct Simd128Floats([v128; 4]);

impl Wide for Simd128Floats {
    const ACCUMULATORS: usize = 2;

    #[inline(always)]
    unsafe fn splat(v: f32) -> Self {
        Simd128Floats([f32x4_splat(v); 4])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        let mut all = [f32x4_splat(0.0); 4];
        for i in 0..4 {
            // SAFETY: promised by the caller.
            all[i] = unsafe { v128_load(from.add(4 * i).cast()) };
        }
        Simd128Floats(all)
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        for i in 0..4 {
            // SAFETY: promised by the caller.
            unsafe { v128_store(to.add(4 * i).cast(), self.0[i]) };
        }
    }

    #[inline(always)]
    unsafe fn add(mut self, other: Self) -> Self {
        for i in 0..4 {
            self.0[i] = f32x4_add(self.0[i], other.0[i]);
        }
        self
    }

    #[inline(always)]
    unsafe fn mul(mut self, other: Self) -> Self {
        for i in 0..4 {
            self.0[i] = f32x4_mul(self.0[i], other.0[i]);
        }
        self
    }

    #[inline(always)]
    unsafe fn reduce(all: &[Self; LANES]) -> Self {
        let mut sums = [f32x4_splat(0.0); 4];
        for i in 0..4 {
            let mut pairs = [f32x4_splat(0.0); 2];
            for pair in 0..2 {
                let mut fours = [f32x4_splat(0.0); 2];
                for v in 0..2 {
                    let [a, b, c, d] = all[4 * i + 2 * pair + v].0;
                    fours[v] = f32x4_add(f32x4_add(a, c), f32x4_add(b, d));
                }
                // Two vectors side by side: what is left of each are two sums.
                pairs[pair] = f32x4_add(
                    i64x2_shuffle::<0, 2>(fours[0], fours[1]),
                    i64x2_shuffle::<1, 3>(fours[0], fours[1]),
                );
            }
            sums[i] = f32x4_add(
                i32x4_shuffle::<0, 2, 4, 6>(pairs[0], pairs[1]),
                i32x4_shuffle::<1, 3, 5, 7>(pairs[0], pairs[1]),
            );
        }
        Simd128Floats(sums)
    }
}
