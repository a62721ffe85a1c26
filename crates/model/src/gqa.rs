//! Grouped-query attention (arXiv 2305.13245) with rotary positions.

use calypte_checkpoint::Role;
use calypte_checkpoint::arch::{Arch, Gqa as Shape};
use calypte_kernels::attention::{Heads, Visible, grouped};
use calypte_kernels::{Activations, ops};

use crate::kv::LayerKv;
use crate::rotation::Rotation;
use crate::scratch::MixerScratch;
use crate::weights::{Linear, Loader};
use crate::{Compute, ModelError};

/// One layer's attention.
pub(crate) struct Gqa {
    shape: Shape,
    window: Option<usize>,
    norm_eps: f32,
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
    q_norm: Option<Vec<f32>>,
    k_norm: Option<Vec<f32>>,
    /// One score for each head.
    sinks: Option<Vec<f32>>,
}

impl Gqa {
    pub fn load(
        loader: &mut Loader<'_>,
        arch: &Arch,
        shape: &Shape,
        layer: usize,
    ) -> Result<Gqa, ModelError> {
        let l = Some(layer);
        let (qkv, out) = (shape.qkv_bias, shape.out_bias);
        Ok(Gqa {
            q: loader.linear(l, Role::AttnQ, qkv.then_some(Role::AttnQBias))?,
            k: loader.linear(l, Role::AttnK, qkv.then_some(Role::AttnKBias))?,
            v: loader.linear(l, Role::AttnV, qkv.then_some(Role::AttnVBias))?,
            out: loader.linear(l, Role::AttnOut, out.then_some(Role::AttnOutBias))?,
            q_norm: loader.norm_if(shape.qk_norm.is_some(), l, Role::AttnQNorm)?,
            k_norm: loader.norm_if(shape.qk_norm.is_some(), l, Role::AttnKNorm)?,
            sinks: if shape.sinks { Some(loader.vector(l, Role::AttnSinks)?) } else { None },
            window: arch.window_of(layer),
            norm_eps: arch.norms.eps,
            shape: shape.clone(),
        })
    }

    /// Norms, clamps and rotates the heads of row `row`. Without a rotation the layer has no positions.
    fn place(&self, rotation: Option<&Rotation>, norm: Option<&[f32]>, row: usize, x: &mut [f32]) {
        if let Some(w) = norm {
            // The weights' width says what one norm spans: a head, or all heads of a row.
            ops::rms_norm_in_place(x, w, self.norm_eps);
        }
        self.clip(x);
        let Some(rotation) = rotation else { return };
        x.chunks_exact_mut(self.shape.head_dim).for_each(|head| rotation.rotate(row, head));
    }

    fn clip(&self, x: &mut [f32]) {
        if let Some(limit) = self.shape.clip {
            x.iter_mut().for_each(|v| *v = v.clamp(-limit, limit));
        }
    }

    /// `out = attention(x)`, `[x.rows, hidden]`; the rows' positions start at `first`.
    pub fn forward(
        &self,
        compute: &Compute<'_>,
        rotation: Option<&Rotation>,
        first: usize,
        x: &mut Activations,
        kv: &mut LayerKv,
        scratch: &mut MixerScratch,
        out: &mut Vec<f32>,
    ) {
        let (rows, dim, heads, kv_heads) =
            (x.rows(), self.shape.head_dim, self.shape.heads, self.shape.kv_heads);
        let MixerScratch { q, k, v, mixed, .. } = scratch;
        Linear::apply_all([&self.q, &self.k, &self.v], compute, x, [q, k, v]);
        // A row is normed and rotated by itself.
        compute.rows(q, heads * dim, |row, q| self.place(rotation, self.q_norm.as_deref(), row, q));
        compute.rows(k, kv_heads * dim, |row, k| self.place(rotation, self.k_norm.as_deref(), row, k));
        self.clip(v);
        kv.keys.push(k);
        kv.values.push(v);

        let shape = Heads { queries: heads, keys: kv_heads, width: dim };
        let visible = |row: usize| Visible::latest(first + row + 1, self.window);
        let (scale, sinks, out_rows) =
            (self.shape.scale, self.sinks.as_deref(), mixed.fill(rows, heads * dim));
        grouped(compute.team, shape, q, &kv.keys, &kv.values, visible, scale, sinks, out_rows);
        self.out.apply(compute, mixed, out);
    }
}
