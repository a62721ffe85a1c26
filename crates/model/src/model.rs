//! The model: embedding, layers, output.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use calypte_checkpoint::arch::{Arch, Attention, Ffn, Rope, RopeScaling};
use calypte_checkpoint::{Catalog, Role};
use calypte_disk::Disk;
use calypte_kernels::attention::{divided_scratch_bytes, scratch_bytes, top_positions_bytes};
use calypte_kernels::{Activations, math, ops};
use calypte_quant::unpack_row;
use calypte_residency::ExpertCache;
use calypte_residency::timeline::Lane;

use crate::dsa::Selection;
use crate::gqa::Gqa;
use crate::kv::Kv;
use crate::lookahead::Lookahead;
use crate::mla::{self, Mla};
use crate::mlp::{Mlp, MlpScratch};
use crate::moe::{MoeBlock, MoeScratch};
use crate::rotation::{RopeTable, Rotation};
use crate::scratch::MixerScratch;
use crate::short_conv::ShortConv;
use crate::weights::{Loader, Loading, Weight};
use crate::{Compute, ModelError, Observer};

/// What mixes positions.
enum MixerBlock {
    Gqa(Box<Gqa>),
    Mla(Box<Mla>),
    ShortConv(Box<ShortConv>),
}

impl MixerBlock {
    /// On timelines.
    fn name(&self) -> &'static str {
        match self {
            MixerBlock::Gqa(_) | MixerBlock::Mla(_) => "attention",
            MixerBlock::ShortConv(_) => "short convolution",
        }
    }
}

enum FfnBlock {
    Dense(Box<Mlp>),
    Moe(Box<MoeBlock>),
}

struct Layer {
    mixer_norm: Vec<f32>,
    mixer: MixerBlock,
    mixer_post_norm: Option<Vec<f32>>,
    ffn_norm: Vec<f32>,
    ffn: FfnBlock,
    ffn_post_norm: Option<Vec<f32>>,
}

/// A model whose resident weights are in memory.
pub struct Model {
    arch: Arch,
    ropes: Vec<RopeTable>,
    embedding: Weight,
    layers: Vec<Layer>,
    /// Those of them that have a mixture.
    mixture_layers: Vec<usize>,
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
    /// One for each rotary embedding.
    rotations: Vec<Rotation>,
    selection: Selection,
    mixer: MixerScratch,
    mlp: MlpScratch,
    moe: MoeScratch,
}

/// Rows whose logits are computed at once when all of a step's are wanted: a vocabulary is wide.
pub const LOGIT_ROWS_MAX: usize = 16;

/// An upper estimate of the bytes that a step of `rows` rows works in on so many threads, without weights and key/value cache.
pub fn working_bytes(arch: &Arch, rows: usize, context: usize, threads: usize) -> u64 {
    let h = arch.hidden as u64;
    let top_k = arch.moe.as_ref().map_or(0, |m| m.top_k as u64);
    let inner = arch.ffn.iter().map(|f| match f {
        Ffn::Dense { width } => *width as u64,
        Ffn::Moe => arch.moe.as_ref().map_or(0, |m| m.width.max(m.shared_width.unwrap_or(0)) as u64),
    });
    let attention = match &arch.attention {
        Attention::Gqa(a) => (2 * a.heads + 2 * a.kv_heads) * a.head_dim,
        Attention::Mla(a) => {
            a.heads * (a.nope + a.rope + 2 * a.v) + 2 * a.q_lora.unwrap_or(0) + 3 * a.kv_lora + 2 * a.rope
        }
    } as u64;
    let attention = attention.max(if arch.short_conv.is_some() { 3 * h } else { 0 });
    let index = arch.dsa.as_ref().map_or(0, |d| (d.heads * d.head_dim + d.topk.min(context)) as u64);
    // Values of a row: residual, normed (f32 + int8), block output, results of all ranks, expert in- and output.
    let per_row = h * (6 + top_k) + 3 * inner.max().unwrap_or(0) + 2 * attention + index;
    // Attention on each thread: a pass over the cache, and for MLA the queries of a task in the width of the latents; few rows share
    // one pass.
    let per_thread = match &arch.attention {
        Attention::Gqa(a) => scratch_bytes(context, a.head_dim, a.head_dim),
        Attention::Mla(a) => {
            let key = a.kv_lora + a.rope;
            let queries = rows.max(mla::SPARSE_ROWS_PER_TASK.min(rows) * a.heads);
            scratch_bytes(context, key, a.kv_lora) + queries * (key + 2 * a.kv_lora) * size_of::<f32>()
        }
    };
    let shared = match &arch.attention {
        Attention::Gqa(_) => 0,
        Attention::Mla(a) => {
            let seen = arch.dsa.as_ref().map_or(context, |d| d.topk.min(context));
            let (key, queries) = (a.kv_lora + a.rope, mla::divided_queries_max(a.heads, threads));
            divided_scratch_bytes(seen, key, a.kv_lora, threads)
                + queries * (key + a.kv_lora) * size_of::<f32>()
        }
    };
    // Logits, one session's copy of the last row, and the scores of an indexer.
    let logits = arch.vocab as u64 * (LOGIT_ROWS_MAX as u64 + 1);
    let scores =
        if arch.dsa.is_some() { top_positions_bytes(context) + context * size_of::<f32>() } else { 0 };
    (per_row * rows as u64 + logits) * size_of::<f32>() as u64
        + (threads * (per_thread + scores) + shared) as u64
}

impl Model {
    /// Reads every weight but routed experts and multi-token-prediction layers into memory.
    pub fn load(catalog: &Catalog, disk: &mut Disk, progress: &mut dyn Loading) -> Result<Model, ModelError> {
        let arch = &catalog.arch;
        let mut loader = Loader { catalog, disk, progress };
        let layers = (0..arch.layers).map(|l| load_layer(&mut loader, arch, l)).collect::<Result<_, _>>()?;
        Ok(Model {
            ropes: load_ropes(&mut loader, arch)?,
            embedding: loader.matrix(None, Role::TokenEmbedding)?,
            output_norm: loader.norm(None, Role::OutputNorm)?,
            output: if arch.tied_embeddings { None } else { Some(loader.matrix(None, Role::Output)?) },
            layers,
            mixture_layers: (0..arch.layers).filter(|&layer| arch.ffn[layer] == Ffn::Moe).collect(),
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
        lookahead: &mut Lookahead,
        workspace: &mut Workspace,
        observer: &mut dyn Observer,
        cancelled: &AtomicBool,
    ) -> Result<(), ModelError> {
        let first = kv.len();
        kv.truncate(first);
        observer.step_begins(first);
        let outcome =
            self.run_layers(compute, tokens, kv, experts, lookahead, workspace, observer, cancelled);
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
        lookahead: &mut Lookahead,
        workspace: &mut Workspace,
        observer: &mut dyn Observer,
        cancelled: &AtomicBool,
    ) -> Result<(), ModelError> {
        let (first, rows, hidden) = (kv.len(), tokens.len(), self.arch.hidden);
        self.embed(tokens, &mut workspace.hidden)?;
        let Workspace { hidden: stream, normed, block, rotations, selection, mixer, mlp, moe } = workspace;
        rotations.resize_with(self.ropes.len(), Rotation::default);
        for (rotation, rope) in rotations.iter_mut().zip(&self.ropes) {
            rotation.set(rope, first, rows);
        }
        selection.reset(first);
        let eps = self.arch.norms.eps;
        for (number, (layer, kv)) in self.layers.iter().zip(&mut kv.layers).enumerate() {
            if cancelled.load(Ordering::Relaxed) {
                return Err(ModelError::Cancelled);
            }
            let begun = compute.recording.begin();
            compute.rms_norm(stream, &layer.mixer_norm, eps, normed.fill(rows, hidden));
            let rotation = self.arch.views[number].rope.map(|i| &rotations[i]);
            match (&layer.mixer, rotation) {
                (MixerBlock::Gqa(a), _) => a.forward(compute, rotation, first, normed, kv, mixer, block),
                (MixerBlock::ShortConv(c), _) => c.forward(compute, first, normed, kv, mixer, block),
                (MixerBlock::Mla(a), Some(rotation)) => {
                    a.forward(compute, rotation, normed, kv, selection, mixer, block);
                    (0..rows).for_each(|r| observer.selected(number, first + r, selection.positions(r)));
                }
                (MixerBlock::Mla(_), None) => unreachable!("checked when the checkpoint was opened"),
            }
            self.join(compute, stream, block, layer.mixer_post_norm.as_deref());
            compute.computed(begun, layer.mixer.name(), number);
            let begun = compute.recording.begin();
            compute.rms_norm(stream, &layer.ffn_norm, eps, normed.fill(rows, hidden));
            match &layer.ffn {
                FfnBlock::Dense(f) => {
                    f.forward(compute, normed, mlp, block);
                    compute.computed(begun, "dense", number);
                }
                FfnBlock::Moe(f) => {
                    f.route(compute, first, normed, moe, observer)?;
                    compute.computed(begun, "router", number);
                    f.begin(experts, moe);
                    lookahead.routed(compute, self, f, stream, rows, moe, experts, observer);
                    f.forward(compute, normed, experts, moe, mlp, block)?;
                }
            }
            self.join(compute, stream, block, layer.ffn_post_norm.as_deref());
        }
        Ok(())
    }

    /// How many layers have a mixture.
    pub(crate) fn mixtures(&self) -> usize {
        self.mixture_layers.len()
    }

    /// A mixture, counted over the layers that have one, with the norm before it.
    pub(crate) fn mixture(&self, number: usize) -> Option<(&[f32], &MoeBlock)> {
        let layer = &self.layers[*self.mixture_layers.get(number)?];
        match &layer.ffn {
            FfnBlock::Moe(block) => Some((&layer.ffn_norm, block)),
            FfnBlock::Dense(_) => None,
        }
    }

    /// Adds what a block gave to the residual stream, normed and scaled as the family has it.
    fn join(&self, compute: &Compute<'_>, stream: &mut [f32], block: &mut [f32], norm: Option<&[f32]>) {
        if let Some(norm) = norm {
            ops::rms_norm_in_place(block, norm, self.arch.norms.eps);
        }
        let hidden = self.arch.hidden;
        compute.rows(stream, hidden, |row, stream| {
            let block = &block[row * hidden..(row + 1) * hidden];
            match self.arch.scales.residual {
                1.0 => ops::add(stream, block),
                scale => ops::axpy(stream, scale, block),
            }
        });
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
        if self.arch.scales.embedding != 1.0 {
            ops::scale(out, self.arch.scales.embedding);
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
        let begun = compute.recording.begin();
        let hidden = self.arch.hidden;
        let stream = &workspace.hidden[rows.start * hidden..rows.end * hidden];
        let normed = workspace.normed.fill(rows.len(), hidden);
        compute.rms_norm(stream, &self.output_norm, self.arch.norms.eps, normed);
        self.output.as_ref().unwrap_or(&self.embedding).apply(compute, &mut workspace.normed, out);
        if self.arch.scales.logits != 1.0 {
            ops::scale(out, self.arch.scales.logits);
        }
        if let Some(cap) = self.arch.scales.logit_softcap {
            out.iter_mut().for_each(|v| *v = math::softcap(*v, cap));
        }
        let finite = out.iter().position(|v| !v.is_finite());
        compute.recording.end(begun, Lane::Compute, "output head", &["rows"], [rows.len() as u64]);
        match finite {
            Some(i) => Err(ModelError::NotFiniteLogits { position: position + i / self.arch.vocab }),
            None => Ok(()),
        }
    }
}

fn load_ropes(loader: &mut Loader<'_>, arch: &Arch) -> Result<Vec<RopeTable>, ModelError> {
    let table = |rope: &Rope| {
        let stored = match rope.scaling {
            RopeScaling::Stored => Some(loader.vector(None, Role::RopeFactors)?),
            _ => None,
        };
        Ok(RopeTable::new(rope, stored.as_deref()))
    };
    arch.ropes.iter().map(table).collect()
}

fn load_layer(loader: &mut Loader<'_>, arch: &Arch, layer: usize) -> Result<Layer, ModelError> {
    let (l, post) = (Some(layer), arch.norms.post);
    Ok(Layer {
        mixer_norm: loader.norm(l, Role::AttnNorm)?,
        mixer: match (arch.short_conv_of(layer), &arch.attention) {
            (Some(c), _) => MixerBlock::ShortConv(Box::new(ShortConv::load(loader, c, layer)?)),
            (None, Attention::Gqa(a)) => MixerBlock::Gqa(Box::new(Gqa::load(loader, arch, a, layer)?)),
            (None, Attention::Mla(a)) => MixerBlock::Mla(Box::new(Mla::load(loader, arch, a, layer)?)),
        },
        mixer_post_norm: loader.norm_if(post, l, Role::AttnPostNorm)?,
        ffn_norm: loader.norm(l, Role::FfnNorm)?,
        ffn: load_ffn(loader, arch, layer)?,
        ffn_post_norm: loader.norm_if(post, l, Role::FfnPostNorm)?,
    })
}

fn load_ffn(loader: &mut Loader<'_>, arch: &Arch, layer: usize) -> Result<FfnBlock, ModelError> {
    const ROLES: [Role; 3] = [Role::FfnGate, Role::FfnUp, Role::FfnDown];
    const BIASES: [Role; 3] = [Role::FfnGateBias, Role::FfnUpBias, Role::FfnDownBias];
    match (arch.ffn[layer], loader.catalog.experts_of(layer)) {
        (Ffn::Moe, Some(index)) => Ok(FfnBlock::Moe(Box::new(MoeBlock::load(loader, arch, layer, index)?))),
        (Ffn::Moe, None) => Err(ModelError::MissingTensor {
            path: loader.catalog.source.clone(),
            role: "the routed experts".into(),
            layer: Some(layer),
        }),
        (Ffn::Dense { .. }, _) => {
            let biases = arch.mlp_bias.then_some(BIASES);
            Ok(FfnBlock::Dense(Box::new(Mlp::load(loader, layer, ROLES, biases, arch.activation)?)))
        }
    }
}
