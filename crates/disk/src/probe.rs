//! What the disk really gives, measured in the engine's own access pattern.

use std::time::Duration;

use crate::{Buffer, Disk, DiskError, Extent};

/// The outcome of [`measure`].
#[derive(Debug, Default)]
pub struct Bandwidth {
    /// Useful bytes per second: those of the extents, without alignment.
    pub bytes_per_s: f64,
    /// Requests (extent groups) that completed.
    pub reads: u64,
    /// From the first submission to the last completion.
    pub seconds: f64,
    /// The read that ended the measurement early, if one failed.
    pub failure: Option<DiskError>,
}

/// Reads the extent groups `patterns` one after the other, again and again, with `depth` of them in flight, until
/// `duration` has passed or one fails; then waits for those in flight, which count too.
///
/// The caller chooses groups like those that the engine will read (random experts of the real files), enough of them
/// not to read the same bytes twice. Must not be called while requests are in flight. Nothing is measured (all zero)
/// without patterns, and on targets that have no clock.
pub fn measure(disk: &mut Disk, patterns: &[Vec<Extent>], duration: Duration, depth: usize) -> Bandwidth {
    if patterns.is_empty() || disk.in_flight() > 0 {
        return Bandwidth::default();
    }
    let capacity = patterns.iter().map(|group| disk.buffer_bytes(group)).max().unwrap_or(0);
    let mut spare = buffers(depth.max(1), capacity);
    run(disk, &mut patterns.iter().cycle(), duration, &mut spare)
}

/// Buffers for `requests` in flight; fewer when memory is short.
pub(crate) fn buffers(requests: usize, capacity: usize) -> Vec<Buffer> {
    (0..requests).map_while(|_| Buffer::try_with_capacity(capacity)).collect()
}

#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
pub(crate) fn run(
    _disk: &mut Disk,
    _groups: &mut dyn Iterator<Item = &Vec<Extent>>,
    _duration: Duration,
    _spare: &mut Vec<Buffer>,
) -> Bandwidth {
    Bandwidth::default()
}

/// Reads `groups` until `duration` has passed, they end, or one fails, with as many in flight as there are `spare` buffers.
#[cfg(not(all(target_arch = "wasm32", target_os = "unknown")))]
pub(crate) fn run(
    disk: &mut Disk,
    groups: &mut dyn Iterator<Item = &Vec<Extent>>,
    duration: Duration,
    spare: &mut Vec<Buffer>,
) -> Bandwidth {
    use crate::{Priority, ReadRequest};

    let useful_before = disk.stats().bytes_useful;
    let mut out = Bandwidth::default();
    let mut ticket = 0;
    let start = std::time::Instant::now();
    loop {
        while out.failure.is_none() && start.elapsed() < duration {
            let Some(buffer) = spare.pop() else { break };
            let Some(group) = groups.next() else {
                spare.push(buffer);
                break;
            };
            ticket += 1;
            disk.submit(ReadRequest { ticket, priority: Priority::Demand, extents: group.clone(), buffer });
        }
        let Some(completion) = disk.wait() else { break };
        match completion.result {
            Ok(loaded) => {
                out.reads += 1;
                spare.push(loaded.into_buffer());
            }
            Err(failed) => {
                spare.push(failed.buffer);
                out.failure = Some(failed.error);
            }
        }
    }
    out.seconds = start.elapsed().as_secs_f64();
    let useful = disk.stats().bytes_useful - useful_before;
    out.bytes_per_s = useful as f64 / out.seconds.max(f64::MIN_POSITIVE);
    out
}
