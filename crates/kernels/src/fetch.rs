//! Asking for memory before it is read or written.

/// Bytes that memory hands over at once, on most processors.
pub(crate) const CACHE_LINE_BYTES: usize = 64;

/// Asks for the cache line at an address, into the second-level cache where there is an instruction for it. The address need not exist.
///
/// Not into the first level: that has room for fewer requests under way, and what is asked for here would fill it before it is used.
#[inline(always)]
pub(crate) fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that could be seen.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(at.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl2keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

/// Asks for the cache line at an address to be written, into the first level, where there is an instruction for it. The address need not
/// exist.
///
/// Without it a store waits for its line and the stores after it wait for the store, since they take effect in order.
#[inline(always)]
pub(crate) fn prefetch_to_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above; 64-bit processors that have no such request take it for no operation. Written out because the compiler knows it
    // as an extension that functions would have to be compiled for.
    unsafe {
        std::arch::asm!("prefetchw [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}
