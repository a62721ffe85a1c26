//! Tensor names that several families share. A family's own [`Names`](super::names::Names) are put together from these.

use super::names::{Names, Part, Stack};
use crate::catalog::Role;

/// What most families' safetensors files have in common; a family adds what its layers hold.
pub(super) const HF: Names = Names {
    layer_prefix: HF_LAYER,
    globals: HF_GLOBALS,
    layer: &[],
    expert: HF_EXPERT,
    stacked: HF_STACKED,
    buffers: HF_BUFFERS,
    ignored: &[],
};

/// What most families' GGUF files have in common; a family adds what its layers hold.
pub(super) const GGUF: Names = Names {
    layer_prefix: GGUF_LAYER,
    globals: GGUF_GLOBALS,
    layer: &[],
    expert: GGUF_EXPERT,
    stacked: GGUF_STACKED,
    buffers: &[],
    ignored: &[],
};

/// The prefix of layers in safetensors files.
pub(crate) const HF_LAYER: &str = "model.layers.";
/// The prefix of layers in GGUF files.
pub(crate) const GGUF_LAYER: &str = "blk.";

/// Outside the layers, safetensors.
pub(super) const HF_GLOBALS: &[(&str, Role)] = &[
    ("model.embed_tokens.weight", Role::TokenEmbedding),
    ("model.norm.weight", Role::OutputNorm),
    ("lm_head.weight", Role::Output),
];

/// Outside the layers, GGUF.
pub(super) const GGUF_GLOBALS: &[(&str, Role)] = &[
    ("token_embd.weight", Role::TokenEmbedding),
    ("output_norm.weight", Role::OutputNorm),
    ("output.weight", Role::Output),
    ("rope_freqs.weight", Role::RopeFactors),
];

/// Tables that old checkpoints stored: wavelengths and masks.
pub(super) const HF_BUFFERS: &[&str] = &["rotary_emb.inv_freq", ".masked_bias"];

/// Grouped-query attention and norms, safetensors.
pub(super) const HF_GQA: &[(&str, Role)] = &[
    ("input_layernorm.weight", Role::AttnNorm),
    ("self_attn.q_proj.weight", Role::AttnQ),
    ("self_attn.k_proj.weight", Role::AttnK),
    ("self_attn.v_proj.weight", Role::AttnV),
    ("self_attn.o_proj.weight", Role::AttnOut),
    ("post_attention_layernorm.weight", Role::FfnNorm),
];

/// Grouped-query attention and norms, GGUF.
pub(super) const GGUF_GQA: &[(&str, Role)] = &[
    ("attn_norm.weight", Role::AttnNorm),
    ("attn_q.weight", Role::AttnQ),
    ("attn_k.weight", Role::AttnK),
    ("attn_v.weight", Role::AttnV),
    ("attn_output.weight", Role::AttnOut),
    ("ffn_norm.weight", Role::FfnNorm),
];

/// Biases of grouped-query attention, safetensors.
pub(super) const HF_GQA_BIAS: &[(&str, Role)] = &[
    ("self_attn.q_proj.bias", Role::AttnQBias),
    ("self_attn.k_proj.bias", Role::AttnKBias),
    ("self_attn.v_proj.bias", Role::AttnVBias),
    ("self_attn.o_proj.bias", Role::AttnOutBias),
];

/// Biases of grouped-query attention, GGUF.
pub(super) const GGUF_GQA_BIAS: &[(&str, Role)] = &[
    ("attn_q.bias", Role::AttnQBias),
    ("attn_k.bias", Role::AttnKBias),
    ("attn_v.bias", Role::AttnVBias),
    ("attn_output.bias", Role::AttnOutBias),
];

/// Norms of queries and keys, safetensors.
pub(super) const HF_QK_NORM: &[(&str, Role)] =
    &[("self_attn.q_norm.weight", Role::AttnQNorm), ("self_attn.k_norm.weight", Role::AttnKNorm)];

/// Norms of queries and keys, GGUF.
pub(super) const GGUF_QK_NORM: &[(&str, Role)] =
    &[("attn_q_norm.weight", Role::AttnQNorm), ("attn_k_norm.weight", Role::AttnKNorm)];

/// Multi-head latent attention and norms, safetensors.
pub(super) const HF_MLA: &[(&str, Role)] = &[
    ("input_layernorm.weight", Role::AttnNorm),
    ("self_attn.q_proj.weight", Role::AttnQ),
    ("self_attn.q_a_proj.weight", Role::AttnQA),
    ("self_attn.q_a_layernorm.weight", Role::AttnQANorm),
    ("self_attn.q_b_proj.weight", Role::AttnQB),
    ("self_attn.kv_a_proj_with_mqa.weight", Role::AttnKvA),
    ("self_attn.kv_a_layernorm.weight", Role::AttnKvANorm),
    ("self_attn.kv_b_proj.weight", Role::AttnKvB),
    ("self_attn.o_proj.weight", Role::AttnOut),
    ("post_attention_layernorm.weight", Role::FfnNorm),
];

/// Multi-head latent attention and norms, GGUF.
pub(super) const GGUF_MLA: &[(&str, Role)] = &[
    ("attn_norm.weight", Role::AttnNorm),
    ("attn_q.weight", Role::AttnQ),
    ("attn_q_a.weight", Role::AttnQA),
    ("attn_q_a_norm.weight", Role::AttnQANorm),
    ("attn_q_b.weight", Role::AttnQB),
    ("attn_kv_a_mqa.weight", Role::AttnKvA),
    ("attn_kv_a_norm.weight", Role::AttnKvANorm),
    ("attn_kv_b.weight", Role::AttnKvB),
    ("attn_k_b.weight", Role::AttnKB),
    ("attn_v_b.weight", Role::AttnVB),
    ("attn_output.weight", Role::AttnOut),
    ("ffn_norm.weight", Role::FfnNorm),
];

/// The DSA indexer, safetensors.
pub(super) const HF_INDEXER: &[(&str, Role)] = &[
    ("self_attn.indexer.wq_b.weight", Role::IndexerQB),
    ("self_attn.indexer.wk.weight", Role::IndexerK),
    ("self_attn.indexer.k_norm.weight", Role::IndexerKNorm),
    ("self_attn.indexer.k_norm.bias", Role::IndexerKNormBias),
    ("self_attn.indexer.weights_proj.weight", Role::IndexerWeights),
];

/// The DSA indexer, GGUF.
pub(super) const GGUF_INDEXER: &[(&str, Role)] = &[
    ("indexer.attn_q_b.weight", Role::IndexerQB),
    ("indexer.attn_k.weight", Role::IndexerK),
    ("indexer.k_norm.weight", Role::IndexerKNorm),
    ("indexer.k_norm.bias", Role::IndexerKNormBias),
    ("indexer.proj.weight", Role::IndexerWeights),
];

/// DeepSeek-V3's router and shared expert, safetensors.
pub(super) const HF_DEEPSEEK_MOE: &[(&str, Role)] = &[
    ("mlp.gate.weight", Role::Router),
    ("mlp.gate.e_score_correction_bias", Role::RouterBias),
    ("mlp.shared_experts.gate_proj.weight", Role::SharedGate),
    ("mlp.shared_experts.up_proj.weight", Role::SharedUp),
    ("mlp.shared_experts.down_proj.weight", Role::SharedDown),
];

/// A router whose choice is biased, and a shared expert, GGUF.
pub(super) const GGUF_SHARED_MOE: &[(&str, Role)] = &[
    ("ffn_gate_inp.weight", Role::Router),
    ("exp_probs_b.bias", Role::RouterBias),
    ("exp_probs_b", Role::RouterBias),
    ("ffn_gate_shexp.weight", Role::SharedGate),
    ("ffn_up_shexp.weight", Role::SharedUp),
    ("ffn_down_shexp.weight", Role::SharedDown),
];

/// A layer for multi-token prediction (DeepSeek-V3, arXiv 2412.19437), safetensors.
pub(super) const HF_MTP: &[(&str, Role)] = &[
    ("eh_proj.weight", Role::MtpProjection),
    ("enorm.weight", Role::MtpEmbeddingNorm),
    ("hnorm.weight", Role::MtpHiddenNorm),
    ("shared_head.norm.weight", Role::MtpOutputNorm),
    ("embed_tokens.weight", Role::MtpEmbedding),
    ("shared_head.head.weight", Role::MtpOutput),
];

/// A layer for multi-token prediction, GGUF.
pub(super) const GGUF_MTP: &[(&str, Role)] = &[
    ("nextn.eh_proj.weight", Role::MtpProjection),
    ("nextn.enorm.weight", Role::MtpEmbeddingNorm),
    ("nextn.hnorm.weight", Role::MtpHiddenNorm),
    ("nextn.shared_head_norm.weight", Role::MtpOutputNorm),
    ("nextn.embed_tokens.weight", Role::MtpEmbedding),
    ("nextn.shared_head_head.weight", Role::MtpOutput),
];

/// A dense gated MLP, safetensors.
pub(super) const HF_MLP: &[(&str, Role)] = &[
    ("mlp.gate_proj.weight", Role::FfnGate),
    ("mlp.up_proj.weight", Role::FfnUp),
    ("mlp.down_proj.weight", Role::FfnDown),
    ("mlp.gate_proj.bias", Role::FfnGateBias),
    ("mlp.up_proj.bias", Role::FfnUpBias),
    ("mlp.down_proj.bias", Role::FfnDownBias),
];

/// A dense gated MLP, GGUF.
pub(super) const GGUF_MLP: &[(&str, Role)] = &[
    ("ffn_gate.weight", Role::FfnGate),
    ("ffn_up.weight", Role::FfnUp),
    ("ffn_down.weight", Role::FfnDown),
    ("ffn_gate.bias", Role::FfnGateBias),
    ("ffn_up.bias", Role::FfnUpBias),
    ("ffn_down.bias", Role::FfnDownBias),
];

/// Experts one by one under `mlp.experts`, safetensors.
pub(super) const HF_EXPERT: &[(&str, &str, Part)] = &[
    ("mlp.experts.", ".gate_proj.weight", Part::Gate),
    ("mlp.experts.", ".up_proj.weight", Part::Up),
    ("mlp.experts.", ".down_proj.weight", Part::Down),
];

/// Experts one by one as Mixtral names them, safetensors.
pub(super) const HF_MIXTRAL_EXPERT: &[(&str, &str, Part)] = &[
    ("block_sparse_moe.experts.", ".w1.weight", Part::Gate),
    ("block_sparse_moe.experts.", ".w3.weight", Part::Up),
    ("block_sparse_moe.experts.", ".w2.weight", Part::Down),
];

/// Experts stacked under `mlp.experts`, safetensors.
pub(super) const HF_STACKED: &[(&str, Stack)] = &[
    ("mlp.experts.gate_up_proj", Stack::GateUp),
    ("mlp.experts.gate_proj", Stack::One(Part::Gate)),
    ("mlp.experts.up_proj", Stack::One(Part::Up)),
    ("mlp.experts.down_proj", Stack::One(Part::Down)),
    ("mlp.experts.gate_up_proj.weight", Stack::GateUp),
    ("mlp.experts.gate_proj.weight", Stack::One(Part::Gate)),
    ("mlp.experts.up_proj.weight", Stack::One(Part::Up)),
    ("mlp.experts.down_proj.weight", Stack::One(Part::Down)),
];

/// Experts one by one, as early GGUF files had them.
pub(super) const GGUF_EXPERT: &[(&str, &str, Part)] = &[
    ("ffn_gate.", ".weight", Part::Gate),
    ("ffn_up.", ".weight", Part::Up),
    ("ffn_down.", ".weight", Part::Down),
];

/// Experts stacked, GGUF.
pub(super) const GGUF_STACKED: &[(&str, Stack)] = &[
    ("ffn_gate_exps.weight", Stack::One(Part::Gate)),
    ("ffn_up_exps.weight", Stack::One(Part::Up)),
    ("ffn_down_exps.weight", Stack::One(Part::Down)),
    ("ffn_gate_up_exps.weight", Stack::GateUp),
];

/// The router, GGUF.
pub(super) const GGUF_ROUTER: &[(&str, Role)] = &[("ffn_gate_inp.weight", Role::Router)];
