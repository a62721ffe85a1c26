//! Choosing a backend: from the fastest to the one that always works, keeping the reasons.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::backend::Backend;
use crate::files::{OpenFiles, OpenTrouble, Source, read_files};
use crate::flight::Shared;
use crate::front::{Carrier, Front};
use crate::line::Line;
use crate::memory::MemoryBackend;
use crate::options::{QUEUE_DEPTH_MAX, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, THREADS_MAX};
use crate::pool::Pool;
use crate::{DiskError, DiskOptions, Failure, IoMode, WeightPath};

/// The fastest backend that works, and why it is not the one tried first. See [`crate::Disk::open`].
pub(crate) fn open_backend(
    files: &[WeightPath],
    options: &DiskOptions,
) -> Result<(Box<dyn Backend>, Option<String>), DiskError> {
    let first = options.mode.unwrap_or(IoMode::UringDirect);
    if first == IoMode::Memory {
        return Ok((Box::new(MemoryBackend::new(read_files(files)?)), None));
    }
    let mut reasons: Vec<String> = Vec::new();
    let reason = |reasons: Vec<String>| {
        if reasons.is_empty() { None } else { Some(reasons.join("; ")) }
    };
    if first.is_direct() {
        match OpenFiles::open(files, true) {
            Ok(open) => {
                let open = Arc::new(open);
                if first == IoMode::UringDirect {
                    match start_uring(&open, options) {
                        Ok(backend) => return Ok((backend, None)),
                        Err(why) => reasons.push(format!("no uring-direct: {why}")),
                    }
                }
                match start_pool(IoMode::PreadDirect, open, files, options) {
                    Ok(backend) => return Ok((backend, reason(reasons))),
                    Err(why) => reasons.push(format!("no pread-direct: {why}")),
                }
            }
            Err(OpenTrouble::NoDirect(why)) => reasons.push(format!("no direct reads: {why}")),
            Err(OpenTrouble::Disk(error)) => return Err(error),
        }
    }
    let nothing_works = |why: String| {
        let path = files.first().map_or(Path::new("(no file)"), |file| &file.path);
        Failure::refused(format!("no I/O mode works: {why}")).at(path, 0, 0)
    };
    let open = OpenFiles::open(files, false).map_err(|trouble| match trouble {
        OpenTrouble::Disk(error) => error,
        OpenTrouble::NoDirect(why) => nothing_works(why),
    })?;
    match start_pool(IoMode::PreadBuffered, Arc::new(open), files, options) {
        Ok(backend) => Ok((backend, reason(reasons))),
        Err(why) => {
            reasons.push(format!("no pread-buffered: {why}"));
            Err(nothing_works(reasons.join("; ")))
        }
    }
}

fn deadline(options: &DiskOptions) -> Duration {
    options.deadline.max(Duration::from_millis(1))
}

fn segment_bytes(options: &DiskOptions) -> usize {
    options.segment_bytes.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX)
}

fn start_pool(
    mode: IoMode,
    open: Arc<OpenFiles>,
    files: &[WeightPath],
    options: &DiskOptions,
) -> Result<Box<dyn Backend>, String> {
    let threads = options.threads.clamp(1, THREADS_MAX);
    let sources = handles_of_readers(&open, files, mode.is_direct(), threads)?;
    pool_over(mode, open, sources, deadline(options), segment_bytes(options))
        .map_err(|error| format!("no thread could be started: {error}"))
}

/// A pool backend; apart from the files that it reads through, `shared` is what answers questions about them.
pub(crate) fn pool_over(
    mode: IoMode,
    shared: Arc<dyn Source>,
    sources: Vec<Arc<dyn Source>>,
    deadline: Duration,
    segment_bytes: usize,
) -> io::Result<Box<dyn Backend>> {
    let shared = Arc::new(Shared::new(shared, deadline));
    let (landed, landings) = channel();
    let line = Arc::new(Line::new(sources.len()));
    let pool: Box<dyn Carrier> = Box::new(Pool::start(mode, sources, line.clone(), &shared, landed)?);
    Ok(Box::new(Front::new(pool, line, segment_bytes, shared, landings)))
}

#[cfg(not(windows))]
fn handles_of_readers(
    open: &Arc<OpenFiles>,
    _files: &[WeightPath],
    _direct: bool,
    threads: usize,
) -> Result<Vec<Arc<dyn Source>>, String> {
    Ok((0..threads).map(|_| open.clone() as Arc<dyn Source>).collect())
}

/// Windows makes the reads through one handle wait for each other, so every reader opens its own.
#[cfg(windows)]
fn handles_of_readers(
    _open: &Arc<OpenFiles>,
    files: &[WeightPath],
    direct: bool,
    threads: usize,
) -> Result<Vec<Arc<dyn Source>>, String> {
    let open = |_| match OpenFiles::open(files, direct) {
        Ok(open) => Ok(Arc::new(open) as Arc<dyn Source>),
        Err(OpenTrouble::Disk(error)) => Err(error.to_string()),
        Err(OpenTrouble::NoDirect(why)) => Err(why),
    };
    (0..threads).map(open).collect()
}

#[cfg(target_os = "linux")]
fn start_uring(open: &Arc<OpenFiles>, options: &DiskOptions) -> Result<Box<dyn Backend>, String> {
    let shared = Arc::new(Shared::new(open.clone() as Arc<dyn Source>, deadline(options)));
    let (landed, landings) = channel();
    let queue_depth = options.queue_depth.clamp(1, QUEUE_DEPTH_MAX);
    let line = Arc::new(Line::new(queue_depth));
    let uring: Box<dyn Carrier> =
        Box::new(crate::uring::Uring::start(open.clone(), line.clone(), &shared, landed, queue_depth)?);
    Ok(Box::new(Front::new(uring, line, segment_bytes(options), shared, landings)))
}

#[cfg(not(target_os = "linux"))]
fn start_uring(_open: &Arc<OpenFiles>, _options: &DiskOptions) -> Result<Box<dyn Backend>, String> {
    let _ = QUEUE_DEPTH_MAX;
    Err("io_uring exists on Linux only".to_owned())
}
