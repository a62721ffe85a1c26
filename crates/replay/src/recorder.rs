//! Routing as a running model reports it, made into a trace.

use crate::{Step, Trace, TraceLayer};

/// Collects router choices, layer by layer and row by row, into steps. A step is over when a layer comes again; one that did
/// not get through all layers (it failed or was cancelled) is left out.
#[derive(Debug)]
pub struct Recorder {
    trace: Trace,
    /// Of the step under way, per layer.
    routed: Vec<Vec<u16>>,
    layer: Option<usize>,
    position_first: usize,
    position_last: usize,
}

impl Recorder {
    /// Starts a trace of a model with these layers.
    pub fn new(layers: Vec<TraceLayer>) -> Recorder {
        Recorder {
            routed: vec![Vec::new(); layers.len()],
            trace: Trace::new(layers),
            layer: None,
            position_first: 0,
            position_last: 0,
        }
    }

    /// The router of layer `number` (in the model) sent `position` to `experts`, best first. Layers that the trace does not
    /// have are ignored.
    pub fn routed(&mut self, number: usize, position: usize, experts: &[u32]) {
        let layers = self.trace.layers();
        let Some(layer) = layers.iter().position(|l| l.number as usize == number) else { return };
        let begins = match self.layer {
            None => true,
            Some(last) => layer < last || layer == last && position <= self.position_last,
        };
        if begins {
            self.finish_step();
            self.position_first = position;
        }
        (self.layer, self.position_last) = (Some(layer), position);
        // What does not fit is refused when the step is pushed.
        self.routed[layer].extend(experts.iter().map(|&e| u16::try_from(e).unwrap_or(u16::MAX)));
    }

    fn finish_step(&mut self) {
        if let Some(first) = self.trace.layers().first() {
            let rows = self.routed[0].len() / (first.top_k as usize).max(1);
            let step = Step { rows: rows as u32, begins_sequence: self.position_first == 0 };
            self.trace.push(step, &self.routed);
        }
        self.routed.iter_mut().for_each(Vec::clear);
        self.layer = None;
    }

    /// The trace of all complete steps.
    pub fn finish(mut self) -> Trace {
        self.finish_step();
        self.trace
    }
}
