//! Attention of one query over a list of cached keys, in a fixed order.
//!
//! The keys are visited in ascending position; the list is either all earlier positions or a selection of them. A
//! selection that contains everything is the same sequence as no selection, so sparse attention recovers the dense
//! result exactly; so does a window that nothing falls out of.

use calypte_quant::reference::{LANES, dot_f32, reduce};

use crate::isa::for_each_isa;
use crate::{Isa, math};

/// Which cached positions a query sees.
#[derive(Clone, Copy, Debug)]
pub enum Visible<'a> {
    /// Positions `start..end`: everything so far, or what a window leaves of it.
    Range {
        /// First position.
        start: usize,
        /// After the last position.
        end: usize,
    },
    /// These positions, ascending.
    Selected(&'a [u32]),
}

impl Visible<'_> {
    /// The latest `window` of the first `positions` positions; all of them without a window.
    pub fn latest(positions: usize, window: Option<usize>) -> Self {
        let start = window.map_or(0, |w| positions.saturating_sub(w));
        Visible::Range { start, end: positions }
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        match self {
            Visible::Range { start, end } => end - start,
            Visible::Selected(list) => list.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Position of the i-th key.
    #[inline(always)]
    pub fn position(&self, i: usize) -> usize {
        match self {
            Visible::Range { start, .. } => start + i,
            Visible::Selected(list) => list[i] as usize,
        }
    }
}

/// A cache of vectors: position p is at `data[p · stride + offset ..][.. width]`.
#[derive(Clone, Copy)]
pub struct Cached<'a> {
    /// All cached values of a layer.
    pub data: &'a [f32],
    /// Values per position.
    pub stride: usize,
    /// First value of this head.
    pub offset: usize,
    /// Values of this head.
    pub width: usize,
}

impl<'a> Cached<'a> {
    #[inline(always)]
    fn at(&self, position: usize) -> &'a [f32] {
        &self.data[position * self.stride + self.offset..][..self.width]
    }
}

/// What becomes of the product of a query and a key before the softmax, and what shares the softmax with them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scoring {
    /// Products are multiplied by this.
    pub scale: f32,
    /// One more score, that of a key without a value (an attention sink): it only takes its share.
    pub sink: Option<f32>,
}

impl Scoring {
    /// A scale alone.
    pub const fn scaled(scale: f32) -> Scoring {
        Scoring { scale, sink: None }
    }
}

for_each_isa! {
    fn attend_isa(q: &[f32], keys: Cached<'_>, values: Cached<'_>, visible: Visible<'_>, scoring: Scoring,
        scores: &mut Vec<f32>, out: &mut [f32]) = attend_body
}

/// `out = Σ softmax(score(q·k_i)) · v_i` over the visible positions.
///
/// `q` has `keys.width` values, `out` `values.width`; `scores` is scratch that keeps its memory.
pub fn attend(
    q: &[f32],
    keys: Cached<'_>,
    values: Cached<'_>,
    visible: Visible<'_>,
    scoring: Scoring,
    scores: &mut Vec<f32>,
    out: &mut [f32],
) {
    attend_isa(Isa::get(), q, keys, values, visible, scoring, scores, out);
}

#[inline(always)]
fn attend_body(
    q: &[f32],
    keys: Cached<'_>,
    values: Cached<'_>,
    visible: Visible<'_>,
    scoring: Scoring,
    scores: &mut Vec<f32>,
    out: &mut [f32],
) {
    scores.clear();
    let mut max = scoring.sink.unwrap_or(f32::NEG_INFINITY);
    for i in 0..visible.len() {
        let s = dot_f32(q, keys.at(visible.position(i))) * scoring.scale;
        // A NaN must reach the output instead of losing every comparison.
        max = if s > max || s.is_nan() { s } else { max };
        scores.push(s);
    }
    let mut lanes = [0f32; LANES];
    for chunk in scores.chunks_mut(LANES) {
        for (j, s) in chunk.iter_mut().enumerate() {
            *s = math::exp(*s - max);
            lanes[j] += *s;
        }
    }
    let mut sum = reduce(lanes);
    if let Some(sink) = scoring.sink {
        sum += math::exp(sink - max);
    }
    out.fill(0.0);
    for (i, s) in scores.iter().enumerate() {
        let p = s / sum;
        for (o, v) in out.iter_mut().zip(values.at(visible.position(i))) {
            *o += p * v;
        }
    }
}

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

    fn noise(n: usize, seed: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0).collect()
    }

    #[test]
    fn a_selection_of_everything_is_the_dense_result_on_every_tier() {
        let (positions, width) = (37, 24);
        let (q, cache) = (noise(width, 1), noise(positions * 40, 2));
        let keys = Cached { data: &cache, stride: 40, offset: 3, width };
        let values = Cached { data: &cache, stride: 40, offset: 20, width: 17 };
        let everything: Vec<u32> = (0..positions as u32).collect();
        let scoring = Scoring { scale: 0.3, sink: Some(0.25) };
        let run = |isa, visible| {
            let (mut out, mut scratch) = (vec![0f32; 17], Vec::new());
            attend_isa(isa, &q, keys, values, visible, scoring, &mut scratch, &mut out);
            out.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
        };
        let want = run(Isa::Scalar, Visible::latest(positions, None));
        for isa in Isa::available() {
            assert_eq!(run(isa, Visible::latest(positions, None)), want, "{}", isa.name());
            assert_eq!(run(isa, Visible::latest(positions, Some(positions))), want, "{}", isa.name());
            assert_eq!(run(isa, Visible::Selected(&everything)), want, "{}", isa.name());
        }
    }

    #[test]
    fn attention_is_a_weighted_mean() {
        // Two keys with equal scores: the mean of their values. A third, far better one: its value alone, unless
        // it is outside the window.
        let cache = [1.0, 0.0, 2.0, 1.0, 0.0, 4.0, 100.0, 0.0, 9.0];
        let keys = Cached { data: &cache, stride: 3, offset: 0, width: 2 };
        let values = Cached { data: &cache, stride: 3, offset: 2, width: 1 };
        let plain = Scoring::scaled(1.0);
        for (visible, scoring, want) in [
            (Visible::latest(2, None), plain, 3.0),
            (Visible::latest(3, None), plain, 9.0),
            (Visible::latest(2, Some(1)), plain, 4.0),
            (Visible::Selected(&[1]), plain, 4.0),
            // As good as both keys together: half of the weight goes nowhere.
            (Visible::latest(2, None), Scoring { sink: Some(1.0 + 2f32.ln()), ..plain }, 1.5),
        ] {
            let mut out = [0f32];
            attend(&[1.0, 0.0], keys, values, visible, scoring, &mut Vec::new(), &mut out);
            assert!((out[0] - want).abs() < 1e-5, "{visible:?} {scoring:?}: {} is not {want}", out[0]);
        }
    }

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
