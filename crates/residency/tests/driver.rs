//! The cache over real reads: the right bytes, within the budget, whatever happens on the way.

mod common;

use std::sync::atomic::Ordering;

use calypte_disk::{Disk, DiskOptions, WeightPath};
use calypte_residency::policy::by_name;
use calypte_residency::{ExpertCache, Lease, ResidencyError};
use common::{Model, Script, check_lease, run_step, scripted};

/// A cache over a model in memory.
fn cache(model: &Model, budget_bytes: u64, policy: &str) -> ExpertCache {
    let policy = by_name(policy).unwrap();
    ExpertCache::new(model.layers.clone(), budget_bytes, policy, model.disk()).unwrap()
}

/// Runs `steps` of (layer, union), twice, and compares hits and misses of the two passes.
fn check(model: &Model, budget_bytes: u64, steps: &[(usize, &[u32])], expected: [(u64, u64); 2]) {
    for policy in calypte_residency::policy::NAMES {
        let mut cache = cache(model, budget_bytes, policy);
        for (pass, expected) in expected.into_iter().enumerate() {
            cache.reset_stats();
            for (layer, union) in steps {
                run_step(&mut cache, model, *layer, union);
            }
            let stats = cache.stats();
            assert_eq!((stats.hits, stats.misses), expected, "{policy}, pass {pass}");
            assert_eq!(stats.bytes_useful == 0, stats.misses == 0, "hits read nothing, misses do");
            assert!(stats.bytes_read >= stats.bytes_useful);
        }
    }
}

const PASS: [(usize, &[u32]); 3] = [(0, &[0, 3]), (1, &[5, 1]), (2, &[2, 7])];

#[test]
fn smallest_budget() {
    let model = Model::new(&[(8, 2, 60), (8, 2, 60), (8, 2, 60)]);
    let floor = ExpertCache::floor_bytes(&model.layers, &model.disk());
    check(&model, floor, &PASS, [(0, 6), (6, 0)]);
    // Two different pairs take turns in two slots.
    check(&model, floor, &[(0, &[0, 1]), (0, &[2, 3])], [(0, 4), (0, 4)]);
}

#[test]
fn whole_budget_reads_nothing_twice() {
    let model = Model::new(&[(8, 2, 60), (8, 2, 90), (8, 2, 33)]);
    let whole = ExpertCache::whole_bytes(&model.layers, &model.disk());
    let all: Vec<u32> = (0..8).collect();
    check(&model, whole, &[(0, &all), (1, &all), (2, &all)], [(0, 24), (24, 0)]);
    check(&model, u64::MAX, &PASS, [(0, 6), (6, 0)]);
}

#[test]
fn union_larger_than_the_slots() {
    let model = Model::new(&[(16, 2, 60), (16, 3, 20)]);
    let floor = ExpertCache::floor_bytes(&model.layers, &model.disk());
    let all: Vec<u32> = (0..16).rev().collect();
    // Two and three of the sixteen stay, and are hits the next time.
    check(&model, floor, &[(0, &all)], [(0, 16), (2, 14)]);
    check(&model, floor, &[(1, &all)], [(0, 16), (3, 13)]);
}

#[test]
fn below_the_floor_is_refused() {
    let model = Model::new(&[(8, 2, 60), (8, 2, 90)]);
    let floor = ExpertCache::floor_bytes(&model.layers, &model.disk());
    assert!(floor > 0);
    let policy = by_name("lru").unwrap();
    let refused = ExpertCache::new(model.layers.clone(), floor - 1, policy, model.disk());
    match refused.map(|_| ()) {
        Err(ResidencyError::BelowFloor { budget_bytes, floor_bytes }) => {
            assert_eq!((budget_bytes, floor_bytes), (floor - 1, floor));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn nothing_is_allocated_in_the_steady_state() {
    let model = Model::new(&[(8, 2, 60), (8, 2, 60)]);
    let floor = ExpertCache::floor_bytes(&model.layers, &model.disk());
    let mut cache = cache(&model, floor + 2 * 60 * 3, "dfreq");
    let steps: [(usize, &[u32]); 4] = [(0, &[0, 1, 2, 3]), (1, &[4, 5, 6]), (0, &[4, 5, 6, 7]), (1, &[0, 1])];
    for (layer, union) in steps {
        run_step(&mut cache, &model, layer, union);
    }
    cache.reset_stats();
    for (layer, union) in steps {
        run_step(&mut cache, &model, layer, union);
    }
    let stats = cache.stats();
    assert!(stats.misses > 0 && stats.evictions > 0, "{stats:?}");
    assert_eq!(stats.buffers_allocated, 0);
}

#[test]
fn two_leases_of_one_expert_and_leases_across_steps() {
    let model = Model::new(&[(8, 2, 60)]);
    let floor = ExpertCache::floor_bytes(&model.layers, &model.disk());
    let mut cache = cache(&model, floor, "lru");
    let mut kept = Vec::new();
    cache.begin(0, &[1]);
    while cache.ready(&mut kept).unwrap() {}
    cache.begin(0, &[1]);
    while cache.ready(&mut kept).unwrap() {}
    assert_eq!(kept.len(), 2);
    cache.release(kept.pop().unwrap());
    // One slot is leased; everything else goes through the other one.
    run_step(&mut cache, &model, 0, &[2, 3, 4, 5]);
    assert!(cache.resident(0, 1));
    check_lease(&model, &kept[0]);
    // The expert is asked for while it is leased from before, in a step that needs more slots than there are.
    run_step(&mut cache, &model, 0, &[1, 2, 3, 4, 5]);
    cache.release(kept.pop().unwrap());
    run_step(&mut cache, &model, 0, &[6, 7]);
    assert!(!cache.resident(0, 1));
}

#[test]
fn holding_every_lease_is_an_error_not_a_deadlock() {
    let model = Model::new(&[(8, 2, 60)]);
    let floor = ExpertCache::floor_bytes(&model.layers, &model.disk());
    let mut cache = cache(&model, floor, "lru");
    cache.begin(0, &[1, 2, 3]);
    let mut leases = Vec::new();
    let error = loop {
        match cache.ready(&mut leases) {
            Ok(more) => assert!(more, "finished with two slots and three leases"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ResidencyError::AllLeased { layer: 0, pending: 1 }), "{error}");
    // Releasing one lets it go on, as does aborting.
    cache.release(leases.pop().unwrap());
    assert!(cache.ready(&mut leases).unwrap());
    for lease in &leases {
        check_lease(&model, lease);
    }
    cache.abort();
    // Dropped, not released: the slots are usable all the same.
    drop(leases);
    run_step(&mut cache, &model, 0, &[4, 5, 6, 7]);
}

#[test]
fn unknown_experts_are_errors() {
    let model = Model::new(&[(8, 2, 60)]);
    let floor = ExpertCache::floor_bytes(&model.layers, &model.disk());
    let mut cache = cache(&model, floor, "lru");
    let mut out = Vec::new();
    for (layer, union) in [(0, &[1, 8][..]), (1, &[0]), (usize::MAX, &[])] {
        cache.begin(layer, union);
        let error = cache.ready(&mut out).map(|_| ()).unwrap_err();
        assert!(matches!(error, ResidencyError::UnknownExpert { .. }), "{error}");
    }
    assert!(out.is_empty());
    assert!(!cache.ready(&mut out).unwrap(), "no step is under way");
    run_step(&mut cache, &model, 0, &[1, 2]);
    run_step(&mut cache, &model, 0, &[]);
}

/// A failed read is reported by name; the same step begun again succeeds, with the right bytes and the same memory.
#[test]
fn failed_reads_name_the_expert_and_the_step_can_be_repeated() {
    let one = Model::new(&[(8, 2, 60)]);
    let two = Model::new(&[(8, 2, 60), (8, 3, 90)]);
    for (model, layer, expert) in [(&one, 0, 0), (&one, 0, 5), (&two, 1, 3), (&two, 1, 7)] {
        let floor = ExpertCache::floor_bytes(&model.layers, &model.disk());
        let script = Script::default();
        let disk = scripted(model, &script, 7);
        let policy = by_name("dfreq").unwrap();
        let mut cache = ExpertCache::new(model.layers.clone(), floor, policy, disk).unwrap();
        run_step(&mut cache, model, layer, &[1, 2]);
        script.fail.lock().unwrap().insert(model.offset(layer, expert));
        let all: Vec<u32> = (0..8).collect();
        cache.begin(layer, &all);
        let mut out = Vec::new();
        let error = loop {
            match cache.ready(&mut out) {
                Ok(more) => assert!(more, "the failure was not reported"),
                Err(error) => break error,
            }
            for lease in out.drain(..) {
                check_lease(model, &lease);
                assert_ne!(lease.expert, expert);
                cache.release(lease);
            }
        };
        match &error {
            ResidencyError::Read { layer: l, expert: e, .. } => assert_eq!((*l, *e), (layer, expert)),
            other => panic!("{other}"),
        }
        assert!(error.to_string().contains(&format!("expert {expert} of MoE layer {layer}")), "{error}");
        assert!(!cache.resident(layer, expert));
        // It stays unusable until the abort, and never pretends to be finished.
        let later = loop {
            match cache.ready(&mut out) {
                Ok(more) => assert!(more),
                Err(later) => break later,
            }
        };
        assert!(matches!(later, ResidencyError::StepFailed { .. }), "{later}");
        out.clear();
        cache.abort();
        assert_eq!(cache.stats().reads_failed, 1);
        assert_eq!(cache.disk().in_flight(), 0);
        script.fail.lock().unwrap().clear();
        run_step(&mut cache, model, layer, &all);
    }
}

#[test]
fn reads_are_submitted_in_the_order_of_file_offsets() {
    let model = Model::new(&[(8, 8, 60)]);
    let script = Script::default();
    let disk = scripted(&model, &script, 3);
    let whole = ExpertCache::whole_bytes(&model.layers, &disk);
    let mut cache = ExpertCache::new(model.layers.clone(), whole, by_name("lru").unwrap(), disk).unwrap();
    run_step(&mut cache, &model, 0, &[6, 0, 7, 3, 5]);
    let submitted = script.submitted.lock().unwrap().clone();
    let mut sorted = submitted.clone();
    sorted.sort_unstable();
    assert_eq!(submitted.len(), 5);
    assert_eq!(submitted, sorted);
}

/// The cache is moved to where the engine runs, and leases go to the compute threads.
#[test]
fn types_may_cross_threads() {
    fn send<T: Send>() {}
    fn sync<T: Sync>() {}
    send::<ExpertCache>();
    send::<Lease>();
    sync::<Lease>();
}

#[test]
fn from_files_with_whatever_mode_the_system_has() {
    let model = Model::new(&[(8, 2, 5000), (6, 2, 333)]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights");
    std::fs::write(&path, &*model.bytes).unwrap();
    let size_bytes = model.bytes.len() as u64;
    let disk = Disk::open(&[WeightPath { path, size_bytes }], &DiskOptions::default()).unwrap();
    let floor = ExpertCache::floor_bytes(&model.layers, &disk);
    let budget = floor + 20_000;
    let mut cache = ExpertCache::new(model.layers.clone(), budget, by_name("dfreq").unwrap(), disk).unwrap();
    let all: [Vec<u32>; 2] = [(0..8).collect(), (0..6).collect()];
    for _pass in 0..3 {
        for (layer, all) in all.iter().enumerate() {
            run_step(&mut cache, &model, layer, all);
            run_step(&mut cache, &model, layer, &all[..2]);
        }
    }
    let stats = cache.stats();
    assert_eq!(stats.hits + stats.misses, 3 * (8 + 2 + 6 + 2));
    assert!(stats.bytes_useful > 0 && stats.bytes_read >= stats.bytes_useful, "{stats:?}");
}

/// Random steps over a backend that completes in random order, fails at random and has nothing ready at random.
#[test]
fn right_bytes_under_random_events() {
    let model = Model::new(&[(12, 2, 60), (9, 4, 60), (7, 1, 200), (12, 3, 7)]);
    for seed in 1..40u64 {
        let script = Script::default();
        script.fail_one_in.store(if seed % 2 == 0 { 0 } else { 9 }, Ordering::Relaxed);
        let disk = scripted(&model, &script, seed);
        let floor = ExpertCache::floor_bytes(&model.layers, &disk);
        let policy = calypte_residency::policy::NAMES[seed as usize % 2];
        let policy = by_name(policy).unwrap();
        let budget = floor + 100 * (seed % 13);
        let mut cache = ExpertCache::new(model.layers.clone(), budget, policy, disk).unwrap();
        let mut choose = common::chooser(seed);
        for _step in 0..60 {
            let layer = choose(model.layers.len());
            let experts = model.layers[layer].extents.len();
            let union: Vec<u32> = (0..choose(experts + 1)).map(|_| choose(experts) as u32).collect();
            // A step over which the disk fails is repeated until it succeeds.
            let mut tries = 1;
            while !common::try_step(&mut cache, &model, layer, &union, &mut choose) {
                cache.abort();
                tries += 1;
                assert!(tries < 1000, "failures must not wear the cache out");
            }
        }
    }
}

/// Memory that is given back is given back to the system, also that of leases once they are released, and is not taken again.
#[test]
fn shrinks_for_good() {
    let model = Model::new(&[(8, 2, 60), (8, 2, 600)]);
    let whole = ExpertCache::whole_bytes(&model.layers, &model.disk());
    let floor = ExpertCache::floor_bytes(&model.layers, &model.disk());
    let mut shrunk = cache(&model, whole, "lru");
    let all: Vec<u32> = (0..8).collect();
    let steps = |cache: &mut ExpertCache| (0..2).for_each(|layer| run_step(cache, &model, layer, &all));
    steps(&mut shrunk);
    assert_eq!(shrunk.resident_bytes(), whole);
    for (asked, left) in [(whole, whole), (whole / 2, whole / 2), (whole, whole / 2), (0, floor)] {
        shrunk.shrink(asked);
        assert!(shrunk.resident_bytes() <= left, "{asked}");
        steps(&mut shrunk);
        assert!(shrunk.resident_bytes() <= left, "{asked}");
    }
    // A lease that is out keeps its bytes; what it holds is beyond the budget until it is given back and the cache is told again.
    let mut cache = cache(&model, whole, "lru");
    cache.begin(1, &all);
    let mut leases = Vec::new();
    while leases.len() < all.len() {
        assert!(cache.ready(&mut leases).unwrap());
    }
    cache.shrink(0);
    leases.iter().for_each(|lease| check_lease(&model, lease));
    assert!(cache.resident_bytes() > floor);
    leases.drain(..).for_each(|lease| cache.release(lease));
    cache.shrink(0);
    assert!(cache.resident_bytes() <= floor);
    steps(&mut cache);
}
