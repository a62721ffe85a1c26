//! The attention itself, for any number of queries that read the same cache.

use calypte_quant::reference::LANES;

use super::{Cached, Visible};
use crate::wide::{Wide, for_each_wide};
use crate::{Isa, ops};

/// Keys that all queries meet before the next ones are fetched: few enough to stay in a cache near the core.
const CHUNK: usize = 64;
/// Queries that go over the cache together: their scores stay in a second-level cache.
const TOGETHER: usize = 32;
/// Queries whose products and values are added up side by side.
const PAIR: usize = 2;
/// Keys whose dot products are summed side by side.
const KEYS: usize = 8;

/// One query.
#[derive(Clone, Copy)]
pub struct Query<'a> {
    /// As many values as a key has.
    pub vector: &'a [f32],
    /// What it sees.
    pub visible: Visible<'a>,
    /// One more score, that of a key without a value (an attention sink): it only takes its share.
    pub sink: Option<f32>,
}

for_each_wide! {
    fn attend_isa(queries: &[Query<'_>], keys: Cached<'_>, values: Cached<'_>, scale: f32, scores: &mut Vec<f32>,
        out: &mut [f32]) = attend_body
}

/// `out[n] = Σ softmax(scale · q_n·k_i) · v_i` over the positions that query n sees.
///
/// `out` has `values.width` values for each query; `scores` is scratch that keeps its memory.
pub fn attend(
    queries: &[Query<'_>],
    keys: Cached<'_>,
    values: Cached<'_>,
    scale: f32,
    scores: &mut Vec<f32>,
    out: &mut [f32],
) {
    let out = &mut out[..queries.len() * values.width];
    for (queries, out) in queries.chunks(TOGETHER).zip(out.chunks_mut(TOGETHER * values.width)) {
        attend_isa(Isa::get(), queries, keys, values, scale, scores, out);
    }
}

/// # Safety
/// The processor must have the instructions of `W`.
#[inline(always)]
unsafe fn attend_body<W: Wide>(
    queries: &[Query<'_>],
    keys: Cached<'_>,
    values: Cached<'_>,
    scale: f32,
    scores: &mut Vec<f32>,
    out: &mut [f32],
) {
    out.fill(0.0);
    let longest = queries.iter().map(|q| q.visible.len()).max().unwrap_or(0);
    if longest == 0 {
        return;
    }
    // Whole vectors of scores are written, also of the last few keys.
    let stride = longest.next_multiple_of(LANES);
    scores.resize(queries.len() * stride, 0.0);
    for start in (0..longest).step_by(CHUNK) {
        for (queries, scores) in queries.chunks(PAIR).zip(scores.chunks_mut(PAIR * stride)) {
            // SAFETY: promised by the caller.
            unsafe { score_chunk::<W>(queries, keys, start, scale, scores) };
        }
    }
    for (query, scores) in queries.iter().zip(scores.chunks_exact_mut(stride)) {
        ops::softmax_body(&mut scores[..query.visible.len()], query.sink);
    }
    for start in (0..longest).step_by(CHUNK) {
        let each =
            queries.chunks(PAIR).zip(scores.chunks(PAIR * stride)).zip(out.chunks_mut(PAIR * values.width));
        for ((queries, weights), out) in each {
            // SAFETY: promised by the caller.
            unsafe { mix_chunk::<W>(queries, weights, start, values, out) };
        }
    }
}

/// How many keys two queries both see, where they see the same ones up to there.
fn common(queries: &[Query<'_>]) -> usize {
    match queries {
        [a, b] => match (a.visible, b.visible) {
            (Visible::Range { start, .. }, Visible::Range { start: other, .. }) if start == other => {
                a.visible.len().min(b.visible.len())
            }
            _ => 0,
        },
        _ => 0,
    }
}

/// Scores of the keys number `start .. start + CHUNK` that one query or two see. `scores` has one row for each.
///
/// # Safety
/// The processor must have the instructions of `W`.
#[inline(always)]
unsafe fn score_chunk<W: Wide>(
    queries: &[Query<'_>],
    keys: Cached<'_>,
    start: usize,
    scale: f32,
    scores: &mut [f32],
) {
    let stride = scores.len() / queries.len();
    assert!(
        queries.iter().all(|q| q.vector.len() == keys.width),
        "a query and the keys have different widths"
    );
    let common = if W::ACCUMULATORS >= KEYS * PAIR { common(queries) } else { 0 };
    for first in (start..start + CHUNK).step_by(LANES) {
        // SAFETY: promised by the caller.
        unsafe {
            match queries {
                [a, b] if first + LANES <= common => {
                    score::<W, 2>([a, b], keys, first, scale, scores, stride)
                }
                _ => {
                    for (query, scores) in queries.iter().zip(scores.chunks_exact_mut(stride)) {
                        if first < query.visible.len() {
                            score::<W, 1>([query], keys, first, scale, scores, stride);
                        }
                    }
                }
            }
        }
    }
}

/// Adds the values of the keys number `start .. start + CHUNK` that one query or two see, each times its weight.
///
/// # Safety
/// The processor must have the instructions of `W`.
#[inline(always)]
unsafe fn mix_chunk<W: Wide>(
    queries: &[Query<'_>],
    weights: &[f32],
    start: usize,
    values: Cached<'_>,
    out: &mut [f32],
) {
    let stride = weights.len() / queries.len();
    let end_of = |q: &Query<'_>| q.visible.len().clamp(start, start + CHUNK);
    let mut from = start;
    if let [a, _] = queries {
        let end = common(queries).clamp(start, start + CHUNK);
        let both = [&weights[from..end], &weights[stride + from..stride + end]];
        // SAFETY: promised by the caller.
        unsafe { mix::<W, 2>(both, a.visible, from, values, out) };
        from = end;
    }
    for (i, query) in queries.iter().enumerate() {
        let (weights, end) = (&weights[i * stride..(i + 1) * stride], end_of(query));
        let out = &mut out[i * values.width..(i + 1) * values.width];
        // SAFETY: promised by the caller.
        unsafe { mix::<W, 1>([&weights[from.min(end)..end]], query.visible, from, values, out) };
    }
}

/// Scores of the keys number `first ..` that Q queries see, which for two are the same ones; what is behind the last one is
/// undefined. `scores` has a row of `stride` for each query.
///
/// # Safety
/// The processor must have the instructions of `W`; the queries must be as wide as the keys.
#[inline(always)]
unsafe fn score<W: Wide, const Q: usize>(
    queries: [&Query<'_>; Q],
    keys: Cached<'_>,
    first: usize,
    scale: f32,
    scores: &mut [f32],
    stride: usize,
) {
    // SAFETY: the keys are slices of the width that the queries have; the rest is promised by the caller.
    unsafe {
        let at = keys_at(queries[0].visible, keys, first);
        let mut sums = [[W::splat(0.0); LANES]; Q];
        for (group, at) in at.as_chunks::<KEYS>().0.iter().enumerate() {
            let mut of_group = [[W::splat(0.0); KEYS]; Q];
            dots(queries.map(|q| q.vector), at, &mut of_group);
            for q in 0..Q {
                for i in 0..KEYS {
                    sums[q][group * KEYS + i] = of_group[q][i];
                }
            }
        }
        for q in 0..Q {
            let to = &mut scores[q * stride + first..q * stride + first + LANES];
            W::reduce(&sums[q]).mul(W::splat(scale)).store(to.as_mut_ptr());
        }
    }
}

/// Where the keys number `first ..` of what is visible start; the last one stands in for those behind it.
#[inline(always)]
fn keys_at(visible: Visible<'_>, keys: Cached<'_>, first: usize) -> [*const f32; LANES] {
    let last = visible.len() - 1;
    let mut at = [std::ptr::null(); LANES];
    if let (Visible::Range { start, .. }, true) = (visible, first + LANES <= last + 1) {
        // One check for all of them.
        let end = (start + first + LANES - 1) * keys.stride + keys.offset + keys.width;
        let all = &keys.data[(start + first) * keys.stride + keys.offset..end];
        for (i, at) in at.iter_mut().enumerate() {
            *at = all.as_ptr().wrapping_add(i * keys.stride);
        }
    } else {
        for (i, at) in at.iter_mut().enumerate() {
            *at = keys.at(visible.position((first + i).min(last))).as_ptr();
        }
    }
    at
}

/// Adds the products of each of Q vectors with each of eight others to their sixteen sums.
///
/// # Safety
/// The processor must have the instructions of `W`; all must be as long as the first.
#[inline(always)]
unsafe fn dots<W: Wide, const Q: usize>(
    vectors: [&[f32]; Q],
    others: &[*const f32; KEYS],
    sums: &mut [[W; KEYS]; Q],
) {
    let width = vectors[0].len();
    let whole = width / LANES * LANES;
    // SAFETY: promised by the caller.
    unsafe {
        for c in (0..whole).step_by(LANES) {
            let mut x = [W::splat(0.0); Q];
            for q in 0..Q {
                x[q] = W::load(vectors[q].as_ptr().add(c));
            }
            for i in 0..KEYS {
                let other = W::load(others[i].add(c));
                for q in 0..Q {
                    sums[q][i] = sums[q][i].add(x[q].mul(other));
                }
            }
        }
        for q in 0..Q {
            for i in 0..if whole < width { KEYS } else { 0 } {
                let mut lanes = [0f32; LANES];
                sums[q][i].store(lanes.as_mut_ptr());
                for c in whole..width {
                    lanes[c - whole] += vectors[q][c] * *others[i].add(c);
                }
                sums[q][i] = W::load(lanes.as_ptr());
            }
        }
    }
}

/// Adds the values of the keys number `first ..` of what Q queries see, each times the query's weight; `out` is one row of
/// values for each query.
///
/// # Safety
/// The processor must have the instructions of `W`.
#[inline(always)]
unsafe fn mix<W: Wide, const Q: usize>(
    weights: [&[f32]; Q],
    visible: Visible<'_>,
    first: usize,
    values: Cached<'_>,
    out: &mut [f32],
) {
    if weights[0].is_empty() {
        return;
    }
    let mut column = 0;
    // SAFETY: columns are inside the width; the rest is promised by the caller.
    unsafe {
        while W::ACCUMULATORS >= 8 * Q && column + 8 * LANES <= values.width {
            mix_columns::<W, Q, 8>(weights, visible, first, values, column, out);
            column += 8 * LANES;
        }
        while column + 4 * LANES <= values.width {
            mix_columns::<W, Q, 4>(weights, visible, first, values, column, out);
            column += 4 * LANES;
        }
        while column + LANES <= values.width {
            mix_columns::<W, Q, 1>(weights, visible, first, values, column, out);
            column += LANES;
        }
    }
    for (weights, out) in weights.into_iter().zip(out.chunks_exact_mut(values.width)) {
        for (i, weight) in weights.iter().enumerate().filter(|_| column < values.width) {
            let value = &values.at(visible.position(first + i))[column..];
            for (o, v) in out[column..].iter_mut().zip(value) {
                *o += weight * v;
            }
        }
    }
}

/// [`mix`] for N vectors of columns.
///
/// # Safety
/// The processor must have the instructions of `W`; the columns must be inside the width.
#[inline(always)]
unsafe fn mix_columns<W: Wide, const Q: usize, const N: usize>(
    weights: [&[f32]; Q],
    visible: Visible<'_>,
    first: usize,
    values: Cached<'_>,
    column: usize,
    out: &mut [f32],
) {
    let width = values.width;
    assert!(out.len() >= Q * width && column + N * LANES <= width);
    let weights = weights.map(|w| &w[..weights[0].len()]);
    // SAFETY: checked above; the rest is promised by the caller.
    unsafe {
        let mut sums = [[W::splat(0.0); N]; Q];
        for q in 0..Q {
            for n in 0..N {
                sums[q][n] = W::load(out.as_ptr().add(q * width + column + n * LANES));
            }
        }
        for i in 0..weights[0].len() {
            let value = values.at(visible.position(first + i))[column..].as_ptr();
            for n in 0..N {
                let value = W::load(value.add(n * LANES));
                for q in 0..Q {
                    sums[q][n] = sums[q][n].add(W::splat(weights[q][i]).mul(value));
                }
            }
        }
        for q in 0..Q {
            for n in 0..N {
                sums[q][n].store(out.as_mut_ptr().add(q * width + column + n * LANES));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use calypte_quant::reference::reduce;

    use super::super::testing::{bits, noise};
    use super::*;
    use crate::math;

    /// The canonical sequence, as plainly as it can be said.
    fn reference(query: &Query<'_>, keys: Cached<'_>, values: Cached<'_>, scale: f32) -> Vec<f32> {
        let count = query.visible.len();
        let at = |i: usize| query.visible.position(i);
        let scores: Vec<f32> = (0..count)
            .map(|i| calypte_quant::reference::dot_f32(query.vector, keys.at(at(i))) * scale)
            .collect();
        let max = scores.iter().copied().chain(query.sink).fold(f32::NEG_INFINITY, f32::max);
        let mut lanes = [0f32; LANES];
        let powers: Vec<f32> = scores.iter().map(|s| math::exp(s - max)).collect();
        powers.iter().enumerate().for_each(|(i, p)| lanes[i % LANES] += p);
        let sum = reduce(lanes) + query.sink.map_or(0.0, |s| math::exp(s - max));
        let mut out = vec![0f32; values.width];
        for (i, power) in powers.iter().enumerate() {
            out.iter_mut().zip(values.at(at(i))).for_each(|(o, v)| *o += power / sum * v);
        }
        out
    }

    /// Every tier against the reference: queries with ranges, windows, selections and sinks, together and alone.
    #[track_caller]
    fn check(positions: usize, key_width: usize, value_width: usize) {
        let stride = key_width + value_width + 5;
        let cache = noise(positions * stride, 2);
        let keys = Cached { data: &cache, stride, offset: 3, width: key_width };
        let values = Cached { data: &cache, stride, offset: 4 + key_width, width: value_width };
        let vectors = noise(6 * key_width, 1);
        let everything: Vec<u32> = (0..positions as u32).collect();
        let some: Vec<u32> = everything.iter().copied().filter(|p| p * 7 % 3 != 1).collect();
        let visible = [
            Visible::latest(positions, None),
            Visible::latest(positions / 2, None),
            Visible::latest(positions, Some(positions / 3 + 1)),
            Visible::Selected(&everything),
            Visible::Selected(&some),
            Visible::latest(positions, Some(positions)),
        ];
        let queries: Vec<Query<'_>> = vectors
            .chunks(key_width)
            .zip(visible)
            .enumerate()
            .map(|(i, (vector, visible))| Query { vector, visible, sink: (i % 2 == 1).then_some(0.25) })
            .collect();
        let want: Vec<f32> = queries.iter().flat_map(|q| reference(q, keys, values, 0.3)).collect();
        for isa in Isa::available() {
            let mut got = vec![f32::NAN; want.len()];
            attend_isa(isa, &queries, keys, values, 0.3, &mut Vec::new(), &mut got);
            assert_eq!(bits(&got), bits(&want), "{positions} {key_width} {value_width} {}", isa.name());
            for (query, want) in queries.iter().zip(want.chunks(value_width)) {
                let got = &mut got[..value_width];
                attend_isa(isa, std::slice::from_ref(query), keys, values, 0.3, &mut Vec::new(), got);
                assert_eq!(bits(got), bits(want), "alone, {}", isa.name());
            }
        }
    }

    #[test]
    fn every_tier_equals_the_reference() {
        for (positions, key_width, value_width) in [
            (37, 24, 17),
            (1, 16, 64),
            (130, 64, 64),
            (65, 48, 200),
            (16, 7, 5),
            (200, 128, 128),
            (64, 20, 144),
        ] {
            check(positions, key_width, value_width);
        }
    }

    #[test]
    fn attention_is_a_weighted_mean() {
        // Two keys with equal scores: the mean of their values. A third, far better one: its value alone, unless
        // it is outside the window.
        let cache = [1.0, 0.0, 2.0, 1.0, 0.0, 4.0, 100.0, 0.0, 9.0];
        let keys = Cached { data: &cache, stride: 3, offset: 0, width: 2 };
        let values = Cached { data: &cache, stride: 3, offset: 2, width: 1 };
        for (visible, sink, want) in [
            (Visible::latest(2, None), None, 3.0),
            (Visible::latest(3, None), None, 9.0),
            (Visible::latest(2, Some(1)), None, 4.0),
            (Visible::Selected(&[1]), None, 4.0),
            // As good as both keys together: half of the weight goes nowhere.
            (Visible::latest(2, None), Some(1.0 + 2f32.ln()), 1.5),
        ] {
            let mut out = [0f32];
            let query = Query { vector: &[1.0, 0.0], visible, sink };
            attend(&[query], keys, values, 1.0, &mut Vec::new(), &mut out);
            assert!((out[0] - want).abs() < 1e-5, "{visible:?} {sink:?}: {} is not {want}", out[0]);
        }
    }

    #[test]
    fn a_nan_reaches_the_output() {
        let mut cache = noise(40 * 8, 3);
        cache[20 * 8 + 1] = f32::NAN;
        let keys = Cached { data: &cache, stride: 8, offset: 0, width: 4 };
        let values = Cached { data: &cache, stride: 8, offset: 4, width: 4 };
        let mut out = [0f32; 4];
        let query = Query { vector: &[1.0; 4], visible: Visible::latest(40, None), sink: None };
        attend(&[query], keys, values, 1.0, &mut Vec::new(), &mut out);
        assert!(out.iter().all(|v| v.is_nan()));
    }
}
