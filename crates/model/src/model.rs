//! The model: embedding, layers, output.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use calypte_checkpoint::arch::{Arch, Attention, Ffn};
use calypte_checkpoint::{Catalog, Role};
use calypte_disk::Disk;
use calypte_kernels::{Activations, ops};
use calypte_quant::unpack_row;
use calypte_residency::ExpertCache;

use crate::dsa::Selection;
use crate::gqa::Gqa;
use crate::kv::Kv;
use crate::mla::Mla;
use crate::mlp::{Mlp, MlpScratch};
use crate::moe::{MoeBlock, MoeScratch};
use crate::rotation::{Rotation, inverse_frequencies};
use crate::weights::{Loader, Loading, Weight};
use crate::{Compute, ModelError, Observer};

enum AttentionBlock {
    Gqa(Box<Gqa>),
    Mla(Box<Mla>),
}

enum FfnBlock {
    Dense(Box<Mlp>),
    Moe(Box<MoeBlock>),
}

struct Layer {
    attention_norm: Vec<f32>,
    attention: AttentionBlock,
    ffn_norm: Vec<f32>,
    ffn: FfnBlock,
}

/// A model whose resident weights are in memory.
pub struct Model {
    arch: Arch,
    inverse_frequencies: Vec<f32>,
    embedding: Weight,
    layers: Vec<Layer>,
    output_norm: Vec<f32>,
    /// `None`: the embedding is used.
    output: Option<Weight>,
}

/// Memory that a step computes in; it keeps its size from step to step.
#[derive(Default)]
pub struct Workspace {
    /// The residual stream, `[rows, hidden]`: after [`Model::forward`], the rows before the output norm.
    hidden: Vec<f32>,
    normed: Activations,
    block: Vec<f32>,
    rotation: Rotation,
    selection: Selection,
    mlp: MlpScratch,
    moe: MoeScratch,
}

/// Rows whose logits are computed at once when all of a step's are wanted: a vocabulary is wide.
pub const LOGIT_ROWS_MAX: usize = 16;

/// An upper estimate of the bytes that a step of `rows` rows works in, without weights and key/value cache.
pub fn working_bytes(arch: &Arch, rows: usize, context: usize) -> u64 {
    let h = arch.hidden as u64;
    let top_k = arch.moe.as_ref().map_or(0, |m| m.top_k as u64);
    let inner = arch.ffn.iter().map(|f| match f {
        Ffn::Dense { width } => *width as u64,
        Ffn::Moe => arch.moe.as_ref().map_or(0, |m| m.width.max(m.shared_width.unwrap_or(0)) as u64),
    });
    let attention = match arch.attention {
        Attention::Gqa { heads, kv_heads, head_dim, .. } => (2 * heads + 2 * kv_heads) * head_dim,
        Attention::Mla { heads, q_lora, kv_lora, nope, rope, v, .. } => {
            heads * (nope + rope + 2 * v) + 2 * q_lora + 3 * kv_lora + 2 * rope
        }
    } as u64;
    let index = arch.dsa.as_ref().map_or(0, |d| (d.heads * d.head_dim + d.topk.min(context)) as u64);
    // Values of a row: residual, normed (f32 + int8), block output, results of all ranks, expert in- and output.
    let per_row = h * (6 + top_k) + 3 * inner.max().unwrap_or(0) + 2 * attention + index;
    // Logits, one session's copy of the last row, and the scores of attention and indexer.
    let logits = arch.vocab as u64 * (LOGIT_ROWS_MAX as u64 + 1);
    (per_row * rows as u64 + logits + 4 * context as u64) * size_of::<f32>() as u64
}

impl Model {
    /// Reads every weight but routed experts and multi-token-prediction layers into memory.
    pub fn load(catalog: &Catalog, disk: &mut Disk, progress: &mut dyn Loading) -> Result<Model, ModelError> {
        let arch = &catalog.arch;
        let mut loader = Loader { catalog, disk, progress };
        let layers = (0..arch.layers).map(|l| load_layer(&mut loader, arch, l)).collect::<Result<_, _>>()?;
        Ok(Model {
            inverse_frequencies: inverse_frequencies(&arch.rope),
            embedding: loader.matrix(None, Role::TokenEmbedding)?,
            output_norm: loader.vector(None, Role::OutputNorm)?,
            output: if arch.tied_embeddings { None } else { Some(loader.matrix(None, Role::Output)?) },
            layers,
            arch: arch.clone(),
        })
    }

    /// What the model is.
    pub fn arch(&self) -> &Arch {
        &self.arch
    }

    /// Runs `tokens` through the trunk as the next positions of `kv`. The result stays in the workspace for
    /// [`Model::logits`].
    ///
    /// After an error, also [`ModelError::Cancelled`] (looked at before every layer), the timeline is as it was before.
    pub fn forward(
        &self,
        compute: &Compute<'_>,
        tokens: &[u32],
        kv: &mut Kv,
        experts: &mut ExpertCache,
        workspace: &mut Workspace,
        observer: &mut dyn Observer,
        cancelled: &AtomicBool,
    ) -> Result<(), ModelError> {
        let first = kv.len();
        kv.truncate(first);
        let outcome = self.run_layers(compute, tokens, kv, experts, workspace, observer, cancelled);
        match outcome {
            Ok(()) => kv.commit(tokens.len()),
            Err(_) => kv.truncate(first),
        }
        outcome
    }

    fn run_layers(
        &self,
        compute: &Compute<'_>,
        tokens: &[u32],
        kv: &mut Kv,
        experts: &mut ExpertCache,
        workspace: &mut Workspace,
        observer: &mut dyn Observer,
        cancelled: &AtomicBool,
    ) -> Result<(), ModelError> {
        let (first, rows, hidden) = (kv.len(), tokens.len(), self.arch.hidden);
        self.embed(tokens, &mut workspace.hidden)?;
        let Workspace { hidden: stream, normed, block, rotation, selection, mlp, moe } = workspace;
        rotation.set(&self.inverse_frequencies, first, rows);
        selection.reset(first);
        for (number, (layer, kv)) in self.layers.iter().zip(&mut kv.layers).enumerate() {
            if cancelled.load(Ordering::Relaxed) {
                return Err(ModelError::Cancelled);
            }
            ops::rms_norm_rows(stream, &layer.attention_norm, self.arch.norm_eps, normed.fill(rows, hidden));
            match &layer.attention {
                AttentionBlock::Gqa(a) => a.forward(compute, rotation, first, normed, kv, block),
                AttentionBlock::Mla(a) => {
                    a.forward(compute, rotation, normed, kv, selection, block);
                    (0..rows).for_each(|r| observer.selected(number, first + r, selection.positions(r)));
                }
            }
            ops::add(stream, block);
            ops::rms_norm_rows(stream, &layer.ffn_norm, self.arch.norm_eps, normed.fill(rows, hidden));
            match &layer.ffn {
                FfnBlock::Dense(f) => f.forward(compute, normed, mlp, block),
                FfnBlock::Moe(f) => f.forward(compute, first, normed, experts, moe, mlp, observer, block)?,
            }
            ops::add(stream, block);
        }
        Ok(())
    }

    fn embed(&self, tokens: &[u32], out: &mut Vec<f32>) -> Result<(), ModelError> {
        let (vocab, hidden) = (self.arch.vocab, self.arch.hidden);
        out.resize(tokens.len() * hidden, 0.0);
        let matrix = self.embedding.matrix();
        for (id, row) in tokens.iter().zip(out.chunks_exact_mut(hidden)) {
            if *id as usize >= vocab {
                return Err(ModelError::TokenOutOfRange { id: *id, vocab });
            }
            unpack_row(matrix.dtype, matrix.row(*id as usize), row);
        }
        Ok(())
    }

    /// Logits of `rows` (row numbers of the latest step), `[rows.len(), vocab]`; `position` is the first one's.
    pub fn logits(
        &self,
        compute: &Compute<'_>,
        workspace: &mut Workspace,
        rows: Range<usize>,
        position: usize,
        out: &mut Vec<f32>,
    ) -> Result<(), ModelError> {
        let hidden = self.arch.hidden;
        let stream = &workspace.hidden[rows.start * hidden..rows.end * hidden];
        let normed = workspace.normed.fill(rows.len(), hidden);
        ops::rms_norm_rows(stream, &self.output_norm, self.arch.norm_eps, normed);
        self.output.as_ref().unwrap_or(&self.embedding).apply(compute, &mut workspace.normed, out);
        match out.iter().position(|v| !v.is_finite()) {
            Some(i) => Err(ModelError::NotFiniteLogits { position: position + i / self.arch.vocab }),
            None => Ok(()),
        }
    }
}

fn load_layer(loader: &mut Loader<'_>, arch: &Arch, layer: usize) -> Result<Layer, ModelError> {
    Ok(Layer {
        attention_norm: loader.vector(Some(layer), Role::AttnNorm)?,
        attention: match arch.attention {
            Attention::Gqa { .. } => AttentionBlock::Gqa(Box::new(Gqa::load(loader, arch, layer)?)),
            Attention::Mla { .. } => AttentionBlock::Mla(Box::new(Mla::load(loader, arch, layer)?)),
        },
        ffn_norm: loader.vector(Some(layer), Role::FfnNorm)?,
        ffn: match (arch.ffn[layer], MoeBlock::cache_layer(loader.catalog, layer)) {
            (Ffn::Moe, Some(index)) => FfnBlock::Moe(Box::new(MoeBlock::load(loader, arch, layer, index)?)),
            (Ffn::Moe, None) => {
                return Err(ModelError::MissingTensor {
                    path: loader.catalog.source.clone(),
                    role: "the routed experts".into(),
                    layer: Some(layer),
                });
            }
            (Ffn::Dense { .. }, _) => FfnBlock::Dense(Box::new(Mlp::load(
                loader,
                layer,
                [Role::FfnGate, Role::FfnUp, Role::FfnDown],
            )?)),
        },
    })
}
