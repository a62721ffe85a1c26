//! Routing as a running model reports it, made into a trace.

use calypte_residency::predict::Guess;

use crate::{Expected, Step, Trace, TraceLayer};

/// Collects router choices, layer by layer and row by row, into steps. A step that did not get through all layers (it failed or
/// was cancelled) is left out.
#[derive(Debug)]
pub struct Recorder {
    trace: Trace,
    /// Of the step under way, per layer.
    routed: Vec<Vec<u16>>,
    /// The layer that was routed last.
    last: usize,
    expected: Vec<Expected>,
    /// Its first row.
    position: usize,
}

impl Recorder {
    /// Starts a trace of a model with these layers.
    pub fn new(layers: Vec<TraceLayer>) -> Recorder {
        Recorder {
            routed: vec![Vec::new(); layers.len()],
            last: 0,
            expected: Vec::new(),
            trace: Trace::new(layers),
            position: 0,
        }
    }

    /// A step begins whose first row is position `position`; position 0 begins another conversation.
    pub fn step_begins(&mut self, position: usize) {
        self.finish_step();
        self.position = position;
    }

    /// The router of layer `number` (in the model) sent the next row to `experts`, best first. Layers that the trace does not
    /// have are ignored.
    pub fn routed(&mut self, number: usize, experts: &[u32]) {
        let Some(layer) = self.layer(number) else { return };
        self.last = layer;
        // What does not fit is refused when the step is pushed.
        self.routed[layer].extend(experts.iter().map(|&e| u16::try_from(e).unwrap_or(u16::MAX)));
    }

    /// A predictor, told of what was routed last, expects this of layer `number` (in the model).
    pub fn guessed(&mut self, number: usize, guesses: &[Guess]) {
        let Some(layer) = self.layer(number) else { return };
        let (after, layer) = (self.last as u32, layer as u32);
        self.expected.push(Expected { after, layer, guesses: guesses.to_vec() });
    }

    fn layer(&self, number: usize) -> Option<usize> {
        self.trace.layers().iter().position(|l| l.number as usize == number)
    }

    fn finish_step(&mut self) {
        if let Some(first) = self.trace.layers().first() {
            let rows = self.routed[0].len() / (first.top_k as usize).max(1);
            let step = Step { rows: rows as u32, begins_sequence: self.position == 0 };
            if self.trace.push(step, &self.routed) && rows == 1 {
                self.trace.expect(std::mem::take(&mut self.expected));
            }
        }
        self.expected.clear();
        self.routed.iter_mut().for_each(Vec::clear);
    }

    /// The trace of all complete steps.
    pub fn finish(mut self) -> Trace {
        self.finish_step();
        self.trace
    }
}
