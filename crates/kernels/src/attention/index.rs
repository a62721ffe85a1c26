//! The scores of the DSA indexer (DeepSeek-V3.2-Exp), and the choice by them.

use std::cell::RefCell;

use calypte_quant::formats::LANES;

use super::cache::{BLOCK_POSITIONS as TILE, Cached};
use super::multiply::{Product, Strided, multiply};
use super::steps::scale_isa;
use super::{Order, Visible};
use crate::Isa;
use crate::isa::for_each_isa;
use crate::scratch::Lines;

/// Where scores are computed; it keeps its memory.
#[derive(Debug, Default)]
pub struct IndexScratch {
    queries: Vec<f32>,
    tile: Lines<f32>,
    of_heads: Lines<f32>,
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

/// The DSA indexer's scores of as many positions as `scores` has room for, from `start` on, which begins a block
/// (DeepSeek-V3.2-Exp): `score_t = Σ_h weights_h · relu(scale · q_h·k_t)`; `q` holds all heads, one key vector, kept in lanes,
/// serves them all.
pub fn index_scores(
    q: &[f32],
    weights: &[f32],
    keys: Cached<'_>,
    start: usize,
    scale: f32,
    scratch: &mut IndexScratch,
    scores: &mut [f32],
) {
    index_scores_on(Isa::get(), q, weights, keys, start, scale, scratch, scores);
}

fn index_scores_on(
    isa: Isa,
    q: &[f32],
    weights: &[f32],
    keys: Cached<'_>,
    start: usize,
    scale: f32,
    scratch: &mut IndexScratch,
    scores: &mut [f32],
) {
    let count = scores.len();
    assert!(
        keys.order() == Order::Lanes && start.is_multiple_of(TILE) && start + count <= keys.len(),
        "keys of an indexer lie in lanes, as many as are scored"
    );
    let (width, heads, exact) = (keys.width(), weights.len(), keys.exact());
    let IndexScratch { queries, tile, of_heads } = scratch;
    queries.resize(q.len(), 0.0);
    scale_isa(isa, q, scale, exact, queries);
    tile.grow(TILE * width);
    of_heads.grow(TILE * heads);
    let list = Visible::Range { start, end: start + count };
    for (first, scores) in (0..count).step_by(TILE).zip(scores.chunks_mut(TILE)) {
        keys.lanes(isa, list, first, scores.len(), 0..width, tile);
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
    if k >= scores.len() {
        return out.extend(0..scores.len() as u32);
    }
    let Some(last) = k.checked_sub(1) else { return };
    RANKS.with_borrow_mut(|ranks| {
        ranks.clear();
        ranks.extend(scores.iter().zip(0..).map(|(score, position)| rank(*score, position)));
        let last = *ranks.select_nth_unstable(last).1;
        out.extend(scores.iter().zip(0..).filter(|(s, p)| rank(**s, *p) <= last).map(|(_, p)| p));
    });
}

/// Bytes that a thread needs for [`top_positions`] of so many.
pub fn top_positions_bytes(positions: usize) -> usize {
    positions * size_of::<u64>()
}

thread_local! {
    /// Kept per thread so that a steady state allocates nothing.
    static RANKS: RefCell<Vec<u64>> = RefCell::default();
}

/// A number that is smaller the better a score is in IEEE 754's total order, and among equal scores the earlier its position is.
#[inline(always)]
fn rank(score: f32, position: u32) -> u64 {
    let bits = score.to_bits() as i32;
    // Ascending as a signed number: of negative ones a larger magnitude comes first.
    let ascending = bits ^ ((bits >> 31) as u32 >> 1) as i32;
    let descending = !(ascending as u32 ^ (1 << 31));
    u64::from(descending) << 32 | u64::from(position)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{bits, noise};
    use super::super::{KvCache, KvType};
    use super::*;

    #[test]
    fn the_best_positions_ascend_and_ties_go_to_the_earlier() {
        let cases: [(&[f32], usize, &[u32]); 7] = [
            (&[1.0, f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY], 3, &[0, 1, 3]),
            (&[-0.0, 0.0, -1.0, -2.0], 3, &[0, 1, 2]),
            (&[3.0, 4.0], 0, &[]),
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
            let mut scores = [f32::NAN; 2];
            // Head 0 likes the first axis, head 1 dislikes it and has a negative weight: clipped, it does not count.
            let (q, weights) = ([1.0, 0.0, -1.0, 2.0], [0.5, -1.0]);
            index_scores(&q, &weights, keys.view(0, 2), 0, 1.0, &mut IndexScratch::default(), &mut scores);
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
            for (start, end) in [(0, 1), (0, 16), (0, 63), (0, 64), (0, 65), (0, 150), (64, 70), (128, 150)] {
                let run = |isa, start: usize| {
                    let (mut scratch, mut scores) = (IndexScratch::default(), vec![f32::NAN; end - start]);
                    let keys = keys.view(0, width);
                    index_scores_on(isa, &q, &weights, keys, start, 0.3, &mut scratch, &mut scores);
                    bits(&scores)
                };
                // A share is what the whole has there.
                let want = run(Isa::Scalar, 0).split_off(start);
                for isa in Isa::available() {
                    assert_eq!(run(isa, start), want, "{start}..{end} {}", isa.name());
                }
            }
        }
    }
}
