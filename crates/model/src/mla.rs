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
use calypte_kernels::attention::{KvCache, Query, Scratch, attend};
use calypte_kernels::matmul::matmul_serial;
use calypte_kernels::{Activations, Precision, ops};

use crate::dsa::{Indexer, Selection};
use crate::kv::LayerKv;
use crate::rotation::Rotation;
use crate::scratch::MixerScratch;
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
    scratch: Scratch,
}

/// Queries that a task takes together if it can: they share each pass over the cache.
const QUERIES_PER_TASK: usize = 64;
/// Rows with keys of their own that a task takes with all their heads: enough that each head's up-projections are used for many
/// rows at once.
pub(crate) const SPARSE_ROWS_PER_TASK: usize = 32;

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
        scratch: &mut MixerScratch,
        out: &mut Vec<f32>,
    ) {
        let Shape { heads, nope, rope, v, latent_norm_eps, .. } = self.shape;
        let (rows, head_dim) = (x.rows(), nope + rope);
        let MixerScratch { q, low, q_latent, latents, pieces, mixed, .. } = scratch;
        match &self.queries {
            Queries::Low { a, norm, b } => {
                a.apply(compute, x, low);
                compute.rms_norm(low, norm, latent_norm_eps, q_latent.fill(rows, norm.len()));
                b.apply(compute, q_latent, q);
            }
            Queries::Direct(w) => w.apply(compute, x, q),
        }
        for (i, head) in q.chunks_exact_mut(head_dim).enumerate() {
            rotation.rotate(i / heads, &mut head[nope..]);
        }
        self.cache_latents(compute, rotation, x, latents, kv);
        if let Some(indexer) = &self.indexer {
            indexer.select(compute, rotation, x, q_latent, kv, selection);
        }

        // All heads read the same cache. Rows that see all of it share it too: a task takes one head for all of them, so that its
        // up-projections are used once, or several heads for few rows. Rows that have keys of their own share them only among
        // their heads.
        let (keys, selection) = (&kv.keys, &*selection);
        let apart = selection.is_sparse(rows) && rows >= SPARSE_ROWS_PER_TASK;
        // Every task goes over the cache by itself, and its queries share the lanes: as few tasks as there are threads.
        let fair = heads.div_ceil(compute.team.threads());
        let (rows_each, heads_each) = match apart {
            true => (SPARSE_ROWS_PER_TASK, heads),
            false => (rows, QUERIES_PER_TASK.div_ceil(rows).min(fair)),
        };
        // A piece is `[heads, rows, v]` of one task.
        pieces.resize(heads * rows * v, 0.0);
        compute.team.run_pieces(pieces, heads_each * rows_each * v, |task, out| {
            let (row, head) = if apart { (task * rows_each, 0) } else { (0, task * heads_each) };
            let (of_rows, of_heads) =
                (row..(row + rows_each).min(rows), head..(head + heads_each).min(heads));
            SCRATCH.with_borrow_mut(|scratch| {
                self.heads_forward(compute.precision, of_heads, of_rows, q, keys, selection, scratch, out);
            });
        });
        for (i, out) in mixed.fill(rows, heads * v).chunks_exact_mut(v).enumerate() {
            let (row, head) = (i / heads, i % heads);
            let (first, inside) = (row / rows_each * rows_each, row % rows_each);
            let at = (first * heads + head * rows_each.min(rows - first) + inside) * v;
            out.copy_from_slice(&pieces[at..at + v]);
        }
        self.out.apply(compute, mixed, out);
    }

    /// Appends `[norm(latent) | rotated key]` of every row to the cache.
    fn cache_latents(
        &self,
        compute: &Compute<'_>,
        rotation: &Rotation,
        x: &mut Activations,
        latents: &mut Vec<f32>,
        kv: &mut LayerKv,
    ) {
        self.kv_a.apply(compute, x, latents);
        let Shape { kv_lora, rope, latent_norm_eps, .. } = self.shape;
        let width = kv_lora + rope;
        for (row, latent) in latents.chunks_exact_mut(width).enumerate() {
            let (compressed, key) = latent.split_at_mut(kv_lora);
            ops::rms_norm_in_place(compressed, &self.kv_a_norm, latent_norm_eps);
            rotation.rotate(row, key);
        }
        kv.keys.push(latents);
    }

    /// Some heads for some rows: absorb, attend to the latents, project up. `out` is `[heads, rows, v]`.
    fn heads_forward(
        &self,
        precision: Precision,
        heads: Range<usize>,
        rows: Range<usize>,
        q: &[f32],
        keys: &KvCache,
        selection: &Selection,
        scratch: &mut HeadScratch,
        out: &mut [f32],
    ) {
        let Shape { heads: all, kv_lora, nope, rope, v, scale, .. } = self.shape;
        let (head_dim, width) = (nope + rope, kv_lora + rope);
        let query_of = |row: usize, head: usize| &q[(row * all + head) * head_dim..][..head_dim];
        let HeadScratch { input, absorbed, queries, mixed, scratch } = scratch;

        // Row by row, and in a row head by head: all heads see the same keys of a row.
        let count = heads.len();
        absorbed.resize(rows.len() * kv_lora, 0.0);
        queries.resize(count * rows.len() * width, 0.0);
        for (h, head) in heads.clone().enumerate() {
            for (row, part) in rows.clone().zip(input.fill(rows.len(), nope).chunks_exact_mut(nope)) {
                part.copy_from_slice(&query_of(row, head)[..nope]);
            }
            project(precision, &self.k_b, head * kv_lora, kv_lora, input, absorbed);
            let of_head = queries.chunks_exact_mut(width).skip(h).step_by(count);
            for ((row, absorbed), query) in rows.clone().zip(absorbed.chunks_exact(kv_lora)).zip(of_head) {
                query[..kv_lora].copy_from_slice(absorbed);
                query[kv_lora..].copy_from_slice(&query_of(row, head)[nope..]);
            }
        }

        let vectors = queries.chunks_exact(width).enumerate();
        let list: Vec<Query<'_>> = vectors
            .map(|(i, vector)| Query {
                vector,
                visible: selection.visible(rows.start + i / count),
                sink: None,
            })
            .collect();
        mixed.resize(list.len() * kv_lora, 0.0);
        attend(&list, keys.view(0, width), keys.view(0, kv_lora), scale, scratch, mixed);

        for (h, (head, out)) in heads.zip(out.chunks_exact_mut(rows.len() * v)).enumerate() {
            let of_head = mixed.chunks_exact(kv_lora).skip(h).step_by(count);
            for (latent, mixed) in input.fill(rows.len(), kv_lora).chunks_exact_mut(kv_lora).zip(of_head) {
                latent.copy_from_slice(mixed);
            }
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
