//! Grouped-query attention (arXiv 2305.13245) with rotary positions.

use std::cell::RefCell;

use calypte_checkpoint::Role;
use calypte_checkpoint::arch::{Arch, Attention, Rope};
use calypte_kernels::attention::{Cached, Visible, attend};
use calypte_kernels::{Activations, ops};

use crate::kv::LayerKv;
use crate::rotation::Rotation;
use crate::weights::{Loader, Weight};
use crate::{Compute, ModelError};

thread_local! {
    /// Scores of one query; kept per thread so that a steady state allocates nothing.
    static SCORES: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// One layer's attention.
pub(crate) struct Gqa {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    rope: Rope,
    norm_eps: f32,
    q: Weight,
    k: Weight,
    v: Weight,
    out: Weight,
    q_norm: Option<Vec<f32>>,
    k_norm: Option<Vec<f32>>,
}

impl Gqa {
    pub fn load(loader: &mut Loader<'_>, arch: &Arch, layer: usize) -> Result<Gqa, ModelError> {
        let Attention::Gqa { heads, kv_heads, head_dim, qk_norm } = arch.attention else {
            unreachable!("the caller matched on the attention kind")
        };
        let l = Some(layer);
        let mut norm = |role| if qk_norm { loader.vector(l, role).map(Some) } else { Ok(None) };
        Ok(Gqa {
            q_norm: norm(Role::AttnQNorm)?,
            k_norm: norm(Role::AttnKNorm)?,
            heads,
            kv_heads,
            head_dim,
            rope: arch.rope.clone(),
            norm_eps: arch.norm_eps,
            q: loader.matrix(l, Role::AttnQ)?,
            k: loader.matrix(l, Role::AttnK)?,
            v: loader.matrix(l, Role::AttnV)?,
            out: loader.matrix(l, Role::AttnOut)?,
        })
    }

    /// Norms and rotates consecutive heads, `heads` of them a row.
    fn place(&self, rotation: &Rotation, norm: Option<&[f32]>, heads: usize, x: &mut [f32]) {
        if let Some(w) = norm {
            ops::rms_norm_in_place(x, w, self.norm_eps, &mut Vec::new());
        }
        for (i, head) in x.chunks_exact_mut(self.head_dim).enumerate() {
            rotation.rotate(self.rope.layout, i / heads, &mut head[..self.rope.dims]);
        }
    }

    /// `out = attention(x)`, `[x.rows, hidden]`; the rows' positions start at `first`.
    pub fn forward(
        &self,
        compute: &Compute<'_>,
        rotation: &Rotation,
        first: usize,
        x: &mut Activations,
        kv: &mut LayerKv,
        out: &mut Vec<f32>,
    ) {
        let (rows, dim, heads) = (x.rows(), self.head_dim, self.heads);
        let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
        self.q.apply(compute, x, &mut q);
        self.k.apply(compute, x, &mut k);
        self.v.apply(compute, x, &mut v);
        self.place(rotation, self.q_norm.as_deref(), heads, &mut q);
        self.place(rotation, self.k_norm.as_deref(), self.kv_heads, &mut k);
        kv.keys.extend_from_slice(&k);
        kv.values.extend_from_slice(&v);

        let (stride, group, scale) = (self.kv_heads * dim, heads / self.kv_heads, 1.0 / (dim as f32).sqrt());
        let (keys, values) = (&kv.keys, &kv.values);
        let mut mixed = Activations::new();
        compute.team.run_pieces(mixed.fill(rows, heads * dim), dim, |i, out| {
            let (row, head) = (i / heads, i % heads);
            let offset = head / group * dim;
            let keys = Cached { data: keys, stride, offset, width: dim };
            let values = Cached { data: values, stride, offset, width: dim };
            let query = &q[i * dim..(i + 1) * dim];
            SCORES.with_borrow_mut(|scores| {
                attend(query, keys, values, Visible::All(first + row + 1), scale, scores, out);
            });
        });
        self.out.apply(compute, &mut mixed, out);
    }
}
