//! The line of segments before the readers: demand first; hints, and idle reads behind them, only while little else is under way.

use crate::flight::Flight;
use crate::sync::{Arc, Condvar, Mutex, lock, wait};
use crate::transfer::Segment;
use crate::{HINT_DEPTH_MAX, Priority};
use std::collections::VecDeque;

/// A segment with its request.
pub(crate) struct Op {
    pub flight: Arc<Flight>,
    pub segment: Segment,
}

/// Segments that wait, shared by the submitter and the readers.
///
/// Within a priority the order is that of submission, so the segments of a request stand together and the oldest
/// request is finished first. A hint may only join while fewer than [`HINT_DEPTH_MAX`] segments are under way: behind a busy
/// device it would take bandwidth from reads that somebody waits for, and a demand that arrives later waits for no more
/// than these. The same holds for idle reads, which come after the hints.
pub(crate) struct Line {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    /// Segments under way at most; at least 1.
    depth: usize,
    /// Sorted by the number of the flight.
    demand: VecDeque<Op>,
    /// Sorted by the number of the flight.
    hints: VecDeque<Op>,
    /// Sorted by the number of the flight.
    idle: VecDeque<Op>,
    /// Taken out and not at rest, of both kinds.
    under_way: usize,
    stopping: bool,
    /// Nothing is given out, so that a test can submit everything before the first read.
    #[cfg(test)]
    stalled: bool,
}

impl State {
    fn next(&mut self) -> Option<Op> {
        #[cfg(test)]
        if self.stalled {
            return None;
        }
        if self.under_way >= self.depth {
            return None;
        }
        // One place is kept from hints, so that a demand finds it free.
        let hint_depth = HINT_DEPTH_MAX.min(self.depth - 1).max(1);
        let op = match self.demand.pop_front() {
            Some(op) => op,
            None if self.under_way < hint_depth => {
                self.hints.pop_front().or_else(|| self.idle.pop_front())?
            }
            None => return None,
        };
        self.under_way += 1;
        op.flight.begin();
        Some(op)
    }

    /// Takes out what waits of flight `id` without being demand. A flight has one priority, so only one line has it; many idle
    /// reads may wait, so they are not gone through.
    fn cut_out(&mut self, id: u64) -> VecDeque<Op> {
        let cut = |line: &mut VecDeque<Op>| -> VecDeque<Op> {
            let first = line.partition_point(|op| op.flight.id < id);
            let end = line.partition_point(|op| op.flight.id <= id);
            line.drain(first..end).collect()
        };
        let hints = cut(&mut self.hints);
        if hints.is_empty() { cut(&mut self.idle) } else { hints }
    }
}

impl Line {
    /// A line before readers that are to have `depth` segments under way at most.
    pub fn new(depth: usize) -> Line {
        let line = Line { state: Mutex::new(State::default()), arrived: Condvar::new() };
        line.set_depth(depth);
        line
    }

    /// From now on, at most so many segments under way.
    pub fn set_depth(&self, depth: usize) {
        lock(&self.state).depth = depth.max(1);
        self.arrived.notify_all();
    }

    /// Puts the segments of a flight at the end of its part of the line.
    pub fn join(&self, flight: &Arc<Flight>, segments: Vec<Segment>, priority: Priority) {
        let ops = segments.into_iter().map(|segment| Op { flight: flight.clone(), segment });
        let mut state = lock(&self.state);
        match priority {
            Priority::Demand => state.demand.extend(ops),
            Priority::Hint => state.hints.extend(ops),
            Priority::Idle => state.idle.extend(ops),
        }
        drop(state);
        self.arrived.notify_all();
    }

    /// What waits of flight `id` as a hint or an idle read becomes demand, behind the demand that was submitted before it.
    pub fn promote(&self, id: u64) {
        let mut state = lock(&self.state);
        let mut promoted = state.cut_out(id);
        let at = state.demand.partition_point(|op| op.flight.id < id);
        let mut later = state.demand.split_off(at);
        state.demand.append(&mut promoted);
        state.demand.append(&mut later);
        drop(state);
        self.arrived.notify_all();
    }

    /// Takes out what waits of flight `id` as a hint or an idle read. The caller lands it.
    pub fn withdraw(&self, id: u64) -> VecDeque<Op> {
        lock(&self.state).cut_out(id)
    }

    /// The next segment if one may go now. Never blocks.
    pub fn try_take(&self) -> Option<Op> {
        lock(&self.state).next()
    }

    /// The next segment; blocks until one may go. `None` when the line was stopped.
    pub fn take(&self) -> Option<Op> {
        let mut state = lock(&self.state);
        loop {
            if state.stopping {
                return None;
            }
            if let Some(op) = state.next() {
                return Some(op);
            }
            state = wait(&self.arrived, state);
        }
    }

    /// A segment that was taken has come to rest: no read of it is under way or will be. The caller lands it next.
    pub fn rest(&self, op: Op) -> Arc<Flight> {
        let mut state = lock(&self.state);
        state.under_way -= 1;
        let waiting = !(state.demand.is_empty() && state.hints.is_empty() && state.idle.is_empty());
        drop(state);
        if waiting {
            // Another reader may have been kept from it.
            self.arrived.notify_one();
        }
        op.flight.end();
        op.flight
    }

    /// Nothing is given out any more, and what waits never will be.
    pub fn stop(&self) {
        let mut state = lock(&self.state);
        state.stopping = true;
        state.demand.clear();
        state.hints.clear();
        state.idle.clear();
        drop(state);
        self.arrived.notify_all();
    }

    pub fn is_stopping(&self) -> bool {
        lock(&self.state).stopping
    }

    /// Holds everything back, or lets it go.
    #[cfg(test)]
    pub fn stall(&self, stalled: bool) {
        lock(&self.state).stalled = stalled;
        self.arrived.notify_all();
    }
}
