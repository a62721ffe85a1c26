//! Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), with sparse selection where the family has it.
//!
//! Only the compressed latent and one rotated key are cached (`kv_lora + rope` values a position, for all heads). The
//! *absorbed* form is used for one row and for many: the key up-projection is moved to the query's side and the value
//! up-projection behind the attention, so a query meets the latents themselves. One form means one answer; with sparse
//! selection, where every query has keys of its own, it is also the cheaper one.

use std::cell::RefCell;
use std::ops::Range;

use calypte_checkpoint::Role;
use calypte_checkpoint::arch::{Arch, IndexerKind, Mla as Shape};
use calypte_kernels::attention::{Cached, Query, attend};
use calypte_kernels::matmul::matmul_serial;
use calypte_kernels::{Activations, Precision, ops};

use crate::dsa::{Indexer, Selection};
use crate::kv::LayerKv;
use crate::rotation::Rotation;
use crate::weights::{Loader, Weight};
use crate::{Compute, ModelError};

/// One layer's attention.
pub(crate) struct Mla {
    shape: Shape,
    queries: Queries,
    kv_a: Weight,
    kv_a_norm: Vec<f32>,
    /// `[heads · kv_lora, nope]`
    k_b: Weight,
    /// `[heads · v, kv_lora]`
    v_b: Weight,
    out: Weight,
    indexer: Option<Indexer>,
}

/// How queries come from the layer's input.
enum Queries {
    /// Through a bottleneck.
    Low {
        a: Weight,
        norm: Vec<f32>,
        b: Weight,
    },
    Direct(Weight),
}

/// What the heads of a task compute in; kept per thread so that a steady state allocates little.
#[derive(Default)]
struct HeadScratch {
    input: Activations,
    absorbed: Vec<f32>,
    queries: Vec<f32>,
    mixed: Vec<f32>,
    scores: Vec<f32>,
}

/// Tasks per thread when heads are computed together.
const TASKS_PER_THREAD: usize = 2;
/// Queries that a task takes together if it can: they share each pass over the cache.
const QUERIES_PER_TASK: usize = 64;

thread_local! {
    static SCRATCH: RefCell<HeadScratch> = RefCell::new(HeadScratch::default());
}

impl Mla {
    pub fn load(
        loader: &mut Loader<'_>,
        arch: &Arch,
        shape: &Shape,
        layer: usize,
    ) -> Result<Mla, ModelError> {
        let l = Some(layer);
        let (k_b, v_b) = loader.latent_up(layer, shape.heads, shape.kv_lora, shape.nope, shape.v)?;
        let indexer = match &arch.dsa {
            Some(dsa) if dsa.layers.get(layer) == Some(&IndexerKind::Full) => {
                Some(Indexer::load(loader, dsa, layer)?)
            }
            _ => None,
        };
        let queries = match shape.q_lora {
            Some(_) => Queries::Low {
                a: loader.matrix(l, Role::AttnQA)?,
                norm: loader.norm(l, Role::AttnQANorm)?,
                b: loader.matrix(l, Role::AttnQB)?,
            },
            None => Queries::Direct(loader.matrix(l, Role::AttnQ)?),
        };
        Ok(Mla {
            queries,
            kv_a: loader.matrix(l, Role::AttnKvA)?,
            kv_a_norm: loader.norm(l, Role::AttnKvANorm)?,
            k_b,
            v_b,
            out: loader.matrix(l, Role::AttnOut)?,
            indexer,
            shape: shape.clone(),
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
        let Shape { heads, nope, rope, v, latent_norm_eps, .. } = self.shape;
        let (rows, head_dim) = (x.rows(), nope + rope);
        let (mut q, mut q_latent) = (Vec::new(), Activations::new());
        match &self.queries {
            Queries::Low { a, norm, b } => {
                let mut low = Vec::new();
                a.apply(compute, x, &mut low);
                compute.rms_norm(&low, norm, latent_norm_eps, q_latent.fill(rows, norm.len()));
                b.apply(compute, &mut q_latent, &mut q);
            }
            Queries::Direct(w) => w.apply(compute, x, &mut q),
        }
        for (i, head) in q.chunks_exact_mut(head_dim).enumerate() {
            rotation.rotate(i / heads, &mut head[nope..]);
        }
        self.cache_latents(compute, rotation, x, kv);
        if let Some(indexer) = &self.indexer {
            indexer.select(compute, rotation, x, &mut q_latent, kv, selection);
        }

        // Head by head, so that each head's up-projections are used for all rows at once; then back to row by row. All heads
        // read the same cache, so with few rows several heads go over it together.
        let (keys, selection) = (&kv.keys, &*selection);
        let fair = heads.div_ceil(compute.team.threads() * TASKS_PER_THREAD);
        let together = QUERIES_PER_TASK.div_ceil(rows).min(fair);
        let mut by_head = vec![0f32; heads * rows * v];
        compute.team.run_pieces(&mut by_head, together * rows * v, |task, out| {
            let first = task * together;
            let heads = first..(first + together).min(heads);
            SCRATCH.with_borrow_mut(|scratch| {
                self.heads_forward(compute.precision, heads, rows, &q, keys, selection, scratch, out);
            });
        });
        let mut mixed = Activations::new();
        for (i, out) in mixed.fill(rows, heads * v).chunks_exact_mut(v).enumerate() {
            let at = (i % heads * rows + i / heads) * v;
            out.copy_from_slice(&by_head[at..at + v]);
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
        let Shape { kv_lora, rope, latent_norm_eps, .. } = self.shape;
        let width = kv_lora + rope;
        let start = kv.keys.len();
        kv.keys.resize(start + x.rows() * width, 0.0);
        let cached = kv.keys[start..].chunks_exact_mut(width);
        for (row, (latent, cached)) in latents.chunks_exact_mut(width).zip(cached).enumerate() {
            let (compressed, key) = latent.split_at_mut(kv_lora);
            ops::rms_norm(compressed, &self.kv_a_norm, latent_norm_eps, &mut cached[..kv_lora]);
            rotation.rotate(row, key);
            cached[kv_lora..].copy_from_slice(key);
        }
    }

    /// Some heads for all rows: absorb, attend to the latents, project up. `out` is `[heads, rows, v]`.
    fn heads_forward(
        &self,
        precision: Precision,
        heads: Range<usize>,
        rows: usize,
        q: &[f32],
        keys: &[f32],
        selection: &Selection,
        scratch: &mut HeadScratch,
        out: &mut [f32],
    ) {
        let Shape { heads: all, kv_lora, nope, rope, v, scale, .. } = self.shape;
        let (head_dim, width) = (nope + rope, kv_lora + rope);
        let query_of = |row: usize, head: usize| &q[(row * all + head) * head_dim..][..head_dim];
        let HeadScratch { input, absorbed, queries, mixed, scores } = scratch;

        absorbed.resize(rows * kv_lora, 0.0);
        queries.resize(heads.len() * rows * width, 0.0);
        for (head, queries) in heads.clone().zip(queries.chunks_exact_mut(rows * width)) {
            for (row, part) in input.fill(rows, nope).chunks_exact_mut(nope).enumerate() {
                part.copy_from_slice(&query_of(row, head)[..nope]);
            }
            project(precision, &self.k_b, head * kv_lora, kv_lora, input, absorbed);
            for (row, query) in queries.chunks_exact_mut(width).enumerate() {
                query[..kv_lora].copy_from_slice(&absorbed[row * kv_lora..(row + 1) * kv_lora]);
                query[kv_lora..].copy_from_slice(&query_of(row, head)[nope..]);
            }
        }

        let cache = |width| Cached { data: keys, stride: kv_lora + rope, offset: 0, width };
        let vectors = queries.chunks_exact(width).enumerate();
        let list: Vec<Query<'_>> = vectors
            .map(|(i, vector)| Query { vector, visible: selection.visible(i % rows), sink: None })
            .collect();
        mixed.resize(list.len() * kv_lora, 0.0);
        attend(&list, cache(width), cache(kv_lora), scale, scores, mixed);

        let each = mixed.chunks_exact(rows * kv_lora).zip(out.chunks_exact_mut(rows * v));
        for (head, (mixed, out)) in heads.zip(each) {
            input.copy_from(rows, kv_lora, mixed);
            project(precision, &self.v_b, head * v, v, input, out);
        }
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
