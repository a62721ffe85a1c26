//! What a model *is*, independent of the file format it came in: the one description that every family fills.
//!
//! A family file under `families/` translates `config.json` or GGUF metadata into an [`Arch`], and file tensor names
//! into [`Role`](crate::Role)s. The `model` crate composes its blocks from this description alone.

mod moe;
mod rope;

pub use moe::{Gate, GateGroups, GateNormalization, GateScore, GroupWorth, Moe};
pub use rope::{Rope, RopeLayout, RopeScaling};

/// The shape of a decoder-only transformer.
#[derive(Clone, Debug, PartialEq)]
pub struct Arch {
    /// The family's name as Hugging Face's `model_type` spells it, e.g. `glm_moe_dsa`.
    pub family: &'static str,
    /// Rows of the embedding and of the output matrix.
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Trunk layers, without multi-token-prediction layers.
    pub layers: usize,
    /// Multi-token-prediction layers that follow the trunk in the file.
    pub mtp_layers: usize,
    /// The norms of the residual stream.
    pub norms: Norms,
    /// Positions the model was made for; 0 when the file does not say.
    pub context_max: usize,
    /// Attention of every layer.
    pub attention: Attention,
    /// The rotary position embeddings in use; layers choose among them.
    pub ropes: Vec<Rope>,
    /// Where the layers' attention differs (`layers` entries, then `mtp_layers` more).
    pub views: Vec<View>,
    /// Sparse attention (DSA), if the family has it.
    pub dsa: Option<Dsa>,
    /// Layers that mix positions by a short convolution instead of attention, if the family has them.
    pub short_conv: Option<ShortConv>,
    /// The feed-forward part of each trunk layer (`layers` entries, then `mtp_layers` more).
    pub ffn: Vec<Ffn>,
    /// The mixture, if any layer is [`Ffn::Moe`].
    pub moe: Option<Moe>,
    /// What stands between the gate and the up projection of every MLP and expert.
    pub activation: Activation,
    /// The dense MLPs have biases.
    pub mlp_bias: bool,
    /// Constants that the residual stream and the logits are multiplied by.
    pub scales: Scales,
    /// The output matrix is the embedding.
    pub tied_embeddings: bool,
    /// Beginning of sequence, when the tokenizer or config names one.
    pub bos: Option<u32>,
    /// Ids that end a generation.
    pub eos: Vec<u32>,
}

impl Arch {
    /// The rotary embedding of `layer`; `None` in layers without positions.
    pub fn rope_of(&self, layer: usize) -> Option<&Rope> {
        self.views.get(layer).and_then(|v| v.rope).and_then(|i| self.ropes.get(i))
    }

    /// How many latest positions `layer` sees; `None`: all of them.
    pub fn window_of(&self, layer: usize) -> Option<usize> {
        self.views.get(layer).and_then(|v| v.window)
    }

    /// The short convolution of `layer`; `None` in layers with attention.
    pub fn short_conv_of(&self, layer: usize) -> Option<&ShortConv> {
        self.short_conv.as_ref().filter(|c| c.layers.get(layer) == Some(&true))
    }

    /// Trunk and multi-token-prediction layers.
    pub fn layers_stored(&self) -> usize {
        self.layers + self.mtp_layers
    }
}

/// Root-mean-square norms (arXiv 1910.07467) around attention and feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norms {
    /// Added to the mean square.
    pub eps: f32,
    /// Added to every stored norm weight: 1 where a checkpoint stores the difference from one (Gemma), else 0.
    pub weight_offset: f32,
    /// The outputs of attention and feed-forward part are normed too before they join the residual stream.
    pub post: bool,
}

/// Constant factors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scales {
    /// Embeddings are multiplied by this.
    pub embedding: f32,
    /// What attention and feed-forward part add to the residual stream is multiplied by this.
    pub residual: f32,
    /// Logits are multiplied by this.
    pub logits: f32,
    /// Logits are squeezed into ± this by `cap · tanh(x / cap)`.
    pub logit_softcap: Option<f32>,
}

impl Scales {
    /// Nothing is scaled.
    pub const ONE: Scales = Scales { embedding: 1.0, residual: 1.0, logits: 1.0, logit_softcap: None };
}

/// Where one layer's attention differs from the next one's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// A query sees this many latest positions, its own included; `None`: all.
    pub window: Option<usize>,
    /// Index into [`Arch::ropes`]; `None`: no positions (NoPE, arXiv 2305.19466).
    pub rope: Option<usize>,
}

impl View {
    /// Sees everything, positions by the first rotary embedding.
    pub const FULL: View = View { window: None, rope: Some(0) };
}

/// Attention kind with its widths.
#[derive(Clone, Debug, PartialEq)]
pub enum Attention {
    /// Grouped-query attention.
    Gqa(Gqa),
    /// Multi-head latent attention.
    Mla(Mla),
}

impl Attention {
    /// Query heads.
    pub fn heads(&self) -> usize {
        match self {
            Attention::Gqa(a) => a.heads,
            Attention::Mla(a) => a.heads,
        }
    }

    /// Width of the part of a head that is rotated at most.
    pub fn rotated_max(&self) -> usize {
        match self {
            Attention::Gqa(a) => a.head_dim,
            Attention::Mla(a) => a.rope,
        }
    }
}

/// Grouped-query attention (Ainslie et al., arXiv 2305.13245); multi-head when `kv_heads == heads`.
#[derive(Clone, Debug, PartialEq)]
pub struct Gqa {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a query/key head and of a value head.
    pub head_dim: usize,
    /// RMS norm over queries and keys before the rotation.
    pub qk_norm: Option<QkNorm>,
    /// Biases on the query, key and value projections.
    pub qkv_bias: bool,
    /// A bias on the output projection.
    pub out_bias: bool,
    /// Scores are multiplied by this; usually `head_dim^-½`.
    pub scale: f32,
    /// Each head has a learned score that takes its share of the softmax and adds nothing (gpt-oss).
    pub sinks: bool,
    /// Queries, keys and values are clamped to ± this (OLMo).
    pub clip: Option<f32>,
}

impl Gqa {
    /// The plain form: no norms, biases, caps or sinks, scores divided by the root of the head's width.
    pub fn plain(heads: usize, kv_heads: usize, head_dim: usize) -> Gqa {
        Gqa {
            heads,
            kv_heads,
            head_dim,
            qk_norm: None,
            qkv_bias: false,
            out_bias: false,
            scale: 1.0 / (head_dim as f32).sqrt(),
            sinks: false,
            clip: None,
        }
    }
}

/// What one RMS norm of queries or keys spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// Each head by itself, with one weight vector for all heads (Qwen3).
    PerHead,
    /// All heads of a row together (OLMoE, MiniMax-M2).
    AllHeads,
}

/// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434).
#[derive(Clone, Debug, PartialEq)]
pub struct Mla {
    /// Query heads.
    pub heads: usize,
    /// Width of the query's low-rank bottleneck; `None`: queries are projected directly.
    pub q_lora: Option<usize>,
    /// Width of the compressed key/value latent that is cached.
    pub kv_lora: usize,
    /// Width of the head part without rotation.
    pub nope: usize,
    /// Width of the rotated head part; one rotated key is shared by all heads.
    pub rope: usize,
    /// Width of a value head.
    pub v: usize,
    /// Scores are multiplied by this; `(nope + rope)^-½`, more when the context was stretched by YaRN.
    pub scale: f32,
    /// Epsilon of the norms inside the two bottlenecks (families differ from [`Norms::eps`] here).
    pub latent_norm_eps: f32,
}

/// DeepSeek sparse attention: a small indexer scores all earlier tokens and attention sees only the best `topk`
/// (DeepSeek-V3.2-Exp technical report; GLM-5.2 shares one selection among several layers).
#[derive(Clone, Debug, PartialEq)]
pub struct Dsa {
    /// Indexer heads.
    pub heads: usize,
    /// Width of an indexer head.
    pub head_dim: usize,
    /// Keys that attention sees at most.
    pub topk: usize,
    /// Pairing inside the rotated part (the first `rope.dims` values) of an indexer head.
    pub rope_layout: RopeLayout,
    /// One entry per layer (`layers + mtp_layers`).
    pub layers: Vec<IndexerKind>,
}

/// Where a layer's selection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexerKind {
    /// The layer has an indexer of its own.
    Full,
    /// The layer reuses the selection of the nearest earlier full layer.
    Shared,
}

/// A gated causal convolution over the latest positions, channel by channel (LFM2, arXiv 2511.23404).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShortConv {
    /// Positions that an output sees, its own included.
    pub length: usize,
    /// Which layers have it (`layers + mtp_layers` entries).
    pub layers: Vec<bool>,
}

/// The feed-forward part of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ffn {
    /// One gated MLP of this inner width.
    Dense {
        /// Inner width.
        width: usize,
    },
    /// The mixture that [`Arch::moe`] describes.
    Moe,
}

/// How a gated MLP combines its two projections (Shazeer, arXiv 2002.05202).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `silu(gate) · up`.
    SwiGlu,
    /// `gelu(gate) · up`, gelu by its tanh approximation.
    GeGluTanh,
    /// gpt-oss: gate clamped from above and up to both sides at `limit`, then `gate · sigmoid(alpha · gate) · (up + 1)`.
    SwiGluClamped {
        /// Steepness of the sigmoid.
        alpha: f32,
        /// Where both are clamped.
        limit: f32,
    },
}
