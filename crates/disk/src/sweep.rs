//! How best to read these files on this device: the engine's own reads at several depths, sizes and modes.

use std::time::Duration;

use crate::probe::{buffers, run};
use crate::{Buffer, Disk, DiskError, DiskOptions, Extent, IoMode, WeightPath};

/// Reads under way that are tried.
pub const SWEEP_DEPTHS: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// Longest single reads that are tried, in bytes. The default comes first: a slow device may not get to the others.
pub const SWEEP_SEGMENT_BYTES: [usize; 3] = [1 << 20, 256 << 10, 4 << 20];

/// No combination is begun after this time. What is in flight is waited for.
pub const SWEEP_MAX: Duration = Duration::from_secs(3);

/// Time given to one combination in one round.
const CELL: Duration = Duration::from_millis(40);

/// How often every combination is tried. The best round counts: others use the machine too, and only slow us down.
const ROUNDS: usize = 2;

/// Time given to the combination that was chosen, for the figure that is reported.
const FIGURE: Duration = Duration::from_millis(500);

/// A shallower queue is preferred while it gives this share of the best rate: reads that come later wait less.
const RATE_SHARE_MIN: f64 = 0.97;

/// The page cache must be faster than direct reads by this factor to be preferred: what it keeps is memory that the budget
/// does not know.
const BUFFERED_GAIN_MIN: f64 = 1.1;

/// How to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// By which way.
    pub mode: IoMode,
    /// Reads under way at most: places in the ring, or reader threads.
    pub depth: usize,
    /// Longest single read, in bytes.
    pub segment_bytes: usize,
}

impl Setting {
    /// The same as options of a disk.
    pub fn options(&self) -> DiskOptions {
        DiskOptions {
            mode: Some(self.mode),
            threads: self.depth,
            queue_depth: self.depth,
            segment_bytes: self.segment_bytes,
            ..DiskOptions::default()
        }
    }
}

/// The outcome of [`sweep`].
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// What was chosen.
    pub setting: Setting,
    /// Useful bytes per second that it gave.
    pub bytes_per_s: f64,
    /// Requests that the figure rests on.
    pub reads: u64,
    /// When it was measured, in seconds since 1970.
    pub measured_unix_s: u64,
    /// Why the mode is not the one tried first.
    pub fallback_reason: Option<String>,
}

/// Measures with `requests` of `patterns` in flight, which is what the engine has: depths and sizes by the mode asked for, or, when
/// `mode` is `None`, by the fastest direct mode that works and through the page cache; then the smallest depth, and of
/// these the smallest size, that is within a few per cent of the best.
///
/// Before the page cache is measured, the system is asked to drop these files from it; what is left there makes it look
/// better than it is. Takes [`SWEEP_MAX`] and a little more.
///
/// # Errors
/// The files cannot be opened, or a read failed.
///
/// `None` when there is nothing to measure: no patterns, no clock, or files in memory.
pub fn sweep(
    files: &[WeightPath],
    patterns: &[Vec<Extent>],
    requests: usize,
    mode: Option<IoMode>,
) -> Result<Option<Profile>, DiskError> {
    let no_clock = cfg!(all(target_arch = "wasm32", target_os = "unknown"));
    if no_clock || patterns.is_empty() || mode == Some(IoMode::Memory) {
        return Ok(None);
    }
    measured(files, patterns, requests.max(1), mode)
}

/// A combination and the best rate it gave, in bytes per second.
#[derive(Clone, Copy, Debug)]
struct Cell {
    setting: Setting,
    bytes_per_s: f64,
}

fn measured(
    files: &[WeightPath],
    patterns: &[Vec<Extent>],
    requests: usize,
    mode: Option<IoMode>,
) -> Result<Option<Profile>, DiskError> {
    let depth = SWEEP_DEPTHS.into_iter().max().unwrap_or(1);
    let deepest = DiskOptions { threads: depth, queue_depth: depth, ..DiskOptions::default() };
    let first = Disk::open(files, &DiskOptions { mode, ..deepest.clone() })?;
    let fallback_reason = first.fallback_reason().map(str::to_owned);
    let mut disks = vec![first];
    if mode.is_none() && disks[0].mode().is_direct() {
        disks.push(Disk::open(files, &DiskOptions { mode: Some(IoMode::PreadBuffered), ..deepest })?);
    }
    let capacity = |disk: &Disk| patterns.iter().map(|group| disk.buffer_bytes(group)).max().unwrap_or(0);
    let mut spare = buffers(requests, disks.iter().map(capacity).max().unwrap_or(0));
    let mut bench = Bench { files, patterns, next: 0, spare: &mut spare };

    let mut cells: Vec<Cell> = Vec::new();
    let start = std::time::Instant::now();
    for _ in 0..ROUNDS {
        for (which, disk) in disks.iter_mut().enumerate() {
            // Through the page cache, the system cuts reads as it likes.
            let sizes = if which == 0 { &SWEEP_SEGMENT_BYTES[..] } else { &SWEEP_SEGMENT_BYTES[..1] };
            for &segment_bytes in sizes {
                // The deepest first: on a slow device that is the one to have measured.
                for depth in SWEEP_DEPTHS.into_iter().rev() {
                    if start.elapsed() >= SWEEP_MAX && !cells.is_empty() {
                        break;
                    }
                    let setting = Setting { mode: disk.mode(), depth, segment_bytes };
                    let (bytes_per_s, _) = bench.rate(disk, setting, CELL)?;
                    match cells.iter_mut().find(|cell| cell.setting == setting) {
                        Some(cell) => cell.bytes_per_s = cell.bytes_per_s.max(bytes_per_s),
                        None => cells.push(Cell { setting, bytes_per_s }),
                    }
                }
            }
        }
    }
    let Some(setting) = choose(&cells) else {
        return Ok(None);
    };
    let Some(disk) = disks.iter_mut().find(|disk| disk.mode() == setting.mode) else {
        return Ok(None);
    };
    let (bytes_per_s, reads) = bench.rate(disk, setting, FIGURE)?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Ok(Some(Profile {
        setting,
        bytes_per_s,
        reads,
        measured_unix_s: now.map_or(0, |since| since.as_secs()),
        fallback_reason,
    }))
}

/// What is read, and where to.
struct Bench<'a> {
    files: &'a [WeightPath],
    patterns: &'a [Vec<Extent>],
    /// The pattern to go on with.
    next: usize,
    spare: &'a mut Vec<Buffer>,
}

impl Bench<'_> {
    /// Bytes per second with one setting, and requests.
    fn rate(&mut self, disk: &mut Disk, setting: Setting, time: Duration) -> Result<(f64, u64), DiskError> {
        disk.tune(setting.depth, setting.segment_bytes);
        // Once round at most through the page cache, which has everything after that.
        let most = if setting.mode.is_direct() { usize::MAX } else { self.patterns.len() };
        if !setting.mode.is_direct() {
            forget(self.files);
        }
        let mut groups = self.patterns.iter().cycle().skip(self.next).take(most);
        let found = run(disk, &mut groups, time, self.spare);
        self.next = (self.next + found.reads as usize) % self.patterns.len();
        match found.failure {
            Some(failure) => Err(failure),
            None => Ok((found.bytes_per_s, found.reads)),
        }
    }
}

/// The smallest depth and, of these, the smallest size within reach of the best rate of the better mode.
fn choose(cells: &[Cell]) -> Option<Setting> {
    let best = |buffered: bool| {
        let of_kind = cells.iter().filter(|cell| buffered == (cell.setting.mode == IoMode::PreadBuffered));
        of_kind.map(|cell| cell.bytes_per_s).fold(0.0, f64::max)
    };
    let (direct, buffered) = (best(false), best(true));
    let cached = buffered > direct * BUFFERED_GAIN_MIN;
    let least = RATE_SHARE_MIN * if cached { buffered } else { direct };
    let reaches =
        |cell: &&Cell| cached == (cell.setting.mode == IoMode::PreadBuffered) && cell.bytes_per_s >= least;
    let settings = cells.iter().filter(reaches).map(|cell| cell.setting);
    settings.min_by_key(|setting| (setting.depth, setting.segment_bytes))
}

/// Asks the system to drop what it has of the files in its page cache. Only advice, and only pages that nobody maps and that
/// are written back.
fn forget(files: &[WeightPath]) {
    #[cfg(target_os = "linux")]
    for file in files {
        if let Ok(handle) = std::fs::File::open(&file.path) {
            let _ = rustix::fs::fadvise(&handle, 0, None, rustix::fs::Advice::DontNeed);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = files;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cells as (mode, depth, size in KiB, rate), and the number of the one chosen.
    fn check(cells: &[(IoMode, usize, usize, f64)], expected: Option<usize>) {
        let setting = |&(mode, depth, kib, _): &(IoMode, usize, usize, f64)| Setting {
            mode,
            depth,
            segment_bytes: kib << 10,
        };
        let all: Vec<Cell> =
            cells.iter().map(|cell| Cell { setting: setting(cell), bytes_per_s: cell.3 }).collect();
        assert_eq!(choose(&all), expected.map(|n| setting(&cells[n])), "{cells:?}");
    }

    #[test]
    fn the_shallowest_queue_within_reach_of_the_best_is_chosen() {
        use IoMode::{PreadBuffered, PreadDirect, UringDirect};
        check(&[], None);
        check(&[(UringDirect, 32, 1024, 100.0)], Some(0));
        check(&[(UringDirect, 32, 1024, 100.0), (UringDirect, 8, 1024, 97.5)], Some(1));
        check(&[(UringDirect, 32, 1024, 100.0), (UringDirect, 8, 1024, 96.5)], Some(0));
        check(&[(UringDirect, 8, 4096, 100.0), (UringDirect, 8, 1024, 99.0)], Some(1));
        // A shallow queue of large reads before a deep one of small reads.
        check(&[(UringDirect, 8, 256, 100.0), (UringDirect, 2, 4096, 99.0)], Some(1));
        // The page cache has to earn its memory.
        check(&[(PreadDirect, 32, 1024, 100.0), (PreadBuffered, 1, 1024, 109.0)], Some(0));
        check(&[(PreadDirect, 32, 1024, 100.0), (PreadBuffered, 1, 1024, 111.0)], Some(1));
        check(&[(PreadBuffered, 32, 1024, 50.0), (PreadBuffered, 1, 1024, 49.0)], Some(1));
        // A clock too coarse for anything.
        check(&[(UringDirect, 32, 1024, 0.0), (UringDirect, 1, 1024, 0.0)], Some(1));
    }
}
