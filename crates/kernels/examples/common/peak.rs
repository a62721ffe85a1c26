//! The most that threads could compute: loops of one instruction (or two) and nothing else.

use calypte_kernels::{Isa, Team};

/// Multiply-accumulates a second, in 10⁹, of the widest integer dot instruction on all threads of the team; NaN where this is not known.
pub fn dot_peak_gmac_s(team: &Team) -> f64 {
    #[cfg(target_arch = "x86_64")]
    if Isa::get() == Isa::Avx512 {
        // SAFETY: this tier is only ever chosen where the processor has these instructions.
        return gmac_s(team, size_of::<avx512::Vector>(), || unsafe { avx512::dots() });
    }
    f64::NAN
}

/// Multiply-accumulates a second, in 10⁹, of the widest fused multiplication and addition; NaN where this is not known.
pub fn float_peak_gmac_s(team: &Team) -> f64 {
    #[cfg(target_arch = "x86_64")]
    if Isa::get() == Isa::Avx512 {
        // SAFETY: as above.
        return gmac_s(team, size_of::<avx512::Vector>() / size_of::<f32>(), || unsafe {
            avx512::products()
        });
    }
    f64::NAN
}

/// Turns of a loop: some milliseconds.
#[cfg(target_arch = "x86_64")]
const TURNS: usize = 2_000_000;
/// Independent sums, enough to hide the latency.
#[cfg(target_arch = "x86_64")]
const CHAINS: usize = 16;

/// How fast `work` is, which does `CHAINS` times `TURNS` steps of `macs` multiply-accumulates each, once on every thread.
#[cfg(target_arch = "x86_64")]
fn gmac_s<R>(team: &Team, macs: usize, work: impl Fn() -> R + Sync) -> f64 {
    let seconds = super::seconds(|| {
        team.run(team.threads(), |_| {
            std::hint::black_box(work());
        });
    });
    (team.threads() * TURNS * CHAINS * macs) as f64 / seconds / 1e9
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use super::{CHAINS, TURNS};

    pub type Vector = __m512i;

    #[target_feature(enable = "avx512f,avx512vnni")]
    pub fn dots() -> i32 {
        let (a, b) = (_mm512_set1_epi8(black_box(3)), _mm512_set1_epi8(black_box(5)));
        let mut sums = [_mm512_setzero_si512(); CHAINS];
        for _ in 0..TURNS {
            for s in &mut sums {
                *s = _mm512_dpbusd_epi32(*s, a, b);
            }
        }
        let mut total = 0;
        for s in sums {
            total ^= _mm512_reduce_add_epi32(s);
        }
        total
    }

    #[target_feature(enable = "avx512f")]
    pub fn products() -> f32 {
        let (a, b) = (_mm512_set1_ps(black_box(0.999)), _mm512_set1_ps(black_box(0.5)));
        let mut sums = [_mm512_set1_ps(1.0); CHAINS];
        for _ in 0..TURNS {
            for s in &mut sums {
                *s = _mm512_fmadd_ps(*s, a, b);
            }
        }
        let mut total = 0.0;
        for s in sums {
            total += _mm512_reduce_add_ps(s);
        }
        total
    }
}
