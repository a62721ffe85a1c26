//! gpt-oss (arXiv 2508.10925): attention sinks, biases everywhere, every other layer windowed, clamped SwiGLU, experts
//! in MXFP4.

use super::Family;
use super::common::{HfDefaults, gqa_from_gguf, gqa_from_hf, with_gqa};
use super::mixture::{experts_from_hf, moe_from_gguf};
use super::names::{Names, Stack};
use super::rotary::{RopeDefaults, views_from_gguf, windows_from_hf};
use super::tables::{GGUF, GGUF_GQA, GGUF_GQA_BIAS, GGUF_ROUTER, HF, HF_GQA, HF_GQA_BIAS};
use crate::arch::{Activation, Arch, Ffn, Gate, GateScore, Moe, RopeLayout, RopeScaling};
use crate::catalog::Role;
use crate::error::OpenError;
use crate::gguf_config::GgufConfig;
use crate::hf_config::HfConfig;
use crate::limits::{EXPERTS_MAX, WIDTH_MAX};

const NAME: &str = "gpt_oss";
const DEFAULTS: HfDefaults = HfDefaults {
    vocab: 201_088,
    hidden: 2880,
    layers: 36,
    heads: 64,
    kv_heads: Some(8),
    head_dim: Some(64),
    context: 131_072,
    norm_eps: 1e-5,
    rope: RopeDefaults { theta: 150_000.0, partial: 1.0, layout: RopeLayout::HalfSplit },
    tied: false,
};
/// What the rotary embedding is when `config.json` does not describe it.
const SCALING_DEFAULT: RopeScaling = RopeScaling::Yarn {
    factor: 32.0,
    beta_fast: 32.0,
    beta_slow: 1.0,
    original_context: 4096.0,
    truncate: false,
    attention_factor: 1.346_573_6,
};
const WIDTH_DEFAULT: usize = 2880;
const EXPERTS_DEFAULT: usize = 128;
const TOP_K_DEFAULT: usize = 4;
const WINDOW_DEFAULT: usize = 128;
const ALPHA_DEFAULT: f32 = 1.702;
const LIMIT_DEFAULT: f32 = 7.0;
const GATE: Gate = Gate { logit_bias: true, ..Gate::plain(GateScore::SoftmaxOfChosen) };
const TODO_VARIANT: &str = "use another variant of the model";

pub(crate) static FAMILY: Family = Family {
    model_type: NAME,
    model_type_aliases: &[],
    architectures: &["GptOssForCausalLM"],
    gguf_arch: "gpt-oss",
    claims_gguf: |_| true,
    from_hf,
    from_gguf,
    hf_names: Names {
        layer: &[
            HF_GQA,
            HF_GQA_BIAS,
            &[
                ("self_attn.sinks", Role::AttnSinks),
                ("mlp.router.weight", Role::Router),
                ("mlp.router.bias", Role::RouterLogitBias),
                ("mlp.experts.gate_up_proj_bias", Role::ExpertGateUpBias),
                ("mlp.experts.down_proj_bias", Role::ExpertDownBias),
            ],
        ],
        // `_blocks` and `_scales` have been joined under these names.
        stacked: &[
            ("mlp.experts.gate_up_proj", Stack::GateUpByTurns),
            ("mlp.experts.down_proj", Stack::DownOrTransposed),
        ],
        ..HF
    },
    gguf_names: Names {
        layer: &[
            GGUF_GQA,
            GGUF_GQA_BIAS,
            GGUF_ROUTER,
            &[
                ("post_attention_norm.weight", Role::FfnNorm),
                ("attn_sinks.weight", Role::AttnSinks),
                ("ffn_gate_inp.bias", Role::RouterLogitBias),
                ("ffn_gate_exps.bias", Role::ExpertGateBias),
                ("ffn_up_exps.bias", Role::ExpertUpBias),
                ("ffn_down_exps.bias", Role::ExpertDownBias),
            ],
        ],
        ..GGUF
    },
};

fn from_hf(c: &HfConfig) -> Result<Arch, OpenError> {
    if c.bool_opt("attention_bias")? == Some(false) {
        return Err(c.unsupported("attention_bias", "true", TODO_VARIANT));
    }
    let mut arch = gqa_from_hf(c, NAME, &DEFAULTS)?;
    if c.get("rope_scaling").is_none() && c.get("rope_parameters").is_none() {
        arch.ropes.iter_mut().for_each(|r| r.scaling = SCALING_DEFAULT);
    }
    windows_from_hf(c, &mut arch, Some(WINDOW_DEFAULT), |layer| layer.is_multiple_of(2))?;
    let alpha = c.float_opt("swiglu_alpha")?.map_or(ALPHA_DEFAULT, |v| v as f32);
    let limit = c.float_opt("swiglu_limit")?.map_or(LIMIT_DEFAULT, |v| v as f32);
    finish(&mut arch, alpha, limit);
    let mut top_k = c.number_opt("num_experts_per_tok", 1, EXPERTS_MAX)?;
    if top_k.is_none() {
        top_k = c.number_opt("experts_per_token", 1, EXPERTS_MAX)?;
    }
    arch.moe = Some(Moe {
        expert_bias: true,
        ..Moe::routed(
            experts_from_hf(c, &["num_local_experts", "num_experts"], EXPERTS_DEFAULT)?,
            top_k.unwrap_or(TOP_K_DEFAULT),
            c.count_or("intermediate_size", WIDTH_DEFAULT, WIDTH_MAX)?,
            GATE,
        )
    });
    Ok(arch)
}

fn finish(arch: &mut Arch, alpha: f32, limit: f32) {
    with_gqa(arch, |a| (a.qkv_bias, a.out_bias, a.sinks) = (true, true, true));
    arch.ffn = vec![Ffn::Moe; arch.layers];
    arch.activation = Activation::SwiGluClamped { alpha, limit };
}

fn from_gguf(c: &GgufConfig<'_>) -> Result<Arch, OpenError> {
    let mut arch = gqa_from_gguf(c, NAME, RopeLayout::HalfSplit)?;
    // No key says so, but the model's ramp is not rounded to whole dimensions.
    for rope in &mut arch.ropes {
        if let RopeScaling::Yarn { truncate, .. } = &mut rope.scaling {
            *truncate = false;
        }
    }
    views_from_gguf(c, &mut arch, |layer| layer.is_multiple_of(2))?;
    finish(&mut arch, ALPHA_DEFAULT, LIMIT_DEFAULT);
    let mut moe = moe_from_gguf(c, GATE)?;
    moe.expert_bias = true;
    arch.moe = Some(moe);
    Ok(arch)
}
