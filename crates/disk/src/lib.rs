//! The only run-time reader of weight files.
//!
//! What lives here: opening weight files, aligned positional reads of [`Extent`]s into aligned [`Buffer`]s through one
//! of several backends, completions out of order, retries under a deadline, typed failures, exact byte counts.
//!
//! What must never live here: decisions about what to keep or to fetch (that is `residency`), file formats (that is
//! `checkpoint`).
//!
//! How a read travels: [`Disk::submit`] hands a [`ReadRequest`] to the [`Backend`]. `layout` turns its extents into
//! aligned spans and these into segments; the segments wait in `line`, demand before hints, for a reader thread (`pool`)
//! or for a place in the ring (`uring`); `transfer` decides after every single read whether the segment is done, goes on, is
//! tried again or has failed; `flight` gathers the segments of a request and sends its [`Completion`] when the last
//! one has come to rest (`landing`). A request's [`Buffer`] moves in with the request and comes back with the completion, so that
//! nobody can look at memory that is still being written.

mod backend;
mod buffer;
mod disk;
mod error;
mod extent;
mod layout;
mod memory;
mod options;
mod probe;
mod profiles;
mod sweep;
mod watch;

#[cfg(any(unix, windows))]
mod files;
#[cfg(any(unix, windows))]
mod flight;
#[cfg(any(unix, windows))]
mod front;
#[cfg(any(unix, windows))]
mod landing;
#[cfg(any(unix, windows))]
mod line;
#[cfg(all(test, any(unix, windows)))]
mod line_tests;
#[cfg(any(unix, windows))]
mod open;
#[cfg(any(unix, windows))]
mod pool;
#[cfg(any(unix, windows))]
mod sync;
#[cfg(any(unix, windows))]
mod transfer;
#[cfg(target_os = "linux")]
mod uring;

pub use backend::{Backend, Completion, Counters, FailedRead, Loaded, Priority, ReadRequest, Times};
pub use buffer::{BUFFER_ALIGN_BYTES, Buffer};
pub use disk::{Disk, DiskStats};
pub use error::{DiskError, Failure};
pub use extent::{Extent, FileId, IoMode, UnknownIoMode};
pub use memory::MemoryBackend;
pub use options::{
    DEADLINE_DEFAULT, DiskOptions, HINT_DEPTH_MAX, QUEUE_DEPTH_DEFAULT, QUEUE_DEPTH_MAX,
    SEGMENT_BYTES_DEFAULT, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, THREADS_DEFAULT, THREADS_MAX, WeightPath,
};
pub use probe::{Bandwidth, measure};
pub use profiles::{ProfileKey, recall, remember};
pub use sweep::{Profile, SWEEP_DEPTHS, SWEEP_MAX, SWEEP_SEGMENT_BYTES, Setting, sweep};
pub use watch::{ReadEnd, ReadLife};
