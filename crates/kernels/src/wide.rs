//! Sixteen f32 lanes, the accumulators of a float dot product, on every tier.
//!
//! [`calypte_quant::reference`] says which sixteen sums there are and in which tree they are added. Sixteen dot products at
//! once let a tier add all their trees side by side ([`Wide::reduce`]) instead of one lane after the other.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod simd128;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2Floats;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512Floats;
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::NeonFloats;
pub(crate) use portable::PortableFloats;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
pub(crate) use simd128::Simd128Floats;

use calypte_quant::formats::f16_to_f32;
use calypte_quant::reference::LANES;

/// A vector of sixteen floats.
///
/// # Safety
/// All methods: the processor must have the instructions of the implementor, and pointers be valid for sixteen values.
/// Methods are `#[inline(always)]`, so that they end up in a function compiled for the tier.
#[allow(clippy::missing_safety_doc)] // said once, above
pub(crate) trait Wide: Copy {
    /// How many of these a loop can add to and keep in registers.
    const ACCUMULATORS: usize;

    unsafe fn splat(v: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    /// `self + a · b` for products that need no rounding: one fused instruction where there is one. Only then does it give the
    /// bits of a multiplication and an addition, which is what it does elsewhere.
    #[inline(always)]
    unsafe fn add_exact(self, a: Self, b: Self) -> Self {
        // SAFETY: promised by the caller.
        unsafe { self.add(a.mul(b)) }
    }
    /// Sixteen f16s.
    #[inline(always)]
    unsafe fn load_half(from: *const u16) -> Self {
        let mut wide = [0f32; LANES];
        // SAFETY: promised by the caller.
        unsafe {
            let halves = from.cast::<[u16; LANES]>().read_unaligned();
            for i in 0..LANES {
                wide[i] = f16_to_f32(halves[i]);
            }
            Self::load(wide.as_ptr())
        }
    }
    /// Lane i of the result is the sum of vector i: lanes 8 to 15 onto lanes 0 to 7, then 4 to 7 onto 0 to 3, and so on.
    unsafe fn reduce(all: &[Self; LANES]) -> Self;
}

/// Declares `fn $name(isa, args…)` that runs `$body::<W>(args…)` with the vectors of the given tier, compiled for it. A type
/// parameter, where there is one, is written `[F: Bound]` and follows W.
macro_rules! for_each_wide {
    ($(#[$meta:meta])* $vis:vis fn $name:ident $([$gen:ident : $bound:path])?
        ($($arg:ident : $ty:ty),* $(,)?) = $body:ident) => {
        $(#[$meta])*
        $vis fn $name $(<$gen: $bound>)? (isa: $crate::Isa, $($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn avx2 $(<$gen: $bound>)? ($($arg: $ty),*) {
                    // SAFETY: this function runs only where AVX2 is.
                    unsafe { $body::<$crate::wide::Avx2Floats $(, $gen)?>($($arg),*) }
                }
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2")]
                fn avx512 $(<$gen: $bound>)? ($($arg: $ty),*) {
                    // SAFETY: this function runs only where AVX-512 is.
                    unsafe { $body::<$crate::wide::Avx512Floats $(, $gen)?>($($arg),*) }
                }
                match isa {
                    // SAFETY: a tier above `Scalar` is only ever made by `Isa::available`, which asked the processor.
                    $crate::Isa::Avx512 => return unsafe { avx512 $(::<$gen>)? ($($arg),*) },
                    // SAFETY: as above.
                    $crate::Isa::Avx2 => return unsafe { avx2 $(::<$gen>)? ($($arg),*) },
                    _ => {}
                }
            }
            #[cfg(target_arch = "aarch64")]
            if isa != $crate::Isa::Scalar {
                // SAFETY: NEON is part of AArch64.
                return unsafe { $body::<$crate::wide::NeonFloats $(, $gen)?>($($arg),*) };
            }
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            if isa != $crate::Isa::Scalar {
                // SAFETY: all of the program is compiled for SIMD128.
                return unsafe { $body::<$crate::wide::Simd128Floats $(, $gen)?>($($arg),*) };
            }
            let _ = isa;
            // SAFETY: plain Rust needs no instructions.
            unsafe { $body::<$crate::wide::PortableFloats $(, $gen)?>($($arg),*) }
        }
    };
}
pub(crate) use for_each_wide;

#[cfg(test)]
mod tests {
    use super::*;
    use calypte_quant::reference::reduce;

    #[inline(always)]
    unsafe fn reduce_body<W: Wide>(values: &[[f32; LANES]; LANES], out: &mut [f32; LANES]) {
        // SAFETY: the arrays are of that size; the rest is promised by the caller.
        unsafe {
            let mut all = [W::splat(0.0); LANES];
            for (vector, values) in all.iter_mut().zip(values) {
                *vector = W::load(values.as_ptr());
            }
            W::reduce(&all).store(out.as_mut_ptr());
        }
    }

    for_each_wide! {
        fn reduce_isa(values: &[[f32; LANES]; LANES], out: &mut [f32; LANES]) = reduce_body
    }

    #[test]
    fn trees_side_by_side_are_the_reference_tree() {
        let mut values = [[0f32; LANES]; LANES];
        for (i, row) in values.iter_mut().enumerate() {
            for (j, v) in row.iter_mut().enumerate() {
                *v = ((i * 16 + j) * 7919 % 2003) as f32 / 7.0 - 100.0;
            }
        }
        let want = values.map(reduce).map(f32::to_bits);
        for isa in crate::Isa::available() {
            let mut got = [0f32; LANES];
            reduce_isa(isa, &values, &mut got);
            assert_eq!(got.map(f32::to_bits), want, "{}", isa.name());
        }
    }
}
