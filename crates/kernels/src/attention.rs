//! Attention of queries over lists of cached keys, in a fixed order.
//!
//! The keys are visited in ascending position; a list is either all earlier positions or a selection of them. A selection
//! that contains everything is the same sequence as no selection, so sparse attention recovers the dense result exactly; so
//! does a window that nothing falls out of. Queries do not touch each other: how many share a pass over the cache changes
//! nothing.
//!
//! The canonical sequence of one query: its numbers times the scale; scores, each a sequence of products over the numbers of a key
//! from the first on; their maximum; the weights, e to the difference; the sum of these in sixteen lanes and the tree of
//! [`calypte_quant::reference`]; values times their weights, key by key; and one division by the sum. With a cache in f16 scaled queries
//! and weights are rounded so that all products are exact (see `exact`), and only sums round.

mod ahead;
mod cache;
mod divided;
mod exact;
mod grouped;
mod index;
mod multiply;
mod queries;
mod steps;

pub use cache::{BLOCK_POSITIONS, Cached, KvCache, KvType, Order};
pub use divided::{DividedScratch, attend_divided, divided_scratch_bytes};
pub use grouped::{Heads, grouped};
pub use index::{IndexScratch, index_scores, top_positions, top_positions_bytes};
pub use queries::{Scratch, attend, scratch_bytes};

/// One query.
#[derive(Clone, Copy)]
pub struct Query<'a> {
    /// As many numbers as a key has.
    pub vector: &'a [f32],
    /// What it sees.
    pub visible: Visible<'a>,
    /// One more score, that of a key without a value (an attention sink): it only takes its share.
    pub sink: Option<f32>,
}

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

#[cfg(test)]
mod testing {
    //! What the tests of this module share.

    pub fn noise(n: usize, seed: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0).collect()
    }

    pub fn bits(v: &[f32]) -> Vec<u32> {
        v.iter().map(|v| v.to_bits()).collect()
    }
}
