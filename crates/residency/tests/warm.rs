//! The warm start: what was used most is read first, into free slots only, and a step never waits for it.

mod common;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use calypte_disk::{
    Backend, Completion, DiskError, FailedRead, Failure, FileId, IoMode, Priority, ReadRequest,
};
use calypte_residency::policy::{NAMES, by_name};
use calypte_residency::{CacheStats, ExpertCache, Usage};
use common::{Model, chooser, run_step};
use proptest::prelude::*;

/// A disk that is never idle: it reads what is demanded, and anything else only for one who has nothing else to wait for.
struct Busy {
    inner: Box<dyn Backend>,
    /// So many idle reads are under way from the start: they cannot be called off, and land when somebody waits.
    begins: usize,
    under_way: VecDeque<ReadRequest>,
    waiting: VecDeque<ReadRequest>,
    ready: VecDeque<Completion>,
    /// Idle reads that somebody waited for.
    waited_for: Arc<AtomicUsize>,
    /// Idle reads submitted.
    submitted: Arc<AtomicUsize>,
}

impl Backend for Busy {
    fn submit(&mut self, request: ReadRequest) {
        match request.priority {
            Priority::Idle => {
                self.submitted.fetch_add(1, Ordering::Relaxed);
                match self.under_way.len() < self.begins {
                    true => self.under_way.push_back(request),
                    false => self.waiting.push_back(request),
                }
            }
            _ => self.inner.submit(request),
        }
    }

    fn cancel(&mut self, ticket: u64) -> bool {
        let Some(at) = self.waiting.iter().position(|request| request.ticket == ticket) else { return false };
        let Some(ReadRequest { extents, buffer, .. }) = self.waiting.remove(at) else { return false };
        let failure = Failure::Cancelled;
        let error =
            DiskError { path: "model".into(), offset: extents[0].offset, len: extents[0].len, failure };
        self.ready.push_back(Completion { ticket, result: Err(FailedRead { error, buffer }) });
        true
    }

    fn poll(&mut self) -> Option<Completion> {
        self.ready.pop_front().or_else(|| self.inner.poll())
    }

    fn wait(&mut self) -> Option<Completion> {
        if let Some(completion) = self.poll() {
            return Some(completion);
        }
        let begun = self.under_way.pop_front().inspect(|_| self.begins -= 1);
        let next = begun.or_else(|| {
            self.waiting.pop_front().inspect(|_| _ = self.waited_for.fetch_add(1, Ordering::Relaxed))
        });
        self.inner.submit(next?);
        self.inner.wait()
    }

    fn in_flight(&self) -> usize {
        self.under_way.len() + self.waiting.len() + self.ready.len() + self.inner.in_flight()
    }

    fn mode(&self) -> IoMode {
        self.inner.mode()
    }

    fn align_bytes(&self, file: FileId) -> usize {
        self.inner.align_bytes(file)
    }
}

/// Usage in which expert `e` of `layer` was used `uses(layer, e)` times.
fn usage(model: &Model, uses: impl Fn(usize, u32) -> usize) -> Usage {
    let mut usage = Usage::new(model.layers.iter().map(|layer| layer.extents.len()));
    for (layer, experts) in model.layers.iter().map(|layer| layer.extents.len()).enumerate() {
        for expert in 0..experts as u32 {
            (0..uses(layer, expert)).for_each(|_| usage.record(layer, &[expert]));
        }
    }
    usage
}

fn counts(stats: CacheStats) -> (u64, u64, u64) {
    (stats.hits, stats.misses, stats.evictions)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// On a disk that never comes to it, a warm start makes no step wait, except for what is under way. If nothing is, it
    /// changes nothing at all in a layer on its own; among several, a layer keeps to its share while others wait for their warm reads, instead of borrowing their slots.
    #[test]
    fn a_busy_disk_makes_no_step_wait(
        seed in any::<u64>(),
        layers in 1usize..3,
        begins in 0usize..4,
        extra in 0u64..20,
        lengths in prop::collection::vec(1usize..14, 1..12),
    ) {
        let model = Model::new(&[(12, 2, 40), (9, 3, 40)][..layers]);
        let budget_bytes = ExpertCache::floor_bytes(&model.layers, &model.disk()) + extra * 120;
        let mut choose = chooser(seed);
        let mut steps: Vec<(usize, Vec<u32>)> = Vec::new();
        for length in lengths {
            let layer = choose(layers);
            steps.push((layer, (0..length).map(|_| choose(model.layers[layer].extents.len()) as u32).collect()));
        }
        // Policies that do not listen to the past, so that victims are the same.
        for policy in ["lru", "s3fifo"] {
            let waited_for = Arc::new(AtomicUsize::new(0));
            let submitted = Arc::new(AtomicUsize::new(0));
            let busy = model.disk().map_backend(|inner| {
                let (waited_for, submitted) = (Arc::clone(&waited_for), Arc::clone(&submitted));
                let (under_way, waiting, ready) = Default::default();
                Box::new(Busy { inner, begins, under_way, waiting, ready, waited_for, submitted })
            });
            let cache = |disk| {
                ExpertCache::new(model.layers.clone(), budget_bytes, by_name(policy).unwrap(), disk).unwrap()
            };
            let (mut warm, mut cold) = (cache(busy), cache(model.disk()));
            warm.remember(&usage(&model, |layer, expert| layer + expert as usize + 1));
            prop_assert!(submitted.load(Ordering::Relaxed) > 0);
            for (layer, union) in &steps {
                step(&mut warm, &model, *layer, union);
                step(&mut cold, &model, *layer, union);
                if layers == 1 && begins == 0 {
                    prop_assert_eq!(counts(warm.stats()), counts(cold.stats()), "{} {:?}", policy, &steps);
                }
                prop_assert!(warm.resident_bytes() <= budget_bytes);
            }
            prop_assert_eq!(waited_for.load(Ordering::Relaxed), 0, "{}", policy);
        }
    }
}

/// As `run_step`, without asking that nothing is in flight afterwards.
fn step(cache: &mut ExpertCache, model: &Model, layer: usize, union: &[u32]) {
    cache.begin(layer, union);
    let (mut out, mut seen) = (Vec::new(), Vec::new());
    while cache.ready(&mut out).unwrap() {
        for lease in out.drain(..) {
            common::check_lease(model, &lease);
            seen.push(lease.expert);
            cache.release(lease);
        }
    }
    seen.sort_unstable();
    let mut expected = union.to_vec();
    expected.sort_unstable();
    expected.dedup();
    assert_eq!(seen, expected);
}

#[test]
fn the_likeliest_come_first_and_fill_what_is_free() {
    let model = Model::new(&[(8, 2, 60), (8, 2, 60)]);
    let floor = ExpertCache::floor_bytes(&model.layers, &model.disk());
    // One slot more for each layer.
    let budget_bytes = floor + floor / 2;
    for policy in NAMES {
        let mut cache =
            ExpertCache::new(model.layers.clone(), budget_bytes, by_name(policy).unwrap(), model.disk())
                .unwrap();
        // In layer 0 the first experts were used most, in layer 1 the last ones.
        let uses =
            |layer: usize, expert: u32| if layer == 0 { 8 - expert as usize } else { 1 + expert as usize };
        cache.remember(&usage(&model, uses));
        run_step(&mut cache, &model, 0, &[0, 1]);
        run_step(&mut cache, &model, 1, &[5, 7]);
        let stats = cache.stats();
        assert_eq!((stats.hits, stats.misses, stats.evictions), (4, 0, 0), "{policy}");
        assert_eq!((stats.prefetches, stats.prefetches_used), (6, 4), "{policy}");
        assert!(cache.resident(0, 2) && cache.resident(1, 6) && !cache.resident(0, 3), "{policy}");
        assert!(cache.resident_bytes() <= budget_bytes);
    }
}

#[test]
fn nothing_remembered_is_nothing_read() {
    let model = Model::new(&[(8, 2, 60)]);
    let policy = by_name("successor").unwrap();
    let mut cache = ExpertCache::new(model.layers.clone(), u64::MAX, policy, model.disk()).unwrap();
    cache.remember(&usage(&model, |_, _| 0));
    run_step(&mut cache, &model, 0, &[0, 1]);
    assert_eq!((cache.stats().misses, cache.stats().prefetches), (2, 0));
}

/// Both slots of a layer are taken by warm reads that have begun, and the step needs two more: it gives up what has landed instead of
/// waiting for the other layer's warm reads.
#[test]
fn a_step_helps_itself_before_it_waits() {
    let model = Model::new(&[(8, 2, 60), (8, 2, 60)]);
    let waited_for = Arc::new(AtomicUsize::new(0));
    let busy = model.disk().map_backend(|inner| {
        let (under_way, waiting, ready, submitted) = Default::default();
        let waited_for = Arc::clone(&waited_for);
        Box::new(Busy { inner, begins: 2, under_way, waiting, ready, waited_for, submitted })
    });
    let floor = ExpertCache::floor_bytes(&model.layers, &model.disk());
    let mut cache = ExpertCache::new(model.layers.clone(), floor, by_name("lru").unwrap(), busy).unwrap();
    // The other layer's favourites are more, so each is less likely.
    cache.remember(&usage(&model, |layer, expert| usize::from(expert < 2 + layer as u32)));
    assert_eq!(cache.disk().in_flight(), 4, "all slots");
    step(&mut cache, &model, 0, &[0, 1, 2, 3]);
    assert_eq!(waited_for.load(Ordering::Relaxed), 0);
    assert_eq!(cache.disk().in_flight(), 2, "the other layer's");
}
