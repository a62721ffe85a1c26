//! The key/value cache of one timeline.

use calypte_checkpoint::arch::{Arch, Attention, IndexerKind};

/// What one layer keeps per position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Widths {
    /// Keys of all heads; for MLA the compressed latent followed by the shared rotated key; what a short convolution reads.
    keys: usize,
    /// Values of all heads; 0 for MLA, whose values are the latent part of its keys, and for a convolution.
    values: usize,
    /// The indexer's key, in layers that have one.
    index: usize,
}

/// One layer's cache: position p of a kind of width w is at `p · w`.
pub(crate) struct LayerKv {
    widths: Widths,
    pub keys: Vec<f32>,
    pub values: Vec<f32>,
    pub index: Vec<f32>,
}

/// Keys and values of everything a timeline has seen, in f32.
pub struct Kv {
    len: usize,
    pub(crate) layers: Vec<LayerKv>,
}

fn widths(arch: &Arch, layer: usize) -> Widths {
    let index = arch
        .dsa
        .as_ref()
        .filter(|d| d.layers.get(layer) == Some(&IndexerKind::Full))
        .map_or(0, |d| d.head_dim);
    if arch.short_conv_of(layer).is_some() {
        return Widths { keys: arch.hidden, values: 0, index };
    }
    match &arch.attention {
        Attention::Gqa(a) => Widths { keys: a.kv_heads * a.head_dim, values: a.kv_heads * a.head_dim, index },
        Attention::Mla(a) => Widths { keys: a.kv_lora + a.rope, values: 0, index },
    }
}

impl Kv {
    /// An empty cache with memory for `positions` positions; it grows if more come.
    pub fn new(arch: &Arch, positions: usize) -> Kv {
        let layers = (0..arch.layers).map(|l| {
            let w = widths(arch, l);
            LayerKv {
                widths: w,
                keys: Vec::with_capacity(positions * w.keys),
                values: Vec::with_capacity(positions * w.values),
                index: Vec::with_capacity(positions * w.index),
            }
        });
        Kv { len: 0, layers: layers.collect() }
    }

    /// Bytes that one position takes in all layers of the trunk.
    pub fn bytes_per_position(arch: &Arch) -> u64 {
        let values = (0..arch.layers).map(|l| {
            let w = widths(arch, l);
            (w.keys + w.values + w.index) as u64
        });
        values.sum::<u64>() * size_of::<f32>() as u64
    }

    /// Positions held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was seen yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets everything from position `len` on, also what an unfinished step left behind.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        for layer in &mut self.layers {
            layer.keys.truncate(self.len * layer.widths.keys);
            layer.values.truncate(self.len * layer.widths.values);
            layer.index.truncate(self.len * layer.widths.index);
        }
    }

    /// Makes `rows` positions that every layer has written part of the timeline.
    pub(crate) fn commit(&mut self, rows: usize) {
        self.len += rows;
        debug_assert!(self.layers.iter().all(|l| l.keys.len() == self.len * l.widths.keys));
    }
}
