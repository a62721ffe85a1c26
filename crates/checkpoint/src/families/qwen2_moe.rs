//! Qwen1.5-MoE and Qwen2-MoE (arXiv 2407.10671): a shared expert of which each token gets a learned share.

use super::Family;
use super::common::{HfDefaults, gqa_from_gguf, gqa_from_hf, with_gqa};
use super::mixture::{
    RoutedDefaults, moe_from_gguf, routed_from_hf, routed_layers_from_gguf, softmax_gate,
    sparse_steps_from_hf, weights_scale,
};
use super::names::Names;
use super::rotary::{QWEN_WINDOW_DEFAULT, RopeDefaults, windows_from_hf};
use super::tables::{
    GGUF, GGUF_GQA, GGUF_GQA_BIAS, GGUF_MLP, GGUF_SHARED_MOE, HF, HF_GQA, HF_GQA_BIAS, HF_MLP,
};
use crate::arch::{Arch, Moe, RopeLayout};
use crate::catalog::Role;
use crate::error::OpenError;
use crate::gguf_config::GgufConfig;
use crate::hf_config::HfConfig;
use crate::limits::{LAYERS_MAX, WIDTH_MAX};

const NAME: &str = "qwen2_moe";
const DEFAULTS: HfDefaults = HfDefaults {
    vocab: 151_936,
    hidden: 2048,
    layers: 24,
    heads: 16,
    kv_heads: Some(16),
    head_dim: None,
    context: 32_768,
    norm_eps: 1e-6,
    rope: RopeDefaults { theta: 10_000.0, partial: 1.0, layout: RopeLayout::HalfSplit },
    tied: false,
};
const ROUTED: RoutedDefaults = RoutedDefaults { experts: 60, top_k: 4, width: 1408 };
const DENSE_WIDTH_DEFAULT: usize = 5632;
const SHARED_WIDTH_DEFAULT: usize = 5632;
const MAX_WINDOW_LAYERS_DEFAULT: usize = 28;

const HF_MOE: &[(&str, Role)] = &[
    ("mlp.gate.weight", Role::Router),
    ("mlp.shared_expert.gate_proj.weight", Role::SharedGate),
    ("mlp.shared_expert.up_proj.weight", Role::SharedUp),
    ("mlp.shared_expert.down_proj.weight", Role::SharedDown),
    ("mlp.shared_expert_gate.weight", Role::SharedRouter),
];
const GGUF_SHARED_ROUTER: &[(&str, Role)] = &[("ffn_gate_inp_shexp.weight", Role::SharedRouter)];

pub(crate) static FAMILY: Family = Family {
    model_type: NAME,
    model_type_aliases: &[],
    architectures: &["Qwen2MoeForCausalLM"],
    gguf_arch: "qwen2moe",
    claims_gguf: |_| true,
    from_hf,
    from_gguf,
    hf_names: Names { layer: &[HF_GQA, HF_GQA_BIAS, HF_MLP, HF_MOE], ..HF },
    gguf_names: Names {
        layer: &[GGUF_GQA, GGUF_GQA_BIAS, GGUF_MLP, GGUF_SHARED_MOE, GGUF_SHARED_ROUTER],
        ..GGUF
    },
};

fn from_hf(c: &HfConfig) -> Result<Arch, OpenError> {
    let mut arch = gqa_from_hf(c, NAME, &DEFAULTS)?;
    let bias = c.bool_opt("qkv_bias")?.unwrap_or(true);
    with_gqa(&mut arch, |a| (a.qkv_bias, a.out_bias) = (bias, false));
    if c.bool_opt("use_sliding_window")? == Some(true) {
        let end = c.number_opt("max_window_layers", 0, LAYERS_MAX)?.unwrap_or(MAX_WINDOW_LAYERS_DEFAULT);
        windows_from_hf(c, &mut arch, Some(QWEN_WINDOW_DEFAULT), |layer| {
            layer.is_multiple_of(2) && layer < end
        })?;
    }
    arch.ffn = sparse_steps_from_hf(c, arch.layers, DENSE_WIDTH_DEFAULT)?;
    let normalize = c.bool_opt("norm_topk_prob")?.unwrap_or(false);
    arch.moe = Some(Moe {
        shared_width: Some(c.count_or("shared_expert_intermediate_size", SHARED_WIDTH_DEFAULT, WIDTH_MAX)?),
        shared_gate: true,
        ..routed_from_hf(
            c,
            &["num_experts", "num_local_experts"],
            "moe_intermediate_size",
            &ROUTED,
            softmax_gate(normalize, 1.0),
        )?
    });
    Ok(arch)
}

fn from_gguf(c: &GgufConfig<'_>) -> Result<Arch, OpenError> {
    let mut arch = gqa_from_gguf(c, NAME, RopeLayout::HalfSplit)?;
    arch.ffn = routed_layers_from_gguf(c, arch.layers)?;
    // Converters leave the key out, and no published model of the family normalises.
    let gate = softmax_gate(c.bool_or("expert_weights_norm", false)?, weights_scale(c)?);
    let mut moe = moe_from_gguf(c, gate)?;
    moe.shared_gate = true;
    arch.moe = Some(moe);
    Ok(arch)
}
