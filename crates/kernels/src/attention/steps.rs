//! The steps of attention, for queries that go over one list of keys together: scores, weights, sums of values. Each goes over the
//! tiles and columns that it is given, so that one thread may take all of them or several their shares.

use std::ops::Range;

use calypte_quant::reference::{LANES, reduce};

use super::cache::{BLOCK_POSITIONS as TILE, Cached, Order};
use super::exact::{factor, power_factor};
use super::multiply::{Product, Strided, multiply};
use super::{Query, Visible};
use crate::isa::for_each_isa;
use crate::scratch::Lines;
use crate::wide::{Wide, for_each_wide};
use crate::{Isa, math, ops::max_or_nan};

/// Queries that go over the cache together at most.
pub(super) const TOGETHER_MAX: usize = 64;
/// Queries whose ranges of keys are looked at together.
const ROWS: usize = 6;

/// Numbers of a row of scores: whole tiles, room for whole vectors from any first key on, and behind them for one number more.
pub(super) fn row_numbers(positions: usize) -> usize {
    positions.next_multiple_of(TILE) + TILE
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

/// Hands `work` those queries that go over one list of keys together, at most `together(keys)` at a time, each time with their results:
/// `width` numbers for each query of `out`.
pub(super) fn for_each_together<'q, 'a>(
    queries: &'q [Query<'a>],
    together: impl Fn(usize) -> usize,
    width: usize,
    out: &mut [f32],
    mut work: impl FnMut(&'q [Query<'a>], &mut [f32]),
) {
    let mut out = &mut out[..queries.len() * width];
    for alike in queries.chunk_by(|a, b| share_keys(a.visible, b.visible)) {
        for queries in alike.chunks(together(list_of(alike).len())) {
            let (of_these, rest) = out.split_at_mut(queries.len() * width);
            work(queries, of_these);
            out = rest;
        }
    }
}

/// The keys that some queries go over together, and which of them each sees.
pub(super) struct Together<'a> {
    pub isa: Isa,
    /// A selection, or a range from the start of a block on.
    pub list: Visible<'a>,
    parts: [Range<usize>; TOGETHER_MAX],
    queries: usize,
}

impl<'a> Together<'a> {
    /// Of at most `TOGETHER_MAX` queries that share their keys.
    ///
    /// # Panics
    /// If a query is not as wide as the keys, or sees more than there is.
    pub fn of(isa: Isa, queries: &[Query<'a>], keys: Cached<'_>, values: Cached<'_>) -> Together<'a> {
        assert!(
            queries.iter().all(|q| q.vector.len() == keys.width()),
            "a query and the keys have different widths"
        );
        let list = list_of(queries);
        let last = list.len().checked_sub(1).map(|i| list.position(i));
        assert!(
            last.is_none_or(|last| last < keys.len().min(values.len())),
            "a query sees more than there is"
        );
        let mut parts = [const { 0..0 }; TOGETHER_MAX];
        for (part, query) in parts.iter_mut().zip(queries) {
            *part = part_of(list, query.visible);
        }
        Together { isa, list, parts, queries: queries.len() }
    }

    /// Which keys of the list each query sees.
    pub fn parts(&self) -> &[Range<usize>] {
        &self.parts[..self.queries]
    }

    /// How many tiles the list has.
    pub fn tiles(&self) -> usize {
        self.list.len().div_ceil(TILE)
    }

    /// The result of query `q`, or some columns of it: sums of values by the sum of weights; zeros where it sees nothing.
    pub fn divide(&self, q: usize, mixed: &[f32], sum: f32, out: &mut [f32]) {
        match self.parts()[q].is_empty() {
            true => out.fill(0.0),
            false => divide_isa(self.isa, mixed, sum, out),
        }
    }
}

/// The keys that queries which share them go over.
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

/// Queries as they meet the keys.
#[derive(Debug, Default)]
pub(super) struct Scaled {
    /// `[queries, width]`
    rows: Lines<f32>,
    /// The same with queries in the lanes, where keys are not: `[width, queries in whole vectors]`.
    lanes: Lines<f32>,
}

impl Scaled {
    /// Multiplies all of them with the scale.
    pub fn fill(&mut self, isa: Isa, queries: &[Query<'_>], scale: f32, keys: Cached<'_>) {
        let width = keys.width();
        self.rows.grow(queries.len() * width);
        for (query, scaled) in queries.iter().zip(self.rows.chunks_exact_mut(width)) {
            scale_isa(isa, query.vector, scale, keys.exact(), scaled);
        }
        if keys.order() == Order::Rows {
            let stride = queries.len().next_multiple_of(LANES);
            self.lanes.grow(width * stride);
            for (i, row) in self.rows.chunks_exact(width).take(queries.len()).enumerate() {
                self.lanes[i..].iter_mut().step_by(stride).zip(row).for_each(|(to, v)| *to = *v);
            }
        }
    }
}

for_each_isa! { pub(super) fn scale_isa(query: &[f32], scale: f32, exact: bool, scaled: &mut [f32]) = scale_body }

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

/// Numbers of each vector of a tile that are widened at a time: with as many positions they fit a first-level cache, where they are
/// written and read.
const NUMBERS: usize = 64;

/// Numbers of vectors, in portions.
fn portions(width: usize) -> impl Iterator<Item = Range<usize>> {
    (0..width).step_by(NUMBERS).map(move |start| start..width.min(start + NUMBERS))
}

/// Some numbers of a tile of keys or values, and what else a thread needs for a tile.
#[derive(Debug, Default)]
pub(super) struct Tile {
    numbers: Lines<f32>,
    /// Scores of a tile with queries in the lanes.
    turned: Lines<f32>,
}

/// Numbers of a [`Tile`] at most.
pub(super) const TILE_NUMBERS: usize = TILE * NUMBERS + TILE * TOGETHER_MAX;

/// Scores of the keys of some tiles that each query sees, and of some that it does not see, which are not to be used. A row of
/// `scores` belongs to a query and starts with the first of these tiles; rows are `stride` apart.
pub(super) fn score(
    of: &Together<'_>,
    queries: &Scaled,
    keys: Cached<'_>,
    tiles: Range<usize>,
    tile: &mut Tile,
    scores: &mut [f32],
    stride: usize,
) {
    let (list, parts, isa) = (of.list, of.parts(), of.isa);
    let (width, exact) = (keys.width(), keys.exact());
    let Tile { numbers: tile, turned } = tile;
    tile.grow(TILE * NUMBERS);
    turned.grow(TILE * TOGETHER_MAX);
    let blocks_of_queries = parts.len().div_ceil(LANES);
    for (first, scores_at) in tiles.map(|t| t * TILE).zip((0..).step_by(TILE)) {
        let Some(count) = list.len().checked_sub(first).map(|left| left.min(TILE)) else { return };
        let mut ahead = keys.ahead(list, first + TILE);
        match keys.order() {
            Order::Lanes => {
                for numbers in portions(width) {
                    let (start, depth, onto) = (numbers.start, numbers.len(), numbers.start > 0);
                    keys.lanes(isa, list, first, count, numbers, tile);
                    let b = Strided { numbers: tile, stride: TILE };
                    for (i, parts) in parts.chunks(ROWS).enumerate() {
                        let (seen_from, seen_to) = parts.iter().fold((usize::MAX, 0), |(from, to), part| {
                            (from.min(part.start), to.max(part.end))
                        });
                        if first + count <= seen_from || seen_to <= first {
                            continue;
                        }
                        let blocks = count.min(seen_to - first).div_ceil(LANES);
                        let a = Strided { numbers: &queries.rows[i * ROWS * width + start..], stride: width };
                        let product = Product { a, b, rows: parts.len(), depth, blocks, exact, onto };
                        let scores = &mut scores[i * ROWS * stride + scores_at..];
                        multiply(isa, product, scores, stride, &mut ahead);
                    }
                }
            }
            Order::Rows => {
                let (places, b_stride) = (keys.places(list, first, count), blocks_of_queries * LANES);
                for numbers in portions(width) {
                    let (start, depth, onto) = (numbers.start, numbers.len(), numbers.start > 0);
                    keys.rows(isa, &places, numbers, tile, NUMBERS);
                    let a = Strided { numbers: tile, stride: NUMBERS };
                    let b = Strided { numbers: &queries.lanes[start * b_stride..], stride: b_stride };
                    let product =
                        Product { a, b, rows: count, depth, blocks: blocks_of_queries, exact, onto };
                    multiply(isa, product, turned, TOGETHER_MAX, &mut ahead);
                }
                for (q, scores) in scores.chunks_exact_mut(stride).take(parts.len()).enumerate() {
                    let column = turned[q..].iter().step_by(TOGETHER_MAX);
                    scores[scores_at..scores_at + count].iter_mut().zip(column).for_each(|(s, t)| *s = *t);
                }
            }
        }
    }
}

/// Weights of the keys that a query sees, in place of its row of scores from the first key of the list on, and their sum.
pub(super) fn weigh(
    isa: Isa,
    part: &Range<usize>,
    sink: Option<f32>,
    values: Cached<'_>,
    scores: &mut [f32],
) -> f32 {
    // Scores of keys that it does not see take no part, and the rest is whole vectors.
    let end = part.start + part.len().next_multiple_of(LANES);
    scores[part.end..end].fill(f32::NEG_INFINITY);
    let (scores, _) = scores[part.start..end].as_chunks_mut();
    let max = weigh_isa(isa, scores, sink, values.exact());
    let mut sums = [0.0; LANES];
    add_up(isa, scores, &mut sums);
    reduce(sums) + sink.map_or(0.0, |s| math::exp(s - max))
}

for_each_isa! { fn weigh_isa(scores: &mut [[f32; LANES]], sink: Option<f32>, exact: bool) -> f32 = weigh_body }

/// Scores to weights; returns the largest score, that of the sink among them.
#[inline(always)]
fn weigh_body(scores: &mut [[f32; LANES]], sink: Option<f32>, exact: bool) -> f32 {
    let scores = scores.as_flattened_mut();
    let max = max_or_nan(scores, sink.unwrap_or(f32::NEG_INFINITY));
    if !exact {
        for s in scores {
            *s = math::exp(*s - max);
        }
    } else if max.is_finite() {
        for s in scores {
            *s = power_factor(*s - max);
        }
    } else {
        for s in scores {
            *s = factor(math::exp(*s - max));
        }
    }
    max
}

for_each_wide! { fn add_up(rows: &[[f32; LANES]], sums: &mut [f32; LANES]) = add_up_body }

/// The sum of some vectors. With vectors of the tier: of a plain loop the compiler makes odd ones once it has seen the tree that
/// [`reduce`] adds the lanes up in.
///
/// # Safety
/// The processor must have the instructions of `W`.
#[inline(always)]
unsafe fn add_up_body<W: Wide>(rows: &[[f32; LANES]], sums: &mut [f32; LANES]) {
    // SAFETY: all of these are sixteen numbers; the rest is promised by the caller.
    unsafe {
        let mut sum = W::splat(0.0);
        for row in rows {
            sum = sum.add(W::load(row.as_ptr()));
        }
        sum.store(sums.as_mut_ptr());
    }
}

/// `mixed[n] = Σ weight · value` over the values that query n sees, rows of `mixed` being whole vectors. Rows of `weights` start
/// with the first key of the list and are `stride` apart.
pub(super) fn mix(
    of: &Together<'_>,
    values: Cached<'_>,
    weights: &[f32],
    stride: usize,
    tile: &mut Tile,
    mixed: &mut [f32],
) {
    let (list, parts, isa) = (of.list, of.parts(), of.isa);
    let row = values.width().next_multiple_of(LANES);
    let tile = &mut tile.numbers;
    tile.grow(TILE * NUMBERS);
    mixed.fill(0.0);
    for first in (0..list.len()).step_by(TILE) {
        let these = first..first + TILE.min(list.len() - first);
        let places = values.places(list, first, these.len());
        let mut ahead = values.ahead(list, first + TILE);
        for columns in portions(values.width()) {
            let (column, blocks) = (columns.start, columns.len().div_ceil(LANES));
            values.rows(isa, &places, columns, tile, NUMBERS);
            let mut add = |queries: Range<usize>, keys: Range<usize>| {
                if keys.is_empty() {
                    return;
                }
                let a = Strided { numbers: &weights[queries.start * stride + keys.start..], stride };
                let b = Strided { numbers: &tile[(keys.start - first) * NUMBERS..], stride: NUMBERS };
                let (rows, depth) = (queries.len(), keys.len());
                let product = Product { a, b, rows, depth, blocks, exact: values.exact(), onto: true };
                multiply(isa, product, &mut mixed[queries.start * row + column..], row, &mut ahead);
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
}

for_each_isa! { fn divide_isa(mixed: &[f32], sum: f32, out: &mut [f32]) = divide_body }

#[inline(always)]
fn divide_body(mixed: &[f32], sum: f32, out: &mut [f32]) {
    for (out, mixed) in out.iter_mut().zip(mixed) {
        *out = mixed / sum;
    }
}
