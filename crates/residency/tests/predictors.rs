//! Predictors against the plain definition of what they guess.

use calypte_residency::predict::{
    Calibrated, Gates, Guess, Inside, NAMES, Predict, Routed, Trajectory, by_name,
};
use proptest::prelude::*;

const LAYERS: u32 = 3;
const TOP_K: usize = 2;
/// As the store keeps: the latest tokens.
const MAPS_MAX: usize = 1024;
const VOTERS: usize = 16;

/// Experts by layer.
type Token = Vec<Vec<u32>>;

fn tokens() -> impl Strategy<Value = Vec<Token>> {
    let row = prop::collection::btree_set(0u32..6, TOP_K).prop_map(|set| set.into_iter().collect());
    prop::collection::vec(prop::collection::vec(row, LAYERS as usize), 1..60)
}

/// Votes of the most similar tokens before `now`, which was observed up to `layer`.
fn naive(tokens: &[Token], now: usize, layer: u32, target: u32, ahead: usize) -> Vec<(u32, f32)> {
    let common = |a: &[u32], b: &[u32]| a.iter().filter(|expert| b.contains(expert)).count();
    let score = |past: usize| -> usize {
        (0..=layer as usize).map(|l| common(&tokens[now][l], &tokens[past][l])).sum()
    };
    let mut past: Vec<usize> = (now.saturating_sub(MAPS_MAX)..now).collect();
    past.sort_by_key(|&token| (std::cmp::Reverse(score(token)), std::cmp::Reverse(token)));
    past.truncate(VOTERS);
    past.retain(|token| token + ahead < now);
    let mut votes = [0u32; 6];
    for token in &past {
        tokens[token + ahead][target as usize].iter().for_each(|&expert| votes[expert as usize] += 1);
    }
    let mut all: Vec<(u32, u32)> = (0..6).map(|expert| (expert, votes[expert as usize])).collect();
    all.retain(|(_, count)| *count > 0);
    all.sort_by_key(|&(expert, count)| (std::cmp::Reverse(count), expert));
    all.truncate(2 * TOP_K);
    all.into_iter().map(|(expert, count)| (expert, count as f32 / past.len() as f32)).collect()
}

/// Compares all guesses from token `from` on.
fn check(tokens: &[Token], from: usize) {
    let mut search = Trajectory::default();
    for (now, token) in tokens.iter().enumerate() {
        for layer in 0..LAYERS {
            search.observe(&Routed { layer, experts: &token[layer as usize], inside: None });
            if now < from {
                continue;
            }
            for (target, ahead) in [((layer + 1) % LAYERS, 0), (layer, 1), (0, 2)] {
                let mut guesses: Vec<Guess> = Vec::new();
                search.predict(target, ahead, &mut (), &mut guesses);
                assert!(guesses.iter().all(|guess| guess.tokens_ahead == ahead));
                let got: Vec<(u32, f32)> = guesses.iter().map(|g| (g.expert, g.probability)).collect();
                let want = naive(tokens, now, layer, target, ahead as usize);
                assert_eq!(got, want, "token {now}, layer {layer}, for {target} in {ahead}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn trajectory_asks_the_most_similar_tokens(tokens in tokens()) {
        check(&tokens, 0);
    }
}

/// The store is a ring: what it forgot does not vote.
#[test]
fn trajectory_forgets_the_oldest() {
    let expert = |token: usize, layer: u32, rank: usize| {
        (token * 7 + layer as usize * 3 + rank * (1 + token % 4)) as u32 % 6
    };
    let row = |token, layer| (0..TOP_K).map(|rank| expert(token, layer, rank)).collect();
    let tokens: Vec<Token> =
        (0..MAPS_MAX + 40).map(|token| (0..LAYERS).map(|layer| row(token, layer)).collect()).collect();
    // Rows in which an expert comes twice are none that a router gives.
    let tokens: Vec<Token> =
        tokens.into_iter().filter(|token| token.iter().all(|row| row[0] != row[1])).collect();
    let tokens: Vec<Token> = tokens.iter().cycle().take(MAPS_MAX + 40).cloned().collect();
    check(&tokens, MAPS_MAX - 5);
}

/// What the previous token used, with a probability that follows what is measured.
#[test]
fn prev_token_guesses_what_was_used() {
    let mut predictor = by_name("prev_token").expect("a predictor");
    let mut guess = |experts: &[u32]| {
        predictor.observe(&Routed { layer: 0, experts, inside: None });
        let mut guesses = Vec::new();
        predictor.predict(0, 1, &mut (), &mut guesses);
        predictor.predict(0, 2, &mut (), &mut guesses);
        guesses
    };
    assert_eq!(guess(&[3, 1]).iter().map(|g| g.expert).collect::<Vec<_>>(), [3, 1]);
    let last = (0..400).map(|_| guess(&[3, 1])).last().expect("guesses");
    assert!((0.99..=1.0).contains(&last[0].probability), "{last:?}");
}

#[test]
fn every_name_is_known() {
    for name in NAMES {
        assert_eq!(by_name(name).map(|predictor| predictor.name()), Some(*name));
    }
    assert!(by_name("none").is_none());
}

const HIDDEN: usize = 24;
const EXPERTS: usize = 16;

/// Routers of two layers, and what the first layer's mixture really does to the stream, which no router knows.
struct Toy {
    router: Vec<[f32; HIDDEN]>,
    mixture: Vec<[f32; HIDDEN]>,
}

fn noise(seed: usize) -> impl FnMut() -> f32 {
    let mut state = seed as u64 * 2 + 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

impl Toy {
    fn new() -> Toy {
        let mut noise = noise(7);
        let mut rows = |n, size: f32| (0..n).map(|_| std::array::from_fn(|_| noise() * size)).collect();
        Toy { router: rows(EXPERTS, 1.0), mixture: rows(HIDDEN, 0.35) }
    }

    fn times(rows: &[[f32; HIDDEN]], x: &[f32]) -> Vec<f32> {
        rows.iter().map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
    }

    fn best(logits: &[f32]) -> Vec<u32> {
        let mut experts: Vec<u32> = (0..logits.len() as u32).collect();
        experts.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
        experts.truncate(4);
        experts
    }
}

impl Gates for Toy {
    fn logits(&mut self, _layer: u32, residual: &[f32], logits: &mut Vec<f32>) {
        *logits = Toy::times(&self.router, residual);
    }

    fn choose(&mut self, _layer: u32, logits: &[f32], experts: &mut Vec<u32>) {
        *experts = Toy::best(logits);
    }
}

/// Recall of a predictor over tokens `from ..` of a stream of noise.
fn recall(name: &str, tokens: usize, from: usize) -> f32 {
    let mut toy = Toy::new();
    let mut predictor = Calibrated::new(by_name(name).expect("a predictor"));
    let (mut noise, mut right, mut needed) = (noise(3), 0, 0);
    for token in 0..tokens {
        let residual: Vec<f32> = (0..HIDDEN).map(|_| noise()).collect();
        let inside = Some(Inside { residual: &residual, logits: &[0.0; EXPERTS] });
        predictor.observe(&Routed { layer: 0, experts: &[0, 1, 2, 3], inside });
        let mut guesses = Vec::new();
        predictor.predict(1, 0, &mut toy, &mut guesses);
        // What the layer adds bends the stream, in a way that can be learned.
        let after: Vec<f32> =
            residual.iter().zip(Toy::times(&toy.mixture, &residual)).map(|(r, m)| r + m).collect();
        let logits = Toy::times(&toy.router, &after);
        let experts = Toy::best(&logits);
        if token >= from {
            right += guesses.iter().filter(|guess| experts.contains(&guess.expert)).count();
            needed += experts.len();
            let told: f32 = guesses.iter().map(|guess| guess.probability).sum::<f32>() / 4.0;
            assert!((0.0..=1.0).contains(&told));
        }
        let inside = Some(Inside { residual: &after, logits: &logits });
        predictor.observe(&Routed { layer: 1, experts: &experts, inside });
    }
    right as f32 / needed as f32
}

#[test]
fn learned_begins_as_the_router_and_gets_better() {
    let (router, first, later) =
        (recall("gate_ahead", 3000, 0), recall("learned", 30, 0), recall("learned", 3000, 2000));
    assert!((first - recall("gate_ahead", 30, 0)).abs() < 0.1, "{first} at first");
    assert!(later > router + 0.5 * (1.0 - router), "{router} became {later}");
}

/// The next layer's attention adds much the same at neighbouring tokens: whoever remembers what the last token got knows more of it. Where
/// every token gets something new, nobody does.
#[test]
fn learned_knows_what_the_previous_token_got() {
    let recall = |name: &str, lasting: f32| {
        let toy = Toy::new();
        let mut gates = Toy::new();
        let mut predictor = by_name(name).expect("a predictor");
        let (mut noise, mut got) = (noise(9), [0.0f32; HIDDEN]);
        let fresh = (1.0 - lasting * lasting).sqrt();
        let (mut right, mut needed) = (0, 0);
        for token in 0..4000 {
            let residual: Vec<f32> = (0..HIDDEN).map(|_| noise()).collect();
            got.iter_mut().for_each(|got| *got = lasting * *got + fresh * noise());
            let inside = Some(Inside { residual: &residual, logits: &[0.0; EXPERTS] });
            predictor.observe(&Routed { layer: 0, experts: &[0, 1, 2, 3], inside });
            let mut guesses = Vec::new();
            predictor.predict(1, 0, &mut gates, &mut guesses);
            let after: Vec<f32> = residual.iter().zip(got).map(|(r, got)| r + got).collect();
            let logits = Toy::times(&toy.router, &after);
            let experts = Toy::best(&logits);
            if token >= 2000 {
                right += guesses.iter().filter(|guess| experts.contains(&guess.expert)).count();
                needed += experts.len();
            }
            let inside = Some(Inside { residual: &after, logits: &logits });
            predictor.observe(&Routed { layer: 1, experts: &experts, inside });
        }
        right as f32 / needed as f32
    };
    let gain = |lasting: f32| recall("learned", lasting) - recall("gate_ahead", lasting);
    let (lasting, fresh) = (gain(0.9), gain(0.0));
    assert!(lasting > 0.1, "lasting: {lasting} gained");
    assert!(fresh < 0.02, "fresh: {fresh} gained");
}

/// A predictor that is wrong is soon not believed, and believed again when it is right.
#[test]
fn calibration_follows_what_happens() {
    let mut predictor = Calibrated::new(by_name("prev_token").expect("a predictor"));
    let mut believed = |right: bool, tokens: u32| {
        let mut probability = f32::NAN;
        for token in 0..tokens {
            let mut guesses = Vec::new();
            predictor.predict(0, 0, &mut (), &mut guesses);
            if let Some(guess) = guesses.first() {
                probability = guess.probability;
            }
            let expert = if right { 1 } else { 2 + token % 2 };
            predictor.observe(&Routed { layer: 0, experts: &[expert], inside: None });
        }
        probability
    };
    assert!(believed(true, 300) > 0.95);
    assert!(believed(false, 300) < 0.05);
    assert!(believed(true, 300) > 0.95);
}

/// Says expert 1 from the layer before, which is right, and expert 2 from further away, which is not.
struct FarIsWrong {
    layer: u32,
}

impl Predict for FarIsWrong {
    fn name(&self) -> &'static str {
        "far is wrong"
    }

    fn observe(&mut self, routed: &Routed<'_>) {
        self.layer = routed.layer;
    }

    fn predict(&mut self, layer: u32, tokens_ahead: u32, _gates: &mut dyn Gates, out: &mut Vec<Guess>) {
        let expert = if layer - self.layer == 1 { 1 } else { 2 };
        out.push(Guess { expert, tokens_ahead, probability: f32::NAN });
    }
}

/// Guesses from one and from two layers before have accounts of their own.
#[test]
fn calibration_knows_distances() {
    let mut predictor = Calibrated::new(Box::new(FarIsWrong { layer: 0 }));
    let mut believed = [f32::NAN; 2];
    for _ in 0..300 {
        for layer in 0..3 {
            predictor.observe(&Routed { layer, experts: &[1], inside: None });
            if layer < 2 {
                let mut guesses = Vec::new();
                predictor.predict(2, 0, &mut (), &mut guesses);
                believed[1 - layer as usize] = guesses[0].probability;
            }
        }
    }
    assert!(believed[0] > 0.95 && believed[1] < 0.05, "{believed:?}");
}

/// From two layers before, with what the layer in between adds, it learns something else than from one.
#[test]
fn learned_learns_every_distance_by_itself() {
    let recall_from_two = |name: &str| {
        let mut toy = Toy::new();
        let mut predictor = by_name(name).expect("a predictor");
        let (mut noise, mut right, mut needed) = (noise(5), 0, 0);
        for token in 0..4000 {
            let mut residual: Vec<f32> = (0..HIDDEN).map(|_| noise()).collect();
            let (mut near, mut far) = (Vec::new(), Vec::new());
            for layer in 0..3 {
                let logits = Toy::times(&toy.router, &residual);
                let experts = Toy::best(&logits);
                if layer == 2 && token >= 3000 {
                    right += far.iter().filter(|guess: &&Guess| experts.contains(&guess.expert)).count();
                    needed += experts.len();
                }
                let inside = Some(Inside { residual: &residual, logits: &logits });
                predictor.observe(&Routed { layer, experts: &experts, inside });
                if layer == 0 {
                    predictor.predict(2, 0, &mut toy, &mut far);
                }
                if layer < 2 {
                    near.clear();
                    predictor.predict(layer + 1, 0, &mut toy, &mut near);
                }
                let added = Toy::times(&toy.mixture, &residual);
                residual.iter_mut().zip(added).for_each(|(r, a)| *r += a);
            }
        }
        right as f32 / needed as f32
    };
    let (router, learned) = (recall_from_two("gate_ahead"), recall_from_two("learned"));
    assert!(learned > router + 0.8 * (1.0 - router), "{router} became {learned}");
}

/// What ended a conversation says nothing of what begins the next.
#[test]
fn another_conversation_does_not_go_on_from_the_last() {
    let token = |predictor: &mut dyn Predict, expert: u32| {
        (0..LAYERS).for_each(|layer| predictor.observe(&Routed { layer, experts: &[expert], inside: None }));
    };
    let guessed = |predictor: &mut dyn Predict, ahead| {
        let mut guesses = Vec::new();
        predictor.predict(0, ahead, &mut (), &mut guesses);
        guesses.iter().map(|guess| guess.expert).collect::<Vec<_>>()
    };
    let two = |name: &str, between: bool| {
        let mut predictor = by_name(name).expect("a predictor");
        [1, 2].into_iter().for_each(|expert| token(&mut *predictor, expert));
        if between {
            predictor.sequence_begins();
        }
        predictor
    };
    assert_eq!(guessed(&mut *two("prev_token", false), 1), [2]);
    assert_eq!(guessed(&mut *two("prev_token", true), 1), []);
    // All that is stored votes, and two are named: 1 was followed by 2, 2 by 3 unless that was another conversation, 3 by 4.
    for (between, next, after_next) in [(false, [2, 3], &[3, 4][..]), (true, [2, 4], &[])] {
        let mut trajectory = two("trajectory", between);
        [3, 4, 2].into_iter().for_each(|expert| token(&mut *trajectory, expert));
        assert_eq!(guessed(&mut *trajectory, 1), next);
        assert_eq!(guessed(&mut *trajectory, 2), after_next);
    }
}
