//! The key/value cache of one timeline.

use calypte_checkpoint::arch::{Arch, Attention, IndexerKind};
use calypte_kernels::attention::{BLOCK_POSITIONS, KvCache, KvType, Order};

/// What one layer keeps per position: heads, and numbers of a head; 0 heads where it keeps none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Widths {
    /// Keys; for MLA the compressed latent followed by the shared rotated key, which are the values too.
    keys: (usize, usize),
    values: (usize, usize),
    /// The indexer's key, in layers that have one.
    index: (usize, usize),
    /// What a short convolution reads.
    conv: usize,
}

impl Widths {
    /// Numbers of a position, without what a convolution reads.
    fn numbers(&self) -> usize {
        [self.keys, self.values, self.index].iter().map(|(heads, width)| heads * width).sum()
    }
}

/// One layer's cache.
pub(crate) struct LayerKv {
    conv_width: usize,
    pub keys: KvCache,
    pub values: KvCache,
    pub index: KvCache,
    /// `[positions, width]`, in f32.
    pub conv: Vec<f32>,
}

/// Keys and values of everything a timeline has seen.
pub struct Kv {
    len: usize,
    pub(crate) layers: Vec<LayerKv>,
}

fn widths(arch: &Arch, layer: usize) -> Widths {
    if arch.short_conv_of(layer).is_some() {
        return Widths { conv: arch.hidden, ..Widths::default() };
    }
    let index = arch
        .dsa
        .as_ref()
        .filter(|d| d.layers.get(layer) == Some(&IndexerKind::Full))
        .map_or((0, 0), |d| (1, d.head_dim));
    match &arch.attention {
        Attention::Gqa(a) => {
            let heads = (a.kv_heads, a.head_dim);
            Widths { keys: heads, values: heads, index, conv: 0 }
        }
        Attention::Mla(a) => Widths { keys: (1, a.kv_lora + a.rope), index, ..Widths::default() },
    }
}

impl Kv {
    /// An empty cache with memory for `positions` positions; it grows if more come.
    pub fn new(arch: &Arch, kind: KvType, positions: usize) -> Kv {
        // Keys that are values too lie in rows; others, and those of an indexer, in lanes.
        let of_keys = match &arch.attention {
            Attention::Gqa(_) => Order::Lanes,
            Attention::Mla(_) => Order::Rows,
        };
        let layers = (0..arch.layers).map(|l| {
            let w = widths(arch, l);
            let cache = |order, (heads, width)| KvCache::new(kind, order, heads, width, positions);
            LayerKv {
                conv_width: w.conv,
                keys: cache(of_keys, w.keys),
                values: cache(Order::Rows, w.values),
                index: cache(Order::Lanes, w.index),
                conv: Vec::with_capacity(positions * w.conv),
            }
        });
        Kv { len: 0, layers: layers.collect() }
    }

    /// Bytes that one position takes in all layers of the trunk.
    pub fn bytes_per_position(arch: &Arch, kind: KvType) -> u64 {
        let bytes = (0..arch.layers).map(|l| {
            let w = widths(arch, l);
            w.numbers() * kind.bytes() + w.conv * size_of::<f32>()
        });
        bytes.sum::<usize>() as u64
    }

    /// Bytes of a cache for so many positions.
    pub fn bytes(arch: &Arch, kind: KvType, positions: usize) -> u64 {
        Kv::bytes_per_position(arch, kind) * positions.next_multiple_of(BLOCK_POSITIONS) as u64
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
            layer.keys.truncate(self.len);
            layer.values.truncate(self.len);
            layer.index.truncate(self.len);
            layer.conv.truncate(self.len * layer.conv_width);
        }
    }

    /// Makes `rows` positions that every layer has written part of the timeline.
    pub(crate) fn commit(&mut self, rows: usize) {
        self.len += rows;
        debug_assert!(self.layers.iter().all(|l| match l.conv_width {
            0 => l.keys.len() == self.len,
            width => l.conv.len() == self.len * width,
        }));
    }
}
