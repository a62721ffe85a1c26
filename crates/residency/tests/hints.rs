//! Reads on guesses over a disk: they come in time, go away when they were wrong, and never spoil a step.

mod common;

use std::sync::atomic::Ordering;

use calypte_residency::policy::by_name;
use calypte_residency::predict::Guess;
use calypte_residency::{CacheStats, ExpertCache};
use common::{Model, Script, chooser, run_step, scripted, try_step};
use proptest::prelude::*;

fn guesses(experts: &[u32], probability: f32) -> Vec<Guess> {
    experts.iter().map(|&expert| Guess { expert, tokens_ahead: 0, probability }).collect()
}

/// Two layers of 8 experts in 4 slots each; layer 1 is guessed while layer 0 is computed.
#[track_caller]
fn check(guessed: &[u32], probability: f32, read: bool, needed: &[u32], expected: &str) {
    let model = Model::new(&[(8, 2, 60), (8, 2, 60)]);
    let budget = ExpertCache::floor_bytes(&model.layers, &model.disk()) * 2;
    let mut cache =
        ExpertCache::new(model.layers.clone(), budget, by_name("lru").unwrap(), model.disk()).unwrap();
    cache.begin(0, &[1, 2]);
    cache.expect(1, &guesses(guessed, probability), read);
    let mut leases = Vec::new();
    while cache.ready(&mut leases).unwrap() {
        leases.drain(..).for_each(|lease| cache.release(lease));
    }
    run_step(&mut cache, &model, 1, needed);
    let CacheStats { hits, misses, guesses, guesses_right, prefetches, prefetches_used, .. } = cache.stats();
    let got = format!("{hits} {misses}, {guesses_right} of {guesses}, {prefetches_used} of {prefetches}");
    assert_eq!(got, expected, "hits misses, right of guesses, used of reads");
}

#[test]
fn guesses_are_read_judged_and_used() {
    check(&[3, 4], 0.9, true, &[3, 4], "2 2, 2 of 2, 2 of 2");
    check(&[3, 4], 0.9, true, &[3, 5], "1 3, 1 of 2, 1 of 2");
    check(&[3, 4], 0.9, true, &[6, 5], "0 4, 0 of 2, 0 of 2");
    // Not likely enough, or not to be read for.
    check(&[3, 4], 0.1, true, &[3, 4], "0 4, 2 of 2, 0 of 0");
    check(&[3, 4], 0.9, false, &[3, 4], "0 4, 2 of 2, 0 of 0");
    // More than there are slots (six are left of eight), and what does not exist.
    check(&[0, 1, 2, 3, 4, 5, 6, 7], 0.9, true, &[0, 1], "2 2, 2 of 8, 2 of 6");
    check(&[0, 9], 0.9, true, &[0, 1], "0 4, 0 of 0, 0 of 0");
}

#[test]
fn what_is_expected_keeps_its_slot_until_the_step_has_begun() {
    let model = Model::new(&[(8, 2, 60)]);
    let floor = ExpertCache::floor_bytes(&model.layers, &model.disk());
    let mut cache =
        ExpertCache::new(model.layers.clone(), floor * 3 / 2, by_name("successor").unwrap(), model.disk())
            .unwrap();
    run_step(&mut cache, &model, 0, &[1, 2]);
    run_step(&mut cache, &model, 0, &[3, 2]);
    run_step(&mut cache, &model, 0, &[3, 2]);
    cache.expect(0, &guesses(&[1], 0.9), false);
    run_step(&mut cache, &model, 0, &[4, 5]);
    assert!(!cache.resident(0, 1), "judged wrong, it is worth what it was worth before");
}

/// A read on a guess that fails is nobody's error, unless a step waits for it.
#[test]
fn a_failed_guess_fails_no_step() {
    let model = Model::new(&[(8, 2, 60), (8, 2, 60)]);
    let budget = ExpertCache::floor_bytes(&model.layers, &model.disk()) * 2;
    let script = Script::default();
    script.fail.lock().unwrap().insert(model.offset(1, 3));
    let policy = by_name("lru").unwrap();
    let mut cache =
        ExpertCache::new(model.layers.clone(), budget, policy, scripted(&model, &script, 1)).unwrap();
    for needed in [[4, 5], [3, 4]] {
        cache.expect(1, &guesses(&[3, 4], 0.9), true);
        run_step(&mut cache, &model, 0, &[1, 2]);
        let fine = try_step(&mut cache, &model, 1, &needed, &mut |_| 0);
        assert_eq!(fine, !needed.contains(&3), "{needed:?}");
        cache.abort();
    }
    script.fail.lock().unwrap().clear();
    run_step(&mut cache, &model, 1, &[3, 4]);
}

/// Layers of 8 experts in 4 slots each, and prompts that need all of them: what is read ahead arrives before it is asked for, and from
/// pass to pass as many experts stay as without.
#[test]
fn a_prompt_is_read_ahead() {
    let model = Model::new(&[(8, 2, 60); 4]);
    let budget = ExpertCache::floor_bytes(&model.layers, &model.disk()) * 2;
    let all: Vec<u32> = (0..8).collect();
    let run = |ahead: bool| {
        let mut cache =
            ExpertCache::new(model.layers.clone(), budget, by_name("successor").unwrap(), model.disk())
                .unwrap();
        let mut hits = Vec::new();
        for _ in 0..4 {
            let before = cache.stats().hits;
            for layer in 0..4 {
                cache.begin(layer, &all);
                if ahead && layer < 3 {
                    cache.expect_many(layer, layer + 1, &all);
                }
                let mut leases = Vec::new();
                while cache.ready(&mut leases).unwrap() {
                    leases.drain(..).for_each(|lease| cache.release(lease));
                }
            }
            hits.push(cache.stats().hits - before);
        }
        (hits, cache.stats())
    };
    let (without, plain) = run(false);
    assert_eq!(without, [0, 16, 16, 16]);
    let (with, ahead) = run(true);
    assert!(with.iter().all(|&hits| hits >= 20), "{with:?}");
    assert_eq!(ahead.prefetches_wasted, 0);
    let reads = |stats: CacheStats| stats.misses + stats.prefetches;
    assert!(reads(ahead) <= reads(plain) + 4, "{} and {}", reads(ahead), reads(plain));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any guesses, right or wrong, over a disk that completes in any order, obeys some cancellations and fails some reads: every
    /// step that no failure hits hands out the right bytes, once each.
    #[test]
    fn guesses_never_spoil_a_step(
        steps in prop::collection::vec(
            (0usize..3, prop::collection::vec(0u32..8, 1..5), prop::collection::vec((0usize..3, 0u32..8), 0..6)),
            1..40,
        ),
        seed in any::<u64>(),
        fail_one_in in prop::sample::select(vec![0usize, 7]),
        policy in prop::sample::select(calypte_residency::policy::NAMES),
    ) {
        let model = Model::new(&[(8, 2, 60), (8, 2, 33), (8, 2, 60)]);
        let budget = ExpertCache::floor_bytes(&model.layers, &model.disk()) * 3 / 2;
        let script = Script::default();
        script.fail_one_in.store(fail_one_in, Ordering::Relaxed);
        let disk = scripted(&model, &script, seed);
        let mut cache = ExpertCache::new(model.layers.clone(), budget, by_name(policy).unwrap(), disk).unwrap();
        let mut choose = chooser(seed ^ 1);
        for (layer, union, guessed) in &steps {
            for target in 0..3 {
                let of: Vec<u32> = guessed.iter().filter(|g| g.0 == target).map(|g| g.1).collect();
                let mut once = of.clone();
                once.sort_unstable();
                once.dedup();
                match once.len() {
                    0 => {}
                    1 | 2 => cache.expect(target, &guesses(&once, 0.9), true),
                    _ => cache.expect_many(*layer, target, &once),
                }
            }
            let fine = try_step(&mut cache, &model, *layer, union, &mut choose);
            prop_assert!(fine || fail_one_in > 0);
            prop_assert!(cache.resident_bytes() <= budget);
        }
        let stats = cache.stats();
        prop_assert!(stats.prefetches_used + stats.prefetches_wasted <= stats.prefetches);
        cache.abort();
        prop_assert_eq!(cache.disk().in_flight(), 0);
    }
}
