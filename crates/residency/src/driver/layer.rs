//! One MoE layer: where its experts lie on disk, and those of them that are in memory.

use std::sync::Arc;

use calypte_disk::{Disk, Extent, Loaded};

use crate::Key;
use crate::budget::LayerSize;

/// The routed experts of one MoE layer.
#[derive(Clone, Debug)]
pub struct LayerExperts {
    /// What is read for every expert: its gate, up and down matrices, or whatever `arrange` makes them from.
    pub extents: Vec<Vec<Extent>>,
    /// Experts that the router picks for one token.
    pub top_k: usize,
    /// Makes the three matrices out of what was read; `None`: they are what was read.
    pub arrange: Option<Arc<dyn Arrange>>,
}

/// Turns what was read for an expert into its three matrices, once, when it arrives. For checkpoints that store them in
/// an order which the arithmetic cannot read.
pub trait Arrange: std::fmt::Debug + Send + Sync {
    /// Bytes of gate, up and down.
    fn matrix_bytes(&self) -> [usize; 3];

    /// Writes gate, up and down, one after another, to `out`, which has exactly their size. `pieces` are the expert's
    /// extents as they are in the file.
    ///
    /// # Errors
    /// What does not fit, in words.
    fn arrange(&self, pieces: &[&[u8]], out: &mut [u8]) -> Result<(), String>;
}

impl LayerExperts {
    /// The layer as the budget sees it. Its slots are as large as its largest expert needs on `disk`, so that any slot
    /// of the layer serves any of its experts.
    pub fn size(&self, disk: &Disk) -> LayerSize {
        let read_bytes = self.extents.iter().map(|e| disk.buffer_bytes(e)).max().unwrap_or(0);
        let arranged_bytes = self.arrange.as_ref().map_or(0, |a| a.matrix_bytes().iter().sum());
        LayerSize {
            experts: self.extents.len(),
            top_k: self.top_k,
            slot_bytes: read_bytes.max(arranged_bytes) as u64,
        }
    }
}

/// The right to read the weights of one resident expert. They stay where they are, unchanged, until the lease is given
/// back through [`crate::ExpertCache::release`].
#[derive(Debug)]
pub struct Lease {
    /// The expert, in the layer of the step.
    pub expert: u32,
    pub(super) layer: u32,
    pub(super) loaded: Arc<Loaded>,
}

impl Lease {
    /// The MoE layer, counted from 0 over the layers that have experts.
    pub fn layer(&self) -> usize {
        self.layer as usize
    }

    /// Bytes of the gate matrix, as the file or the layer's [`Arrange`] has them.
    pub fn gate(&self) -> &[u8] {
        self.loaded.view(0)
    }

    /// Bytes of the up matrix, as the file or the layer's [`Arrange`] has them.
    pub fn up(&self) -> &[u8] {
        self.loaded.view(1)
    }

    /// Bytes of the down matrix, as the file or the layer's [`Arrange`] has them.
    pub fn down(&self) -> &[u8] {
        self.loaded.view(2)
    }

    pub(super) fn key(&self) -> Key {
        Key { layer: self.layer, expert: self.expert }
    }
}

/// One layer with its memory.
pub(super) struct Room {
    pub(super) extents: Vec<Vec<Extent>>,
    pub(super) arrange: Option<Arc<dyn Arrange>>,
    pub(super) top_k: usize,
    pub(super) slot_bytes: usize,
    /// Place of every expert in the order of file offsets.
    pub(super) read_rank: Vec<u32>,
    /// The weights of every READY expert.
    pub(super) loaded: Vec<Option<Arc<Loaded>>>,
}

impl Room {
    pub(super) fn new(layer: LayerExperts, size: LayerSize) -> Room {
        Room {
            read_rank: read_ranks(&layer.extents),
            loaded: vec![None; layer.extents.len()],
            extents: layer.extents,
            arrange: layer.arrange,
            top_k: layer.top_k,
            slot_bytes: size.slot_bytes as usize,
        }
    }
}

pub(super) fn sizes(layers: &[LayerExperts], disk: &Disk) -> Vec<LayerSize> {
    layers.iter().map(|layer| layer.size(disk)).collect()
}

/// The place of every expert when experts are sorted by where their first extent begins.
fn read_ranks(extents: &[Vec<Extent>]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..extents.len() as u32).collect();
    order.sort_by_key(|&expert| {
        let extents = &extents[expert as usize];
        extents.iter().map(|e| (e.file, e.offset)).min()
    });
    let mut ranks = vec![0; extents.len()];
    for (rank, &expert) in order.iter().enumerate() {
        ranks[expert as usize] = rank as u32;
    }
    ranks
}
