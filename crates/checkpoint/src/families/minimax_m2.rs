//! MiniMax-M2: partly rotated heads, one norm over all heads of queries and of keys, a sigmoid router whose choice is
//! biased.

use super::Family;
use super::common::{HfDefaults, gqa_from_gguf, gqa_from_hf, with_gqa};
use super::mixture::{RoutedDefaults, moe_from_gguf, routed_from_hf, weights_scale};
use super::names::Names;
use super::rotary::RopeDefaults;
use super::tables::{
    GGUF, GGUF_GQA, GGUF_QK_NORM, GGUF_SHARED_MOE, HF, HF_GQA, HF_MIXTRAL_EXPERT, HF_QK_NORM,
};
use crate::arch::{Arch, Ffn, Gate, GateNormalization, GateScore, QkNorm, RopeLayout};
use crate::catalog::Role;
use crate::error::OpenError;
use crate::gguf_config::GgufConfig;
use crate::hf_config::HfConfig;
use crate::limits::{HEAD_DIM_MAX, WIDTH_MAX};

const NAME: &str = "minimax_m2";
const DEFAULTS: HfDefaults = HfDefaults {
    vocab: 200_064,
    hidden: 3072,
    layers: 62,
    heads: 48,
    kv_heads: Some(8),
    head_dim: Some(128),
    context: 196_608,
    norm_eps: 1e-6,
    rope: RopeDefaults { theta: 5_000_000.0, partial: 1.0, layout: RopeLayout::HalfSplit },
    tied: false,
};
const ROUTED: RoutedDefaults = RoutedDefaults { experts: 256, top_k: 8, width: 1536 };
const GATE: Gate = Gate {
    selection_bias: true,
    normalization: GateNormalization::Sum { eps: 0.0 },
    ..Gate::plain(GateScore::Sigmoid)
};
const TODO_VARIANT: &str = "use another variant of the model";

const HF_MOE: &[(&str, Role)] = &[
    ("block_sparse_moe.gate.weight", Role::Router),
    ("block_sparse_moe.e_score_correction_bias", Role::RouterBias),
    // As transformers 5's own module tree spells them.
    ("mlp.gate.weight", Role::Router),
    ("mlp.e_score_correction_bias", Role::RouterBias),
    ("mlp.gate.e_score_correction_bias", Role::RouterBias),
];

pub(crate) static FAMILY: Family = Family {
    model_type: NAME,
    model_type_aliases: &[],
    architectures: &["MiniMaxM2ForCausalLM"],
    gguf_arch: "minimax-m2",
    claims_gguf: |_| true,
    from_hf,
    from_gguf,
    hf_names: Names { layer: &[HF_GQA, HF_QK_NORM, HF_MOE], expert: HF_MIXTRAL_EXPERT, ..HF },
    gguf_names: Names { layer: &[GGUF_GQA, GGUF_QK_NORM, GGUF_SHARED_MOE], ..GGUF },
};

fn from_hf(c: &HfConfig) -> Result<Arch, OpenError> {
    refuse_variants(c)?;
    let mut arch = gqa_from_hf(c, NAME, &DEFAULTS)?;
    with_gqa(&mut arch, |a| a.qk_norm = Some(QkNorm::AllHeads));
    // The published files give the number of rotated values instead of a share.
    if let (Some(dims), Some(rope)) = (c.number_opt("rotary_dim", 1, HEAD_DIM_MAX)?, arch.ropes.first_mut()) {
        rope.dims = dims;
    }
    arch.ffn = vec![Ffn::Moe; arch.layers];
    arch.moe =
        Some(routed_from_hf(c, &["num_local_experts", "num_experts"], "intermediate_size", &ROUTED, GATE)?);
    Ok(arch)
}

fn refuse_variants(c: &HfConfig) -> Result<(), OpenError> {
    if c.text_opt("scoring_func")?.is_some_and(|v| v != "sigmoid") {
        return Err(c.unsupported("scoring_func", "sigmoid", TODO_VARIANT));
    }
    if c.text_opt("qk_norm_type")?.is_some_and(|v| v != "per_layer") {
        return Err(c.unsupported("qk_norm_type", "per_layer", TODO_VARIANT));
    }
    for key in ["use_routing_bias", "use_qk_norm"] {
        if c.bool_opt(key)? == Some(false) {
            return Err(c.unsupported(key, "true", TODO_VARIANT));
        }
    }
    if c.number_opt("shared_intermediate_size", 0, WIDTH_MAX)?.is_some_and(|w| w != 0) {
        return Err(c.unsupported("shared_intermediate_size", "0", TODO_VARIANT));
    }
    if c.numbers_opt("attn_type_list")?.is_some_and(|types| types.iter().any(|&t| t != 1)) {
        return Err(c.unsupported("attn_type_list", "1 for every layer", TODO_VARIANT));
    }
    Ok(())
}

fn from_gguf(c: &GgufConfig<'_>) -> Result<Arch, OpenError> {
    let mut arch = gqa_from_gguf(c, NAME, RopeLayout::HalfSplit)?;
    with_gqa(&mut arch, |a| a.qk_norm = Some(QkNorm::AllHeads));
    arch.ffn = vec![Ffn::Moe; arch.layers];
    arch.moe = Some(moe_from_gguf(c, Gate { scale: weights_scale(c)?, ..GATE })?);
    Ok(arch)
}
