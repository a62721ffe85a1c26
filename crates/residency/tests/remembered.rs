//! Policies that compare the present with sequences or tokens of the past, against the plain definition of what they do.

use calypte_residency::policy::{Eam, ExpertMap};
use calypte_residency::predict::{Predict, Routed, Trajectory};
use calypte_residency::{Evict, Key, LayerSize};
use proptest::prelude::*;

const LAYERS: u32 = 2;
const EXPERTS: u32 = 8;
const TOP_K: usize = 2;

fn key(layer: u32, expert: u32) -> Key {
    Key { layer, expert }
}

/// The policy with every expert resident.
fn resident<P: Evict + Default>() -> P {
    let mut policy = P::default();
    policy.prepare(&[LayerSize { experts: EXPERTS as usize, top_k: TOP_K, slot_bytes: 1 }; LAYERS as usize]);
    for (layer, expert) in (0..LAYERS).flat_map(|layer| (0..EXPERTS).map(move |expert| (layer, expert))) {
        policy.inserted(key(layer, expert));
        policy.unpinned(key(layer, expert));
    }
    policy
}

/// A step of a layer; who would go among those that it does not need.
fn step(policy: &mut impl Evict, layer: u32, number: u64, union: &[u32]) -> u32 {
    for &expert in union {
        policy.pinned(key(layer, expert));
        policy.touched(key(layer, expert), number);
    }
    policy.step_touched(layer, number, union);
    let victim = policy.victim(&[layer]).expect("someone").expert;
    union.iter().for_each(|&expert| policy.unpinned(key(layer, expert)));
    victim
}

/// Two conversations, the one with the experts 0 to 3 in the second layer, the other with 4 to 7; then a third one that begins
/// like the first or like the second.
fn check_eam(begins_with: [u32; 2], protected: std::ops::Range<u32>) {
    let mut policy: Eam = resident();
    let mut number = 0;
    for (first, second) in [([0, 1], 0), ([2, 3], 4)] {
        policy.sequence_begins();
        for pass in 0..20 {
            number += 1;
            step(&mut policy, 0, number, &first);
            let of_pass = second + pass % 2 * 2;
            step(&mut policy, 1, number, &[of_pass, of_pass + 1]);
        }
    }
    policy.sequence_begins();
    step(&mut policy, 0, number + 1, &begins_with);
    for gone in 0..EXPERTS - protected.len() as u32 {
        let victim = policy.victim(&[1]).expect("someone");
        assert!(!protected.contains(&victim.expert), "{victim:?} after {gone}");
        policy.evicted(victim);
    }
    let last = policy.victim(&[1]).expect("someone");
    assert!(protected.contains(&last.expert), "what is protected goes in the end: {last:?}");
}

#[test]
fn eam_protects_what_the_most_similar_sequence_used() {
    check_eam([0, 1], 0..4);
    check_eam([2, 3], 4..8);
}

#[test]
fn eam_goes_by_visits_since_the_read() {
    let mut policy: Eam = resident();
    // 7 is never used, and 6 no more after it was evicted and read again.
    assert_eq!(step(&mut policy, 0, 1, &[0, 6]), 1);
    for expert in 2..6 {
        step(&mut policy, 0, u64::from(expert), &[1, expert]);
    }
    assert_eq!(step(&mut policy, 0, 6, &[0, 6]), 7);
    policy.evicted(key(0, 7));
    assert_eq!(step(&mut policy, 0, 7, &[0, 2]), 3, "one visit, the longest ago");
    policy.evicted(key(0, 6));
    policy.inserted(key(0, 6));
    policy.unpinned(key(0, 6));
    assert_eq!(step(&mut policy, 0, 8, &[0, 2]), 6, "none since it was read");
}

fn tokens() -> impl Strategy<Value = Vec<Vec<Vec<u32>>>> {
    // A token's experts, or now and then those of a prompt, which the search leaves out.
    let size = prop_oneof![8 => TOP_K..=TOP_K, 1 => 2 * TOP_K + 1..=2 * TOP_K + 2];
    let union = size.prop_flat_map(|size| prop::collection::btree_set(0..EXPERTS, size));
    let union = union.prop_map(|set| set.into_iter().collect());
    prop::collection::vec(prop::collection::vec(union, LAYERS as usize), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn expert_map_weighs_probability_and_visits(tokens in tokens()) {
        let mut policy: ExpertMap = resident();
        let mut search = Trajectory::default();
        let mut visits = [[0u32; EXPERTS as usize]; LAYERS as usize];
        let mut probabilities = [[0.0f32; EXPERTS as usize]; LAYERS as usize];
        for (number, token) in (1..).zip(&tokens) {
            for (layer, union) in (0..LAYERS).zip(token) {
                let (visits, likely) = (&mut visits[layer as usize], &mut probabilities[layer as usize]);
                union.iter().for_each(|&expert| visits[expert as usize] += 1);
                if union.len() == TOP_K {
                    search.observe(&Routed { layer, experts: union, inside: None });
                    let mut guesses = Vec::new();
                    search.predict(layer, 0, &mut (), &mut guesses);
                    likely.fill(0.0);
                    guesses.iter().for_each(|guess| likely[guess.expert as usize] = guess.probability);
                }
                let worth = |expert: u32| {
                    likely[expert as usize].max(1.0 / 1024.0) * visits[expert as usize] as f32
                };
                let victim = step(&mut policy, layer, number, union);
                let least = (0..EXPERTS).filter(|e| !union.contains(e)).map(worth).fold(f32::INFINITY, f32::min);
                prop_assert_eq!(worth(victim), least, "{} of {:?}", victim, visits);
                // It goes, and comes back on a guess.
                policy.evicted(key(layer, victim));
                policy.inserted(key(layer, victim));
                policy.unpinned(key(layer, victim));
                visits[victim as usize] = 0;
            }
        }
    }
}
