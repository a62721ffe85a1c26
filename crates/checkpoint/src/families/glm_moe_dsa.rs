//! GLM-5 and its successors (`glm_moe_dsa`): latent attention, a sparse-attention indexer that several layers may
//! share, a sigmoid router with a selection bias, a shared expert, and layers for multi-token prediction.

use super::Family;
use super::common::{HfDefaults, base_from_gguf, base_from_hf, weights_scale};
use super::names::{
    GGUF_EXPERT, GGUF_GLOBALS, GGUF_LAYER, GGUF_MLP, GGUF_REFUSED, GGUF_ROUTER, GGUF_STACKED, HF_BUFFERS,
    HF_EXPERT, HF_GLOBALS, HF_LAYER, HF_MLP, HF_STACKED, Names,
};
use crate::arch::{Arch, Attention, Dsa, Ffn, Gate, GateGroups, GateScore, IndexerKind, Moe, RopeLayout};
use crate::catalog::Role;
use crate::error::OpenError;
use crate::gguf_config::GgufConfig;
use crate::hf_config::HfConfig;
use crate::limits::{
    CONTEXT_MAX, EXPERTS_MAX, HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, SHARED_EXPERTS_MAX, WIDTH_MAX,
};

const NAME: &str = "glm_moe_dsa";
const DEFAULTS: HfDefaults = HfDefaults {
    vocab: 154_880,
    hidden: 6144,
    layers: 78,
    heads: 64,
    kv_heads: None,
    context: 202_752,
    norm_eps: 1e-5,
    theta: 10_000.0,
};
/// The norms inside the bottlenecks are built without the configured epsilon, and no file states theirs.
const LATENT_NORM_EPS: f32 = 1e-6;
/// Keeps the sum of the chosen scores away from 0.
const NORMALIZE_EPS: f32 = 1e-20;
/// GGUF's number for a sigmoid router.
const GGUF_SIGMOID: usize = 2;
const TODO_VARIANT: &str = "use another variant of the model";

pub(crate) static FAMILY: Family = Family {
    model_type: NAME,
    architectures: &["GlmMoeDsaForCausalLM"],
    gguf_arch: "glm-dsa",
    claims_gguf: |_| true,
    from_hf,
    from_gguf,
    hf_names: Names {
        layer_prefix: HF_LAYER,
        globals: HF_GLOBALS,
        layer: &[HF_LAYER_NAMES, HF_MLP],
        expert: HF_EXPERT,
        stacked: HF_STACKED,
        buffers: HF_BUFFERS,
        refused: &[],
    },
    gguf_names: Names {
        layer_prefix: GGUF_LAYER,
        globals: GGUF_GLOBALS,
        layer: &[GGUF_LAYER_NAMES, GGUF_MLP, GGUF_ROUTER],
        expert: GGUF_EXPERT,
        stacked: GGUF_STACKED,
        buffers: &[],
        refused: GGUF_REFUSED,
    },
};

const HF_LAYER_NAMES: &[(&str, Role)] = &[
    ("input_layernorm.weight", Role::AttnNorm),
    ("self_attn.q_a_proj.weight", Role::AttnQA),
    ("self_attn.q_a_layernorm.weight", Role::AttnQANorm),
    ("self_attn.q_b_proj.weight", Role::AttnQB),
    ("self_attn.kv_a_proj_with_mqa.weight", Role::AttnKvA),
    ("self_attn.kv_a_layernorm.weight", Role::AttnKvANorm),
    ("self_attn.kv_b_proj.weight", Role::AttnKvB),
    ("self_attn.o_proj.weight", Role::AttnOut),
    ("self_attn.indexer.wq_b.weight", Role::IndexerQB),
    ("self_attn.indexer.wk.weight", Role::IndexerK),
    ("self_attn.indexer.k_norm.weight", Role::IndexerKNorm),
    ("self_attn.indexer.k_norm.bias", Role::IndexerKNormBias),
    ("self_attn.indexer.weights_proj.weight", Role::IndexerWeights),
    ("post_attention_layernorm.weight", Role::FfnNorm),
    ("mlp.gate.weight", Role::Router),
    ("mlp.gate.e_score_correction_bias", Role::RouterBias),
    ("mlp.shared_experts.gate_proj.weight", Role::SharedGate),
    ("mlp.shared_experts.up_proj.weight", Role::SharedUp),
    ("mlp.shared_experts.down_proj.weight", Role::SharedDown),
    ("eh_proj.weight", Role::MtpProjection),
    ("enorm.weight", Role::MtpEmbeddingNorm),
    ("hnorm.weight", Role::MtpHiddenNorm),
    ("shared_head.norm.weight", Role::MtpOutputNorm),
    ("embed_tokens.weight", Role::MtpEmbedding),
    ("shared_head.head.weight", Role::MtpOutput),
];

const GGUF_LAYER_NAMES: &[(&str, Role)] = &[
    ("attn_norm.weight", Role::AttnNorm),
    ("attn_q_a.weight", Role::AttnQA),
    ("attn_q_a_norm.weight", Role::AttnQANorm),
    ("attn_q_b.weight", Role::AttnQB),
    ("attn_kv_a_mqa.weight", Role::AttnKvA),
    ("attn_kv_a_norm.weight", Role::AttnKvANorm),
    ("attn_kv_b.weight", Role::AttnKvB),
    ("attn_k_b.weight", Role::AttnKB),
    ("attn_v_b.weight", Role::AttnVB),
    ("attn_output.weight", Role::AttnOut),
    ("indexer.attn_q_b.weight", Role::IndexerQB),
    ("indexer.attn_k.weight", Role::IndexerK),
    ("indexer.k_norm.weight", Role::IndexerKNorm),
    ("indexer.k_norm.bias", Role::IndexerKNormBias),
    ("indexer.proj.weight", Role::IndexerWeights),
    ("ffn_norm.weight", Role::FfnNorm),
    ("exp_probs_b.bias", Role::RouterBias),
    ("ffn_gate_shexp.weight", Role::SharedGate),
    ("ffn_up_shexp.weight", Role::SharedUp),
    ("ffn_down_shexp.weight", Role::SharedDown),
    ("nextn.eh_proj.weight", Role::MtpProjection),
    ("nextn.enorm.weight", Role::MtpEmbeddingNorm),
    ("nextn.hnorm.weight", Role::MtpHiddenNorm),
    ("nextn.shared_head_norm.weight", Role::MtpOutputNorm),
    ("nextn.embed_tokens.weight", Role::MtpEmbedding),
    ("nextn.shared_head_head.weight", Role::MtpOutput),
];

fn from_hf(c: &HfConfig) -> Result<Arch, OpenError> {
    refuse_hf_variants(c)?;
    let mut arch = base_from_hf(c, NAME, &DEFAULTS)?;
    arch.mtp_layers = c.number_opt("num_nextn_predict_layers", 0, LAYERS_MAX)?.unwrap_or(0);
    let rope = c.count_or("qk_rope_head_dim", 64, HEAD_DIM_MAX)?;
    arch.attention = Attention::Mla {
        heads: c.count_or("num_attention_heads", DEFAULTS.heads, HEADS_MAX)?,
        q_lora: c.count_or("q_lora_rank", 2048, WIDTH_MAX)?,
        kv_lora: c.count_or("kv_lora_rank", 512, WIDTH_MAX)?,
        nope: c.count_or("qk_nope_head_dim", 192, HEAD_DIM_MAX)?,
        rope,
        v: c.count_or("v_head_dim", 256, HEAD_DIM_MAX)?,
        latent_norm_eps: LATENT_NORM_EPS,
    };
    arch.rope.dims = rope;
    arch.rope.layout = RopeLayout::Interleaved;
    arch.dsa = Some(Dsa {
        heads: c.count_or("index_n_heads", 32, HEADS_MAX)?,
        head_dim: c.count_or("index_head_dim", 128, HEAD_DIM_MAX)?,
        topk: c.count_or("index_topk", 2048, CONTEXT_MAX)?,
        rope_layout: RopeLayout::Interleaved,
        layers: indexers_from_hf(c, &arch)?,
    });
    arch.ffn = ffn_from_hf(c, &arch)?;
    arch.moe = Some(moe_from_hf(c)?);
    Ok(arch)
}

/// Refuses settings that transformers ignores or that are not implemented here: following neither would be right.
fn refuse_hf_variants(c: &HfConfig) -> Result<(), OpenError> {
    if c.number_opt("moe_layer_freq", 0, LAYERS_MAX)?.is_some_and(|n| n != 1) {
        return Err(c.unsupported("moe_layer_freq", "1", TODO_VARIANT));
    }
    for (key, only) in [("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")] {
        if c.text_opt(key)?.is_some_and(|v| v != only) {
            return Err(c.unsupported(key, only, TODO_VARIANT));
        }
    }
    for key in ["rope_interleave", "indexer_rope_interleave"] {
        if c.bool_opt(key)? == Some(false) {
            return Err(c.unsupported(key, "true", TODO_VARIANT));
        }
    }
    Ok(())
}

fn moe_from_hf(c: &HfConfig) -> Result<Moe, OpenError> {
    let experts = match c.number_opt("n_routed_experts", 1, EXPERTS_MAX)? {
        Some(n) => n,
        None => c.count_or("num_experts", 256, EXPERTS_MAX)?,
    };
    let width = c.count_or("moe_intermediate_size", 2048, WIDTH_MAX)?;
    let shared = c.number_opt("n_shared_experts", 0, SHARED_EXPERTS_MAX)?.unwrap_or(1);
    Ok(Moe {
        experts,
        top_k: c.count_or("num_experts_per_tok", 8, EXPERTS_MAX)?,
        width,
        shared_width: (shared > 0).then_some(shared * width),
        gate: gate(
            c.bool_opt("norm_topk_prob")?.unwrap_or(true),
            c.float_opt("routed_scaling_factor")?.unwrap_or(2.5) as f32,
            groups(c.number_opt("n_group", 1, EXPERTS_MAX)?, c.number_opt("topk_group", 1, EXPERTS_MAX)?),
        ),
    })
}

fn ffn_from_hf(c: &HfConfig, arch: &Arch) -> Result<Vec<Ffn>, OpenError> {
    let dense = Ffn::Dense { width: c.count_or("intermediate_size", 12_288, WIDTH_MAX)? };
    let mut ffn = match c.texts_opt("mlp_layer_types")? {
        None => leading_dense(
            c.number_opt("first_k_dense_replace", 0, LAYERS_MAX)?.unwrap_or(3),
            dense,
            arch.layers,
        ),
        Some(types) => {
            let each = |t: &&str| match *t {
                "dense" => Some(dense),
                "sparse" => Some(Ffn::Moe),
                _ => None,
            };
            let ffn: Option<Vec<Ffn>> = types.iter().map(each).collect();
            ffn.filter(|f| f.len() == arch.layers).ok_or_else(|| {
                c.wrong(
                    "mlp_layer_types",
                    format!("{} times `dense` or `sparse`, one for each layer", arch.layers),
                )
            })?
        }
    };
    ffn.extend(vec![Ffn::Moe; arch.mtp_layers]);
    Ok(ffn)
}

fn leading_dense(dense_layers: usize, dense: Ffn, layers: usize) -> Vec<Ffn> {
    (0..layers).map(|i| if i < dense_layers { dense } else { Ffn::Moe }).collect()
}

/// Which layers have an indexer: a list, else a pattern, else a period. Layers for multi-token prediction that the
/// configuration does not mention have one.
fn indexers_from_hf(c: &HfConfig, arch: &Arch) -> Result<Vec<IndexerKind>, OpenError> {
    const EXPECTED: &str = "one of `full` and `shared` for each layer, the first one `full`";
    let (key, kinds) = if let Some(types) = c.texts_opt("indexer_types")? {
        ("indexer_types", types.into_iter().map(indexer_kind).collect())
    } else if let Some(serde_json::Value::String(pattern)) = c.get("index_topk_pattern") {
        ("index_topk_pattern", pattern.chars().map(|p| indexer_kind(p.encode_utf8(&mut [0; 4]))).collect())
    } else if let Some(types) = c.texts_opt("index_topk_pattern")? {
        ("index_topk_pattern", types.into_iter().map(indexer_kind).collect())
    } else {
        let period = c.number_opt("index_topk_freq", 0, LAYERS_MAX)?.unwrap_or(1).max(1);
        let offset = c.number_opt("index_skip_topk_offset", 0, LAYERS_MAX)?.unwrap_or(2);
        let is_full = |i: usize| (i + 1).saturating_sub(offset).is_multiple_of(period);
        let kinds =
            (0..arch.layers).map(|i| Some(if is_full(i) { IndexerKind::Full } else { IndexerKind::Shared }));
        ("index_topk_freq", kinds.collect::<Option<Vec<_>>>())
    };
    complete(kinds, arch).ok_or_else(|| c.wrong(key, EXPECTED))
}

fn indexer_kind(name: &str) -> Option<IndexerKind> {
    match name {
        "full" | "F" => Some(IndexerKind::Full),
        "shared" | "S" => Some(IndexerKind::Shared),
        _ => None,
    }
}

/// The list, if it covers the trunk or all layers and starts with a full layer, extended to all layers.
fn complete(kinds: Option<Vec<IndexerKind>>, arch: &Arch) -> Option<Vec<IndexerKind>> {
    let mut kinds = kinds?;
    if kinds.first() != Some(&IndexerKind::Full) {
        return None;
    }
    if kinds.len() == arch.layers {
        kinds.extend(vec![IndexerKind::Full; arch.mtp_layers]);
    }
    (kinds.len() == arch.layers + arch.mtp_layers).then_some(kinds)
}

fn from_gguf(c: &GgufConfig<'_>) -> Result<Arch, OpenError> {
    let mut arch = base_from_gguf(c, NAME)?;
    // Here the block count includes the layers for multi-token prediction.
    arch.mtp_layers = c.number_opt("nextn_predict_layers", 0, arch.layers.saturating_sub(1))?.unwrap_or(0);
    arch.layers -= arch.mtp_layers;
    arch.attention = attention_from_gguf(c)?;
    arch.rope.dims = c.count("rope.dimension_count", HEAD_DIM_MAX)?;
    arch.rope.layout = RopeLayout::Interleaved;
    arch.dsa = Some(dsa_from_gguf(c, &arch)?);
    let dense = Ffn::Dense { width: c.count("feed_forward_length", WIDTH_MAX)? };
    let dense_layers = c.number_opt("leading_dense_block_count", 0, LAYERS_MAX)?.unwrap_or(0);
    arch.ffn = leading_dense(dense_layers, dense, arch.layers);
    arch.ffn.extend(vec![Ffn::Moe; arch.mtp_layers]);
    arch.moe = Some(moe_from_gguf(c)?);
    Ok(arch)
}

/// `key_length` and `value_length` describe the cached latent; the widths of a head are the `_mla` ones.
fn attention_from_gguf(c: &GgufConfig<'_>) -> Result<Attention, OpenError> {
    let rope = c.count("rope.dimension_count", HEAD_DIM_MAX)?;
    let key = c.count("attention.key_length_mla", HEAD_DIM_MAX)?;
    let Some(nope) = key.checked_sub(rope).filter(|&n| n > 0) else {
        return Err(c.wrong("attention.key_length_mla", format!("more than rope.dimension_count, {rope}")));
    };
    Ok(Attention::Mla {
        heads: c.count("attention.head_count", HEADS_MAX)?,
        q_lora: c.count("attention.q_lora_rank", WIDTH_MAX)?,
        kv_lora: c.count("attention.kv_lora_rank", WIDTH_MAX)?,
        nope,
        rope,
        v: c.count("attention.value_length_mla", HEAD_DIM_MAX)?,
        latent_norm_eps: LATENT_NORM_EPS,
    })
}

/// Some converters leave the list of indexers out, and some leave the indexer out of the layers for multi-token
/// prediction. A layer has an indexer exactly if the file has its query matrix.
fn stored_indexer(c: &GgufConfig<'_>, layer: usize) -> IndexerKind {
    match c.tensor_shape(&format!("blk.{layer}.indexer.attn_q_b.weight")) {
        Some(_) => IndexerKind::Full,
        None => IndexerKind::Shared,
    }
}

fn dsa_from_gguf(c: &GgufConfig<'_>, arch: &Arch) -> Result<Dsa, OpenError> {
    const TYPES: &str = "attention.indexer.types";
    let kind = |full: bool| if full { IndexerKind::Full } else { IndexerKind::Shared };
    let kinds = match c.flags_opt(TYPES)? {
        Some(flags) => flags.into_iter().map(kind).collect(),
        None => (0..arch.layers).map(|layer| stored_indexer(c, layer)).collect(),
    };
    let mut layers = complete(Some(kinds), arch)
        .ok_or_else(|| c.wrong(TYPES, format!("{} truth values, the first one true", arch.layers)))?;
    for (layer, kind) in layers.iter_mut().enumerate().skip(arch.layers) {
        *kind = stored_indexer(c, layer);
    }
    Ok(Dsa {
        heads: c.count("attention.indexer.head_count", HEADS_MAX)?,
        head_dim: c.count("attention.indexer.key_length", HEAD_DIM_MAX)?,
        topk: c.count("attention.indexer.top_k", CONTEXT_MAX)?,
        rope_layout: RopeLayout::Interleaved,
        layers,
    })
}

fn moe_from_gguf(c: &GgufConfig<'_>) -> Result<Moe, OpenError> {
    if c.number_opt("expert_gating_func", 0, usize::MAX)?.is_some_and(|f| f != 0 && f != GGUF_SIGMOID) {
        return Err(c.unsupported("expert_gating_func", "2 (sigmoid)", TODO_VARIANT));
    }
    let width = c.count("expert_feed_forward_length", WIDTH_MAX)?;
    let shared = c.number_opt("expert_shared_count", 0, SHARED_EXPERTS_MAX)?.unwrap_or(0);
    let shared_width = match c.number_opt("expert_shared_feed_forward_length", 1, WIDTH_MAX)? {
        Some(n) => Some(n),
        None => (shared > 0).then_some(shared * width),
    };
    Ok(Moe {
        experts: c.count("expert_count", EXPERTS_MAX)?,
        top_k: c.count("expert_used_count", EXPERTS_MAX)?,
        width,
        shared_width,
        gate: gate(
            c.bool_or("expert_weights_norm", true)?,
            weights_scale(c)?,
            groups(
                c.number_opt("expert_group_count", 0, EXPERTS_MAX)?,
                c.number_opt("expert_group_used_count", 0, EXPERTS_MAX)?,
            ),
        ),
    })
}

/// One group, or none stated, is no restriction. Without a number of groups to keep, transformers keeps one.
fn groups(count: Option<usize>, kept: Option<usize>) -> Option<GateGroups> {
    let count = count.filter(|n| *n > 1)?;
    Some(GateGroups { count, kept: kept.unwrap_or(1) })
}

fn gate(normalize: bool, scale: f32, groups: Option<GateGroups>) -> Gate {
    Gate {
        score: GateScore::Sigmoid,
        selection_bias: true,
        groups,
        normalize,
        // Transformers adds it only where it divides, so an absent division has none.
        normalize_eps: NORMALIZE_EPS,
        scale,
    }
}
