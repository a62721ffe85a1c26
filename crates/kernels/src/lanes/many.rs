//! Many rows of activations: weights are unpacked into scratch once, and all activation rows meet them there.

use std::mem::MaybeUninit;
use std::ops::Range;

use calypte_quant::Matrix;
use calypte_quant::formats::BLOCK;

use super::rows::{Part, RowsAhead};
use super::{Factors, QUADS, Rows, Shape, Simd, Sink, Tile, Unpack, add_block, dot, parts};
use crate::Activations;
use crate::matmul::Out;

/// Blocks of columns in a panel, at most; a multiple of the eight blocks that some formats store together. Two panels of
/// sixteen rows and 32 blocks are 40 KiB of codes and factors; 16 to 64 are equally fast where rows are long, so this is
/// chosen for rows that fit into one.
const BLOCKS: usize = 32;
/// Vectors of weights side by side in a tile, at most.
const PARTS_MAX: usize = 2;

/// One block of a vector of rows, unpacked.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Unpacked<V: Simd> {
    codes: [V::I; QUADS],
    factors: Factors<V>,
}

/// As many rows as a vector has lanes × up to `BLOCKS` blocks of columns.
pub(crate) struct Panel<V: Simd> {
    blocks: [MaybeUninit<Unpacked<V>>; BLOCKS],
}

/// Writes blocks into a panel whose first is block `first` of the row.
struct Fill<'a, V: Simd, F> {
    panel: &'a mut Panel<V>,
    first: usize,
    ahead: RowsAhead<F, V>,
}

impl<V: Simd, F: Unpack> Sink<V, F> for Fill<'_, V, F> {
    #[inline(always)]
    unsafe fn take(&mut self, block: usize, codes: &[V::I; QUADS], factors: &Factors<V>) {
        self.ahead.step();
        // SAFETY: the place is there, or the index would panic.
        unsafe {
            let to = self.panel.blocks[block - self.first].as_mut_ptr();
            (&raw mut (*to).codes).write(*codes);
            Factors::copy::<F::Shape>(&raw mut (*to).factors, factors);
        }
    }
}

/// Panels of weights that all activation rows are to meet.
pub(crate) struct Job<'a, V: Simd> {
    panels: &'a [Panel<V>; PARTS_MAX],
    /// The rows in each panel.
    parts: &'a [Part],
    /// Where in the row the panels start.
    first_block: usize,
    blocks: usize,
    x: &'a Activations,
    out: Out,
}

/// # Safety
/// As [`super::int_rows`].
#[inline(always)]
pub(super) unsafe fn int_rows<V: Simd, F: Unpack>(
    w: &Matrix<'_>,
    rows: Range<usize>,
    x: &Activations,
    out: Out,
) {
    let uninit = || Panel { blocks: [MaybeUninit::uninit(); BLOCKS] };
    let mut panels: [Panel<V>; PARTS_MAX] = [uninit(), uninit()];
    let mut parts = parts(w.rows, V::LANES, rows);
    let blocks = w.cols / BLOCK;
    // Panels of the same size: a short one at the end would cost nearly as much as a full one.
    let stored_together = F::DTYPE.block_len() / BLOCK;
    let panel_blocks =
        blocks.div_ceil(blocks.div_ceil(BLOCKS).max(1)).max(1).next_multiple_of(stored_together);
    while let Some(first) = parts.next() {
        let second = if V::PARTS > 1 { parts.next() } else { None };
        let both = [first, second.unwrap_or(first)];
        let both = &both[..if second.is_some() { 2 } else { 1 }];
        for start in (0..blocks).step_by(panel_blocks) {
            let range = start..(start + panel_blocks).min(blocks);
            for (panel, part) in panels.iter_mut().zip(both) {
                let rows = Rows::new(w, part.first);
                let mut fill = Fill { panel, first: start, ahead: rows.ahead(V::PARTS, start, &[]) };
                // SAFETY: passed on.
                unsafe { F::unpack::<V, _>(&rows, range.clone(), &mut fill) };
            }
            let (first_block, blocks) = (start, range.len());
            let job = Job { panels: &panels, parts: both, first_block, blocks, x, out };
            // SAFETY: passed on; the blocks that are filled are those that are read.
            unsafe { V::multiply::<F::Shape>(&job) };
        }
    }
}

/// Multiplies all activation rows with the panels.
///
/// # Safety
/// The processor must have the instructions of `V`; the panels must be filled as the job says.
#[inline(always)]
pub(super) unsafe fn multiply<V: Simd, S: Shape>(job: &Job<'_, V>) {
    // SAFETY: passed on.
    unsafe {
        match job.parts.len() {
            1 => multiply_parts::<V, S, 1>(job),
            _ => multiply_parts::<V, S, 2>(job),
        }
    }
}

/// # Safety
/// As [`multiply`].
#[inline(always)]
unsafe fn multiply_parts<V: Simd, S: Shape, const P: usize>(job: &Job<'_, V>) {
    for row in (0..job.x.rows()).step_by(V::TILE) {
        // SAFETY: passed on.
        unsafe {
            match (job.x.rows() - row).min(V::TILE) {
                1 => tile::<V, S, P, 1>(job, row),
                2 => tile::<V, S, P, 2>(job, row),
                3 => tile::<V, S, P, 3>(job, row),
                4 => tile::<V, S, P, 4>(job, row),
                5 => tile::<V, S, P, 5>(job, row),
                _ => tile::<V, S, P, 6>(job, row),
            }
        }
    }
}

/// P vectors of rows of weights times N rows of activations from `row` on.
///
/// # Safety
/// As [`multiply`]; the job must have P parts and the rows.
#[inline(always)]
unsafe fn tile<V: Simd, S: Shape, const P: usize, const N: usize>(job: &Job<'_, V>, row: usize) {
    // SAFETY: promised by the caller.
    unsafe {
        let x = Tile::new(job.x, row, job.first_block);
        let mut acc = [[V::splat_f(0.0); P]; N];
        if job.first_block > 0 {
            for t in 0..N {
                for p in 0..P {
                    acc[t][p] = job.parts[p].load::<V>(job.out.at(row + t, job.parts[p].first));
                }
            }
        }
        // Results are some kilobytes apart, so nobody but us can know where the next ones go. Where sums go on from an earlier
        // panel, ours were just read.
        let ahead = if job.first_block > 0 { row + N } else { row };
        for t in 0..N {
            job.out.prefetch(ahead + t, job.parts[0].first, P * V::LANES);
        }
        // All at once: in the loop below each would cost three instructions.
        let halves = if S::HAS_HALVES { 2 } else { 1 };
        let mut starts = [[MaybeUninit::<i32>::uninit(); 2 * BLOCKS]; N];
        if S::above::<V>() != 0 {
            for t in 0..N {
                x.starts::<V, S>(t, &mut starts[t][..halves * job.blocks]);
            }
        }
        for b in 0..job.blocks {
            let mut sums = [[[V::splat(0); 2]; P]; N];
            for half in 0..2 {
                // Without halves, both go into one sum.
                let into = if S::HAS_HALVES { half } else { 0 };
                if S::HAS_HALVES || half == 0 {
                    for t in 0..N {
                        for p in 0..P {
                            sums[t][p][into] = match S::above::<V>() {
                                0 => V::splat(0),
                                _ => V::splat(starts[t][halves * b + into].assume_init()),
                            };
                        }
                    }
                }
                for k in half * (QUADS / 2)..(half + 1) * (QUADS / 2) {
                    let mut codes = [V::splat(0); P];
                    for p in 0..P {
                        codes[p] = (*job.panels[p].blocks[b].as_ptr()).codes[k];
                    }
                    for t in 0..N {
                        let quad = x.quad(t, b, k);
                        for p in 0..P {
                            sums[t][p][into] = dot::<V, S>(sums[t][p][into], codes[p], quad);
                        }
                    }
                }
            }
            for p in 0..P {
                let mut factors = Factors::scaled(V::splat_f(0.0));
                Factors::copy::<S>(&mut factors, &raw const (*job.panels[p].blocks[b].as_ptr()).factors);
                for t in 0..N {
                    acc[t][p] = add_block::<V, S>(acc[t][p], sums[t][p], &factors, &x, t, b);
                }
            }
        }
        for t in 0..N {
            for p in 0..P {
                job.parts[p].store::<V>(job.out.at(row + t, job.parts[p].first), acc[t][p]);
            }
        }
    }
}
