//! A window into a running model, for tests, traces and statistics.

use calypte_residency::predict::Guess;

/// Told what the model decides while it runs. All methods default to nothing.
pub trait Observer {
    /// A step begins whose first row is position `position`. Whatever an unfinished step told before is void.
    fn step_begins(&mut self, position: usize) {
        let _ = position;
    }

    /// The router of `layer` sent position `position` to `experts` (best first) with `weights`.
    fn routed(&mut self, layer: usize, position: usize, experts: &[u32], weights: &[f32]) {
        let _ = (layer, position, experts, weights);
    }

    /// After the latest router's choice for a step of one row, a predictor expects `guesses` of `layer`, which that row has still to reach.
    fn guessed(&mut self, layer: usize, guesses: &[Guess]) {
        let _ = (layer, guesses);
    }

    /// The indexer of `layer` lets `position` see `positions` (ascending); `None` means all up to itself.
    fn selected(&mut self, layer: usize, position: usize, positions: Option<&[u32]>) {
        let _ = (layer, position, positions);
    }
}

impl Observer for () {}
