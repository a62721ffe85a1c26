//! DeepSeek-V2, V2-Lite and V2.5 (arXiv 2405.04434): latent attention with or without a query bottleneck, softmax scores,
//! groups as good as their best expert.

use super::Family;
use super::common::HfDefaults;
use super::latent::{MlaDefaults, mla_from_gguf, mla_from_hf};
use super::mixture::{
    experts_from_hf, groups, groups_from_gguf, leading_dense, leading_dense_from_gguf, moe_from_gguf,
    weights_scale,
};
use super::names::Names;
use super::noaux::is_noaux_gguf;
use super::rotary::RopeDefaults;
use super::tables::{
    GGUF, GGUF_MLA, GGUF_MLP, GGUF_MTP, GGUF_SHARED_MOE, HF, HF_DEEPSEEK_MOE, HF_MLA, HF_MLP, HF_MTP,
};
use crate::arch::{Arch, Ffn, Gate, GateNormalization, GateScore, GroupWorth, Moe, RopeLayout};
use crate::error::OpenError;
use crate::gguf_config::GgufConfig;
use crate::hf_config::HfConfig;
use crate::limits::{EXPERTS_MAX, LAYERS_MAX, SHARED_EXPERTS_MAX, WIDTH_MAX};

const NAME: &str = "deepseek_v2";
const DEFAULTS: HfDefaults = HfDefaults {
    vocab: 102_400,
    hidden: 4096,
    layers: 32,
    heads: 32,
    kv_heads: None,
    head_dim: None,
    context: 2048,
    norm_eps: 1e-6,
    rope: RopeDefaults { theta: 10_000.0, partial: 1.0, layout: RopeLayout::Interleaved },
    tied: false,
};
const WIDTHS: MlaDefaults = MlaDefaults { q_lora: 1536, kv_lora: 512, nope: 128, rope: 64, v: 128 };
const DENSE_WIDTH_DEFAULT: usize = 11_008;
const WIDTH_DEFAULT: usize = 1407;
const EXPERTS_DEFAULT: usize = 64;
const TOP_K_DEFAULT: usize = 6;
const SHARED_DEFAULT: usize = 2;
const TODO_VARIANT: &str = "use another variant of the model";

pub(crate) static FAMILY: Family = Family {
    model_type: NAME,
    model_type_aliases: &[],
    architectures: &["DeepseekV2ForCausalLM"],
    gguf_arch: "deepseek2",
    claims_gguf: |c| !is_noaux_gguf(c).unwrap_or(true),
    from_hf,
    from_gguf,
    hf_names: Names { layer: &[HF_MLA, HF_MLP, HF_DEEPSEEK_MOE, HF_MTP], ..HF },
    gguf_names: Names { layer: &[GGUF_MLA, GGUF_MLP, GGUF_SHARED_MOE, GGUF_MTP], ..GGUF },
};

fn from_hf(c: &HfConfig) -> Result<Arch, OpenError> {
    refuse_variants(c)?;
    let mut arch = mla_from_hf(c, NAME, &DEFAULTS, &WIDTHS)?;
    let dense = Ffn::Dense { width: c.count_or("intermediate_size", DENSE_WIDTH_DEFAULT, WIDTH_MAX)? };
    let dense_layers = c.number_opt("first_k_dense_replace", 0, LAYERS_MAX)?.unwrap_or(0);
    arch.ffn = leading_dense(dense_layers, dense, arch.layers);
    let width = c.count_or("moe_intermediate_size", WIDTH_DEFAULT, WIDTH_MAX)?;
    let shared = c.number_opt("n_shared_experts", 0, SHARED_EXPERTS_MAX)?.unwrap_or(SHARED_DEFAULT);
    let groups = match c.text_opt("topk_method")?.unwrap_or("greedy") {
        "greedy" => None,
        "group_limited_greedy" => {
            let count = c.number_opt("n_group", 1, EXPERTS_MAX)?;
            groups(count, c.number_opt("topk_group", 1, EXPERTS_MAX)?, GroupWorth::Best)
        }
        _ => return Err(c.unsupported("topk_method", "greedy or group_limited_greedy", TODO_VARIANT)),
    };
    let scale = c.float_opt("routed_scaling_factor")?.unwrap_or(1.0) as f32;
    arch.moe = Some(Moe {
        shared_width: (shared > 0).then_some(shared * width),
        ..Moe::routed(
            experts_from_hf(c, &["n_routed_experts", "num_experts"], EXPERTS_DEFAULT)?,
            c.count_or("num_experts_per_tok", TOP_K_DEFAULT, EXPERTS_MAX)?,
            width,
            Gate { groups, scale, ..Gate::plain(GateScore::Softmax) },
        )
    });
    Ok(arch)
}

/// Settings that transformers ignores: following neither it nor them would be right.
fn refuse_variants(c: &HfConfig) -> Result<(), OpenError> {
    if c.number_opt("moe_layer_freq", 0, LAYERS_MAX)?.is_some_and(|n| n != 1) {
        return Err(c.unsupported("moe_layer_freq", "1", TODO_VARIANT));
    }
    if c.text_opt("scoring_func")?.is_some_and(|v| v != "softmax") {
        return Err(c.unsupported("scoring_func", "softmax", TODO_VARIANT));
    }
    if c.bool_opt("norm_topk_prob")? == Some(true) {
        return Err(c.unsupported("norm_topk_prob", "false", TODO_VARIANT));
    }
    Ok(())
}

fn from_gguf(c: &GgufConfig<'_>) -> Result<Arch, OpenError> {
    let mut arch = mla_from_gguf(c, NAME)?;
    arch.ffn = leading_dense_from_gguf(c, arch.layers)?;
    arch.ffn.extend(vec![Ffn::Moe; arch.mtp_layers]);
    let gate = Gate {
        groups: groups_from_gguf(c, GroupWorth::Best)?,
        normalization: GateNormalization::sum_if(c.bool_or("expert_weights_norm", false)?, 0.0),
        scale: weights_scale(c)?,
        ..Gate::plain(GateScore::Softmax)
    };
    arch.moe = Some(moe_from_gguf(c, gate)?);
    Ok(arch)
}
