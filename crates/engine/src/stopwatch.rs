//! A stopwatch that exists on every target: `std`'s clock panics on `wasm32-unknown-unknown`, where the page that hosts
//! the engine keeps the time, and zero is an honest "not measured".

use std::time::Duration;

/// Time since [`Stopwatch::start`].
pub(crate) struct Stopwatch {
    #[cfg(not(target_arch = "wasm32"))]
    started: std::time::Instant,
}

impl Stopwatch {
    pub fn start() -> Stopwatch {
        Stopwatch {
            #[cfg(not(target_arch = "wasm32"))]
            started: std::time::Instant::now(),
        }
    }

    #[cfg(not(target_arch = "wasm32"))]
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    #[cfg(target_arch = "wasm32")]
    pub fn elapsed(&self) -> Duration {
        Duration::ZERO
    }
}
