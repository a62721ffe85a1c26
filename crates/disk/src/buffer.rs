//! Aligned memory that direct reads may land in.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;

/// Alignment of every [`Buffer`], in bytes: the page size, which satisfies every device that direct reads are believed on.
pub const BUFFER_ALIGN_BYTES: usize = 4096;

/// Bytes of a huge page on the common processors.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// From this size on, memory is aligned to huge pages and the system is asked for them: large weights are read row by row,
/// sixteen rows at a time, and every row of a large matrix lies in another small page.
const HUGE_BYTES_MIN: usize = 2 * HUGE_PAGE_BYTES;

/// Heap memory aligned to [`BUFFER_ALIGN_BYTES`], zeroed at creation, of fixed size.
///
/// It is not a `Vec<u8>` because direct reads need the alignment, and it is always fully initialised so that no slice
/// of it is ever undefined, whatever a read left undone.
///
/// Large buffers are pages that the system has zeroed and that nobody has touched: who touches them first, usually the thread that
/// reads into them, pays for them, and not the one that asks for a buffer and has something to compute. Whoever has nothing to do
/// may pay in advance ([`Buffer::populate`]). On Linux they come from the
/// system itself and go back to it when they are dropped, where an allocator would keep them.
pub struct Buffer {
    start: NonNull<u8>,
    capacity: usize,
    /// What was allocated; `start` lies in it.
    allocated: NonNull<u8>,
    from: Allocated,
}

/// How memory was allocated.
#[derive(Clone, Copy)]
enum Allocated {
    Heap(Layout),
    /// Mapped, with so many bytes.
    #[cfg(target_os = "linux")]
    Pages(usize),
}

/// Memory from this size on is mapped by itself.
#[cfg(target_os = "linux")]
const MAPPED_BYTES_MIN: usize = 256 << 10;

// SAFETY: a `Buffer` owns its memory alone, like a `Box<[u8]>`; bytes have no thread affinity.
unsafe impl Send for Buffer {}
// SAFETY: a shared `Buffer` only hands out shared slices; writing needs `&mut`.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Zeroed memory of `bytes` bytes.
    ///
    /// Aborts like every other allocation of the standard library when the system has no such memory; use
    /// [`Buffer::try_with_capacity`] where that is to be survived.
    pub fn with_capacity(bytes: usize) -> Buffer {
        Buffer::try_with_capacity(bytes).unwrap_or_else(|| handle_alloc_error(layout_for_abort(bytes)))
    }

    /// Zeroed memory of `bytes` bytes, or `None` when the system refuses.
    pub fn try_with_capacity(bytes: usize) -> Option<Buffer> {
        if bytes == 0 {
            let from = Allocated::Heap(Layout::new::<()>());
            return Some(Buffer { start: dangling(), capacity: 0, allocated: dangling(), from });
        }
        let align = align_bytes(bytes);
        let (allocated, from) = allocate(bytes.checked_add(align - 1)?)?;
        let skipped = allocated.align_offset(align);
        // SAFETY: at most `align - 1` bytes are skipped, and as many were allocated on top.
        let start = unsafe { allocated.add(skipped) };
        if align == HUGE_PAGE_BYTES {
            ask_for_huge_pages(start, bytes);
        }
        Some(Buffer { start, capacity: bytes, allocated, from })
    }

    /// Size in bytes.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// All of it.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `start` is valid for `capacity` initialised bytes as long as `self` lives (dangling but aligned when
        // that is 0), and `&self` excludes writers.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.capacity) }
    }

    /// All of it, to write.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `&mut self` excludes everybody else.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.capacity) }
    }

    /// Asks the system to find and clear the memory of a part of it now, where it does so on request (Linux 5.14); otherwise whoever uses
    /// the part first waits for that. A hint: it changes nothing but speed.
    ///
    /// # Panics
    /// When the range is not inside the buffer.
    pub fn populate(&mut self, range: Range<usize>) {
        let part = &mut self.as_mut_slice()[range];
        #[cfg(target_os = "linux")]
        {
            let into_page = part.as_ptr() as usize % BUFFER_ALIGN_BYTES;
            let start = part.as_mut_ptr().wrapping_sub(into_page).cast();
            let advice = rustix::mm::Advice::LinuxPopulateWrite;
            // SAFETY: the pages are in use, by us or by whoever has the rest of the first and the last, and stay as they are.
            let _ = unsafe { rustix::mm::madvise(start, into_page + part.len(), advice) };
        }
        #[cfg(not(target_os = "linux"))]
        let _ = part;
    }

    /// Where it starts. Only the readers use it, on buffers that they own.
    #[cfg(any(unix, windows))]
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

/// Zeroed memory of `bytes` bytes, which are not 0, with any alignment.
fn allocate(bytes: usize) -> Option<(NonNull<u8>, Allocated)> {
    #[cfg(target_os = "linux")]
    if bytes >= MAPPED_BYTES_MIN {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: new memory wherever the system likes; it replaces no other mapping.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, flags) }.ok()?;
        return Some((NonNull::new(start.cast())?, Allocated::Pages(bytes)));
    }
    // With the least alignment: with more, allocators zero the memory themselves.
    let layout = Layout::from_size_align(bytes, 1).ok()?;
    // SAFETY: the layout has a size above zero.
    Some((NonNull::new(unsafe { alloc_zeroed(layout) })?, Allocated::Heap(layout)))
}

/// How a buffer of this size is aligned.
fn align_bytes(bytes: usize) -> usize {
    if bytes < HUGE_BYTES_MIN { BUFFER_ALIGN_BYTES } else { HUGE_PAGE_BYTES }
}

/// Asks for huge pages where the memory fills them; what is behind the last whole one stays as it is, so that no more memory
/// is taken than was asked for. To be said before the memory is touched. A hint: it changes nothing but speed, and may be refused.
fn ask_for_huge_pages(start: NonNull<u8>, bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        let whole = bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        // SAFETY: the range was just allocated; this advice does not change what is in it.
        let _ =
            unsafe { rustix::mm::madvise(start.as_ptr().cast(), whole, rustix::mm::Advice::LinuxHugepage) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, bytes);
}

/// A well-aligned address for buffers without bytes.
fn dangling() -> NonNull<u8> {
    #[repr(align(4096))]
    struct Page;
    NonNull::<Page>::dangling().cast()
}

/// A layout to name in the abort message; sizes beyond what a layout can hold are named as the largest one.
fn layout_for_abort(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, BUFFER_ALIGN_BYTES).unwrap_or(Layout::new::<u8>())
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.capacity == 0 {
            return;
        }
        match self.from {
            // SAFETY: allocated in `allocate` with exactly this layout.
            Allocated::Heap(layout) => unsafe { dealloc(self.allocated.as_ptr(), layout) },
            #[cfg(target_os = "linux")]
            Allocated::Pages(bytes) => {
                // SAFETY: mapped in `allocate` with exactly this size; nobody has a slice of it any more.
                let unmapped = unsafe { rustix::mm::munmap(self.allocated.as_ptr().cast(), bytes) };
                debug_assert!(unmapped.is_ok(), "{unmapped:?}");
            }
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("capacity", &self.capacity).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: usize) {
        let mut buffer = Buffer::with_capacity(bytes);
        assert_eq!(buffer.capacity(), bytes);
        assert_eq!(buffer.as_slice().as_ptr() as usize % BUFFER_ALIGN_BYTES, 0);
        assert!(buffer.as_slice().iter().all(|&b| b == 0));
        buffer.as_mut_slice().fill(7);
        assert_eq!(buffer.as_slice().iter().map(|&b| u64::from(b)).sum::<u64>(), 7 * bytes as u64);
    }

    #[test]
    fn is_aligned_zeroed_and_of_the_size_asked_for() {
        for bytes in [0, 1, 4095, 4096, 4097, 3 << 20, HUGE_BYTES_MIN, 3 * HUGE_PAGE_BYTES + 5] {
            check(bytes);
        }
    }

    #[test]
    fn refuses_what_cannot_exist() {
        for bytes in [usize::MAX, isize::MAX as usize] {
            assert!(Buffer::try_with_capacity(bytes).is_none());
        }
    }

    /// Resident pages of this process, in bytes.
    #[cfg(target_os = "linux")]
    fn resident_bytes() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("a /proc");
        let pages: usize = statm.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("pages");
        pages * rustix::param::page_size()
    }

    /// Whatever was allocated and freed before, and between.
    #[cfg(target_os = "linux")]
    #[test]
    fn takes_memory_when_it_is_touched_or_asked_to_and_gives_it_back_when_it_is_dropped() {
        const BUFFERS: usize = 128;
        const BYTES: usize = 2 << 20;
        /// Other tests run beside this one.
        const NOISE_BYTES: usize = 64 << 20;
        let before = resident_bytes();
        let mut buffer = Buffer::with_capacity(BUFFERS * BYTES);
        buffer.as_mut_slice()[5] = 7;
        buffer.populate(3..BUFFERS * BYTES);
        assert_eq!((buffer.as_slice()[5], buffer.as_slice()[BYTES]), (7, 0));
        let more = resident_bytes().saturating_sub(before);
        // All of it, or nothing where the kernel does not know the request.
        assert!(!(NOISE_BYTES..BUFFERS * BYTES - NOISE_BYTES).contains(&more), "{more}");
        drop(buffer);
        let mut buffers: Vec<Buffer> = (0..BUFFERS).map(|_| Buffer::with_capacity(BYTES)).collect();
        assert!(resident_bytes() < before + NOISE_BYTES, "nobody touched them");
        buffers.iter_mut().for_each(|buffer| buffer.as_mut_slice().fill(1));
        assert!(resident_bytes() > before + BUFFERS * BYTES - NOISE_BYTES);
        // Every other one: the freed ones lie between those that stay.
        let mut keep = false;
        buffers.retain(|_| {
            keep = !keep;
            keep
        });
        assert!(resident_bytes() < before + BUFFERS * BYTES / 2 + NOISE_BYTES);
    }
}
