//! Predictors against the plain definition of what they guess.

use calypte_residency::predict::{Guess, NAMES, Predict, Routed, Trajectory, by_name};
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
