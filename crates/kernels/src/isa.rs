//! Which instruction set the arithmetic runs on.

use std::sync::OnceLock;

/// A complete set of instructions that kernels are compiled for. All tiers give the same bits; only speed differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Plain Rust, compiled for what the target guarantees (SSE2 on x86-64, NEON on AArch64, plain or SIMD128 WebAssembly).
    Scalar,
    /// WebAssembly compiled with SIMD128.
    Simd128,
    /// AArch64; NEON is part of it.
    Neon,
    /// AArch64 with the dot product instruction of ARMv8.2.
    Dotprod,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, VL and VNNI.
    Avx512,
}

/// Environment variable that forces a tier, for tests and for comparing.
pub const ISA_ENV: &str = "CALYPTE_ISA";

impl Isa {
    /// The best tier of this machine, or the one that `CALYPTE_ISA` (see [`Isa::name`]) asks for if the machine has it.
    /// Decided once.
    pub fn get() -> Isa {
        static CHOSEN: OnceLock<Isa> = OnceLock::new();
        *CHOSEN.get_or_init(|| {
            let tiers = Isa::available();
            let asked = std::env::var(ISA_ENV).ok();
            let named = tiers.iter().find(|isa| asked.as_deref() == Some(isa.name()));
            named.or(tiers.last()).copied().unwrap_or(Isa::Scalar)
        })
    }

    /// Every tier that this machine can run, slowest first.
    pub fn available() -> Vec<Isa> {
        #[allow(unused_mut)]
        let mut tiers = vec![Isa::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
            {
                tiers.push(Isa::Avx2);
                if is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
                {
                    tiers.push(Isa::Avx512);
                }
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            tiers.push(Isa::Neon);
            if std::arch::is_aarch64_feature_detected!("dotprod") {
                tiers.push(Isa::Dotprod);
            }
        }
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        tiers.push(Isa::Simd128);
        tiers
    }

    /// The name as `CALYPTE_ISA` spells it.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Simd128 => "simd128",
            Isa::Neon => "neon",
            Isa::Dotprod => "dotprod",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }
}

/// Declares `fn $name(isa, args…)` that runs `$body(args…)` compiled for the given tier. Type parameters, where
/// there are any, are written `[F: Bound]`.
///
/// The body is `#[inline(always)]`, so that its loops are vectorised with the features of the function they end up
/// in. Rust never contracts a multiplication and an addition, so the tiers cannot differ in their roundings.
macro_rules! for_each_isa {
    ($(#[$meta:meta])* $vis:vis fn $name:ident $([$($gen:ident : $bound:path),*])?
        ($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:ident) => {
        $(#[$meta])*
        $vis fn $name $(<$($gen: $bound),*>)? (isa: $crate::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn avx2 $(<$($gen: $bound),*>)? ($($arg: $ty),*) $(-> $ret)? {
                    $body $(::<$($gen),*>)? ($($arg),*)
                }
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2")]
                fn avx512 $(<$($gen: $bound),*>)? ($($arg: $ty),*) $(-> $ret)? {
                    $body $(::<$($gen),*>)? ($($arg),*)
                }
                match isa {
                    // SAFETY: a tier above `Scalar` is only ever made by `Isa::available`, which asked the processor.
                    $crate::Isa::Avx512 => return unsafe { avx512 $(::<$($gen),*>)? ($($arg),*) },
                    // SAFETY: as above.
                    $crate::Isa::Avx2 => return unsafe { avx2 $(::<$($gen),*>)? ($($arg),*) },
                    _ => {}
                }
            }
            // Elsewhere every tier has these instructions already, or none has.
            let _ = isa;
            $body $(::<$($gen),*>)? ($($arg),*)
        }
    };
}
pub(crate) use for_each_isa;

#[cfg(test)]
mod tests {
    use super::*;

    /// For whoever wants to know that a tier was tested and not passed over, such as `tools/tiers/check.sh`.
    #[test]
    #[ignore = "needs CALYPTE_ISA to name a tier that this machine has"]
    fn the_tier_that_is_asked_for_is_there() {
        assert_eq!(Ok(Isa::get().name()), std::env::var(ISA_ENV).as_deref());
    }
}
