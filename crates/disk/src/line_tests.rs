//! The line against a sorted list. Not inside `line.rs`, which `tests/handover.rs` compiles over loom.

use std::collections::VecDeque;
use std::sync::Arc;

use proptest::prelude::*;

use crate::flight::Flight;
use crate::layout::lay_out;
use crate::line::{Line, Op};
use crate::transfer::Segment;
use crate::{Buffer, Extent, FileId, HINT_DEPTH_MAX, Priority};

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
