//! Attention of few queries on all threads: each takes its share of the keys for scores and of the columns for values, so that every
//! vector of the cache is widened once. Shares cut no sum: a score is one thread's, and so is a column of an output.

use std::cell::RefCell;

use calypte_quant::reference::LANES;

use super::Query;
use super::cache::{BLOCK_POSITIONS, Cached};
use super::steps::{
    Scaled, TILE_NUMBERS, TOGETHER_MAX, Tile, Together, for_each_together, mix, row_numbers, score, weigh,
};
use crate::scratch::Lines;
use crate::{Isa, Team};

/// Queries that go over the cache together at least, however long the list is.
const TOGETHER_MIN: usize = 16;
/// Memory for scores of queries that go over the cache together.
const SCORES_BYTES: usize = 16 << 20;
/// Tasks of each thread: one that is held up leaves some to the others.
const TASKS_PER_THREAD: usize = 2;
/// Sixteens of columns that a task has at least: as wide as a tile of the product.
const BLOCKS_PER_TASK_MIN: usize = 4;

/// Where [`attend_divided`] computes; it keeps its memory.
#[derive(Debug, Default)]
pub struct DividedScratch {
    queries: Scaled,
    /// Scores as tasks wrote them: `[tasks, queries, keys of a task]`.
    pieces: Lines<f32>,
    /// Scores, then weights, `[queries, keys]`; the last number of a row is their sum.
    weights: Lines<f32>,
    /// Sums of values as tasks wrote them: `[tasks, queries, columns of a task]`.
    mixed: Lines<f32>,
}

thread_local! {
    static TILE: RefCell<Tile> = RefCell::default();
}

/// Bytes of a [`DividedScratch`] for lists of up to `positions` keys of `key_width` numbers, and values, and of the tiles of
/// `threads`.
pub fn divided_scratch_bytes(
    positions: usize,
    key_width: usize,
    value_width: usize,
    threads: usize,
) -> usize {
    let pieces = row_numbers(positions) + TASKS_PER_THREAD * threads * BLOCK_POSITIONS;
    let query = row_numbers(positions) + pieces;
    let rows = TOGETHER_MAX * (2 * key_width + value_width.next_multiple_of(LANES));
    size_of::<f32>() * (together(positions) * query + rows + threads * TILE_NUMBERS)
}

/// How many queries go over so many positions together.
fn together(positions: usize) -> usize {
    (SCORES_BYTES / (2 * size_of::<f32>() * row_numbers(positions)))
        .next_multiple_of(LANES)
        .clamp(TOGETHER_MIN, TOGETHER_MAX)
}

/// [`attend`](super::attend) on all threads of a team, for queries so few that each thread could not have a pass over the cache of
/// its own.
pub fn attend_divided(
    team: &Team,
    queries: &[Query<'_>],
    keys: Cached<'_>,
    values: Cached<'_>,
    scale: f32,
    scratch: &mut DividedScratch,
    out: &mut [f32],
) {
    for_each_together(queries, together, values.width(), out, |queries, out| {
        attend_together(team, queries, keys, values, scale, scratch, out);
    });
}

fn attend_together(
    team: &Team,
    queries: &[Query<'_>],
    keys: Cached<'_>,
    values: Cached<'_>,
    scale: f32,
    scratch: &mut DividedScratch,
    out: &mut [f32],
) {
    let of = Together::of(Isa::get(), queries, keys, values);
    let (count, tasks) = (queries.len(), team.threads() * TASKS_PER_THREAD);
    let DividedScratch { queries: scaled, pieces, weights, mixed } = scratch;
    scaled.fill(of.isa, queries, scale, keys);

    let tiles = of.tiles().div_ceil(tasks);
    let piece_keys = tiles * BLOCK_POSITIONS;
    let numbers = if tiles == 0 { 0 } else { of.tiles().div_ceil(tiles) * count * piece_keys };
    pieces.grow(numbers);
    team.run_pieces(&mut pieces[..numbers], count * piece_keys, |task, scores| {
        let tiles = task * tiles..(task + 1) * tiles;
        TILE.with_borrow_mut(|tile| score(&of, scaled, keys, tiles, tile, scores, piece_keys));
    });

    let stride = row_numbers(of.list.len());
    weights.grow(count * stride);
    team.run_pieces(&mut weights[..count * stride], stride, |q, row| {
        let of_query = pieces[..numbers].chunks_exact(piece_keys.max(1)).skip(q).step_by(count);
        let (scores, sum) = row.split_at_mut(stride - 1);
        for (to, from) in scores.chunks_mut(piece_keys.max(1)).zip(of_query) {
            let keys = to.len().min(from.len());
            to[..keys].copy_from_slice(&from[..keys]);
        }
        sum[0] = weigh(of.isa, &of.parts()[q], queries[q].sink, values, scores);
    });

    let blocks = values.width().div_ceil(LANES);
    let columns = blocks.div_ceil(tasks).max(BLOCKS_PER_TASK_MIN) * LANES;
    mixed.grow(count * blocks * LANES);
    team.run_pieces(&mut mixed[..count * blocks * LANES], count * columns, |task, mixed| {
        let first = task * columns;
        let values = values.columns(first..(first + columns).min(values.width()));
        TILE.with_borrow_mut(|tile| mix(&of, values, weights, stride, tile, mixed));
    });

    let pieces = mixed[..count * blocks * LANES].chunks(count * columns);
    for (first, piece) in (0..).step_by(columns).zip(pieces) {
        for (q, row) in piece.chunks_exact(piece.len() / count).enumerate() {
            let out = &mut out[q * values.width()..][..values.width()][first..];
            let width = row.len().min(out.len());
            of.divide(q, &row[..width], weights[(q + 1) * stride - 1], &mut out[..width]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{bits, noise};
    use super::super::{KvCache, KvType, Order, Scratch, Visible, attend};
    use super::*;

    /// Shares of any number of threads give the bits of one thread that takes everything.
    #[track_caller]
    fn check(positions: usize, width: usize, value_width: usize, queries: usize) {
        let vectors = noise(queries * width, 1);
        let some: Vec<u32> = (0..positions as u32).filter(|p| p * 7 % 3 != 1).collect();
        let visible = |i: usize| match i * 4 / queries {
            0 => Visible::latest(positions - i % 3, None),
            1 => Visible::latest(positions, Some(positions / 2 + 1)),
            2 => Visible::Selected(&some),
            _ => Visible::latest(i % 2, None),
        };
        let of = |(i, vector)| Query { vector, visible: visible(i), sink: (i % 2 == 1).then_some(0.25) };
        let queries: Vec<Query<'_>> = vectors.chunks(width).enumerate().map(of).collect();
        for (kind, order) in
            [(KvType::F16, Order::Rows), (KvType::F16, Order::Lanes), (KvType::F32, Order::Rows)]
        {
            let mut cache = KvCache::new(kind, order, 1, width, 0);
            cache.push(&noise(positions * width, 2));
            let (keys, values) = (cache.view(0, width), cache.view(0, value_width));
            let mut want = vec![f32::NAN; queries.len() * value_width];
            attend(&queries, keys, values, 0.3, &mut Scratch::default(), &mut want);
            let mut scratch = DividedScratch::default();
            for threads in [1, 2, 3, 7] {
                let mut got = vec![f32::NAN; want.len()];
                attend_divided(&Team::new(threads), &queries, keys, values, 0.3, &mut scratch, &mut got);
                assert_eq!(bits(&got), bits(&want), "{positions} {width} {kind:?} {order:?} {threads}");
            }
        }
    }

    #[test]
    fn shares_change_nothing() {
        for (positions, width, value_width, queries) in
            [(1, 24, 16, 4), (63, 20, 17, 8), (64, 40, 40, 1), (130, 576, 512, 16), (700, 40, 33, 9)]
        {
            check(positions, width, value_width, queries);
        }
        // More queries than go over a cache together.
        check(200, 20, 20, 150);
    }
}
