//! How many parameters a checkpoint has, and how many of them a token meets.

use crate::arch::Ffn;
use crate::catalog::{Catalog, Role};
use crate::expert_layer::{ExpertLayer, ExpertMatrix};

/// Parameter counts and sizes of a [`Catalog`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Every parameter in use, layers for multi-token prediction included.
    pub total: u64,
    /// Parameters that one token of the trunk meets: everything resident and `top_k` experts in each mixture. The
    /// embedding counts only when it is also the output matrix; multi-token prediction does not count.
    pub active: u64,
    /// Stored bytes of everything but the routed experts.
    pub resident_bytes: u64,
    /// Stored bytes of all routed experts.
    pub expert_bytes_total: u64,
}

impl Catalog {
    /// Counts parameters; shapes were checked when the checkpoint was opened, so nothing can overflow but for files
    /// beyond any disk, where the counts saturate.
    pub fn parameters(&self) -> Parameters {
        let mut out = Parameters { total: 0, active: 0, resident_bytes: 0, expert_bytes_total: 0 };
        let in_trunk = |layer: usize| layer < self.arch.layers;
        for (key, tensor) in &self.tensors {
            let n = tensor.len() as u64;
            out.total = out.total.saturating_add(n);
            out.resident_bytes = out.resident_bytes.saturating_add(tensor.stored_bytes());
            let only_looked_up = key.role == Role::TokenEmbedding && !self.arch.tied_embeddings;
            if key.layer.is_none_or(in_trunk) && !only_looked_up {
                out.active = out.active.saturating_add(n);
            }
        }
        let top_k = self.arch.moe.as_ref().map_or(0, |m| m.top_k) as u64;
        for layer in &self.experts {
            let one = expert_parameters(layer);
            let bytes = layer.expert_bytes().saturating_mul(layer.extents.len() as u64);
            out.total = out.total.saturating_add(one.saturating_mul(layer.extents.len() as u64));
            out.expert_bytes_total = out.expert_bytes_total.saturating_add(bytes);
            if in_trunk(layer.layer) {
                out.active = out.active.saturating_add(one.saturating_mul(top_k));
            }
        }
        out
    }

    /// Trunk layers that have routed experts.
    pub fn moe_layers(&self) -> usize {
        self.arch.ffn.iter().take(self.arch.layers).filter(|f| **f == Ffn::Moe).count()
    }
}

fn expert_parameters(layer: &ExpertLayer) -> u64 {
    let count = |m: ExpertMatrix| (m.rows as u64).saturating_mul(m.cols as u64);
    [layer.gate, layer.up, layer.down].into_iter().map(count).fold(0, u64::saturating_add)
}
