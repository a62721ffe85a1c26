//! Qwen3-MoE (arXiv 2505.09388): normalised queries and keys, softmax over all experts before the choice, and dense
//! layers wherever the configuration puts them.

use super::Family;
use super::common::{HfDefaults, gqa_from_gguf, gqa_from_hf, with_gqa};
use super::mixture::{
    RoutedDefaults, moe_from_gguf, routed_from_hf, routed_layers_from_gguf, softmax_gate,
    sparse_steps_from_hf, weights_scale,
};
use super::names::Names;
use super::rotary::{QWEN_WINDOW_DEFAULT, RopeDefaults, windows_from_hf};
use super::tables::{
    GGUF, GGUF_GQA, GGUF_GQA_BIAS, GGUF_MLP, GGUF_QK_NORM, GGUF_ROUTER, HF, HF_GQA, HF_GQA_BIAS, HF_MLP,
    HF_QK_NORM,
};
use crate::arch::{Arch, QkNorm, RopeLayout};
use crate::catalog::Role;
use crate::error::OpenError;
use crate::gguf_config::GgufConfig;
use crate::hf_config::HfConfig;

const NAME: &str = "qwen3_moe";
const DEFAULTS: HfDefaults = HfDefaults {
    vocab: 151_936,
    hidden: 2048,
    layers: 24,
    heads: 32,
    kv_heads: Some(4),
    head_dim: None,
    context: 32_768,
    norm_eps: 1e-6,
    rope: RopeDefaults { theta: 10_000.0, partial: 1.0, layout: RopeLayout::HalfSplit },
    tied: false,
};
const ROUTED: RoutedDefaults = RoutedDefaults { experts: 128, top_k: 8, width: 768 };
const DENSE_WIDTH_DEFAULT: usize = 6144;

pub(crate) static FAMILY: Family = Family {
    model_type: NAME,
    model_type_aliases: &[],
    architectures: &["Qwen3MoeForCausalLM"],
    gguf_arch: "qwen3moe",
    claims_gguf: |_| true,
    from_hf,
    from_gguf,
    hf_names: Names {
        layer: &[HF_GQA, HF_GQA_BIAS, HF_QK_NORM, HF_MLP, &[("mlp.gate.weight", Role::Router)]],
        ..HF
    },
    gguf_names: Names { layer: &[GGUF_GQA, GGUF_GQA_BIAS, GGUF_QK_NORM, GGUF_MLP, GGUF_ROUTER], ..GGUF },
};

fn from_hf(c: &HfConfig) -> Result<Arch, OpenError> {
    let mut arch = gqa_from_hf(c, NAME, &DEFAULTS)?;
    with_gqa(&mut arch, |a| a.qk_norm = Some(QkNorm::PerHead));
    if c.bool_opt("use_sliding_window")? == Some(true) {
        windows_from_hf(c, &mut arch, Some(QWEN_WINDOW_DEFAULT), |_| true)?;
    }
    arch.ffn = sparse_steps_from_hf(c, arch.layers, DENSE_WIDTH_DEFAULT)?;
    let normalize = c.bool_opt("norm_topk_prob")?.unwrap_or(false);
    arch.moe = Some(routed_from_hf(
        c,
        &["num_experts", "num_local_experts"],
        "moe_intermediate_size",
        &ROUTED,
        softmax_gate(normalize, 1.0),
    )?);
    Ok(arch)
}

fn from_gguf(c: &GgufConfig<'_>) -> Result<Arch, OpenError> {
    let mut arch = gqa_from_gguf(c, NAME, RopeLayout::HalfSplit)?;
    with_gqa(&mut arch, |a| a.qk_norm = Some(QkNorm::PerHead));
    arch.ffn = routed_layers_from_gguf(c, arch.layers)?;
    // Converters leave the key out, and every published model of the family normalises.
    let gate = softmax_gate(c.bool_or("expert_weights_norm", true)?, weights_scale(c)?);
    arch.moe = Some(moe_from_gguf(c, gate)?);
    Ok(arch)
}
