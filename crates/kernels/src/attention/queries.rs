//! The attention itself, for any number of queries that read the same cache.

use std::ops::Range;

use calypte_quant::reference::LANES;

use super::{Cached, Visible};
use crate::fetch::{CACHE_LINE_BYTES, prefetch};
use crate::wide::{Wide, for_each_wide};
use crate::{Isa, ops};

/// Queries that go over the cache together: their scores stay in a second-level cache.
const TOGETHER: usize = 32;
/// Keys whose dot products with a pair of queries are summed side by side: sixteen sums, which stay in registers from the
/// first product to the end of their trees.
const KEYS: usize = LANES / 2;
/// Keys whose sums every tier can keep in registers.
const FEW: usize = 4;
/// How many keys further on the next ones are asked for.
const AHEAD: usize = 2 * KEYS;
/// Values that all queries meet before the next ones are fetched, some columns at a time: few enough for a first-level cache.
const VALUES: usize = 64;
/// Queries to which values are added side by side.
const QUAD: usize = 4;
/// Vectors of columns of values that are added side by side.
const COLUMNS: usize = 4;

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
    attend_on(Isa::get(), queries, keys, values, scale, scores, out);
}

fn attend_on(
    isa: Isa,
    queries: &[Query<'_>],
    keys: Cached<'_>,
    values: Cached<'_>,
    scale: f32,
    scores: &mut Vec<f32>,
    out: &mut [f32],
) {
    assert!(
        queries.iter().all(|q| q.vector.len() == keys.width),
        "a query and the keys have different widths"
    );
    let mut out = &mut out[..queries.len() * values.width];
    for alike in queries.chunk_by(|a, b| share_keys(a.visible, b.visible)) {
        for queries in alike.chunks(TOGETHER) {
            let (of_these, rest) = out.split_at_mut(queries.len() * values.width);
            attend_isa(isa, queries, keys, values, scale, scores, of_these);
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

/// The keys that queries which share them go over.
fn list_of<'a>(queries: &[Query<'a>]) -> Visible<'a> {
    let visible = queries.iter().map(|q| q.visible).filter(|v| !v.is_empty());
    let cover = |a, b| match (a, b) {
        (Visible::Range { start: a, end: b }, Visible::Range { start, end }) => {
            Visible::Range { start: a.min(start), end: b.max(end) }
        }
        (a, _) => a,
    };
    visible.reduce(cover).unwrap_or(Visible::Range { start: 0, end: 0 })
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

for_each_wide! {
    fn attend_isa(queries: &[Query<'_>], keys: Cached<'_>, values: Cached<'_>, scale: f32, scores: &mut Vec<f32>,
        out: &mut [f32]) = attend_body
}

/// [`attend`] for up to `TOGETHER` queries that share their keys.
///
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
    let list = list_of(queries);
    if list.is_empty() {
        return;
    }
    let mut parts = [const { 0..0 }; TOGETHER];
    for (part, query) in parts.iter_mut().zip(queries) {
        *part = part_of(list, query.visible);
    }
    let parts = &parts[..queries.len()];
    // A row for each query, with room for whole vectors from any first key on.
    let stride = list.len().next_multiple_of(LANES) + LANES;
    if scores.len() < queries.len() * stride {
        scores.resize(queries.len() * stride, 0.0);
    }
    let scores = &mut scores[..queries.len() * stride];
    // SAFETY: promised by the caller.
    unsafe { score::<W>(queries, parts, list, keys, scale, scores) };
    for ((query, part), scores) in queries.iter().zip(parts).zip(scores.chunks_exact_mut(stride)) {
        // Scores of keys that it does not see take no part, and the rest is whole vectors.
        let end = part.start + part.len().next_multiple_of(LANES);
        scores[part.end..end].fill(f32::NEG_INFINITY);
        ops::softmax_body(&mut scores[part.start..end], query.sink);
    }
    // SAFETY: promised by the caller.
    unsafe { mix::<W>(parts, scores, list, values, out) };
}

/// Where the vectors number `first ..` of the list start; the last one stands in for those behind it.
#[inline(always)]
fn vectors_at<const N: usize>(list: Visible<'_>, cache: Cached<'_>, first: usize) -> [*const f32; N] {
    let last = list.len() - 1;
    let mut at = [std::ptr::null(); N];
    if let (Visible::Range { start, .. }, true) = (list, first + N <= list.len()) {
        // One check for all of them.
        let end = (start + first + N - 1) * cache.stride + cache.offset + cache.width;
        let all = &cache.data[(start + first) * cache.stride + cache.offset..end];
        for (i, at) in at.iter_mut().enumerate() {
            *at = all.as_ptr().wrapping_add(i * cache.stride);
        }
    } else {
        for (i, at) in at.iter_mut().enumerate() {
            *at = cache.at(list.position((first + i).min(last))).as_ptr();
        }
    }
    at
}

/// Asks for vectors number `first ..` of the list. Those of one head lie too far apart for the processor to guess them.
#[inline(always)]
fn fetch<const N: usize>(list: Visible<'_>, cache: Cached<'_>, first: usize) {
    for i in first..(first + N).min(list.len()) {
        let at = cache.at(list.position(i)).as_ptr().cast::<u8>();
        for offset in (0..4 * cache.width).step_by(CACHE_LINE_BYTES) {
            prefetch(at.wrapping_add(offset));
        }
    }
}

/// Scores of all keys that each query sees, and of some that it does not see, which are not to be used.
///
/// # Safety
/// The processor must have the instructions of `W`; the queries must be as wide as the keys.
#[inline(always)]
unsafe fn score<W: Wide>(
    queries: &[Query<'_>],
    parts: &[Range<usize>],
    list: Visible<'_>,
    keys: Cached<'_>,
    scale: f32,
    scores: &mut [f32],
) {
    let stride = scores.len() / queries.len();
    for first in (0..list.len()).step_by(KEYS) {
        let (at, these) = (vectors_at::<KEYS>(list, keys, first), first..first + KEYS);
        fetch::<KEYS>(list, keys, first + AHEAD);
        let pairs = queries.chunks(2).zip(parts.chunks(2)).zip(scores.chunks_mut(2 * stride));
        for ((pair, parts), scores) in pairs {
            if parts.iter().all(|p| overlap(p, &these).is_empty()) {
                continue;
            }
            // SAFETY: there are KEYS pointers to vectors of the width of the keys; the rest is promised by the caller.
            unsafe {
                let mut sums = [[W::splat(0.0); KEYS]; 2];
                match pair {
                    [a, b] if W::ACCUMULATORS >= 2 * KEYS => {
                        dots::<W, 2, KEYS>([a.vector, b.vector], &at, &mut sums);
                    }
                    _ => {
                        for (query, sums) in pair.iter().zip(&mut sums) {
                            let few = at.as_chunks::<FEW>().0.iter().zip(sums.as_chunks_mut::<FEW>().0);
                            for (at, sums) in few {
                                dots::<W, 1, FEW>([query.vector], at, std::array::from_mut(sums));
                            }
                        }
                    }
                }
                let mut of_pair = [0f32; LANES];
                let all = sums.as_flattened().first_chunk().expect("two times KEYS are LANES");
                W::reduce(all).mul(W::splat(scale)).store(of_pair.as_mut_ptr());
                for (scores, new) in scores.chunks_mut(stride).zip(of_pair.chunks_exact(KEYS)) {
                    scores[first..first + KEYS].copy_from_slice(new);
                }
            }
        }
    }
}

/// Adds the products of each of Q vectors with each of K others to their sixteen sums.
///
/// # Safety
/// The processor must have the instructions of `W`; all must be as long as the first.
#[inline(always)]
unsafe fn dots<W: Wide, const Q: usize, const K: usize>(
    vectors: [&[f32]; Q],
    others: &[*const f32; K],
    sums: &mut [[W; K]; Q],
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
            for i in 0..K {
                let other = W::load(others[i].add(c));
                for q in 0..Q {
                    sums[q][i] = sums[q][i].add(x[q].mul(other));
                }
            }
        }
        for q in 0..Q {
            for i in 0..if whole < width { K } else { 0 } {
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

/// Adds values, each times its weight, to the outputs of the queries that see it.
///
/// # Safety
/// The processor must have the instructions of `W`.
#[inline(always)]
unsafe fn mix<W: Wide>(
    parts: &[Range<usize>],
    weights: &[f32],
    list: Visible<'_>,
    values: Cached<'_>,
    out: &mut [f32],
) {
    let (stride, width) = (weights.len() / parts.len(), values.width);
    for first in (0..list.len()).step_by(VALUES) {
        let (at, these) = (vectors_at::<VALUES>(list, values, first), first..first + VALUES);
        fetch::<VALUES>(list, values, first + VALUES);
        let mut column = 0;
        while column < width {
            let vectors = if column + COLUMNS * LANES <= width { COLUMNS } else { 1 };
            for q in (0..parts.len()).step_by(QUAD) {
                let parts = &parts[q..(q + QUAD).min(parts.len())];
                let job = Mix { weights: &weights[q * stride..], stride, at: &at, first, width, column };
                let out = &mut out[q * width..(q + parts.len()) * width];
                // SAFETY: the columns are inside the width; the rest is promised by the caller.
                unsafe {
                    match vectors {
                        COLUMNS => job.add_to_quad::<W, COLUMNS>(parts, &these, out),
                        _ if column + LANES <= width => job.add_to_quad::<W, 1>(parts, &these, out),
                        _ => job.add_last_columns(parts, &these, out),
                    }
                }
            }
            column += vectors * LANES;
        }
    }
}

/// Some columns of some values, and the weights of the queries that may see them.
struct Mix<'a> {
    /// Rows of `stride`, one for each query, one weight for each value of the list.
    weights: &'a [f32],
    stride: usize,
    /// Where the values number `first ..` of the list start.
    at: &'a [*const f32; VALUES],
    first: usize,
    width: usize,
    column: usize,
}

impl Mix<'_> {
    /// For up to `QUAD` queries: together what all of them see, one by one what only some do.
    ///
    /// # Safety
    /// The processor must have the instructions of `W`; N vectors of columns must be inside the width, and the values of
    /// the list as far as the parts go.
    #[inline(always)]
    unsafe fn add_to_quad<W: Wide, const N: usize>(
        &self,
        parts: &[Range<usize>],
        these: &Range<usize>,
        out: &mut [f32],
    ) {
        let mut common = these.start..these.start;
        // SAFETY: passed on.
        unsafe {
            if parts.len() == QUAD && W::ACCUMULATORS >= QUAD * N {
                let all = parts.iter().fold(these.clone(), |all, part| overlap(&all, part));
                if !all.is_empty() {
                    common = all;
                }
            }
            for (q, part) in parts.iter().enumerate().filter(|_| !common.is_empty()) {
                self.add::<W, 1, N>([q], overlap(part, &(these.start..common.start)), out);
            }
            if !common.is_empty() {
                self.add::<W, QUAD, N>([0, 1, 2, 3], common.clone(), out);
            }
            for (q, part) in parts.iter().enumerate() {
                self.add::<W, 1, N>([q], overlap(part, &(common.end..these.end)), out);
            }
        }
    }

    /// Adds the values of `range` of the list to N vectors of columns of these Q queries.
    ///
    /// # Safety
    /// As [`Mix::add_to_quad`].
    #[inline(always)]
    unsafe fn add<W: Wide, const Q: usize, const N: usize>(
        &self,
        queries: [usize; Q],
        range: Range<usize>,
        out: &mut [f32],
    ) {
        if range.is_empty() {
            return;
        }
        let at = &self.at[range.start - self.first..range.end - self.first];
        let mut weights = [&self.weights[..0]; Q];
        for q in 0..Q {
            weights[q] = &self.weights[queries[q] * self.stride..][range.clone()][..at.len()];
        }
        // SAFETY: outputs are rows of the width, in which the columns are; the rest is promised by the caller.
        unsafe {
            let mut to = [std::ptr::null_mut::<f32>(); Q];
            for q in 0..Q {
                to[q] = out[queries[q] * self.width..][..self.width].as_mut_ptr().add(self.column);
            }
            let mut sums = [[W::splat(0.0); N]; Q];
            for q in 0..Q {
                for n in 0..N {
                    sums[q][n] = W::load(to[q].add(n * LANES));
                }
            }
            for i in 0..at.len() {
                let value = at[i].add(self.column);
                let mut vectors = [W::splat(0.0); N];
                for n in 0..N {
                    vectors[n] = W::load(value.add(n * LANES));
                }
                for q in 0..Q {
                    let weight = W::splat(weights[q][i]);
                    for n in 0..N {
                        sums[q][n] = sums[q][n].add(weight.mul(vectors[n]));
                    }
                }
            }
            for q in 0..Q {
                for n in 0..N {
                    sums[q][n].store(to[q].add(n * LANES));
                }
            }
        }
    }

    /// The columns that do not fill a vector.
    ///
    /// # Safety
    /// The values of the list must be there as far as the parts go.
    unsafe fn add_last_columns(&self, parts: &[Range<usize>], these: &Range<usize>, out: &mut [f32]) {
        for ((q, part), out) in parts.iter().enumerate().zip(out.chunks_exact_mut(self.width)) {
            for i in overlap(part, these) {
                // SAFETY: promised by the caller; a value has the width of an output.
                let value = unsafe { std::slice::from_raw_parts(self.at[i - self.first], self.width) };
                let weight = self.weights[q * self.stride + i];
                for (o, v) in out[self.column..].iter_mut().zip(&value[self.column..]) {
                    *o += weight * v;
                }
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
            attend_on(isa, &queries, keys, values, 0.3, &mut Vec::new(), &mut got);
            assert_eq!(bits(&got), bits(&want), "{positions} {key_width} {value_width} {}", isa.name());
            for (query, want) in queries.iter().zip(want.chunks(value_width)) {
                let got = &mut got[..value_width];
                attend_on(isa, std::slice::from_ref(query), keys, values, 0.3, &mut Vec::new(), got);
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
