//! Policies that listen to guesses, or learn what follows what, against the plain definition of what they do: one layer,
//! whose whole history is looked at anew for every victim.

use calypte_residency::policy::{Elb, Forecast, LeastStale, S3Fifo, Spac, Successor};
use calypte_residency::predict::Guess;
use calypte_residency::{Evict, Key, LayerSize};
use proptest::prelude::*;

const EXPERTS: u32 = 9;
const TOP_K: usize = 3;
/// Values that are closer than this may be ordered either way: the policies count in integers or in f32.
const TOLERANCE: f64 = 0.01;

/// Experts used, and experts guessed for tokens ahead before it.
type Step = (Vec<u32>, Vec<(u32, u32)>);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Of one token, or now and then of a prompt.
    let size = prop_oneof![8 => 2..=TOP_K, 1 => 2 * TOP_K + 1..=EXPERTS as usize - 1];
    let union = size.prop_flat_map(|size| prop::collection::btree_set(0..EXPERTS, size));
    let union = union.prop_map(|set| set.into_iter().collect());
    let guesses = prop::collection::vec((0..EXPERTS, 1u32..5), 0..6);
    prop::collection::vec((union, guesses), 1..80)
}

/// Feeds the policy with everything resident, and compares its victim after every step with the lowest by `value(history,
/// expert)`.
fn check(mut policy: impl Evict, steps: &[Step], value: impl Fn(&[Step], u32) -> f64) {
    let key = |expert| Key { layer: 0, expert };
    policy.prepare(&[LayerSize { experts: EXPERTS as usize, top_k: TOP_K, slot_bytes: 1 }]);
    for expert in 0..EXPERTS {
        policy.inserted(key(expert));
        policy.unpinned(key(expert));
    }
    // Some learn only where somebody has to go.
    policy.victim(&[0]);
    for (index, (union, guesses)) in steps.iter().enumerate() {
        let guess = |&(expert, tokens_ahead)| Guess { expert, tokens_ahead, probability: 0.5 };
        let guesses: Vec<Guess> = guesses.iter().map(guess).collect();
        policy.expects(0, &guesses);
        for &expert in union {
            policy.pinned(key(expert));
            policy.touched(key(expert), index as u64 + 1);
        }
        policy.step_touched(0, index as u64 + 1, union);
        let others = (0..EXPERTS).filter(|expert| !union.contains(expert));
        let values: Vec<(u32, f64)> =
            others.map(|expert| (expert, value(&steps[..=index], expert))).collect();
        let victim = policy.victim(&[0]).expect("someone").expert;
        let of_victim = values.iter().find(|(expert, _)| *expert == victim).expect("a candidate").1;
        let lowest = values.iter().map(|(_, value)| *value).fold(f64::INFINITY, f64::min);
        assert!(of_victim <= lowest + TOLERANCE, "{victim} of {values:?} after {index}");
        union.iter().for_each(|&expert| policy.unpinned(key(expert)));
    }
}

/// Steps since the last use.
fn age(history: &[Step], expert: u32) -> Option<usize> {
    history.iter().rev().position(|(union, _)| union.contains(&expert))
}

/// Less recent is lower; below 1.
fn recency(history: &[Step], expert: u32) -> f64 {
    age(history, expert).map_or(0.0, |age| 0.9 - age as f64 / 100.0)
}

fn decayed(history: &[Step], expert: u32, half_life: f64) -> f64 {
    let ages = history.iter().rev().enumerate().filter(|(_, (union, _))| union.contains(&expert));
    ages.map(|(age, _)| 2f64.powf(-(age as f64) / half_life)).sum()
}

fn nearest(history: &[Step], expert: u32) -> Option<u32> {
    let (_, guesses) = history.last()?;
    guesses.iter().filter(|(guessed, _)| *guessed == expert).map(|(_, ahead)| *ahead).min()
}

/// The state of `spac:1:1`, from the start.
fn state(history: &[Step], expert: u32) -> i32 {
    history.iter().fold(0, |state, (union, guesses)| {
        let demand = i32::from(union.contains(&expert))
            + guesses.iter().filter(|(guessed, _)| *guessed == expert).count() as i32;
        (state + (demand - state).signum()).min(5)
    })
}

fn is_prompt((union, _): &Step) -> bool {
    union.len() > 2 * TOP_K
}

/// How often `expert` followed those of the last step, as `Successor` weighs it. Prompts are gaps: nothing follows over them.
fn succession(history: &[Step], expert: u32) -> f64 {
    let last @ (union, _) = history.last().expect("a step");
    if is_prompt(last) {
        return 0.0;
    }
    let keep: f64 = 1.0 - 21.0 / 1024.0;
    let of = |before: u32| {
        let (mut row, mut uses) = (0.0, 0.0);
        for (now, step @ (union, _)) in history.iter().enumerate() {
            if is_prompt(step) {
                continue;
            }
            for (distance, weight) in [467.0, 327.0, 229.0].into_iter().enumerate() {
                let Some(then) = now.checked_sub(distance + 1) else { continue };
                let gap = history[then..now].iter().any(is_prompt);
                if !gap && union.contains(&expert) && history[then].0.contains(&before) {
                    row += weight / 1024.0;
                }
            }
            if union.contains(&before) {
                row *= keep;
                uses = (uses + 1.0) * keep;
            }
        }
        row / (uses + 1.0)
    };
    union.iter().map(|&before| of(before)).sum::<f64>() / union.len() as f64
}

fn logistic(odds_log: f64) -> f64 {
    1.0 / (1.0 + (-odds_log).exp())
}

/// The step or the one before, the expert used in it, and how much of it counts.
type Input = (usize, u32, f64);

/// What `Forecast` predicts of every expert and expects, by its definition in a layer that is alone: rows of weights `[step or the one
/// before, expert used, expert]`.
fn forecast(history: &[Step]) -> Vec<f64> {
    let experts = EXPERTS as usize;
    let mean = TOP_K as f64 / experts as f64;
    let decay = 2f64.powf(-1.0 / 24.0);
    let mut weights = vec![vec![vec![0.0f64; experts]; experts]; 2];
    let mut learned = vec![vec![0.0f64; experts]; 2];
    let (mut frequency, mut age) = (vec![0.0f64; experts], vec![0.0f64; experts]);
    let mut prior = vec![0.0f64; experts];
    // Since the last prompt: unions, the inputs they made, and what was predicted.
    let mut run: Vec<(Vec<u32>, Vec<Input>, Vec<f64>)> = Vec::new();
    let inputs = |step: usize, union: &[u32], out: &mut Vec<Input>, scale: f64| {
        let share = (TOP_K as f64 / union.len() as f64).min(1.0);
        out.extend(union.iter().map(|&expert| (step, expert, scale * share)));
    };
    let sum = |weights: &[Vec<Vec<f64>>], prior: &[f64], inputs: &[Input], expert: usize| {
        let of = |&(step, before, share): &Input| share * weights[step][before as usize][expert];
        logistic(prior[expert] + inputs.iter().map(of).sum::<f64>())
    };
    for step @ (union, _) in history {
        for expert in 0..experts {
            let used = union.contains(&(expert as u32));
            frequency[expert] = frequency[expert] * decay + if used { 1.0 - decay } else { 0.0 };
            age[expert] = if used { 0.0 } else { age[expert] + 1.0 };
            prior[expert] = (mean / (1.0 - mean)).ln() + 0.2 * (frequency[expert] / mean + 0.04f64).ln()
                - 0.1 * (1.0 + age[expert]).ln();
        }
        if is_prompt(step) {
            run.clear();
            continue;
        }
        if let Some(old) = run.len().checked_sub(6) {
            let came = run[old + 1..].iter().map(|(union, _, _)| union).chain([union]);
            let mut error: Vec<f64> = run[old].2.iter().map(|predicted| -predicted).collect();
            for (distance, union) in came.enumerate() {
                let counts = 0.8f64.powi(distance as i32) * 0.2 / (1.0 - 0.8f64.powi(6));
                union.iter().for_each(|&expert| error[expert as usize] += counts);
            }
            for &(step, before, share) in &run[old].1 {
                let learned = &mut learned[step][before as usize];
                *learned += 1.0;
                let rate = 0.22 / (4.0 * TOP_K as f64 * (mean * (1.0 - mean)).sqrt());
                let rate = rate * share * (100.0 / (100.0 + *learned)).sqrt();
                let row = weights[step][before as usize].iter_mut();
                row.zip(&error).for_each(|(weight, error)| *weight += rate * error);
            }
        }
        let mut now = Vec::new();
        inputs(0, union, &mut now, 1.0);
        if let Some((before, _, _)) = run.last() {
            inputs(1, before, &mut now, 1.0);
        }
        let predicted = (0..experts).map(|expert| sum(&weights, &prior, &now, expert)).collect();
        run.push((union.clone(), now, predicted));
    }
    let guesses = &history.last().expect("a step").1;
    let of_token = |ahead: u32| guesses.iter().filter(move |guess| guess.1 == ahead);
    let mut right = vec![1.0f64];
    right.extend((1..=5).map(|ahead| of_token(ahead).count() as f64 * 0.5 / TOP_K as f64));
    (1..=5).for_each(|ahead| right[ahead] = right[ahead].min(right[ahead - 1]));
    let last = |ahead: usize| right[ahead] - right.get(ahead + 1).unwrap_or(&0.0);
    let mut ahead_of = Vec::new();
    if let Some((union, now, _)) = run.last() {
        ahead_of.extend(now.iter().map(|&(step, expert, share)| (step, expert, share * last(0))));
        inputs(1, union, &mut ahead_of, last(1));
    }
    for &(expert, ahead) in guesses {
        let share = TOP_K as f64 / of_token(ahead).count() as f64;
        ahead_of.push((0, expert, share * last(ahead as usize)));
        ahead_of.push((1, expert, share * last(ahead as usize + 1)));
    }
    let expected = |expert: usize| {
        let of_expert = guesses.iter().filter(|guess| guess.0 as usize == expert);
        of_expert.map(|guess| 0.7 * 0.5 * 0.8f64.powi(guess.1 as i32 - 1)).sum::<f64>()
    };
    (0..experts).map(|expert| sum(&weights, &prior, &ahead_of, expert) + expected(expert)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn least_stale_keeps_what_is_expected(steps in steps()) {
        let expected = |history: &[Step], expert| f64::from(nearest(history, expert).is_some());
        check(LeastStale::default(), &steps, |h, e| 10.0 * expected(h, e) + 2.0 * recency(h, e));
    }

    #[test]
    fn elb_evicts_what_the_buffer_needs_last(steps in steps()) {
        let near = |history: &[Step], expert| nearest(history, expert).map_or(0.0, |ahead| 100.0 - f64::from(ahead));
        check(Elb::new(16), &steps, |h, e| 1000.0 * near(h, e) + decayed(h, e, 16.0));
    }

    #[test]
    fn spac_evicts_the_lowest_state(steps in steps()) {
        check(Spac::new(1, 1), &steps, |h, e| 10.0 * f64::from(state(h, e)) + 2.0 * recency(h, e));
    }

    #[test]
    fn successor_weighs_frequency_and_succession(steps in steps()) {
        let expected = |h: &[Step], e| nearest(h, e).map_or(0.0, |ahead| 0.5 * 0.85f64.powi(ahead as i32 - 1));
        check(Successor::new(8), &steps, |h, e| {
            (decayed(h, e, 8.0) + 0.02).sqrt() * (succession(h, e) + 0.003) + 2.0 * expected(h, e)
        });
    }

    #[test]
    fn forecast_predicts_by_regression(steps in steps()) {
        check(Forecast::default(), &steps, |h, e| forecast(h)[e as usize]);
    }
}

/// What a layer will use may only show in the layer below, or in who was there a step before: the regression learns it from whatever tells.
#[test]
fn forecast_learns_from_layers_below() {
    let mut policy = Forecast::default();
    let key = |layer, expert| Key { layer, expert };
    let size = LayerSize { experts: 8, top_k: 1, slot_bytes: 1 };
    policy.prepare(&[size; 2]);
    (0..8).for_each(|expert| policy.unpinned(key(1, expert)));
    policy.unpinned(key(0, 0));
    policy.victim(&[0, 1]);
    let step = |policy: &mut Forecast, layer, step, expert| {
        policy.pinned(key(layer, expert));
        policy.touched(key(layer, expert), step);
        policy.step_touched(layer, step, &[expert]);
        policy.unpinned(key(layer, expert));
    };
    // Layer 0 says which of 2 and 3 layer 1 uses after the next 1; nothing in layer 1 does.
    let mut kept = 0;
    for round in 0..400u64 {
        let choice = (round * round / 3 % 2) as u32;
        step(&mut policy, 0, 2 * round + 1, choice);
        step(&mut policy, 1, 2 * round + 1, 1);
        policy.pinned(key(1, 1));
        (4..8).chain([0]).for_each(|expert| policy.pinned(key(1, expert)));
        let victim = policy.victim(&[1]).expect("2 or 3");
        (4..8).chain([0, 1]).for_each(|expert| policy.unpinned(key(1, expert)));
        kept += u32::from(round >= 300 && victim != key(1, 2 + choice));
        step(&mut policy, 0, 2 * round + 2, 7);
        step(&mut policy, 1, 2 * round + 2, 2 + choice);
    }
    assert!(kept >= 95, "{kept} of 100");
}

/// Another conversation is not predicted from the one before, and nothing is learned across.
#[test]
fn forecast_forgets_the_last_step_of_another_conversation() {
    let victims = |begins: bool| {
        let mut policy = Forecast::default();
        let key = |expert| Key { layer: 0, expert };
        policy.prepare(&[LayerSize { experts: 6, top_k: 1, slot_bytes: 1 }]);
        (0..6).for_each(|expert| policy.unpinned(key(expert)));
        policy.victim(&[0]);
        for step in 1..=300u64 {
            // 0, 1, 2, 0, 1, 2, ...
            let expert = ((step - 1) % 3) as u32;
            policy.pinned(key(expert));
            policy.touched(key(expert), step);
            policy.step_touched(0, step, &[expert]);
            policy.unpinned(key(expert));
        }
        if begins {
            policy.sequence_begins();
        }
        let mut victims = Vec::new();
        while let Some(victim) = policy.victim(&[0]) {
            policy.evicted(victim);
            victims.push(victim.expert);
        }
        victims
    };
    assert_eq!(victims(false), [3, 4, 5, 2, 1, 0], "after 2 comes 0, then 1");
    assert_eq!(victims(true), [3, 4, 5, 0, 1, 2], "by frequency and recency");
}

/// What the present pass touched outlasts what it did not, in whatever layer; a new pass makes all of it stale.
#[test]
fn least_stale_spares_the_present_pass() {
    let mut policy = LeastStale::default();
    let key = |layer, expert| Key { layer, expert };
    for (layer, expert) in (0..2).flat_map(|layer| (0..4).map(move |expert| (layer, expert))) {
        policy.unpinned(key(layer, expert));
    }
    let use_ = |policy: &mut LeastStale, layer, step, union: &[u32]| {
        union.iter().for_each(|&expert| policy.pinned(key(layer, expert)));
        union.iter().for_each(|&expert| policy.touched(key(layer, expert), step));
        union.iter().for_each(|&expert| policy.unpinned(key(layer, expert)));
    };
    use_(&mut policy, 0, 1, &[0, 1, 2, 3]);
    use_(&mut policy, 1, 1, &[0]);
    assert_eq!(policy.victim(&[0, 1]), Some(key(1, 1)), "all of layer 0 was touched");
    assert_eq!(policy.victim(&[0]), Some(key(0, 0)), "if there is nothing else");
    use_(&mut policy, 0, 2, &[0]);
    assert_eq!(policy.victim(&[0, 1]), Some(key(0, 1)), "the pass before is over");
    assert_eq!(policy.victim(&[1, 0]), Some(key(1, 1)), "the farthest layer first");
}

/// What passes once leaves the small queue; what comes back stays, and gets another round when it was used meanwhile.
#[test]
fn s3fifo_lets_what_passes_once_pass() {
    let mut policy = S3Fifo::default();
    let key = |expert| Key { layer: 0, expert };
    let mut step = 0;
    let mut use_ = |policy: &mut S3Fifo, expert, new: bool| {
        step += 1;
        if !new {
            policy.pinned(key(expert));
        }
        policy.touched(key(expert), step);
        if new {
            policy.inserted(key(expert));
        }
        policy.unpinned(key(expert));
    };
    // 0 is used often, the others once.
    use_(&mut policy, 0, true);
    (0..3).for_each(|_| use_(&mut policy, 0, false));
    (1..4).for_each(|expert| use_(&mut policy, expert, true));
    for passing in 1..4 {
        assert_eq!(policy.victim(&[0]), Some(key(passing)));
        policy.evicted(key(passing));
    }
    // 3 is remembered: it comes back to the main queue, behind 0, and 4 passes before both.
    use_(&mut policy, 3, true);
    use_(&mut policy, 4, true);
    assert_eq!(policy.victim(&[0]), Some(key(4)));
    policy.evicted(key(4));
    use_(&mut policy, 0, false);
    assert_eq!(policy.victim(&[0]), Some(key(3)), "0 was used meanwhile");
}

/// Whether a read lands before or after another expert of the step goes, the same experts are remembered.
#[test]
fn s3fifo_remembers_whatever_the_order_of_reads() {
    let victims = |lands_first: bool| {
        let mut policy = S3Fifo::default();
        let key = |expert| Key { layer: 0, expert };
        let enter = |policy: &mut S3Fifo, expert| {
            policy.inserted(key(expert));
            policy.unpinned(key(expert));
        };
        policy.touched(key(0), 1);
        enter(&mut policy, 0);
        policy.touched(key(1), 2);
        match lands_first {
            true => {
                enter(&mut policy, 1);
                policy.evicted(key(0));
            }
            false => {
                policy.evicted(key(0));
                enter(&mut policy, 1);
            }
        }
        for (expert, step) in [(0, 3), (2, 4)] {
            policy.touched(key(expert), step);
            enter(&mut policy, expert);
        }
        let mut victims = Vec::new();
        while let Some(victim) = policy.victim(&[0]) {
            policy.evicted(victim);
            victims.push(victim.expert);
        }
        victims
    };
    assert_eq!(victims(true), [1, 2, 0], "0 was remembered: it is in the main queue");
    assert_eq!(victims(false), victims(true));
}
