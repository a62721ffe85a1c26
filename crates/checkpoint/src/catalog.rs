//! What a checkpoint holds and where: the one answer that every file format is translated into.

use std::collections::BTreeMap;
use std::path::PathBuf;

use calypte_disk::Extent;
use calypte_quant::DType;

use crate::arch::Arch;

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
    /// `[head_dim]`
    AttnQNorm,
    /// `[head_dim]`
    AttnKNorm,
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
    /// `[hidden]`
    FfnNorm,
    /// `[width, hidden]`
    FfnGate,
    /// `[width, hidden]`
    FfnUp,
    /// `[hidden, width]`
    FfnDown,
    /// `[experts, hidden]`
    Router,
    /// `[experts]`
    RouterBias,
    /// `[shared_width, hidden]`
    SharedGate,
    /// `[shared_width, hidden]`
    SharedUp,
    /// `[hidden, shared_width]`
    SharedDown,
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
    /// Element type.
    pub dtype: DType,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// Where its bytes are; the length always equals what `dtype` and `shape` ask for.
    pub extent: Extent,
}

impl Tensor {
    /// Number of values.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it holds no value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One matrix of an expert: the same type and shape for every expert of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertMatrix {
    /// Element type.
    pub dtype: DType,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
}

/// The routed experts of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertLayer {
    /// Layer number in the model.
    pub layer: usize,
    /// `[width, hidden]`
    pub gate: ExpertMatrix,
    /// `[width, hidden]`
    pub up: ExpertMatrix,
    /// `[hidden, width]`
    pub down: ExpertMatrix,
    /// Per expert: where gate, up and down are, in this order.
    pub extents: Vec<[Extent; 3]>,
}

impl ExpertLayer {
    /// Bytes of one expert.
    pub fn expert_bytes(&self) -> u64 {
        self.extents.first().map_or(0, |e| e.iter().map(|x| x.len).sum())
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
    /// Where the tokenizer comes from.
    pub tokenizer: TokenizerSource,
    /// SHA-256 over names, types, shapes and extents: what learned usage is bound to.
    pub fingerprint: [u8; 32],
}

impl Catalog {
    /// The tensor of `role` in `layer`, if the file has it.
    pub fn get(&self, layer: Option<usize>, role: Role) -> Option<&Tensor> {
        self.tensors.get(&TensorKey { layer, role })
    }
}
