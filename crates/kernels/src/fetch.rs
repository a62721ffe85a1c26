//! Asking for memory before it is needed.

/// Bytes that memory hands over at once, on the processors that there is a tier for.
pub(crate) const CACHE_LINE_BYTES: usize = 64;

/// Asks for the cache line of an address, which need not exist.
#[inline(always)]
pub(crate) fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that could be seen; any address will do.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    let _ = at;
}
