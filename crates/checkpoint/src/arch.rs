//! What a model *is*, independent of the file format it came in: the one description that every family fills.
//!
//! A family file under `families/` translates `config.json` or GGUF metadata into an [`Arch`], and file tensor names
//! into [`Role`](crate::Role)s. The `model` crate composes its blocks from this description alone.

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
    /// Epsilon of every RMS norm.
    pub norm_eps: f32,
    /// Positions the model was made for; 0 when the file does not say.
    pub context_max: usize,
    /// Attention of every layer.
    pub attention: Attention,
    /// Rotary position embedding.
    pub rope: Rope,
    /// Sparse attention (DSA), if the family has it.
    pub dsa: Option<Dsa>,
    /// The feed-forward part of each trunk layer (`layers` entries, then `mtp_layers` more).
    pub ffn: Vec<Ffn>,
    /// The mixture, if any layer is [`Ffn::Moe`].
    pub moe: Option<Moe>,
    /// The output matrix is the embedding.
    pub tied_embeddings: bool,
    /// Beginning of sequence, when the tokenizer or config names one.
    pub bos: Option<u32>,
    /// Ids that end a generation.
    pub eos: Vec<u32>,
}

/// Attention kind with its widths.
#[derive(Clone, Debug, PartialEq)]
pub enum Attention {
    /// Grouped-query attention (Ainslie et al., arXiv 2305.13245); multi-head when `kv_heads == heads`.
    Gqa {
        /// Query heads.
        heads: usize,
        /// Key/value heads; divides `heads`.
        kv_heads: usize,
        /// Width of a query/key head and of a value head.
        head_dim: usize,
        /// RMS norm over each query and key head before the rotation (Qwen3).
        qk_norm: bool,
    },
    /// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434).
    Mla {
        /// Query heads.
        heads: usize,
        /// Width of the query's low-rank bottleneck.
        q_lora: usize,
        /// Width of the compressed key/value latent that is cached.
        kv_lora: usize,
        /// Width of the head part without rotation.
        nope: usize,
        /// Width of the rotated head part; one rotated key is shared by all heads.
        rope: usize,
        /// Width of a value head.
        v: usize,
        /// Epsilon of the norms inside the two bottlenecks (families differ from [`Arch::norm_eps`] here).
        latent_norm_eps: f32,
    },
}

impl Attention {
    /// Query heads.
    pub fn heads(&self) -> usize {
        match *self {
            Attention::Gqa { heads, .. } | Attention::Mla { heads, .. } => heads,
        }
    }
}

/// Rotary position embedding (Su et al., arXiv 2104.09864).
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the geometric sequence of wavelengths.
    pub theta: f64,
    /// Rotated values per head; even.
    pub dims: usize,
    /// Which values form a pair.
    pub layout: RopeLayout,
}

/// Which two values of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeLayout {
    /// `(i, i + dims/2)`: Hugging Face's llama and most others.
    HalfSplit,
    /// `(2i, 2i + 1)`: GLM, DeepSeek's MLA, and GGUF's `llama` (whose q and k rows are stored permuted).
    Interleaved,
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

/// A mixture of gated MLPs.
#[derive(Clone, Debug, PartialEq)]
pub struct Moe {
    /// Routed experts per layer.
    pub experts: usize,
    /// Experts each token visits.
    pub top_k: usize,
    /// Inner width of a routed expert.
    pub width: usize,
    /// Inner width of the shared expert, if there is one (several are stored as one wide one).
    pub shared_width: Option<usize>,
    /// How the router's logits become weights.
    pub gate: Gate,
}

/// The router's arithmetic, in the order in which it is applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Gate {
    /// From logits to scores.
    pub score: GateScore,
    /// A learned bias is added for the *selection* only (DeepSeek-V3's loss-free balancing, arXiv 2408.15664).
    pub selection_bias: bool,
    /// Experts are chosen from the best groups only (DeepSeek-V2's device-limited routing).
    pub groups: Option<GateGroups>,
    /// The chosen weights are divided by their sum.
    pub normalize: bool,
    /// Added to that sum before dividing.
    pub normalize_eps: f32,
    /// The weights are multiplied by this at the end.
    pub scale: f32,
}

/// Consecutive experts in groups of equal size. A group counts as much as its two best experts together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateGroups {
    /// Groups; divides the number of experts into groups of at least two.
    pub count: usize,
    /// Groups that experts are chosen from.
    pub kept: usize,
}

/// From router logits to scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateScore {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each logit.
    Sigmoid,
}
