//! Random submissions, promotions and cancellations against a naive model, in every mode, on real files.

mod common;

use std::collections::BTreeMap;

use calypte_disk::{Buffer, Completion, Disk, Extent, Priority, ReadRequest, SEGMENT_BYTES_DEFAULT};
use common::{Fixture, SIZES, extent, fixture, modes, open};
use proptest::prelude::*;

/// What is done to a disk. Requests are meant by their ticket, modulo those there were.
#[derive(Clone, Debug)]
enum Act {
    Submit {
        priority: Priority,
        start: usize,
        segments: usize,
    },
    Promote(u64),
    Cancel(u64),
    Poll,
    Wait,
    /// In the middle of everything.
    Drop,
}

fn act() -> impl Strategy<Value = Act> {
    let submit = |priority| {
        (0..SIZES[1], 0usize..3).prop_map(move |(start, segments)| Act::Submit { priority, start, segments })
    };
    prop_oneof![
        20 => submit(Priority::Demand),
        40 => submit(Priority::Hint),
        20 => submit(Priority::Idle),
        20 => any::<u64>().prop_map(Act::Promote),
        40 => any::<u64>().prop_map(Act::Cancel),
        10 => Just(Act::Poll),
        10 => Just(Act::Wait),
        1 => Just(Act::Drop),
    ]
}

/// A request in flight.
#[derive(Debug)]
struct Expected {
    priority: Priority,
    extents: Vec<Extent>,
    capacity: usize,
    cancelled: bool,
}

#[derive(Default)]
struct Model {
    flying: BTreeMap<u64, Expected>,
    bytes_useful: u64,
    bytes_hinted: u64,
    cancelled: u64,
}

impl Model {
    /// It was in flight, is complete, and failed exactly if it was cancelled.
    fn complete(&mut self, fixture: &Fixture, completion: Completion) {
        let expected = self.flying.remove(&completion.ticket).expect("in flight, and not completed before");
        match completion.result {
            Ok(loaded) => {
                assert!(!expected.cancelled, "{expected:?}");
                for (i, e) in expected.extents.iter().enumerate() {
                    let bytes = &fixture.bytes[e.file.0 as usize][e.offset as usize..][..e.len as usize];
                    assert!(loaded.view(i) == bytes, "{e:?}");
                }
                self.bytes_useful += loaded.useful_bytes();
                if expected.priority != Priority::Demand {
                    self.bytes_hinted += loaded.useful_bytes();
                }
                assert_eq!(loaded.into_buffer().capacity(), expected.capacity);
            }
            Err(failed) => {
                assert!(expected.cancelled, "{}", failed.error);
                assert_eq!(failed.error.failure.code(), "cancelled");
                assert_eq!(failed.buffer.capacity(), expected.capacity);
                self.cancelled += 1;
            }
        }
    }

    fn compare(&self, disk: &Disk) {
        assert_eq!(disk.in_flight(), self.flying.len());
        let demand = self.flying.values().filter(|e| e.priority == Priority::Demand).count();
        assert_eq!(disk.demand_in_flight(), demand);
        let stats = disk.stats();
        assert_eq!((stats.bytes_useful, stats.bytes_hinted), (self.bytes_useful, self.bytes_hinted));
        assert_eq!((stats.requests_cancelled, stats.requests_failed), (self.cancelled, 0));
    }
}

fn check(fixture: &Fixture, mut disk: Disk, acts: &[Act]) {
    let mut model = Model::default();
    let mut tickets = 0;
    for act in acts {
        match *act {
            Act::Submit { priority, start, segments } => {
                let extents: Vec<Extent> = (0..=segments)
                    .map(|n| (start + n * SEGMENT_BYTES_DEFAULT) % SIZES[1])
                    .map(|start| extent(1, start, (SIZES[1] - start).min(SEGMENT_BYTES_DEFAULT)))
                    .collect();
                let buffer = Buffer::with_capacity(disk.buffer_bytes(&extents));
                let capacity = buffer.capacity();
                disk.submit(ReadRequest { ticket: tickets, priority, extents: extents.clone(), buffer });
                model.flying.insert(tickets, Expected { priority, extents, capacity, cancelled: false });
                tickets += 1;
            }
            Act::Promote(ticket) if tickets > 0 => {
                let ticket = ticket % tickets;
                disk.promote(ticket);
                if let Some(expected) = model.flying.get_mut(&ticket) {
                    expected.priority = Priority::Demand;
                }
            }
            Act::Cancel(ticket) if tickets > 0 => {
                let ticket = ticket % tickets;
                let cancelled = disk.cancel(ticket);
                match model.flying.get_mut(&ticket) {
                    Some(expected) if cancelled => {
                        assert!(!expected.cancelled, "only once");
                        assert_ne!(expected.priority, Priority::Demand, "no demand");
                        expected.cancelled = true;
                    }
                    _ => assert!(!cancelled),
                }
            }
            Act::Poll => {
                if let Some(completion) = disk.poll() {
                    model.complete(fixture, completion);
                }
            }
            Act::Wait => match disk.wait() {
                Some(completion) => model.complete(fixture, completion),
                None => assert!(model.flying.is_empty()),
            },
            Act::Drop => return,
            Act::Promote(_) | Act::Cancel(_) => {}
        }
        model.compare(&disk);
    }
    while let Some(completion) = disk.wait() {
        model.complete(fixture, completion);
    }
    assert!(model.flying.is_empty(), "{:?}", model.flying);
    model.compare(&disk);
}

#[test]
fn random_sequences_agree_with_a_naive_model() {
    let fixture = fixture();
    let config = ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() };
    for mode in modes() {
        let acts = prop::collection::vec(act(), 0..80);
        proptest!(config.clone(), |(acts in acts)| {
            check(&fixture, open(&fixture.files, mode).expect("opened"), &acts);
        });
    }
}
