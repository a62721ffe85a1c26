//! DeepSeek sparse attention: the indexer that decides which earlier tokens a query may see (DeepSeek-V3.2-Exp).
//!
//! Indexer keys are cached beside the attention's. As long as no more than `topk` keys are visible, all are, and no
//! score is computed; from there on each query keeps its `topk` best. Layers without an indexer of their own reuse the
//! selection of the nearest full layer before them (GLM-5.2).

use std::cell::RefCell;

use calypte_checkpoint::Role;
use calypte_checkpoint::arch::Dsa;
use calypte_kernels::attention::{IndexScratch, Visible, index_scores, top_positions};
use calypte_kernels::{Activations, ops};

use crate::kv::LayerKv;
use crate::rotation::Rotation;
use crate::weights::{Loader, Weight};
use crate::{Compute, ModelError};

/// Epsilon of the layer norm over indexer keys, fixed by the architecture.
const KEY_NORM_EPS: f32 = 1e-6;

thread_local! {
    /// Kept per thread so that a steady state allocates little.
    static SCRATCH: RefCell<(IndexScratch, Vec<f32>)> = RefCell::default();
}

/// One layer's indexer.
pub(crate) struct Indexer {
    dsa: Dsa,
    queries: Weight,
    keys: Weight,
    key_norm: Vec<f32>,
    key_norm_bias: Vec<f32>,
    weights: Weight,
}

/// Which positions each row of the present step may see.
#[derive(Default)]
pub(crate) struct Selection {
    first: usize,
    /// Per row; unused while everything is visible.
    lists: Vec<Vec<u32>>,
    /// Rows whose visible keys are more than `topk`.
    topk: Option<usize>,
}

impl Selection {
    /// Every row sees everything up to itself.
    pub fn reset(&mut self, first: usize) {
        (self.first, self.topk) = (first, None);
    }

    /// Whether any of `rows` rows sees less than everything up to itself.
    pub fn is_sparse(&self, rows: usize) -> bool {
        self.topk.is_some_and(|topk| self.first + rows > topk)
    }

    /// What row `row` of the step sees.
    pub fn visible(&self, row: usize) -> Visible<'_> {
        let all = self.first + row + 1;
        match self.topk {
            Some(topk) if all > topk => Visible::Selected(&self.lists[row]),
            _ => Visible::latest(all, None),
        }
    }

    /// The positions of row `row`, or `None` for all.
    pub fn positions(&self, row: usize) -> Option<&[u32]> {
        match self.visible(row) {
            Visible::Range { .. } => None,
            Visible::Selected(list) => Some(list),
        }
    }
}

impl Indexer {
    pub fn load(loader: &mut Loader<'_>, dsa: &Dsa, layer: usize) -> Result<Indexer, ModelError> {
        let l = Some(layer);
        Ok(Indexer {
            dsa: dsa.clone(),
            queries: loader.matrix(l, Role::IndexerQB)?,
            keys: loader.matrix(l, Role::IndexerK)?,
            key_norm: loader.vector(l, Role::IndexerKNorm)?,
            key_norm_bias: loader.vector(l, Role::IndexerKNormBias)?,
            weights: loader.finite_matrix(l, Role::IndexerWeights)?,
        })
    }

    /// Caches the keys of this step's rows and writes what each row sees into `selection`.
    ///
    /// `x` is the layer's normed input, `q_latent` the normed query bottleneck; positions start at `selection.first`.
    pub fn select(
        &self,
        compute: &Compute<'_>,
        rotation: &Rotation,
        x: &mut Activations,
        q_latent: &mut Activations,
        kv: &mut LayerKv,
        selection: &mut Selection,
    ) {
        let (rows, first, dim) = (x.rows(), selection.first, self.dsa.head_dim);
        let mut keys = Vec::new();
        self.keys.apply(compute, x, &mut keys);
        for (row, key) in keys.chunks_exact_mut(dim).enumerate() {
            ops::layer_norm(key, &self.key_norm, &self.key_norm_bias, KEY_NORM_EPS);
            rotation.rotate_as(self.dsa.rope_layout, row, key);
        }
        kv.index.push(&keys);

        if selection.lists.len() < rows {
            selection.lists.resize(rows, Vec::new());
        }
        selection.topk = Some(self.dsa.topk);
        if first + rows <= self.dsa.topk {
            return;
        }
        let mut queries = Vec::new();
        self.queries.apply(compute, q_latent, &mut queries);
        for (i, query) in queries.chunks_exact_mut(dim).enumerate() {
            rotation.rotate_as(self.dsa.rope_layout, i / self.dsa.heads, query);
        }
        let mut weights = Vec::new();
        self.weights.apply(compute, x, &mut weights);
        let head_scale = 1.0 / (self.dsa.heads as f32).sqrt();
        weights.iter_mut().for_each(|w| *w *= head_scale);

        let cached = kv.index.view(0, dim);
        let (topk, heads, scale) = (self.dsa.topk, self.dsa.heads, 1.0 / (dim as f32).sqrt());
        compute.team.run_pieces(&mut selection.lists[..rows], 1, |row, list| {
            let visible = first + row + 1;
            if visible <= topk {
                return;
            }
            let query = &queries[row * heads * dim..(row + 1) * heads * dim];
            let weights = &weights[row * heads..(row + 1) * heads];
            SCRATCH.with_borrow_mut(|(scratch, scores)| {
                index_scores(query, weights, cached, visible, scale, scratch, scores);
                top_positions(scores, topk, &mut list[0]);
            });
        });
    }
}
