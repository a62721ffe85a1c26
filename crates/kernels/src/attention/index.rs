//! The scores of the DSA indexer (DeepSeek-V3.2-Exp), and the choice by them.

use calypte_quant::reference::dot_f32;

use super::Cached;
use crate::Isa;
use crate::isa::for_each_isa;

for_each_isa! {
    fn index_scores_isa(q: &[f32], weights: &[f32], keys: Cached<'_>, count: usize, scale: f32,
        scores: &mut Vec<f32>) = index_scores_body
}

/// The DSA indexer's score of positions `0..count` (DeepSeek-V3.2-Exp):
/// `score_t = Σ_h weights_h · relu(scale · q_h·k_t)`; `q` holds all heads, one key vector serves them all.
pub fn index_scores(
    q: &[f32],
    weights: &[f32],
    keys: Cached<'_>,
    count: usize,
    scale: f32,
    scores: &mut Vec<f32>,
) {
    index_scores_isa(Isa::get(), q, weights, keys, count, scale, scores);
}

#[inline(always)]
fn index_scores_body(
    q: &[f32],
    weights: &[f32],
    keys: Cached<'_>,
    count: usize,
    scale: f32,
    scores: &mut Vec<f32>,
) {
    scores.clear();
    for t in 0..count {
        let key = keys.at(t);
        let mut score = 0f32;
        for (q, w) in q.chunks_exact(keys.width).zip(weights) {
            let s = dot_f32(q, key) * scale;
            // Not `max(0)`: that would swallow a NaN.
            score += w * if s < 0.0 { 0.0 } else { s };
        }
        scores.push(score);
    }
}

/// Writes the positions of the `k` best scores to `out`, ascending. Equal scores: the earlier position wins, so the
/// choice is the same however the scores were computed.
pub fn top_positions(scores: &[f32], k: usize, out: &mut Vec<u32>) {
    out.clear();
    out.extend(0..scores.len() as u32);
    if k < scores.len() {
        let better = |a: &u32, b: &u32| scores[*b as usize].total_cmp(&scores[*a as usize]).then(a.cmp(b));
        out.select_nth_unstable_by(k, better);
        out.truncate(k);
        out.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_positions_ascend_and_ties_go_to_the_earlier() {
        let cases: [(&[f32], usize, &[u32]); 4] = [
            (&[1.0, 5.0, 3.0, 5.0], 2, &[1, 3]),
            (&[2.0, 2.0, 2.0], 2, &[0, 1]),
            (&[1.0, 2.0], 5, &[0, 1]),
            (&[0.0, -1.0, 0.5], 1, &[2]),
        ];
        for (scores, k, want) in cases {
            let mut out = Vec::new();
            top_positions(scores, k, &mut out);
            assert_eq!(out, want);
        }
    }

    #[test]
    fn index_scores_clip_each_head_before_weighting() {
        let cache = [1.0, 0.0, 0.0, 1.0];
        let keys = Cached { data: &cache, stride: 2, offset: 0, width: 2 };
        let mut scores = Vec::new();
        // Head 0 likes the first axis, head 1 dislikes it and has a negative weight: clipped, it does not count.
        index_scores(&[1.0, 0.0, -1.0, 2.0], &[0.5, -1.0], keys, 2, 1.0, &mut scores);
        assert_eq!(scores, [0.5, -2.0]);
    }
}
