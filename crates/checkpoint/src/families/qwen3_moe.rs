//! Qwen3-MoE (arXiv 2505.09388): normalised queries and keys, softmax over all experts before the choice, and dense
//! layers wherever the configuration puts them.

use super::Family;
use super::common::{HfDefaults, gqa_from_gguf, gqa_from_hf, no_window_in_hf, weights_scale};
use super::names::{
    GGUF_EXPERT, GGUF_GLOBALS, GGUF_GQA, GGUF_LAYER, GGUF_MLP, GGUF_REFUSED, GGUF_ROUTER, GGUF_STACKED,
    HF_BUFFERS, HF_EXPERT, HF_GLOBALS, HF_GQA, HF_LAYER, HF_MLP, HF_STACKED, Names,
};
use crate::arch::{Arch, Ffn, Gate, GateScore, Moe, RopeLayout};
use crate::catalog::Role;
use crate::error::OpenError;
use crate::gguf_config::GgufConfig;
use crate::hf_config::HfConfig;
use crate::limits::{EXPERTS_MAX, LAYERS_MAX, WIDTH_MAX};

const NAME: &str = "qwen3_moe";
const DEFAULTS: HfDefaults = HfDefaults {
    vocab: 151_936,
    hidden: 2048,
    layers: 24,
    heads: 32,
    kv_heads: Some(4),
    context: 32_768,
    norm_eps: 1e-6,
    theta: 10_000.0,
};
const DENSE_WIDTH_DEFAULT: usize = 6144;
const WIDTH_DEFAULT: usize = 768;
const EXPERTS_DEFAULT: usize = 128;
const TOP_K_DEFAULT: usize = 8;

pub(crate) static FAMILY: Family = Family {
    model_type: NAME,
    architectures: &["Qwen3MoeForCausalLM"],
    gguf_arch: "qwen3moe",
    claims_gguf: |_| true,
    from_hf,
    from_gguf,
    hf_names: Names {
        layer_prefix: HF_LAYER,
        globals: HF_GLOBALS,
        layer: &[
            HF_GQA,
            HF_MLP,
            &[
                ("self_attn.q_norm.weight", Role::AttnQNorm),
                ("self_attn.k_norm.weight", Role::AttnKNorm),
                ("mlp.gate.weight", Role::Router),
            ],
        ],
        expert: HF_EXPERT,
        stacked: HF_STACKED,
        buffers: HF_BUFFERS,
        refused: &[],
    },
    gguf_names: Names {
        layer_prefix: GGUF_LAYER,
        globals: GGUF_GLOBALS,
        layer: &[
            GGUF_GQA,
            GGUF_MLP,
            GGUF_ROUTER,
            &[("attn_q_norm.weight", Role::AttnQNorm), ("attn_k_norm.weight", Role::AttnKNorm)],
        ],
        expert: GGUF_EXPERT,
        stacked: GGUF_STACKED,
        buffers: &[],
        refused: GGUF_REFUSED,
    },
};

fn from_hf(c: &HfConfig) -> Result<Arch, OpenError> {
    let mut arch = gqa_from_hf(c, NAME, &DEFAULTS, true)?;
    if c.bool_opt("use_sliding_window")? == Some(true) {
        no_window_in_hf(c, &arch)?;
    }
    let dense_only = c.numbers_opt("mlp_only_layers")?.unwrap_or_default();
    let step = c.count_or("decoder_sparse_step", 1, LAYERS_MAX)?;
    let dense_width = c.count_or("intermediate_size", DENSE_WIDTH_DEFAULT, WIDTH_MAX)?;
    let is_moe = |i: usize| !dense_only.contains(&(i as u64)) && (i + 1).is_multiple_of(step);
    arch.ffn = (0..arch.layers).map(|i| ffn(is_moe(i), dense_width)).collect();
    let experts = match c.number_opt("num_experts", 1, EXPERTS_MAX)? {
        Some(n) => n,
        None => c.count_or("num_local_experts", EXPERTS_DEFAULT, EXPERTS_MAX)?,
    };
    let normalize = c.bool_opt("norm_topk_prob")?.unwrap_or(false);
    arch.moe = Some(Moe {
        experts,
        top_k: c.count_or("num_experts_per_tok", TOP_K_DEFAULT, EXPERTS_MAX)?,
        width: c.count_or("moe_intermediate_size", WIDTH_DEFAULT, WIDTH_MAX)?,
        shared_width: None,
        gate: gate(normalize, 1.0),
    });
    Ok(arch)
}

fn from_gguf(c: &GgufConfig<'_>) -> Result<Arch, OpenError> {
    let mut arch = gqa_from_gguf(c, NAME, true, RopeLayout::HalfSplit)?;
    let dense_width = c.count("feed_forward_length", WIDTH_MAX)?;
    // No key says which layers are dense; only the presence of a router does.
    let is_moe = |i: usize| c.tensor_shape(&format!("{GGUF_LAYER}{i}.ffn_gate_inp.weight")).is_some();
    arch.ffn = (0..arch.layers).map(|i| ffn(is_moe(i), dense_width)).collect();
    arch.moe = Some(Moe {
        experts: c.count("expert_count", EXPERTS_MAX)?,
        top_k: c.count("expert_used_count", EXPERTS_MAX)?,
        width: c.count("expert_feed_forward_length", WIDTH_MAX)?,
        shared_width: None,
        // Converters leave the key out, and every published model of the family normalises.
        gate: gate(c.bool_or("expert_weights_norm", true)?, weights_scale(c)?),
    });
    Ok(arch)
}

fn ffn(is_moe: bool, dense_width: usize) -> Ffn {
    if is_moe { Ffn::Moe } else { Ffn::Dense { width: dense_width } }
}

fn gate(normalize: bool, scale: f32) -> Gate {
    Gate {
        score: GateScore::Softmax,
        selection_bias: false,
        groups: None,
        normalize,
        normalize_eps: 0.0,
        scale,
    }
}
