//! OLMoE (arXiv 2409.02060): one norm over all query heads and one over all key heads; queries, keys and values may be
//! clamped.

use super::Family;
use super::common::{HfDefaults, gqa_from_gguf, gqa_from_hf, with_gqa};
use super::mixture::{experts_from_hf, moe_from_gguf, softmax_gate, weights_scale};
use super::names::Names;
use super::rotary::RopeDefaults;
use super::tables::{
    GGUF, GGUF_GQA, GGUF_GQA_BIAS, GGUF_QK_NORM, GGUF_ROUTER, HF, HF_GQA, HF_GQA_BIAS, HF_QK_NORM,
};
use crate::arch::{Arch, Ffn, Moe, QkNorm, RopeLayout};
use crate::catalog::Role;
use crate::error::OpenError;
use crate::gguf_config::GgufConfig;
use crate::hf_config::HfConfig;
use crate::limits::{EXPERTS_MAX, WIDTH_MAX};

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
const WIDTH_DEFAULT: usize = 2048;
const EXPERTS_DEFAULT: usize = 64;
const TOP_K_DEFAULT: usize = 8;

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
    arch.moe = Some(Moe::routed(
        experts_from_hf(c, &["num_experts", "num_local_experts"], EXPERTS_DEFAULT)?,
        c.count_or("num_experts_per_tok", TOP_K_DEFAULT, EXPERTS_MAX)?,
        c.count_or("intermediate_size", WIDTH_DEFAULT, WIDTH_MAX)?,
        softmax_gate(normalize, 1.0),
    ));
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
