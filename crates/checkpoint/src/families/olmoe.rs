//! OLMoE (arXiv 2409.02060): one norm over all query heads and one over all key heads; queries, keys and values may be
//! clamped.

use super::Family;
use super::common::{HfDefaults, gqa_from_gguf, gqa_from_hf, with_gqa};
use super::mixture::{RoutedDefaults, moe_from_gguf, routed_from_hf, softmax_gate, weights_scale};
use super::names::Names;
use super::rotary::RopeDefaults;
use super::tables::{
    GGUF, GGUF_GQA, GGUF_GQA_BIAS, GGUF_QK_NORM, GGUF_ROUTER, HF, HF_GQA, HF_GQA_BIAS, HF_QK_NORM,
};
use crate::arch::{Arch, Ffn, QkNorm, RopeLayout};
use crate::catalog::Role;
use crate::error::OpenError;
use crate::gguf_config::GgufConfig;
use crate::hf_config::HfConfig;

const NAME: &str = "olmoe";
const DEFAULTS: HfDefaults = HfDefaults {
    vocab: 50_304,
    hidden: 2048,
    layers: 16,
    heads: 16,
    kv_heads: None,
    head_dim: None,
    context: 4096,
    norm_eps: 1e-5,
    rope: RopeDefaults { theta: 10_000.0, partial: 1.0, layout: RopeLayout::HalfSplit },
    tied: false,
};
const ROUTED: RoutedDefaults = RoutedDefaults { experts: 64, top_k: 8, width: 2048 };

pub(crate) static FAMILY: Family = Family {
    model_type: NAME,
    model_type_aliases: &[],
    architectures: &["OlmoeForCausalLM"],
    gguf_arch: "olmoe",
    claims_gguf: |_| true,
    from_hf,
    from_gguf,
    hf_names: Names { layer: &[HF_GQA, HF_GQA_BIAS, HF_QK_NORM, &[("mlp.gate.weight", Role::Router)]], ..HF },
    gguf_names: Names { layer: &[GGUF_GQA, GGUF_GQA_BIAS, GGUF_QK_NORM, GGUF_ROUTER], ..GGUF },
};

fn from_hf(c: &HfConfig) -> Result<Arch, OpenError> {
    let mut arch = gqa_from_hf(c, NAME, &DEFAULTS)?;
    let clip = c.float_opt("clip_qkv")?.map(|v| v as f32);
    with_gqa(&mut arch, |a| (a.qk_norm, a.clip) = (Some(QkNorm::AllHeads), clip));
    arch.ffn = vec![Ffn::Moe; arch.layers];
    let normalize = c.bool_opt("norm_topk_prob")?.unwrap_or(false);
    arch.moe = Some(routed_from_hf(
        c,
        &["num_experts", "num_local_experts"],
        "intermediate_size",
        &ROUTED,
        softmax_gate(normalize, 1.0),
    )?);
    Ok(arch)
}

fn from_gguf(c: &GgufConfig<'_>) -> Result<Arch, OpenError> {
    let mut arch = gqa_from_gguf(c, NAME, RopeLayout::HalfSplit)?;
    let clip = c.float_opt("attention.clamp_kqv")?.filter(|&v| v > 0.0).map(|v| v as f32);
    with_gqa(&mut arch, |a| (a.qk_norm, a.clip) = (Some(QkNorm::AllHeads), clip));
    arch.ffn = vec![Ffn::Moe; arch.layers];
    let gate = softmax_gate(c.bool_or("expert_weights_norm", false)?, weights_scale(c)?);
    arch.moe = Some(moe_from_gguf(c, gate)?);
    Ok(arch)
}
