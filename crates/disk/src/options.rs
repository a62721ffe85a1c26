//! What a caller may choose, and the limits of the choices.

use std::path::PathBuf;
use std::time::Duration;

use crate::IoMode;

/// Longest single read given to the system, in bytes, unless told otherwise. A small piece lets several requests share the
/// device, and a hint yields to demand between pieces.
pub const SEGMENT_BYTES_DEFAULT: usize = 1 << 20;

/// Least that can be asked for instead, in bytes.
pub const SEGMENT_BYTES_MIN: usize = 64 << 10;

/// Most that can be asked for instead, in bytes. Larger direct reads come back short or with EAGAIN on some kernels and file
/// systems.
pub const SEGMENT_BYTES_MAX: usize = 4 << 20;

/// Reader threads of the pool, unless told otherwise: enough to keep a consumer NVMe drive busy with 1 MiB reads.
pub const THREADS_DEFAULT: usize = 8;

/// Most reader threads.
pub const THREADS_MAX: usize = 256;

/// Segments in the ring at once, unless told otherwise.
pub const QUEUE_DEPTH_DEFAULT: usize = 32;

/// Most segments in the ring at once.
pub const QUEUE_DEPTH_MAX: usize = 1024;

/// Hints join only while fewer segments than this are under way, so that a demand that arrives later waits for no more than
/// these. Enough to keep a drive from idling; a few milliseconds of an NVMe drive at 1 MiB each.
pub const HINT_DEPTH_MAX: usize = 4;

/// How long one segment may take, retries included, unless told otherwise.
pub const DEADLINE_DEFAULT: Duration = Duration::from_secs(30);

/// How to read. The defaults suit an NVMe drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskOptions {
    /// The first mode to try; `None` tries [`IoMode::UringDirect`] first. When a mode cannot be had the next slower one is
    /// taken, and [`crate::Disk::fallback_reason`] says why.
    pub mode: Option<IoMode>,
    /// Reader threads of the pread modes: 1 to [`THREADS_MAX`], clamped.
    pub threads: usize,
    /// Segments in the ring at once: 1 to [`QUEUE_DEPTH_MAX`], clamped.
    pub queue_depth: usize,
    /// Longest single read, in bytes: [`SEGMENT_BYTES_MIN`] to [`SEGMENT_BYTES_MAX`], clamped.
    pub segment_bytes: usize,
    /// How long one segment (a read of at most `segment_bytes`) may take from its first issue to its success, retries
    /// included. A request fails with [`crate::Failure::TimedOut`] when one of its segments does not make it. It is not a
    /// limit on whole requests: a slow disk may take minutes over a large one as long as it makes progress.
    pub deadline: Duration,
}

impl Default for DiskOptions {
    fn default() -> DiskOptions {
        DiskOptions {
            mode: None,
            threads: THREADS_DEFAULT,
            queue_depth: QUEUE_DEPTH_DEFAULT,
            segment_bytes: SEGMENT_BYTES_DEFAULT,
            deadline: DEADLINE_DEFAULT,
        }
    }
}

/// A weight file to open. Its place in the list is its [`crate::FileId`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightPath {
    /// Where it is.
    pub path: PathBuf,
    /// Its size in bytes when the catalogue was read. Opening fails when that is no longer its size.
    pub size_bytes: u64,
}
