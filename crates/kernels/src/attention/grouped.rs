//! Grouped-query attention: which queries go over which cache together.

use std::cell::RefCell;

use super::{KvCache, Query, Scratch, Visible, attend};
use crate::Team;
use crate::team::SendPtr;

/// Rows of queries that one task takes together.
const ROWS_PER_TASK: usize = 16;

/// How many query heads there are, and how many share each head of keys and values.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Heads of queries.
    pub queries: usize,
    /// Heads of keys and values, which divide them.
    pub keys: usize,
    /// Values of a head.
    pub width: usize,
}

thread_local! {
    /// Kept per thread so that a steady state allocates little.
    static SCRATCH: RefCell<(Scratch, Vec<f32>)> = RefCell::default();
}

/// Grouped-query attention (arXiv 2305.13245) for rows of queries.
///
/// `q` and `out` are `[rows, queries · width]`; `keys` and `values` have `keys` heads of `width` numbers; `visible` says what a
/// row sees; `sinks` has one score for each head of queries.
pub fn grouped<'a>(
    team: &Team,
    heads: Heads,
    q: &[f32],
    keys: &KvCache,
    values: &KvCache,
    visible: impl Fn(usize) -> Visible<'a> + Sync,
    scale: f32,
    sinks: Option<&[f32]>,
    out: &mut [f32],
) {
    let Heads { queries, keys: kv, width } = heads;
    assert_eq!(q.len(), out.len(), "queries and results have different sizes");
    let (row_width, group) = (queries * width, queries / kv);
    let rows = q.len() / row_width;
    let tiles = rows.div_ceil(ROWS_PER_TASK);
    // Heads that share their keys go over them together, unless there would be too few tasks then.
    let enough = |together: &usize| group % together == 0 && queries / together * tiles >= team.threads();
    let together = (1..=group).rev().find(enough).unwrap_or(1);
    let units = queries / together;
    let target = SendPtr(out.as_mut_ptr());
    team.run(units * tiles, |task| {
        let first_head = task % units * together;
        let first_row = task / units * ROWS_PER_TASK;
        let rows = first_row..(first_row + ROWS_PER_TASK).min(rows);
        let at = |row: usize, head: usize| row * row_width + head * width;
        let of_row = |row: usize| {
            let visible = visible(row);
            (first_head..first_head + together).map(move |head| Query {
                vector: &q[at(row, head)..at(row, head) + width],
                visible,
                sink: sinks.map(|s| s[head]),
            })
        };
        let list: Vec<Query<'_>> = rows.clone().flat_map(of_row).collect();
        let head = first_head / group;
        SCRATCH.with_borrow_mut(|(scratch, mixed)| {
            mixed.resize(list.len() * width, 0.0);
            attend(&list, keys.view(head, width), values.view(head, width), scale, scratch, mixed);
            for (row, mixed) in rows.zip(mixed.chunks_exact(together * width)) {
                // SAFETY: the heads of this unit lie side by side in the row; no other task has them, and `out` is as
                // large as `q`, from which the queries came.
                unsafe {
                    let to = target.get().add(at(row, first_head));
                    std::ptr::copy_nonoverlapping(mixed.as_ptr(), to, mixed.len());
                }
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use super::super::testing::{bits, noise};
    use super::super::{KvType, Order};
    use super::*;

    /// Grouped heads over rows, at once and one by one, with any number of threads.
    #[test]
    fn rows_and_threads_change_nothing() {
        let heads = Heads { queries: 6, keys: 2, width: 20 };
        let (rows, first) = (19, 11);
        let (q, sinks) = (noise(rows * 120, 4), noise(6, 7));
        for kind in [KvType::F16, KvType::F32] {
            let mut keys = KvCache::new(kind, Order::Lanes, 2, 20, 0);
            let mut values = KvCache::new(kind, Order::Rows, 2, 20, 0);
            keys.push(&noise((first + rows) * 40, 5));
            values.push(&noise((first + rows) * 40, 6));
            let run = |threads, rows: std::ops::Range<usize>| {
                let mut out = vec![f32::NAN; rows.len() * 120];
                let visible = |row: usize| Visible::latest(first + rows.start + row + 1, Some(25));
                let q = &q[rows.start * 120..rows.end * 120];
                grouped(&Team::new(threads), heads, q, &keys, &values, visible, 0.3, Some(&sinks), &mut out);
                bits(&out)
            };
            let want = run(1, 0..rows);
            assert_eq!(run(3, 0..rows), want);
            let single: Vec<u32> = (0..rows).flat_map(|r| run(2, r..r + 1)).collect();
            assert_eq!(single, want);
        }
    }
}
