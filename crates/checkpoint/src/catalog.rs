//! What a checkpoint holds and where: the one answer that every file format is translated into.

use std::collections::BTreeMap;
use std::path::PathBuf;

use calypte_disk::Extent;
use calypte_quant::DType;

use crate::arch::Arch;
use crate::expert_layer::ExpertLayer;

/// What a tensor is for, independent of how a file format names it. Shapes are `[rows, cols]`, rows outermost; a
/// matrix maps `cols` inputs to `rows` outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names are the field's own; the shapes are given beside them")]
pub enum Role {
    /// `[vocab, hidden]`
    TokenEmbedding,
    /// `[hidden]`
    OutputNorm,
    /// `[vocab, hidden]`
    Output,
    /// `[rope.dims / 2]`: what each rotated pair's wavelength is multiplied by
    RopeFactors,
    /// `[hidden]`
    AttnNorm,
    /// `[heads·head_dim, hidden]`
    AttnQ,
    /// `[kv_heads·head_dim, hidden]`
    AttnK,
    /// `[kv_heads·head_dim, hidden]`
    AttnV,
    /// `[hidden, heads·v]`
    AttnOut,
    /// `[heads·head_dim]`
    AttnQBias,
    /// `[kv_heads·head_dim]`
    AttnKBias,
    /// `[kv_heads·head_dim]`
    AttnVBias,
    /// `[hidden]`
    AttnOutBias,
    /// `[head_dim]`, or `[heads·head_dim]` where one norm spans all heads
    AttnQNorm,
    /// `[head_dim]`, or `[kv_heads·head_dim]` where one norm spans all heads
    AttnKNorm,
    /// `[heads]`: the score of each head that leads nowhere
    AttnSinks,
    /// `[hidden]`: on the output of the attention
    AttnPostNorm,
    /// `[q_lora, hidden]`
    AttnQA,
    /// `[q_lora]`
    AttnQANorm,
    /// `[heads·(nope+rope), q_lora]`
    AttnQB,
    /// `[kv_lora+rope, hidden]`
    AttnKvA,
    /// `[kv_lora]`
    AttnKvANorm,
    /// `[heads·(nope+v), kv_lora]`: keys and values together, as Hugging Face stores them
    AttnKvB,
    /// `[heads, kv_lora, nope]`: the key half, transposed per head, as GGUF stores it
    AttnKB,
    /// `[heads, v, kv_lora]`: the value half, as GGUF stores it
    AttnVB,
    /// `[index_heads·index_dim, q_lora]`
    IndexerQB,
    /// `[index_dim, hidden]`
    IndexerK,
    /// `[index_dim]`
    IndexerKNorm,
    /// `[index_dim]`
    IndexerKNormBias,
    /// `[index_heads, hidden]`
    IndexerWeights,
    /// `[3·hidden, hidden]`: the gate before the convolution, the gate behind it, and its input
    ConvIn,
    /// `[hidden, length]`
    ConvKernel,
    /// `[hidden, hidden]`
    ConvOut,
    /// `[hidden]`
    FfnNorm,
    /// `[width, hidden]`
    FfnGate,
    /// `[width, hidden]`
    FfnUp,
    /// `[hidden, width]`
    FfnDown,
    /// `[width]`
    FfnGateBias,
    /// `[width]`
    FfnUpBias,
    /// `[hidden]`
    FfnDownBias,
    /// `[hidden]`: on the output of the feed-forward part
    FfnPostNorm,
    /// `[experts, hidden]`
    Router,
    /// `[experts]`: part of the logits
    RouterLogitBias,
    /// `[experts]`: counts for the selection only
    RouterBias,
    /// `[experts, width]`
    ExpertGateBias,
    /// `[experts, width]`
    ExpertUpBias,
    /// `[experts, 2·width]`: gate and up by turns, as gpt-oss publishes them
    ExpertGateUpBias,
    /// `[experts, hidden]`
    ExpertDownBias,
    /// `[shared_width, hidden]`
    SharedGate,
    /// `[shared_width, hidden]`
    SharedUp,
    /// `[hidden, shared_width]`
    SharedDown,
    /// `[hidden]`: how much of the shared expert a token gets
    SharedRouter,
    /// `[hidden, 2·hidden]`
    MtpProjection,
    /// `[hidden]`
    MtpEmbeddingNorm,
    /// `[hidden]`
    MtpHiddenNorm,
    /// `[hidden]`
    MtpOutputNorm,
    /// `[vocab, hidden]`; absent when shared with the trunk
    MtpEmbedding,
    /// `[vocab, hidden]`; absent when shared with the trunk
    MtpOutput,
}

/// A role, and the layer it is in (`None` for tensors outside the layers). Layer numbers continue through the
/// multi-token-prediction layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorKey {
    /// Layer, counted from 0.
    pub layer: Option<usize>,
    /// What it is for.
    pub role: Role,
}

/// One stored tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Its name in the file.
    pub name: String,
    /// Element type, once `packing` is undone.
    pub dtype: DType,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// Where its bytes are. With [`Packing::Plain`] the length always equals what `dtype` and `shape` ask for.
    pub extent: Extent,
    /// How the stored bytes become rows of `dtype`.
    pub packing: Packing,
}

/// How stored bytes relate to rows of a [`DType`]; what is not plain is rearranged once, when it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// They are the rows.
    Plain,
    /// FP8 E4M3 values with their scales in another tensor (DeepSeek-V3's `weight_scale_inv`, compressed-tensors'
    /// `weight_scale`), one scale for every block of values.
    Fp8(Fp8Scales),
    /// MXFP4 with its exponents in another tensor (gpt-oss's `_blocks` and `_scales`).
    Mxfp4 {
        /// One exponent for every 32 values.
        scales: Extent,
    },
    /// INT4 in words of eight with its scales in another tensor (compressed-tensors' `weight_packed` and `weight_scale`).
    Int4 {
        /// One bf16 for every 32 values of a row.
        scales: Extent,
    },
}

/// The scales of a matrix of FP8 values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fp8Scales {
    /// Where they are, row-major over the blocks.
    pub extent: Extent,
    /// Their own type, a float.
    pub dtype: DType,
    /// Rows and columns of values that share one.
    pub block: [usize; 2],
}

impl Tensor {
    /// A tensor whose bytes are its rows.
    pub fn plain(name: String, dtype: DType, shape: Vec<usize>, extent: Extent) -> Tensor {
        Tensor { name, dtype, shape, extent, packing: Packing::Plain }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it holds no value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that are read for it, scales included.
    pub fn stored_bytes(&self) -> u64 {
        self.extent.len.saturating_add(self.scales().map_or(0, |e| e.len))
    }

    /// Where its scales are, if they are apart from its values.
    pub fn scales(&self) -> Option<Extent> {
        match self.packing {
            Packing::Plain => None,
            Packing::Fp8(scales) => Some(scales.extent),
            Packing::Mxfp4 { scales } | Packing::Int4 { scales } => Some(scales),
        }
    }
}

/// A weight file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightFile {
    /// Path as opened.
    pub path: PathBuf,
    /// Size when the header was read; a later difference means that the file was changed under us.
    pub size_bytes: u64,
}

/// Where the tokenizer comes from.
#[derive(Clone, Debug)]
pub enum TokenizerSource {
    /// `tokenizer.json` (with `tokenizer_config.json` and `chat_template.jinja` beside it, when there).
    HuggingFace {
        /// The file `tokenizer.json`.
        tokenizer_json: PathBuf,
        /// Chat template, if the directory holds one.
        chat_template: Option<String>,
    },
    /// Tokenizer metadata inside a GGUF file.
    Gguf(Box<GgufTokenizer>),
    /// Weights alone: only token ids can be used.
    Missing,
}

/// The tokenizer metadata of a GGUF file, as stored.
#[derive(Clone, Debug, Default)]
pub struct GgufTokenizer {
    /// `tokenizer.ggml.model`, e.g. `gpt2` or `llama`.
    pub model: String,
    /// `tokenizer.ggml.pre`, e.g. `smollm`; names the pre-tokenizer's pattern.
    pub pre: Option<String>,
    /// Token strings by id.
    pub tokens: Vec<String>,
    /// Scores by id (SentencePiece only).
    pub scores: Vec<f32>,
    /// 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte.
    pub token_types: Vec<i32>,
    /// Merge rules, best first, each `left right`.
    pub merges: Vec<String>,
    /// Beginning-of-sequence id.
    pub bos: Option<u32>,
    /// End-of-sequence id.
    pub eos: Option<u32>,
    /// End-of-turn id.
    pub eot: Option<u32>,
    /// Put the beginning-of-sequence id before every text.
    pub add_bos: Option<bool>,
    /// Put a space before every text (SentencePiece).
    pub add_space_prefix: Option<bool>,
    /// Spaces at the ends of a text go and several become one (SentencePiece unigram).
    pub remove_extra_whitespaces: Option<bool>,
    /// Replacements of characters as SentencePiece compiles them (unigram only); empty: none.
    pub precompiled_charsmap: Vec<u8>,
    /// Chat template.
    pub chat_template: Option<String>,
}

/// Everything known about a checkpoint after its headers were read, and before any weight is.
#[derive(Clone, Debug)]
pub struct Catalog {
    /// Directory or file that was opened.
    pub source: PathBuf,
    /// `gguf` or `safetensors`.
    pub format: &'static str,
    /// A human's name for the model.
    pub name: String,
    /// What the model is.
    pub arch: Arch,
    /// The weight files; an [`Extent`]'s file is an index into this list.
    pub files: Vec<WeightFile>,
    /// Every tensor but the routed experts.
    pub tensors: BTreeMap<TensorKey, Tensor>,
    /// The layers with routed experts in layer order, trunk first, then multi-token prediction.
    pub experts: Vec<ExpertLayer>,
    /// Tensors in the file that no role claims (buffers such as `rotary_emb.inv_freq`), by name.
    pub unclaimed: Vec<Tensor>,
    /// Weight files beside the model's that are not part of it, by name.
    pub ignored: Vec<String>,
    /// Where the tokenizer comes from.
    pub tokenizer: TokenizerSource,
    /// SHA-256 over names, types, shapes and extents: what learned usage is bound to.
    pub fingerprint: [u8; 32],
}

impl Catalog {
    /// Whether any weight of the trunk or of an expert is an integer, whose activations may be rounded.
    pub fn has_integer_weights(&self) -> bool {
        let experts = self.experts.iter().flat_map(|e| e.matrices().map(|m| m.dtype));
        self.tensors.values().map(|t| t.dtype).chain(experts).any(|d| d.is_integer())
    }

    /// The routed experts of the trunk, in layer order; those of multi-token prediction are never run.
    pub fn trunk_experts(&self) -> impl Iterator<Item = &ExpertLayer> {
        self.experts.iter().filter(|e| e.layer < self.arch.layers)
    }

    /// The place of a layer's routed experts in [`Catalog::experts`]; of a trunk layer, also in [`Catalog::trunk_experts`].
    pub fn experts_of(&self, layer: usize) -> Option<usize> {
        self.experts.iter().position(|e| e.layer == layer)
    }

    /// The tensor of `role` in `layer`, if the file has it.
    pub fn get(&self, layer: Option<usize>, role: Role) -> Option<&Tensor> {
        self.tensors.get(&TensorKey { layer, role })
    }
}
