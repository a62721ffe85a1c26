//! The scores of the DSA indexer (DeepSeek-V3.2-Exp), and the choice by them.

use calypte_quant::formats::LANES;

use super::cache::{BLOCK_POSITIONS as TILE, Cached};
use super::exact::factor;
use super::multiply::{Product, Strided, multiply};
use super::{Order, Visible};
use crate::Isa;
use crate::isa::for_each_isa;

/// Where scores are computed; it keeps its memory.
#[derive(Debug, Default)]
pub struct IndexScratch {
    queries: Vec<f32>,
    tile: Vec<f32>,
    of_heads: Vec<f32>,
}

for_each_isa! { fn add_heads_isa(of_heads: &[f32], weights: &[f32], scores: &mut [f32]) = add_heads_body }

/// `scores[i] = Σ_h weights[h] · relu(of_heads[h, i])`, head by head.
#[inline(always)]
fn add_heads_body(of_heads: &[f32], weights: &[f32], scores: &mut [f32]) {
    scores.fill(0.0);
    for (of_head, w) in of_heads.chunks_exact(TILE).zip(weights) {
        for (score, s) in scores.iter_mut().zip(of_head) {
            // Not `max(0)`: that would swallow a NaN.
            *score += w * if *s < 0.0 { 0.0 } else { *s };
        }
    }
}

/// The DSA indexer's score of positions `0..count` (DeepSeek-V3.2-Exp):
/// `score_t = Σ_h weights_h · relu(scale · q_h·k_t)`; `q` holds all heads, one key vector, kept in lanes, serves them all.
pub fn index_scores(
    q: &[f32],
    weights: &[f32],
    keys: Cached<'_>,
    count: usize,
    scale: f32,
    scratch: &mut IndexScratch,
    scores: &mut Vec<f32>,
) {
    index_scores_on(Isa::get(), q, weights, keys, count, scale, scratch, scores);
}

fn index_scores_on(
    isa: Isa,
    q: &[f32],
    weights: &[f32],
    keys: Cached<'_>,
    count: usize,
    scale: f32,
    scratch: &mut IndexScratch,
    scores: &mut Vec<f32>,
) {
    assert!(
        keys.order() == Order::Lanes && count <= keys.len(),
        "keys of an indexer lie in lanes, as many as are scored"
    );
    let (width, heads, exact) = (keys.width(), weights.len(), keys.exact());
    let IndexScratch { queries, tile, of_heads } = scratch;
    queries.clear();
    queries.extend(q.iter().map(|q| if exact { factor(q * scale) } else { q * scale }));
    tile.resize(TILE * width, 0.0);
    of_heads.resize(TILE * heads, 0.0);
    scores.resize(count, 0.0);
    let list = Visible::latest(count, None);
    for (first, scores) in (0..count).step_by(TILE).zip(scores.chunks_mut(TILE)) {
        keys.lanes(isa, list, first, scores.len(), tile);
        let (a, b) = (Strided { numbers: queries, stride: width }, Strided { numbers: tile, stride: TILE });
        let blocks = scores.len().div_ceil(LANES);
        let product = Product { a, b, rows: heads, depth: width, blocks, exact, onto: false };
        multiply(isa, product, of_heads, TILE, &mut keys.ahead(list, first + TILE));
        add_heads_isa(isa, of_heads, weights, scores);
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
    use super::super::testing::{bits, noise};
    use super::super::{KvCache, KvType};
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
        for kind in [KvType::F16, KvType::F32] {
            let mut keys = KvCache::new(kind, Order::Lanes, 1, 2, 0);
            keys.push(&[1.0, 0.0, 0.0, 1.0]);
            let mut scores = Vec::new();
            // Head 0 likes the first axis, head 1 dislikes it and has a negative weight: clipped, it does not count.
            let (q, weights) = ([1.0, 0.0, -1.0, 2.0], [0.5, -1.0]);
            index_scores(&q, &weights, keys.view(0, 2), 2, 1.0, &mut IndexScratch::default(), &mut scores);
            assert_eq!(scores, [0.5, -2.0]);
        }
    }

    #[test]
    fn tiers_agree_on_any_number_of_positions() {
        let (heads, width) = (5, 24);
        for kind in [KvType::F16, KvType::F32] {
            let mut keys = KvCache::new(kind, Order::Lanes, 1, width, 0);
            keys.push(&noise(150 * width, 1));
            let (q, weights) = (noise(heads * width, 2), noise(heads, 3));
            for count in [1, 16, 63, 64, 65, 150] {
                let run = |isa| {
                    let (mut scratch, mut scores) = (IndexScratch::default(), Vec::new());
                    index_scores_on(
                        isa,
                        &q,
                        &weights,
                        keys.view(0, width),
                        count,
                        0.3,
                        &mut scratch,
                        &mut scores,
                    );
                    bits(&scores)
                };
                let want = run(Isa::Scalar);
                assert_eq!(want.len(), count);
                for isa in Isa::available() {
                    assert_eq!(run(isa), want, "{count} {}", isa.name());
                }
            }
        }
    }
}
