//! The attention itself, for any number of queries that read the same cache, on one thread.

use calypte_quant::reference::LANES;

use super::Query;
use super::cache::Cached;
use super::steps::{
    Scaled, TILE_NUMBERS, TOGETHER_MAX, Tile, Together, for_each_together, mix, row_numbers, score, weigh,
};
use crate::Isa;
use crate::scratch::Lines;

/// Queries that go over the cache together at least, however long the list is.
const TOGETHER_MIN: usize = LANES;
/// The scores of queries that go over the cache together should stay in a second-level cache.
const SCORES_BYTES: usize = 1 << 20;

/// Where attention computes; it keeps its memory.
#[derive(Debug, Default)]
pub struct Scratch {
    queries: Scaled,
    /// A row for each query.
    scores: Lines<f32>,
    tile: Tile,
    /// Sums of values, rows of whole vectors.
    mixed: Lines<f32>,
}

/// Bytes of scratch of one thread for lists of up to `positions` keys of `key_width` numbers, and values.
pub fn scratch_bytes(positions: usize, key_width: usize, value_width: usize) -> usize {
    let rows = 2 * TOGETHER_MAX * key_width + TOGETHER_MAX * value_width.next_multiple_of(LANES);
    4 * (together(positions) * row_numbers(positions) + rows + TILE_NUMBERS)
}

/// How many queries go over so many positions together.
fn together(positions: usize) -> usize {
    (SCORES_BYTES / (4 * row_numbers(positions))).next_multiple_of(LANES).clamp(TOGETHER_MIN, TOGETHER_MAX)
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
    for_each_together(queries, together, values.width(), out, |queries, out| {
        attend_together(isa, queries, keys, values, scale, scratch, out);
    });
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
    let of = Together::of(isa, queries, keys, values);
    let Scratch { queries: scaled, scores, tile, mixed } = scratch;
    let stride = row_numbers(of.list.len());
    scores.grow(queries.len() * stride);
    scaled.fill(isa, queries, scale, keys);
    score(&of, scaled, keys, 0..of.tiles(), tile, scores, stride);
    let mut sums = [0f32; TOGETHER_MAX];
    for (((query, part), scores), sum) in
        queries.iter().zip(of.parts()).zip(scores.chunks_exact_mut(stride)).zip(&mut sums)
    {
        *sum = weigh(isa, part, query.sink, values, scores);
    }
    let row = values.width().next_multiple_of(LANES);
    mixed.grow(queries.len() * row);
    mix(&of, values, scores, stride, tile, &mut mixed[..queries.len() * row]);
    for (q, out) in out.chunks_exact_mut(values.width()).enumerate() {
        of.divide(q, &mixed[q * row..], sums[q], out);
    }
}

#[cfg(test)]
mod tests {
    use super::super::cache::Order;
    use super::super::exact::factor;
    use super::super::testing::{bits, noise};
    use super::super::{KvCache, KvType, Visible};
    use super::*;
    use crate::math;
    use calypte_quant::reference::reduce;
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
