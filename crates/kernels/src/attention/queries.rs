//! The attention itself, for any number of queries that read the same cache.

use std::ops::Range;

use calypte_quant::reference::{LANES, reduce};

use super::cache::{BLOCK_POSITIONS as TILE, Cached, Order};
use super::exact::{factor, power_factor};
use super::multiply::{Product, Strided, multiply};
use super::{Query, Visible};
use crate::isa::for_each_isa;
use crate::{Isa, math};

/// Queries that go over the cache together at most.
const TOGETHER_MAX: usize = 64;
/// … and at least, however long the list is.
const TOGETHER_MIN: usize = 8;
/// The scores of queries that go over the cache together should stay in a second-level cache.
const SCORES_BYTES: usize = 1 << 20;
/// Queries whose ranges of keys are looked at together.
const ROWS: usize = 6;

/// Where attention computes; it keeps its memory.
#[derive(Debug, Default)]
pub struct Scratch {
    /// A row for each query.
    scores: Vec<f32>,
    /// Queries times the scale: `[queries, width]`.
    queries: Vec<f32>,
    /// A tile of keys or values, as one factor of a product.
    tile: Vec<f32>,
    /// Queries in the lanes, where keys are not.
    lanes: Vec<f32>,
    /// Scores of a tile with queries in the lanes.
    turned: Vec<f32>,
    /// Sums of values, rows of whole vectors.
    mixed: Vec<f32>,
}

/// Bytes of scratch of one thread for lists of up to `positions` keys of `key_width` numbers, and values.
pub fn scratch_bytes(positions: usize, key_width: usize, value_width: usize) -> usize {
    let scores = TOGETHER_MIN.max(SCORES_BYTES / (4 * row_numbers(positions))).min(TOGETHER_MAX);
    let rows = 2 * TOGETHER_MAX * key_width + TOGETHER_MAX * value_width.next_multiple_of(LANES);
    let tiles = TILE * key_width.max(value_width.next_multiple_of(LANES)) + TILE * TOGETHER_MAX;
    4 * (scores * row_numbers(positions) + rows + tiles)
}

/// Numbers of a row of scores: whole tiles, and room for whole vectors from any first key on.
fn row_numbers(positions: usize) -> usize {
    positions.next_multiple_of(TILE) + TILE
}

/// `out[n] = Σ softmax(scale · q_n·k_i) · v_i` over the positions that query n sees; zeros if it sees none.
///
/// `out` has as many values for each query as a value of the cache.
pub fn attend(
    queries: &[Query<'_>],
    keys: Cached<'_>,
    values: Cached<'_>,
    scale: f32,
    scratch: &mut Scratch,
    out: &mut [f32],
) {
    attend_on(Isa::get(), queries, keys, values, scale, scratch, out);
}

fn attend_on(
    isa: Isa,
    queries: &[Query<'_>],
    keys: Cached<'_>,
    values: Cached<'_>,
    scale: f32,
    scratch: &mut Scratch,
    out: &mut [f32],
) {
    assert!(
        queries.iter().all(|q| q.vector.len() == keys.width()),
        "a query and the keys have different widths"
    );
    let mut out = &mut out[..queries.len() * values.width()];
    for alike in queries.chunk_by(|a, b| share_keys(a.visible, b.visible)) {
        let together = SCORES_BYTES / (4 * row_numbers(list_of(alike).len()));
        for queries in alike.chunks(together.clamp(TOGETHER_MIN, TOGETHER_MAX)) {
            let (of_these, rest) = out.split_at_mut(queries.len() * values.width());
            attend_together(isa, queries, keys, values, scale, scratch, of_these);
            out = rest;
        }
    }
}

/// Whether two queries can go over one list of keys: two ranges, over one that covers both; two selections, if they are the
/// same.
fn share_keys(a: Visible<'_>, b: Visible<'_>) -> bool {
    match (a, b) {
        (Visible::Range { .. }, Visible::Range { .. }) => true,
        (Visible::Selected(a), Visible::Selected(b)) => std::ptr::eq(a, b),
        _ => false,
    }
}

/// The keys that queries which share them go over: a selection, or a range from the start of a block on.
fn list_of<'a>(queries: &[Query<'a>]) -> Visible<'a> {
    let visible = queries.iter().map(|q| q.visible).filter(|v| !v.is_empty());
    let cover = |a, b| match (a, b) {
        (Visible::Range { start: a, end: b }, Visible::Range { start, end }) => {
            Visible::Range { start: a.min(start), end: b.max(end) }
        }
        (a, _) => a,
    };
    match visible.reduce(cover) {
        Some(Visible::Range { start, end }) => Visible::Range { start: start / TILE * TILE, end },
        Some(selected) => selected,
        None => Visible::Range { start: 0, end: 0 },
    }
}

/// Which of the keys of the list a query sees.
fn part_of(list: Visible<'_>, visible: Visible<'_>) -> Range<usize> {
    match (list, visible) {
        (Visible::Range { start: first, .. }, Visible::Range { start, end }) if start < end => {
            start - first..end - first
        }
        (Visible::Selected(_), _) => 0..visible.len(),
        _ => 0..0,
    }
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    a.start.max(b.start)..a.end.min(b.end)
}

/// [`attend`] for up to `TOGETHER_MAX` queries that share their keys.
fn attend_together(
    isa: Isa,
    queries: &[Query<'_>],
    keys: Cached<'_>,
    values: Cached<'_>,
    scale: f32,
    scratch: &mut Scratch,
    out: &mut [f32],
) {
    let list = list_of(queries);
    if list.is_empty() {
        return out.fill(0.0);
    }
    assert!(list.position(list.len() - 1) < keys.len().min(values.len()), "a query sees more than there is");
    let mut parts = [const { 0..0 }; TOGETHER_MAX];
    for (part, query) in parts.iter_mut().zip(queries) {
        *part = part_of(list, query.visible);
    }
    let parts = &parts[..queries.len()];
    let stride = row_numbers(list.len());
    grow(&mut scratch.scores, queries.len() * stride);
    let width = keys.width();
    grow(&mut scratch.queries, queries.len() * width);
    for (query, scaled) in queries.iter().zip(scratch.queries.chunks_exact_mut(width)) {
        scale_isa(isa, query.vector, scale, keys.exact(), scaled);
    }
    score(isa, parts, list, keys, stride, scratch);

    let mut sums = [0f32; TOGETHER_MAX];
    let rows = scratch.scores.chunks_exact_mut(stride).zip(&mut sums);
    for ((query, part), (scores, sum)) in queries.iter().zip(parts).zip(rows) {
        // Scores of keys that it does not see take no part, and the rest is whole vectors.
        let end = part.start + part.len().next_multiple_of(LANES);
        scores[part.end..end].fill(f32::NEG_INFINITY);
        *sum = weigh_isa(isa, &mut scores[part.start..end], query.sink, values.exact());
    }

    let row = values.width().next_multiple_of(LANES);
    mix(isa, parts, list, values, stride, scratch);
    let rows = scratch.mixed.chunks_exact(row).zip(out.chunks_exact_mut(values.width()));
    for ((mixed, out), (sum, part)) in rows.zip(sums.iter().zip(parts)) {
        match part.is_empty() {
            true => out.fill(0.0),
            false => divide_isa(isa, mixed, *sum, out),
        }
    }
}

/// Room for so many numbers, whatever they are.
fn grow(scratch: &mut Vec<f32>, numbers: usize) {
    if scratch.len() < numbers {
        scratch.resize(numbers, 0.0);
    }
}

for_each_isa! { fn scale_isa(query: &[f32], scale: f32, exact: bool, scaled: &mut [f32]) = scale_body }

/// A query as it meets the keys.
#[inline(always)]
fn scale_body(query: &[f32], scale: f32, exact: bool, scaled: &mut [f32]) {
    for (scaled, q) in scaled.iter_mut().zip(query) {
        *scaled = q * scale;
    }
    if exact {
        scaled.iter_mut().for_each(|q| *q = factor(*q));
    }
}

for_each_isa! { fn divide_isa(mixed: &[f32], sum: f32, out: &mut [f32]) = divide_body }

#[inline(always)]
fn divide_body(mixed: &[f32], sum: f32, out: &mut [f32]) {
    for (out, mixed) in out.iter_mut().zip(mixed) {
        *out = mixed / sum;
    }
}

/// Scores of all keys that each query sees, and of some that it does not see, which are not to be used.
fn score(
    isa: Isa,
    parts: &[Range<usize>],
    list: Visible<'_>,
    keys: Cached<'_>,
    stride: usize,
    scratch: &mut Scratch,
) {
    let (width, exact) = (keys.width(), keys.exact());
    let Scratch { scores, queries, tile, lanes, turned, .. } = scratch;
    grow(tile, TILE * width);
    let blocks_of_queries = parts.len().div_ceil(LANES);
    if keys.order() == Order::Rows {
        turn(&queries[..parts.len() * width], width, lanes, blocks_of_queries * LANES);
        grow(turned, TILE * TOGETHER_MAX);
    }
    for first in (0..list.len()).step_by(TILE) {
        let count = TILE.min(list.len() - first);
        let mut ahead = keys.ahead(list, first + TILE);
        match keys.order() {
            Order::Lanes => {
                keys.lanes(isa, list, first, count, tile);
                let b = Strided { numbers: tile, stride: TILE };
                for (i, parts) in parts.chunks(ROWS).enumerate() {
                    let (start, end) = parts.iter().fold((usize::MAX, 0), |(start, end), part| {
                        (start.min(part.start), end.max(part.end))
                    });
                    if first + count <= start || end <= first {
                        continue;
                    }
                    let blocks = count.min(end - first).div_ceil(LANES);
                    let a = Strided { numbers: &queries[i * ROWS * width..], stride: width };
                    let product =
                        Product { a, b, rows: parts.len(), depth: width, blocks, exact, onto: false };
                    multiply(isa, product, &mut scores[i * ROWS * stride + first..], stride, &mut ahead);
                }
            }
            Order::Rows => {
                keys.rows(isa, list, first, count, tile, width);
                let (a, b) = (
                    Strided { numbers: tile, stride: width },
                    Strided { numbers: lanes, stride: blocks_of_queries * LANES },
                );
                let (rows, blocks) = (count, blocks_of_queries);
                let product = Product { a, b, rows, depth: width, blocks, exact, onto: false };
                multiply(isa, product, turned, TOGETHER_MAX, &mut ahead);
                for (q, scores) in scores.chunks_exact_mut(stride).take(parts.len()).enumerate() {
                    let column = turned[q..].iter().step_by(TOGETHER_MAX);
                    scores[first..first + count].iter_mut().zip(column).for_each(|(s, t)| *s = *t);
                }
            }
        }
    }
}

/// `to[j, i] = from[i, j]`, rows of `to` being `stride` long.
fn turn(from: &[f32], width: usize, to: &mut Vec<f32>, stride: usize) {
    grow(to, width * stride);
    for (i, row) in from.chunks_exact(width).enumerate() {
        to[i..].iter_mut().step_by(stride).zip(row).for_each(|(to, v)| *to = *v);
    }
}

for_each_isa! { fn weigh_isa(scores: &mut [f32], sink: Option<f32>, exact: bool) -> f32 = weigh_body }

/// Scores to weights, and the sum of these, to which a sink adds its share. Scores are whole vectors.
#[inline(always)]
fn weigh_body(scores: &mut [f32], sink: Option<f32>, exact: bool) -> f32 {
    let (scores, _) = scores.as_chunks_mut::<LANES>();
    // A NaN must reach the output instead of losing every comparison.
    let (mut max, mut nan) = ([sink.unwrap_or(f32::NEG_INFINITY); LANES], [false; LANES]);
    for chunk in &*scores {
        for j in 0..LANES {
            max[j] = if chunk[j] > max[j] { chunk[j] } else { max[j] };
            nan[j] |= chunk[j].is_nan();
        }
    }
    let any_nan = nan.iter().any(|n| *n);
    let max = if any_nan { f32::NAN } else { max.iter().fold(max[0], |m, v| if *v > m { *v } else { m }) };
    // Two loops, or the sums are not vectorised.
    if !exact {
        for s in scores.as_flattened_mut() {
            *s = math::exp(*s - max);
        }
    } else if max.is_finite() {
        for s in scores.as_flattened_mut() {
            *s = power_factor(*s - max);
        }
    } else {
        for s in scores.as_flattened_mut() {
            *s = factor(math::exp(*s - max));
        }
    }
    let mut lanes = [0f32; LANES];
    for chunk in &*scores {
        for j in 0..LANES {
            lanes[j] += chunk[j];
        }
    }
    reduce(lanes) + sink.map_or(0.0, |s| math::exp(s - max))
}

/// `mixed[n] = Σ weight · value` over the values that query n sees.
fn mix(
    isa: Isa,
    parts: &[Range<usize>],
    list: Visible<'_>,
    values: Cached<'_>,
    stride: usize,
    scratch: &mut Scratch,
) {
    let row = values.width().next_multiple_of(LANES);
    let Scratch { scores, tile, mixed, .. } = scratch;
    grow(tile, TILE * row);
    mixed.clear();
    mixed.resize(parts.len() * row, 0.0);
    for first in (0..list.len()).step_by(TILE) {
        let these = first..first + TILE.min(list.len() - first);
        values.rows(isa, list, first, these.len(), tile, row);
        let mut ahead = values.ahead(list, first + TILE);
        let mut add = |queries: Range<usize>, keys: Range<usize>| {
            if keys.is_empty() {
                return;
            }
            let a = Strided { numbers: &scores[queries.start * stride + keys.start..], stride };
            let b = Strided { numbers: &tile[(keys.start - first) * row..], stride: row };
            let (rows, depth, blocks) = (queries.len(), keys.len(), row / LANES);
            let product = Product { a, b, rows, depth, blocks, exact: values.exact(), onto: true };
            multiply(isa, product, &mut mixed[queries.start * row..], row, &mut ahead);
        };
        // Together what all of some queries see, one by one what only some of them do.
        for start in (0..parts.len()).step_by(ROWS) {
            let some = start..(start + ROWS).min(parts.len());
            let common = parts[some.clone()].iter().fold(these.clone(), |all, part| overlap(&all, part));
            if common.is_empty() {
                some.for_each(|q| add(q..q + 1, overlap(&parts[q], &these)));
                continue;
            }
            some.clone().for_each(|q| add(q..q + 1, overlap(&parts[q], &(these.start..common.start))));
            add(some.clone(), common.clone());
            some.for_each(|q| add(q..q + 1, overlap(&parts[q], &(common.end..these.end))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{bits, noise};
    use super::super::{KvCache, KvType};
    use super::*;
    use half::f16;

    /// The canonical sequence, as plainly as it can be said. Keys and values are rows as they were pushed.
    fn reference(query: &Query<'_>, keys: &[f32], values: &[f32], scale: f32, kind: KvType) -> Vec<f32> {
        let stored = |v: f32| if kind == KvType::F16 { f16::from_f32(v).to_f32() } else { v };
        let rounded = |v: f32| if kind == KvType::F16 { factor(v) } else { v };
        let (key_width, see) = (query.vector.len(), query.visible);
        let scores: Vec<f32> = (0..see.len())
            .map(|i| {
                let key = &keys[see.position(i) * key_width..][..key_width];
                query.vector.iter().zip(key).fold(0.0, |sum, (q, k)| sum + rounded(q * scale) * stored(*k))
            })
            .collect();
        let max = scores.iter().copied().chain(query.sink).fold(f32::NEG_INFINITY, f32::max);
        let mut lanes = [0f32; LANES];
        let weights: Vec<f32> = scores.iter().map(|s| rounded(math::exp(s - max))).collect();
        weights.iter().enumerate().for_each(|(i, w)| lanes[i % LANES] += w);
        let sum = reduce(lanes) + query.sink.map_or(0.0, |s| math::exp(s - max));
        let mut out = [0f32; VALUE_WIDTH];
        for (i, weight) in weights.iter().enumerate() {
            let value = &values[see.position(i) * VALUE_WIDTH..];
            out.iter_mut().zip(value).for_each(|(o, v)| *o += weight * stored(*v));
        }
        out.map(|o| o / sum).to_vec()
    }

    const VALUE_WIDTH: usize = 37;

    /// Every tier, kind and order against the reference: queries with ranges, windows, selections and sinks, together and
    /// alone.
    #[track_caller]
    fn check(positions: usize, key_width: usize) {
        let (of_keys, of_values) = (noise(positions * key_width, 2), noise(positions * VALUE_WIDTH, 3));
        let vectors = noise(8 * key_width, 1);
        let everything: Vec<u32> = (0..positions as u32).collect();
        let some: Vec<u32> = everything.iter().copied().filter(|p| p * 7 % 3 != 1).collect();
        let visible = [
            Visible::latest(positions, None),
            Visible::latest(positions / 2, None),
            Visible::latest(positions, Some(positions / 3 + 1)),
            Visible::latest(positions / 2 + 1, Some(positions / 3)),
            Visible::Selected(&everything),
            Visible::Selected(&some),
            Visible::Selected(&some),
            Visible::latest(positions, Some(positions)),
        ];
        let queries: Vec<Query<'_>> = vectors
            .chunks(key_width)
            .zip(visible)
            .enumerate()
            .map(|(i, (vector, visible))| Query { vector, visible, sink: (i % 2 == 1).then_some(0.25) })
            .collect();
        for (kind, order) in [
            (KvType::F16, Order::Lanes),
            (KvType::F16, Order::Rows),
            (KvType::F32, Order::Lanes),
            (KvType::F32, Order::Rows),
        ] {
            let of_query = |q: &Query<'_>| match q.visible.is_empty() {
                true => vec![0.0; VALUE_WIDTH],
                false => reference(q, &of_keys, &of_values, 0.3, kind),
            };
            let want: Vec<f32> = queries.iter().flat_map(of_query).collect();
            // The head is the second of two.
            let cache = |order, width: usize, rows: &[f32]| {
                let mut cache = KvCache::new(kind, order, 2, width, 0);
                for row in rows.chunks(width) {
                    cache.push(&[&noise(width, 9), row].concat());
                }
                cache
            };
            let (keys, values) =
                (cache(order, key_width, &of_keys), cache(Order::Rows, VALUE_WIDTH, &of_values));
            let (keys, values) = (keys.view(1, key_width), values.view(1, VALUE_WIDTH));
            for isa in Isa::available() {
                let mut scratch = Scratch::default();
                let mut got = vec![f32::NAN; want.len()];
                attend_on(isa, &queries, keys, values, 0.3, &mut scratch, &mut got);
                assert_eq!(
                    bits(&got),
                    bits(&want),
                    "{positions} {key_width} {kind:?} {order:?} {}",
                    isa.name()
                );
                for (query, want) in queries.iter().zip(want.chunks(VALUE_WIDTH)) {
                    let got = &mut got[..VALUE_WIDTH];
                    attend_on(isa, std::slice::from_ref(query), keys, values, 0.3, &mut scratch, got);
                    assert_eq!(bits(got), bits(want), "alone, {}", isa.name());
                }
            }
        }
    }

    #[test]
    fn every_tier_equals_the_reference() {
        for (positions, key_width) in [(37, 24), (1, 16), (130, 64), (65, 48), (16, 7), (200, 128), (64, 20)]
        {
            check(positions, key_width);
        }
    }

    fn cached(width: usize, rows: &[f32]) -> KvCache {
        let mut cache = KvCache::new(KvType::F16, Order::Rows, 1, width, 0);
        cache.push(rows);
        cache
    }

    #[test]
    fn attention_is_a_weighted_mean() {
        // Two keys with equal scores: the mean of their values. A third, far better one: its value alone, unless
        // it is outside the window.
        let (keys, values) = (cached(2, &[1.0, 0.0, 1.0, 0.0, 100.0, 0.0]), cached(1, &[2.0, 4.0, 9.0]));
        for (visible, sink, want) in [
            (Visible::latest(2, None), None, 3.0),
            (Visible::latest(3, None), None, 9.0),
            (Visible::latest(2, Some(1)), None, 4.0),
            (Visible::Selected(&[1]), None, 4.0),
            // As good as both keys together: half of the weight goes nowhere.
            (Visible::latest(2, None), Some(1.0 + 2f32.ln()), 1.5),
            (Visible::latest(0, None), None, 0.0),
        ] {
            let mut out = [f32::NAN];
            let query = Query { vector: &[1.0, 0.0], visible, sink };
            attend(&[query], keys.view(0, 2), values.view(0, 1), 1.0, &mut Scratch::default(), &mut out);
            assert!((out[0] - want).abs() < 1e-5, "{visible:?} {sink:?}: {} is not {want}", out[0]);
        }
    }

    #[test]
    fn a_nan_reaches_the_output_of_those_who_see_it() {
        let mut rows = noise(40 * 4, 3);
        rows[20 * 4 + 1] = f32::NAN;
        for (keys, values) in
            [(cached(4, &rows), cached(4, &noise(160, 4))), (cached(4, &noise(160, 4)), cached(4, &rows))]
        {
            let queries = [40, 20].map(|positions| Query {
                vector: &[1.0; 4],
                visible: Visible::latest(positions, None),
                sink: None,
            });
            let mut out = [0f32; 8];
            attend(&queries, keys.view(0, 4), values.view(0, 4), 1.0, &mut Scratch::default(), &mut out);
            assert!(out[1].is_nan() && out[4..].iter().all(|v| v.is_finite()), "{out:?}");
        }
    }
}
