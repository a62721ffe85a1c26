//! ERNIE 4.5 MoE: neighbouring values rotated together, softmax scores whose choice is biased, ungated shared experts,
//! and mixtures in a range of layers.

use super::Family;
use super::common::{HfDefaults, gqa_from_gguf, gqa_from_hf, with_gqa};
use super::mixture::{experts_from_hf, has_selection_bias, moe_from_gguf, routed_layers_from_gguf};
use super::names::Names;
use super::rotary::RopeDefaults;
use super::tables::{
    GGUF, GGUF_GQA, GGUF_GQA_BIAS, GGUF_MLP, GGUF_SHARED_MOE, HF, HF_GQA, HF_GQA_BIAS, HF_MLP,
};
use crate::arch::{Arch, Ffn, Gate, GateNormalization, GateScore, Moe, RopeLayout};
use crate::catalog::Role;
use crate::error::OpenError;
use crate::gguf_config::GgufConfig;
use crate::hf_config::HfConfig;
use crate::limits::{EXPERTS_MAX, LAYERS_MAX, SHARED_EXPERTS_MAX, WIDTH_MAX};

const NAME: &str = "ernie4_5_moe";
const DEFAULTS: HfDefaults = HfDefaults {
    vocab: 103_424,
    hidden: 2560,
    layers: 28,
    heads: 20,
    kv_heads: Some(4),
    head_dim: None,
    context: 131_072,
    norm_eps: 1e-5,
    rope: RopeDefaults { theta: 500_000.0, partial: 1.0, layout: RopeLayout::Interleaved },
    tied: true,
};
const DENSE_WIDTH_DEFAULT: usize = 12_288;
const WIDTH_DEFAULT: usize = 1536;
const EXPERTS_DEFAULT: usize = 64;
const TOP_K_DEFAULT: usize = 6;
const SHARED_DEFAULT: usize = 2;
const NORM_MIN: f32 = 1e-12;
const TODO_VARIANT: &str = "use another variant of the model";

pub(crate) static FAMILY: Family = Family {
    model_type: NAME,
    model_type_aliases: &[],
    architectures: &["Ernie4_5_MoeForCausalLM"],
    gguf_arch: "ernie4_5-moe",
    claims_gguf: |_| true,
    from_hf,
    from_gguf,
    hf_names: Names {
        layer: &[
            HF_GQA,
            HF_GQA_BIAS,
            HF_MLP,
            &[
                ("mlp.gate.weight", Role::Router),
                ("mlp.moe_statics.e_score_correction_bias", Role::RouterBias),
                ("mlp.gate.moe_statics.e_score_correction_bias", Role::RouterBias),
                ("mlp.shared_experts.gate_proj.weight", Role::SharedGate),
                ("mlp.shared_experts.up_proj.weight", Role::SharedUp),
                ("mlp.shared_experts.down_proj.weight", Role::SharedDown),
            ],
        ],
        // Its way of predicting ahead is not run.
        ignored: &["model.mtp_"],
        ..HF
    },
    gguf_names: Names { layer: &[GGUF_GQA, GGUF_GQA_BIAS, GGUF_MLP, GGUF_SHARED_MOE], ..GGUF },
};

fn from_hf(c: &HfConfig) -> Result<Arch, OpenError> {
    if c.bool_opt("use_bias")? == Some(true) {
        return Err(c.unsupported("use_bias", "false", TODO_VARIANT));
    }
    if c.text_opt("moe_gate")?.is_some_and(|v| v != "topk") {
        return Err(c.unsupported("moe_gate", "topk", TODO_VARIANT));
    }
    let mut arch = gqa_from_hf(c, NAME, &DEFAULTS)?;
    with_gqa(&mut arch, |a| (a.qkv_bias, a.out_bias) = (false, false));
    arch.ffn = layers_from_hf(c, arch.layers)?;
    let width = c.count_or("moe_intermediate_size", WIDTH_DEFAULT, WIDTH_MAX)?;
    let shared = c.number_opt("moe_num_shared_experts", 0, SHARED_EXPERTS_MAX)?.unwrap_or(SHARED_DEFAULT);
    let min = c.float_opt("moe_norm_min")?.map_or(NORM_MIN, |v| v as f32);
    arch.moe = Some(Moe {
        shared_width: (shared > 0).then_some(shared * width),
        ..Moe::routed(
            experts_from_hf(c, &["moe_num_experts"], EXPERTS_DEFAULT)?,
            c.count_or("moe_k", TOP_K_DEFAULT, EXPERTS_MAX)?,
            width,
            gate(min, true),
        )
    });
    Ok(arch)
}

/// Mixtures from one layer to another, every so-manyth.
fn layers_from_hf(c: &HfConfig, layers: usize) -> Result<Vec<Ffn>, OpenError> {
    let width = c.count_or("intermediate_size", DENSE_WIDTH_DEFAULT, WIDTH_MAX)?;
    let interval = c.count_or("moe_layer_interval", 1, LAYERS_MAX)?;
    let start = c.number_opt("moe_layer_start_index", 0, LAYERS_MAX)?.unwrap_or(1);
    let end = match c.get("moe_layer_end_index").and_then(serde_json::Value::as_i64) {
        // −1: to the last one.
        Some(-1) => layers,
        _ => c.number_opt("moe_layer_end_index", 0, LAYERS_MAX)?.unwrap_or(layers),
    };
    let is_moe = |i: usize| (i + 1).is_multiple_of(interval) && (start..=end).contains(&i);
    Ok((0..layers).map(|i| if is_moe(i) { Ffn::Moe } else { Ffn::Dense { width } }).collect())
}

fn gate(min: f32, selection_bias: bool) -> Gate {
    Gate {
        selection_bias,
        normalization: GateNormalization::SumAtLeast { min },
        ..Gate::plain(GateScore::Softmax)
    }
}

fn from_gguf(c: &GgufConfig<'_>) -> Result<Arch, OpenError> {
    let mut arch = gqa_from_gguf(c, NAME, RopeLayout::Interleaved)?;
    arch.ffn = routed_layers_from_gguf(c, arch.layers)?;
    let biased = has_selection_bias(c);
    arch.moe = Some(moe_from_gguf(c, gate(NORM_MIN, biased))?);
    Ok(arch)
}
