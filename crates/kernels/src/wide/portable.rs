//! Plain Rust.

use calypte_quant::reference::{LANES, reduce};

use super::Wide;

/// Sixteen floats in an array.
#[derive(Clone, Copy)]
pub(crate) struct PortableFloats([f32; LANES]);

impl Wide for PortableFloats {
    const ACCUMULATORS: usize = 2;

    #[inline(always)]
    unsafe fn splat(v: f32) -> Self {
        PortableFloats([v; LANES])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: promised by the caller.
        PortableFloats(unsafe { from.cast::<[f32; LANES]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: promised by the caller.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(self.0) };
    }

    #[inline(always)]
    unsafe fn add(mut self, other: Self) -> Self {
        for j in 0..LANES {
            self.0[j] += other.0[j];
        }
        self
    }

    #[inline(always)]
    unsafe fn mul(mut self, other: Self) -> Self {
        for j in 0..LANES {
            self.0[j] *= other.0[j];
        }
        self
    }

    #[inline(always)]
    unsafe fn reduce(all: &[Self; LANES]) -> Self {
        let mut sums = [0f32; LANES];
        for j in 0..LANES {
            sums[j] = reduce(all[j].0);
        }
        PortableFloats(sums)
    }
}
