//! Replays of synthetic routing: against a naive cache, against the bounds, and what predictors are worth.

use std::collections::BTreeSet;
use std::sync::Arc;

use calypte_replay::{
    Memory, Outcome, Setting, Step, Timing, Trace, TraceLayer, Uses, What, replay, replay_watched,
};
use calypte_residency::policy::NAMES;
use calypte_testkit::routing::Routing;
use proptest::prelude::*;

fn trace_of(routing: Routing, rows: usize) -> Arc<Trace> {
    let Routing { layers, experts, top_k, .. } = routing;
    let layer = |number| TraceLayer { number, experts, top_k: top_k as u32, slot_bytes: 0 };
    let mut trace = Trace::new((0..layers as u32).map(layer).collect());
    for (index, tokens) in routing.generate().chunks(rows).enumerate() {
        let of = |layer: usize| tokens.iter().flat_map(|token| token[layer].clone()).collect();
        let step = Step { rows: tokens.len() as u32, begins_sequence: index % 64 == 0 };
        assert!(trace.push(step, &(0..layers).map(of).collect::<Vec<_>>()));
    }
    Arc::new(trace)
}

fn typical() -> Arc<Trace> {
    trace_of(Routing { layers: 4, experts: 32, top_k: 4, tokens: 1200, seed: 7 }, 1)
}

fn setting(policy: &str, predictor: &str, slots: usize) -> Setting {
    Setting {
        policy: policy.to_owned(),
        predictor: predictor.to_owned(),
        memory: Memory::SlotsPerLayer(slots),
        prefetch: false,
        layers_ahead: 1,
        timing: Timing::default(),
    }
}

fn run(trace: &Arc<Trace>, setting: &Setting) -> Outcome {
    replay(trace, &Arc::new(Uses::of(trace)), setting).unwrap_or_else(|e| panic!("{e}"))
}

/// A cache of one layer by the definition of its policy: `worst` names the victim among those not needed now.
fn naive_hits(
    steps: &[BTreeSet<u16>],
    slots: usize,
    mut worst: impl FnMut(usize, &BTreeSet<u16>) -> u16,
) -> u64 {
    let (mut resident, mut hits) = (BTreeSet::<u16>::new(), 0);
    for (now, union) in steps.iter().enumerate() {
        hits += union.intersection(&resident).count() as u64;
        while resident.union(union).count() > slots {
            let others: BTreeSet<u16> = resident.difference(union).copied().collect();
            resident.remove(&worst(now, &others));
        }
        resident.extend(union);
    }
    hits
}

fn single_layer(top_k: usize, tokens: usize, seed: u64) -> (Arc<Trace>, Vec<BTreeSet<u16>>) {
    let trace = trace_of(Routing { layers: 1, experts: 12, top_k, tokens, seed }, 1);
    let union = |step| trace.routed(step, 0).iter().copied().collect();
    let steps = (0..trace.steps().len()).map(union).collect();
    (trace, steps)
}

fn uses_before(steps: &[BTreeSet<u16>], now: usize, expert: u16) -> Vec<usize> {
    (0..=now).filter(|&step| steps[step].contains(&expert)).collect()
}

fn lowest<V: PartialOrd>(others: &BTreeSet<u16>, value: impl Fn(u16) -> V) -> u16 {
    let all = others.iter().map(|&expert| (value(expert), expert));
    all.reduce(|best, next| if next.0 < best.0 { next } else { best }).expect("someone to evict").1
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hits_are_those_of_a_naive_cache(top_k in 1usize..4, more in 0usize..5, tokens in 1usize..150, seed in any::<u64>()) {
        let (trace, steps) = single_layer(top_k, tokens, seed);
        let slots = top_k + more;
        let hits = |policy: &str| run(&trace, &setting(policy, "none", slots)).hits;
        let last = |now, e| uses_before(&steps, now, e).last().copied();
        let count = |now, e| uses_before(&steps, now, e).len();
        prop_assert_eq!(hits("lru"), naive_hits(&steps, slots, |now, others| lowest(others, |e| last(now, e))));
        prop_assert_eq!(
            hits("lfu"),
            naive_hits(&steps, slots, |now, others| lowest(others, |e| (count(now, e), last(now, e))))
        );
        let ratio = |now: usize, e| {
            let uses = uses_before(&steps, now, e);
            let age = uses.last().map_or(now + 1, |last| now - last) as u64;
            (((uses.len() as u64) << 32) / (1 + age), uses.last().copied())
        };
        prop_assert_eq!(hits("lfru"), naive_hits(&steps, slots, |now, others| lowest(others, |e| ratio(now, e))));
        let next = |now: usize, e| (now + 1..steps.len()).find(|&s| steps[s].contains(&e)).unwrap_or(usize::MAX);
        prop_assert_eq!(
            hits("belady"),
            naive_hits(&steps, slots, |now, others| lowest(others, |e| usize::MAX - next(now, e)))
        );
    }

    #[test]
    fn nobody_beats_the_bounds(top_k in 1usize..4, more in 0usize..5, tokens in 1usize..200, seed in any::<u64>()) {
        let (trace, _) = single_layer(top_k, tokens, seed);
        let hits = |policy: &str, predictor: &str| run(&trace, &setting(policy, predictor, top_k + more)).hits;
        let (forced, bypass) = (hits("belady", "none"), hits("belady_bypass", "none"));
        prop_assert!(forced <= bypass);
        for policy in NAMES {
            for predictor in ["none", "trajectory", "draft_tokens"] {
                prop_assert!(hits(policy, predictor) <= forced, "{} with {}", policy, predictor);
            }
        }
    }
}

/// Every use is counted once, and every miss is read once.
#[track_caller]
fn check_sums(trace: &Arc<Trace>, setting: &Setting) -> Outcome {
    let uses = Arc::new(Uses::of(trace));
    let (outcome, log) = replay_watched(trace, &uses, setting).unwrap_or_else(|e| panic!("{e}"));
    let count = |what| log.events().iter().filter(|event| event.what == what).count() as u64;
    assert_eq!((count(What::Hit), count(What::Miss)), (outcome.hits, outcome.misses));
    assert_eq!(count(What::Evicted), outcome.evictions);
    assert_eq!(outcome.demand_bytes, outcome.misses * setting.timing.expert_bytes);
    assert_eq!(outcome, run(trace, setting), "watching changes nothing");
    outcome
}

#[test]
fn sums_add_up() {
    let alone = typical();
    let chunks = trace_of(Routing { layers: 3, experts: 32, top_k: 4, tokens: 400, seed: 3 }, 16);
    for policy in NAMES {
        for trace in [&alone, &chunks] {
            for predictor in ["none", "prev_token", "trajectory", "draft_tokens"] {
                check_sums(trace, &setting(policy, predictor, 10));
            }
            check_sums(trace, &Setting { prefetch: true, ..setting(policy, "trajectory", 10) });
        }
    }
}

#[test]
fn better_policies_hit_more() {
    let trace = typical();
    let rate = |policy: &str, predictor: &str| run(&trace, &setting(policy, predictor, 10)).hit_rate();
    let (lru, dfreq, belady) = (rate("lru", "none"), rate("dfreq", "none"), rate("belady", "none"));
    assert!(lru < dfreq && dfreq < belady, "{lru} {dfreq} {belady}");
    assert!(rate("successor", "none") > lru && rate("forecast", "none") > lru);
    // Who listens to the future hits more; who sees all of it, as good as Belady within the window.
    for policy in ["least_stale", "spac", "elb", "successor", "forecast"] {
        let perfect = rate(policy, "draft_tokens:4:100:100");
        let (deaf, typical) = (rate(policy, "none"), rate(policy, "draft_tokens"));
        assert!(
            deaf < typical && typical < perfect && perfect <= belady,
            "{policy}: {deaf} {typical} {perfect}"
        );
    }
    assert_eq!(rate("dfreq", "draft_tokens"), dfreq, "does not listen");
}

/// A draft is asked as far as its window goes.
#[test]
fn longer_windows_hit_more() {
    let trace = typical();
    let rate = |predictor: &str| run(&trace, &setting("elb", predictor, 16)).hit_rate();
    let windows = ["draft_tokens:1:100:100", "draft_tokens:4:100:100", "draft_tokens:16:100:100"].map(rate);
    assert!(windows.is_sorted_by(|a, b| a < b), "{windows:?}");
}

#[test]
fn a_cyclic_scan_defeats_lru_and_not_belady() {
    let layer = TraceLayer { number: 0, experts: 6, top_k: 1, slot_bytes: 0 };
    let mut trace = Trace::new(vec![layer]);
    for token in 0..60u16 {
        trace.push(Step { rows: 1, begins_sequence: token == 0 }, &[vec![token % 6]]);
    }
    let trace = Arc::new(trace);
    let hits = |policy: &str| run(&trace, &setting(policy, "none", 4)).hits;
    assert_eq!(hits("lru"), 0);
    // Of a cycle of n, a cache of c keeps (c − 1) / (n − 1).
    assert!((30..=36).contains(&hits("belady")), "{}", hits("belady"));
}

#[test]
fn guesses_are_judged() {
    let trace = typical();
    let counts =
        |predictor: &str, slots| run(&trace, &setting("lru", predictor, slots)).guesses.expect("guesses");
    let perfect = counts("draft_tokens:4:100:100", 8);
    assert_eq!((perfect.right, perfect.guessed), (perfect.needed, perfect.needed), "knows everything");
    assert!(perfect.timely < perfect.right, "a guess alone reads nothing");
    let (draft, previous) = (counts("draft_tokens", 8), counts("prev_token", 8));
    let recall = draft.right as f64 / draft.needed as f64;
    // Some of the experts put in the place of others happen to be right, and some are named already.
    assert!((0.82..0.95).contains(&recall), "{recall}");
    // LRU has exactly what the token before used when there is no room for more.
    let tight = counts("prev_token", 4);
    assert_eq!(tight.timely, tight.right);
    assert!(previous.right < draft.right);
    assert!(run(&trace, &setting("lru", "none", 8)).guesses.is_none());
}

#[test]
fn prefetches_hide_reads_when_the_disk_has_time() {
    let trace = typical();
    let slow_compute = Timing { compute_s: 3e-3, ..Timing::default() };
    let with = |prefetch, timing, predictor: &str| {
        run(&trace, &Setting { prefetch, timing, ..setting("successor", predictor, 10) })
    };
    let perfect = "draft_tokens:4:100:100";
    let (off, on) = (with(false, slow_compute, perfect), with(true, slow_compute, perfect));
    assert!(on.hits > off.hits && on.stall_s < off.stall_s, "{off:?} {on:?}");
    assert!(on.useful_bytes > 0 && on.useful_bytes > on.wasted_bytes);
    assert_eq!((off.useful_bytes, off.wasted_bytes), (0, 0));
    // A disk that is busy with what is needed now has no time for guesses.
    let fast_compute = Timing { compute_s: 1e-9, ..Timing::default() };
    let busy = with(true, fast_compute, perfect);
    assert!(busy.useful_bytes + busy.wasted_bytes < on.useful_bytes / 10, "{busy:?}");
}

#[test]
fn refuses_what_it_does_not_know() {
    let trace = typical();
    let refused = |setting: Setting| {
        replay(&trace, &Arc::new(Uses::of(&trace)), &setting).expect_err("refused").to_string()
    };
    assert!(refused(setting("mru", "none", 8)).contains("there are lru, lfu"));
    assert!(refused(setting("dfreq:0", "none", 8)).contains("dfreq:0"));
    assert!(refused(setting("lru", "oracle", 8)).contains("there are none, draft_tokens, prev_token"));
    for draft in
        ["draft_tokensy", "draft_tokens:0", "draft_tokens:65", "draft_tokens:4:101", "draft_tokens:4:70:90:1"]
    {
        assert!(refused(setting("lru", draft, 8)).contains(draft));
        assert!(refused(setting("belady_bypass", draft, 8)).contains(draft));
    }
    let small = Setting { memory: Memory::Bytes(5), ..setting("belady_bypass", "none", 0) };
    assert!(refused(small).contains("below the floor"));
    assert!(refused(setting("lru", "none", 3)).contains("below the floor"));
}
