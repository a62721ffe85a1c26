//! Memory that others take while the model runs: before the system has to page, the expert cache gives way.

use std::time::Duration;

use crate::memory::available;
use crate::stopwatch::Stopwatch;

/// How often the system is asked what is left.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The cache gives way when less than this share of the reserve is left, and restores all of it: between the two lies what
/// the system's figure drifts by itself.
const RESERVE_LEFT_MIN: f64 = 0.5;

/// Looks after the reserve that an automatic budget left to the system.
pub(crate) struct Pressure {
    reserve_bytes: u64,
    looked: Stopwatch,
}

impl Pressure {
    pub fn new(reserve_bytes: u64) -> Pressure {
        Pressure { reserve_bytes, looked: Stopwatch::start() }
    }

    /// What a cache that holds `held_bytes` should shrink to, if it should. Asks the system at most once in a while, and not at all where there is
    /// no clock.
    pub fn shrunk(&mut self, held_bytes: u64) -> Option<u64> {
        if self.looked.elapsed() < LOOK_INTERVAL {
            return None;
        }
        self.looked = Stopwatch::start();
        shrunk(held_bytes, available()?.bytes, self.reserve_bytes)
    }
}

fn shrunk(held_bytes: u64, available_bytes: u64, reserve_bytes: u64) -> Option<u64> {
    let short = (available_bytes as f64) < reserve_bytes as f64 * RESERVE_LEFT_MIN;
    short.then(|| held_bytes.saturating_sub(reserve_bytes - available_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_restored_once_half_of_it_is_gone() {
        for (held, available, expected) in [
            (1000, 300, None),
            (1000, 101, None),
            (1000, 100, None),
            (1000, 99, Some(899)),
            (1000, 0, Some(800)),
            (150, 0, Some(0)),
        ] {
            assert_eq!(shrunk(held, available, 200), expected, "{held} held, {available} available");
        }
    }

    #[test]
    fn the_system_is_not_asked_at_every_token() {
        let mut pressure = Pressure::new(u64::MAX);
        assert_eq!(pressure.shrunk(1000), None, "just begun");
    }
}
