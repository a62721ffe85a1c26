//! Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), with sparse selection where the family has it.
//!
//! Only the compressed latent and one rotated key are cached (`kv_lora + rope` values a position, for all heads). The
//! *absorbed* form is used for one row and for many: the key up-projection is moved to the query's side and the value
//! up-projection behind the attention, so a query meets the latents themselves. One form means one answer; with sparse
//! selection, where every query has keys of its own, it is also the cheaper one.

use std::cell::RefCell;

use calypte_checkpoint::Role;
use calypte_checkpoint::arch::{Arch, Attention, IndexerKind, RopeLayout};
use calypte_kernels::attention::{Cached, attend};
use calypte_kernels::matmul::matmul_serial;
use calypte_kernels::{Activations, Precision, ops};

use crate::dsa::{Indexer, Selection};
use crate::kv::LayerKv;
use crate::rotation::Rotation;
use crate::weights::{Loader, Weight};
use crate::{Compute, ModelError};

/// One layer's attention.
pub(crate) struct Mla {
    heads: usize,
    kv_lora: usize,
    nope: usize,
    rope: usize,
    v: usize,
    latent_norm_eps: f32,
    layout: RopeLayout,
    q_a: Weight,
    q_a_norm: Vec<f32>,
    q_b: Weight,
    kv_a: Weight,
    kv_a_norm: Vec<f32>,
    /// `[heads · kv_lora, nope]`
    k_b: Weight,
    /// `[heads · v, kv_lora]`
    v_b: Weight,
    out: Weight,
    indexer: Option<Indexer>,
}

/// What one head computes in; kept per thread so that a steady state allocates nothing.
#[derive(Default)]
struct HeadScratch {
    input: Activations,
    absorbed: Vec<f32>,
    query: Vec<f32>,
    scores: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<HeadScratch> = RefCell::new(HeadScratch::default());
}

impl Mla {
    pub fn load(loader: &mut Loader<'_>, arch: &Arch, layer: usize) -> Result<Mla, ModelError> {
        let Attention::Mla { heads, kv_lora, nope, rope, v, latent_norm_eps, .. } = arch.attention else {
            unreachable!("the caller matched on the attention kind")
        };
        let l = Some(layer);
        let (k_b, v_b) = loader.latent_up(layer, heads, kv_lora, nope, v)?;
        let indexer = match &arch.dsa {
            Some(dsa) if dsa.layers.get(layer) == Some(&IndexerKind::Full) => {
                Some(Indexer::load(loader, arch, dsa, layer)?)
            }
            _ => None,
        };
        Ok(Mla {
            heads,
            kv_lora,
            nope,
            rope,
            v,
            latent_norm_eps,
            layout: arch.rope.layout,
            q_a: loader.matrix(l, Role::AttnQA)?,
            q_a_norm: loader.vector(l, Role::AttnQANorm)?,
            q_b: loader.matrix(l, Role::AttnQB)?,
            kv_a: loader.matrix(l, Role::AttnKvA)?,
            kv_a_norm: loader.vector(l, Role::AttnKvANorm)?,
            k_b,
            v_b,
            out: loader.matrix(l, Role::AttnOut)?,
            indexer,
        })
    }

    /// `out = attention(x)`, `[x.rows, hidden]`; positions start at `first`. A layer with an indexer replaces
    /// `selection`, one without uses what it finds there.
    pub fn forward(
        &self,
        compute: &Compute<'_>,
        rotation: &Rotation,
        x: &mut Activations,
        kv: &mut LayerKv,
        selection: &mut Selection,
        out: &mut Vec<f32>,
    ) {
        let (rows, heads, head_dim) = (x.rows(), self.heads, self.nope + self.rope);
        let mut low = Vec::new();
        self.q_a.apply(compute, x, &mut low);
        let mut q_latent = Activations::new();
        let normed = q_latent.fill(rows, self.q_a_norm.len());
        ops::rms_norm_rows(&low, &self.q_a_norm, self.latent_norm_eps, normed);
        let mut q = Vec::new();
        self.q_b.apply(compute, &mut q_latent, &mut q);
        for (i, head) in q.chunks_exact_mut(head_dim).enumerate() {
            rotation.rotate(self.layout, i / heads, &mut head[self.nope..]);
        }
        self.cache_latents(compute, rotation, x, kv);
        if let Some(indexer) = &self.indexer {
            indexer.select(compute, rotation, x, &mut q_latent, kv, selection);
        }

        // Head by head, so that each head's up-projections are used for all rows at once; then back to row by row.
        let (keys, selection) = (&kv.keys, &*selection);
        let mut by_head = vec![0f32; heads * rows * self.v];
        compute.team.run_pieces(&mut by_head, rows * self.v, |head, out| {
            SCRATCH.with_borrow_mut(|scratch| {
                self.head_forward(compute.precision, head, rows, &q, keys, selection, scratch, out);
            });
        });
        let mut mixed = Activations::new();
        for (i, out) in mixed.fill(rows, heads * self.v).chunks_exact_mut(self.v).enumerate() {
            let at = (i % heads * rows + i / heads) * self.v;
            out.copy_from_slice(&by_head[at..at + self.v]);
        }
        self.out.apply(compute, &mut mixed, out);
    }

    /// Appends `[norm(latent) | rotated key]` of every row to the cache.
    fn cache_latents(
        &self,
        compute: &Compute<'_>,
        rotation: &Rotation,
        x: &mut Activations,
        kv: &mut LayerKv,
    ) {
        let mut latents = Vec::new();
        self.kv_a.apply(compute, x, &mut latents);
        let width = self.kv_lora + self.rope;
        let start = kv.keys.len();
        kv.keys.resize(start + x.rows() * width, 0.0);
        let cached = kv.keys[start..].chunks_exact_mut(width);
        for (row, (latent, cached)) in latents.chunks_exact_mut(width).zip(cached).enumerate() {
            let (compressed, key) = latent.split_at_mut(self.kv_lora);
            ops::rms_norm(compressed, &self.kv_a_norm, self.latent_norm_eps, &mut cached[..self.kv_lora]);
            rotation.rotate(self.layout, row, key);
            cached[self.kv_lora..].copy_from_slice(key);
        }
    }

    /// One head for all rows: absorb, attend to the latents, project up. `out` is `[rows, v]`.
    fn head_forward(
        &self,
        precision: Precision,
        head: usize,
        rows: usize,
        q: &[f32],
        keys: &[f32],
        selection: &Selection,
        scratch: &mut HeadScratch,
        out: &mut [f32],
    ) {
        let (head_dim, width) = (self.nope + self.rope, self.kv_lora + self.rope);
        let query_of = |row: usize| &q[(row * self.heads + head) * head_dim..][..head_dim];
        let HeadScratch { input, absorbed, query, scores } = scratch;

        for (row, part) in input.fill(rows, self.nope).chunks_exact_mut(self.nope).enumerate() {
            part.copy_from_slice(&query_of(row)[..self.nope]);
        }
        absorbed.resize(rows * self.kv_lora, 0.0);
        project(precision, &self.k_b, head * self.kv_lora, self.kv_lora, input, absorbed);

        let cache = |width| Cached { data: keys, stride: self.kv_lora + self.rope, offset: 0, width };
        let scale = 1.0 / (head_dim as f32).sqrt();
        let mixed = input.fill(rows, self.kv_lora);
        for (row, mixed) in mixed.chunks_exact_mut(self.kv_lora).enumerate() {
            query.clear();
            query.extend_from_slice(&absorbed[row * self.kv_lora..(row + 1) * self.kv_lora]);
            query.extend_from_slice(&query_of(row)[self.nope..]);
            attend(query, cache(width), cache(self.kv_lora), selection.visible(row), scale, scores, mixed);
        }
        project(precision, &self.v_b, head * self.v, self.v, input, out);
    }
}

/// Rows `first .. first + rows` of a stack times `x`, inside a task.
fn project(
    precision: Precision,
    stack: &Weight,
    first: usize,
    rows: usize,
    x: &mut Activations,
    out: &mut [f32],
) {
    if stack.is_integer() {
        x.quantize_serial();
    }
    matmul_serial(precision, &stack.rows_at(first, rows), x, out);
}
