//! How best to read these files on this device: the engine's own reads at several depths, sizes and modes.

use std::time::Duration;

use crate::layout::lay_out;
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

/// How often every combination is tried, in turns. The median counts: others use the device too, and devices have bursts.
const ROUNDS: usize = 3;

/// Time given to the combination that was chosen, for the figure that is reported.
const FIGURE: Duration = Duration::from_millis(500);

/// A shallower queue is preferred while it gives this share of the best rate: reads that come later wait less.
const RATE_SHARE_MIN: f64 = 0.97;

/// The page cache must be faster than direct reads by this factor, and not slower in any round, to be preferred: what it
/// keeps is memory that the budget does not know.
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

/// A combination and the rates it gave, in bytes per second.
#[derive(Clone, Debug)]
struct Cell {
    setting: Setting,
    rates: Vec<f64>,
}

impl Cell {
    /// The lower median, which is also the least of two.
    fn median(&self) -> f64 {
        let mut sorted = self.rates.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
    }

    fn least(&self) -> f64 {
        self.rates.iter().copied().reduce(f64::min).unwrap_or(0.0)
    }

    fn is_buffered(&self) -> bool {
        self.setting.mode == IoMode::PreadBuffered
    }
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
    let sizes = sizes(patterns, &disks[0]);
    let mut bench = Bench { files, patterns, next: 0, spare: &mut spare };

    let mut cells: Vec<Cell> = Vec::new();
    let start = std::time::Instant::now();
    for _ in 0..ROUNDS {
        for (which, disk) in disks.iter_mut().enumerate() {
            // Through the page cache, the system cuts reads as it likes.
            let sizes = if which == 0 { &sizes[..] } else { &sizes[..1] };
            for &segment_bytes in sizes {
                // The deepest first: on a slow device that is the one to have measured.
                for depth in SWEEP_DEPTHS.into_iter().rev() {
                    if start.elapsed() >= SWEEP_MAX && !cells.is_empty() {
                        break;
                    }
                    let setting = Setting { mode: disk.mode(), depth, segment_bytes };
                    let (bytes_per_s, _) = bench.rate(disk, setting, CELL)?;
                    match cells.iter_mut().find(|cell| cell.setting == setting) {
                        Some(cell) => cell.rates.push(bytes_per_s),
                        None => cells.push(Cell { setting, rates: vec![bytes_per_s] }),
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

/// The sizes that make a difference: cutting at more than the longest read is the same as not cutting.
fn sizes(patterns: &[Vec<Extent>], disk: &Disk) -> Vec<usize> {
    let spans =
        |group: &Vec<Extent>| lay_out(group, |file| disk.align_bytes(file)).map(|layout| layout.spans);
    let longest = patterns.iter().filter_map(|group| spans(group).ok()).flatten().map(|span| span.len).max();
    let longest = longest.unwrap_or(0);
    let (first, others) = SWEEP_SEGMENT_BYTES.split_at(1);
    let matters = |&&bytes: &&usize| bytes < longest || (bytes > first[0] && longest > first[0]);
    first.iter().chain(others.iter().filter(matters)).copied().collect()
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
    let kind = |buffered: bool| cells.iter().filter(move |cell| cell.is_buffered() == buffered);
    let best = |buffered: bool| kind(buffered).max_by(|a, b| a.median().total_cmp(&b.median()));
    let cached = match (best(false), best(true)) {
        (Some(direct), Some(buffered)) => {
            buffered.median() > direct.median() * BUFFERED_GAIN_MIN && buffered.least() >= direct.median()
        }
        (direct, _) => direct.is_none(),
    };
    let least = best(cached)?.median() * RATE_SHARE_MIN;
    let settings = kind(cached).filter(|cell| cell.median() >= least).map(|cell| cell.setting);
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

    /// Cells as mode, depth, size in KiB and rates, and the number of the one chosen.
    fn check(cells: &[(IoMode, usize, usize, &[f64])], expected: Option<usize>) {
        let setting = |n: usize| {
            let (mode, depth, kib, _) = cells[n];
            Setting { mode, depth, segment_bytes: kib << 10 }
        };
        let cell = |n: usize| Cell { setting: setting(n), rates: cells[n].3.to_vec() };
        let all: Vec<Cell> = (0..cells.len()).map(cell).collect();
        assert_eq!(choose(&all), expected.map(setting), "{cells:?}");
    }

    #[test]
    fn the_shallowest_queue_within_reach_of_the_best_is_chosen() {
        use IoMode::{PreadBuffered as Cached, PreadDirect, UringDirect as Ring};
        check(&[], None);
        check(&[(Ring, 32, 1024, &[100.0])], Some(0));
        check(&[(Ring, 32, 1024, &[100.0]), (Ring, 8, 1024, &[97.5])], Some(1));
        check(&[(Ring, 32, 1024, &[100.0]), (Ring, 8, 1024, &[96.5])], Some(0));
        check(&[(Ring, 8, 4096, &[100.0]), (Ring, 8, 1024, &[99.0])], Some(1));
        // A shallow queue of large reads before a deep one of small reads.
        check(&[(Ring, 8, 256, &[100.0]), (Ring, 2, 4096, &[99.0])], Some(1));
        // A lucky round and an unlucky one say nothing.
        check(&[(Ring, 32, 1024, &[90.0, 100.0, 100.0]), (Ring, 8, 1024, &[50.0, 60.0, 200.0])], Some(0));
        check(&[(Ring, 32, 1024, &[90.0, 100.0, 100.0]), (Ring, 8, 1024, &[10.0, 99.0, 99.0])], Some(1));
        // The page cache has to earn its memory, every time.
        check(&[(PreadDirect, 32, 1024, &[100.0]), (Cached, 1, 1024, &[109.0])], Some(0));
        check(&[(PreadDirect, 32, 1024, &[100.0]), (Cached, 1, 1024, &[111.0])], Some(1));
        check(&[(PreadDirect, 32, 1024, &[100.0]), (Cached, 1, 1024, &[99.0, 150.0, 150.0])], Some(0));
        check(&[(Cached, 32, 1024, &[50.0]), (Cached, 1, 1024, &[49.0])], Some(1));
        // A clock too coarse for anything.
        check(&[(Ring, 32, 1024, &[0.0]), (Ring, 1, 1024, &[0.0])], Some(1));
    }

    #[test]
    fn sizes_that_cut_nothing_are_not_tried() {
        let disk = Disk::from_memory(vec![]);
        for (longest, expected) in [
            (0, &[1024][..]),
            (256 << 10, &[1024]),
            ((256 << 10) + 1, &[1024, 256]),
            (1 << 20, &[1024, 256]),
            ((1 << 20) + 1, &[1024, 256, 4096]),
            (64 << 20, &[1024, 256, 4096]),
        ] {
            // Two extents that are read as one.
            let half = longest / 2;
            let extent = |offset, len| Extent { file: crate::FileId(0), offset, len };
            let patterns = [vec![extent(7, half), extent(7 + half, longest - half)]];
            let got: Vec<usize> = sizes(&patterns, &disk).iter().map(|bytes| bytes >> 10).collect();
            assert_eq!(got, expected, "{longest}");
        }
    }
}
