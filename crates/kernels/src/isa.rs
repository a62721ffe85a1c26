//! Which instruction set the arithmetic runs on.

use std::fmt;
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

/// `CALYPTE_ISA` asks for a tier that does not exist or that this machine lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownIsa {
    /// What it asks for.
    pub asked: String,
    /// What there is, slowest first.
    pub available: Vec<Isa>,
}

impl fmt::Display for UnknownIsa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.available.iter().map(|isa| isa.name()).collect();
        write!(
            f,
            "{ISA_ENV}: `{}` is no instruction set of this machine, which has {}; choose one of these, or unset the \
             variable for the fastest",
            self.asked,
            names.join(", ")
        )
    }
}

impl std::error::Error for UnknownIsa {}

impl Isa {
    /// The tier that all arithmetic runs on: that of [`Isa::from_env`], or the best where the environment asks for one that
    /// cannot be had, since a kernel has nobody to complain to. Decided once.
    pub fn get() -> Isa {
        static CHOSEN: OnceLock<Isa> = OnceLock::new();
        *CHOSEN.get_or_init(|| Isa::from_env().unwrap_or_else(|unknown| best(&unknown.available)))
    }

    /// The tier that `CALYPTE_ISA` (see [`Isa::name`]) asks for, or the best of this machine if it is unset or empty.
    pub fn from_env() -> Result<Isa, UnknownIsa> {
        let asked = std::env::var_os(ISA_ENV).unwrap_or_default();
        choose(&asked.to_string_lossy(), Isa::available())
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

/// The last of tiers that are sorted by speed.
fn best(tiers: &[Isa]) -> Isa {
    tiers.last().copied().unwrap_or(Isa::Scalar)
}

/// One of `available` by its name; the best for the empty name.
fn choose(asked: &str, available: Vec<Isa>) -> Result<Isa, UnknownIsa> {
    if asked.is_empty() {
        return Ok(best(&available));
    }
    let named = available.iter().copied().find(|isa| isa.name() == asked);
    named.ok_or_else(|| UnknownIsa { asked: asked.to_string(), available })
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

    #[test]
    fn a_tier_is_chosen_by_its_name_or_refused() {
        let check = |asked: &str, expected: Result<Isa, &str>| {
            let got = choose(asked, vec![Isa::Scalar, Isa::Avx2]).map_err(|e| e.to_string());
            match (&got, expected) {
                (Ok(got), Ok(expected)) => assert_eq!(*got, expected),
                (Err(got), Err(part)) => assert!(got.contains(part), "{part} in {got}"),
                _ => panic!("`{asked}`: {got:?}"),
            }
        };
        check("", Ok(Isa::Avx2));
        check("scalar", Ok(Isa::Scalar));
        check("avx2", Ok(Isa::Avx2));
        check(
            "avx512",
            Err("CALYPTE_ISA: `avx512` is no instruction set of this machine, which has scalar, avx2;"),
        );
        check("AVX2", Err("`AVX2`"));
    }

    /// For whoever wants to know that a tier was tested and not passed over, such as `tools/tiers/check.sh`.
    #[test]
    #[ignore = "needs CALYPTE_ISA to name a tier that this machine has"]
    fn the_tier_that_is_asked_for_is_there() {
        assert_eq!(Ok(Isa::get().name()), std::env::var(ISA_ENV).as_deref());
    }
}
