//! Every policy against the plain definition of what it does.

use std::collections::{BTreeMap, BTreeSet};

use calypte_residency::policy::{Dfreq, Lru, NAMES, by_name};
use calypte_residency::{Evict, Key, LayerSize};
use proptest::prelude::*;

const LAYERS: u32 = 3;
const HALF_LIFE_STEPS: u32 = 16;
/// Two decayed counts of different layers that are closer than this may be ordered either way.
const TOLERANCE: f64 = 1e-5;
/// Two decayed counts that are closer than this are equal but for rounding.
const ROUNDING: f64 = 1e-12;

/// One step of one layer: which experts are used, and which expert (if resident) loses its slot afterwards.
type Step = (u32, Vec<u32>, u32);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((0..LAYERS, prop::collection::btree_set(0u32..9, 1..5), 0u32..9), 1..120)
        .prop_map(|steps| steps.into_iter().map(|(l, u, e)| (l, u.into_iter().collect(), e)).collect())
}

/// All uses of every expert, and who is a candidate.
#[derive(Default)]
struct Naive {
    uses: BTreeMap<Key, Vec<u64>>,
    clocks: BTreeMap<u32, u64>,
    candidates: BTreeSet<Key>,
}

impl Naive {
    /// How much each candidate of `layer` is worth, by `value(ages of its uses)`.
    fn values(&self, layers: &[u32], value: fn(&[u64]) -> f64) -> Vec<(Key, f64)> {
        let mut values = Vec::new();
        for &layer in layers {
            let clock = self.clocks.get(&layer).copied().unwrap_or(0);
            for key in self.candidates.iter().filter(|key| key.layer == layer) {
                let uses = self.uses.get(key).cloned().unwrap_or_default();
                let ages: Vec<u64> = uses.iter().map(|step| clock - step).collect();
                values.push((*key, value(&ages)));
            }
        }
        values
    }
}

/// Feeds both with the same steps and compares the victim of every prefix, in each layer and over all of them.
fn check(mut policy: impl Evict, steps: &[Step], value: fn(&[u64]) -> f64) {
    let mut naive = Naive::default();
    for (layer, union, evicted) in steps {
        let layer = *layer;
        let clock = naive.clocks.entry(layer).or_default();
        *clock += 1;
        for &expert in union {
            let key = Key { layer, expert };
            if naive.candidates.remove(&key) {
                policy.pinned(key);
            }
            policy.touched(key, *clock);
            naive.uses.entry(key).or_default().push(*clock);
        }
        for &expert in union {
            let key = Key { layer, expert };
            policy.inserted(key);
            policy.unpinned(key);
            naive.candidates.insert(key);
        }
        let gone = Key { layer, expert: *evicted };
        if naive.candidates.remove(&gone) {
            policy.evicted(gone);
        }
        for layers in [&[0][..], &[1], &[2], &[1, 0, 2], &[2, 1, 0], &[]] {
            check_victim(policy.victim(layers), &naive.values(layers, value));
        }
    }
}

/// The first of the lowest values, where `values` is in the order of preference.
fn check_victim(victim: Option<Key>, values: &[(Key, f64)]) {
    let lowest = values.iter().map(|(_, value)| *value).fold(f64::INFINITY, f64::min);
    let Some(victim) = victim else {
        return assert!(values.is_empty());
    };
    let chosen = values.iter().position(|(key, _)| *key == victim);
    let chosen = chosen.expect("a victim must be a candidate");
    let close = |a: f64, b: f64, tolerance: f64| (a - b).abs() <= tolerance * b.abs();
    let worth = values[chosen].1;
    assert!(close(worth, lowest, TOLERANCE), "{victim:?} in {values:?}");
    let first = values.iter().position(|(_, value)| close(*value, worth, ROUNDING));
    assert_eq!(first, Some(chosen), "ties go to the first: {victim:?} in {values:?}");
}

/// Higher is more recent.
fn recency(ages: &[u64]) -> f64 {
    ages.iter().min().map_or(f64::NEG_INFINITY, |age| -(*age as f64))
}

fn decayed_count(ages: &[u64]) -> f64 {
    let worth = |age: &u64| 2f64.powf(-(*age as f64) / f64::from(HALF_LIFE_STEPS));
    ages.iter().map(worth).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lru_evicts_the_least_recent(steps in steps()) {
        check(Lru::default(), &steps, recency);
    }

    #[test]
    fn dfreq_evicts_the_lowest_decayed_count(steps in steps()) {
        check(Dfreq::new(HALF_LIFE_STEPS), &steps, decayed_count);
    }
}

/// What earlier runs used orders those of whom nothing else is known, and two uses of one's own outweigh any past.
#[test]
fn a_seed_orders_and_fades() {
    for name in ["dfreq", "successor", "forecast", "elb", "lfru", "lfu"] {
        let key = |expert| Key { layer: 0, expert };
        let victims = |shares: &[f32], steps: u64| -> Vec<u32> {
            let mut policy = by_name(name).unwrap();
            policy.prepare(&[LayerSize { experts: 4, top_k: 1, slot_bytes: 1 }]);
            policy.seed(0, shares);
            (0..4).for_each(|expert| policy.unpinned(key(expert)));
            for step in 1..=steps {
                policy.pinned(key(3));
                policy.touched(key(3), step);
                policy.step_touched(0, step, &[3]);
                policy.unpinned(key(3));
            }
            let mut victims = Vec::new();
            while let Some(victim) = policy.victim(&[0]) {
                policy.evicted(victim);
                victims.push(victim.expert);
            }
            victims
        };
        assert_eq!(victims(&[0.3, 0.1, 0.5, 0.0], 0), [3, 1, 0, 2], "{name}");
        assert_eq!(victims(&[0.3, 0.1, 0.9, 0.0], 64).last(), Some(&3), "{name}: its own uses count more");
    }
}

#[test]
fn every_name_is_known() {
    for name in NAMES {
        assert_eq!(by_name(name).map(|policy| policy.name()), Some(*name));
    }
    assert!(by_name("mru").is_none());
}
