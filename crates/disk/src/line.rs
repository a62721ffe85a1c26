//! The line of segments before the readers: demand first; hints, and idle reads behind them, only while little else is under way.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::flight::{Flight, lock};
use crate::transfer::Segment;
use crate::{HINT_DEPTH_MAX, Priority};

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
        let line = Line { state: Mutex::default(), arrived: Condvar::new() };
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
            state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
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

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    use crate::layout::lay_out;
    use crate::{Buffer, Extent, FileId};

    /// What is done to a line. Flights are meant by their number, modulo those there are.
    #[derive(Clone, Debug)]
    enum Act {
        Join {
            segments: usize,
            priority: Priority,
        },
        Promote(usize),
        Withdraw(usize),
        Take,
        /// The oldest segment under way.
        Rest,
        Depth(usize),
    }

    fn act() -> impl Strategy<Value = Act> {
        let join = |priority| (1usize..4).prop_map(move |segments| Act::Join { segments, priority });
        prop_oneof![
            2 => join(Priority::Demand),
            4 => join(Priority::Hint),
            3 => join(Priority::Idle),
            2 => (0usize..20).prop_map(Act::Promote),
            2 => (0usize..20).prop_map(Act::Withdraw),
            10 => Just(Act::Take),
            8 => Just(Act::Rest),
            1 => (0usize..9).prop_map(Act::Depth),
        ]
    }

    /// Priority, flight and number of a segment.
    type Waiting = (Priority, u64, usize);

    const SEGMENT: usize = 4096;

    fn flight(id: u64, segments: usize) -> (Arc<Flight>, Vec<Segment>) {
        let extents = vec![Extent { file: FileId(0), offset: 0, len: (segments * SEGMENT) as u64 }];
        let layout = lay_out(&extents, |_| 1).expect("fits");
        let cut: Vec<Segment> = layout.spans.iter().flat_map(|span| Segment::cut(span, 1, SEGMENT)).collect();
        assert_eq!(cut.len(), segments);
        let buffer = Buffer::with_capacity(layout.bytes);
        (Arc::new(Flight::new(id, id, extents, layout.views, buffer, segments)), cut)
    }

    fn named(op: &Op) -> (u64, usize) {
        (op.flight.id, op.segment.at / SEGMENT)
    }

    /// The definition: everything that waits in one list, and the next is the least by (priority, flight, segment).
    fn check(depth: usize, acts: &[Act]) {
        let line = Line::new(depth);
        let mut depth = depth.max(1);
        let (mut waiting, mut under_way): (Vec<Waiting>, VecDeque<Op>) = Default::default();
        let mut flights = 0u64;
        for act in acts {
            match *act {
                Act::Join { segments, priority } => {
                    let (flight, cut) = flight(flights, segments);
                    line.join(&flight, cut, priority);
                    waiting.extend((0..segments).map(|n| (priority, flights, n)));
                    flights += 1;
                }
                Act::Promote(n) if flights > 0 => {
                    let id = n as u64 % flights;
                    line.promote(id);
                    waiting.iter_mut().filter(|w| w.1 == id).for_each(|w| w.0 = Priority::Demand);
                }
                Act::Withdraw(n) if flights > 0 => {
                    let id = n as u64 % flights;
                    let goes = |w: &Waiting| w.0 != Priority::Demand && w.1 == id;
                    let expected: Vec<_> = waiting.iter().filter(|w| goes(w)).map(|w| (w.1, w.2)).collect();
                    assert_eq!(line.withdraw(id).iter().map(named).collect::<Vec<_>>(), expected);
                    waiting.retain(|w| !goes(w));
                }
                Act::Take => {
                    let next = waiting.iter().copied().min();
                    let hint_depth = if depth == 1 { 1 } else { (depth - 1).min(HINT_DEPTH_MAX) };
                    let limit = |w: &Waiting| if w.0 == Priority::Demand { depth } else { hint_depth };
                    let may = |w: &Waiting| under_way.len() < limit(w);
                    let next = next.filter(may);
                    let taken = line.try_take();
                    assert_eq!(taken.as_ref().map(named), next.map(|w| (w.1, w.2)));
                    waiting.retain(|w| Some(*w) != next);
                    under_way.extend(taken);
                }
                Act::Rest => {
                    if let Some(op) = under_way.pop_front() {
                        line.rest(op);
                    }
                }
                Act::Depth(new) => {
                    line.set_depth(new);
                    depth = new.max(1);
                }
                Act::Promote(_) | Act::Withdraw(_) => {}
            }
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_sorted_list(depth in 0usize..9, acts in prop::collection::vec(act(), 0..120)) {
            check(depth, &acts);
        }
    }

    #[test]
    fn a_stopped_line_gives_nothing_and_blocks_nobody() {
        let line = Line::new(4);
        let (flight, cut) = flight(0, 2);
        line.join(&flight, cut, Priority::Demand);
        line.stop();
        assert!(line.is_stopping() && line.take().is_none() && line.try_take().is_none());
        assert_eq!(Arc::strong_count(&flight), 1);
    }
}
