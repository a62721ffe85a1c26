//! Gemma 3, text only (arXiv 2503.19786): norms before and after every block, GELU, and five windowed layers with a
//! rotary embedding of their own to each full one.

use super::Family;
use super::common::{
    HfDefaults, activation_from_hf, dense_from_gguf, dense_from_hf, gqa_from_gguf, gqa_from_hf, is_set,
    with_gqa,
};
use super::names::Names;
use super::rotary::{RopeDefaults, rope_from_object, views_from_gguf, windows_from_hf};
use super::tables::{
    GGUF, GGUF_GQA, GGUF_GQA_BIAS, GGUF_MLP, GGUF_QK_NORM, HF, HF_GQA_BIAS, HF_MLP, HF_QK_NORM,
};
use crate::arch::{Activation, Arch, Norms, QkNorm, Rope, RopeLayout};
use crate::catalog::Role;
use crate::error::OpenError;
use crate::gguf_config::GgufConfig;
use crate::hf_config::HfConfig;
use crate::limits::{HEAD_DIM_MAX, LAYERS_MAX};

const NAME: &str = "gemma3_text";
const GLOBAL: RopeDefaults = RopeDefaults { theta: 1_000_000.0, partial: 1.0, layout: RopeLayout::HalfSplit };
const LOCAL: RopeDefaults = RopeDefaults { theta: 10_000.0, partial: 1.0, layout: RopeLayout::HalfSplit };
const DEFAULTS: HfDefaults = HfDefaults {
    vocab: 262_208,
    hidden: 2304,
    layers: 26,
    heads: 8,
    kv_heads: Some(4),
    head_dim: Some(256),
    context: 131_072,
    norm_eps: 1e-6,
    rope: GLOBAL,
    tied: true,
};
const WIDTH_DEFAULT: usize = 9216;
const WINDOW_DEFAULT: usize = 4096;
/// Every so-manyth layer sees everything.
const FULL_INTERVAL_DEFAULT: usize = 6;
const QUERY_SCALAR_DEFAULT: f64 = 256.0;
/// The one size whose scores are not divided by the root of the head's width; GGUF does not store what by.
const LAYERS_OF_27B: usize = 62;
/// Index of the windowed layers' rotary embedding.
const LOCAL_ROPE: usize = 1;
const TODO_VARIANT: &str = "use another variant of the model";

pub(crate) static FAMILY: Family = Family {
    model_type: NAME,
    model_type_aliases: &[],
    architectures: &["Gemma3ForCausalLM"],
    gguf_arch: "gemma3",
    claims_gguf: |_| true,
    from_hf,
    from_gguf,
    hf_names: Names { layer: &[HF_NORMS_AND_PROJECTIONS, HF_GQA_BIAS, HF_QK_NORM, HF_MLP], ..HF },
    gguf_names: Names {
        layer: &[
            GGUF_GQA,
            GGUF_GQA_BIAS,
            GGUF_QK_NORM,
            GGUF_MLP,
            &[
                ("post_attention_norm.weight", Role::AttnPostNorm),
                ("post_ffw_norm.weight", Role::FfnPostNorm),
            ],
        ],
        ..GGUF
    },
};

const HF_NORMS_AND_PROJECTIONS: &[(&str, Role)] = &[
    ("input_layernorm.weight", Role::AttnNorm),
    ("self_attn.q_proj.weight", Role::AttnQ),
    ("self_attn.k_proj.weight", Role::AttnK),
    ("self_attn.v_proj.weight", Role::AttnV),
    ("self_attn.o_proj.weight", Role::AttnOut),
    ("post_attention_layernorm.weight", Role::AttnPostNorm),
    ("pre_feedforward_layernorm.weight", Role::FfnNorm),
    ("post_feedforward_layernorm.weight", Role::FfnPostNorm),
];

fn from_hf(c: &HfConfig) -> Result<Arch, OpenError> {
    if c.bool_opt("use_bidirectional_attention")? == Some(true) {
        return Err(c.unsupported("use_bidirectional_attention", "false", TODO_VARIANT));
    }
    // transformers reads this key and does not use it; no published file has it.
    if c.get("attn_logit_softcapping").is_some() {
        return Err(c.unsupported("attn_logit_softcapping", "null", TODO_VARIANT));
    }
    let mut arch = gqa_from_hf(c, NAME, &DEFAULTS)?;
    let scalar = c.float_opt("query_pre_attn_scalar")?.unwrap_or(QUERY_SCALAR_DEFAULT);
    let mut width = 0;
    with_gqa(&mut arch, |a| {
        a.qk_norm = Some(QkNorm::PerHead);
        a.scale = (1.0 / scalar.sqrt()) as f32;
        width = a.head_dim;
    });
    let interval = c.count_or("sliding_window_pattern", FULL_INTERVAL_DEFAULT, LAYERS_MAX)?;
    windows_from_hf(c, &mut arch, Some(WINDOW_DEFAULT), |layer| !(layer + 1).is_multiple_of(interval))?;
    arch.ropes = ropes_from_hf(c, width)?;
    finish(&mut arch, 1.0);
    arch.activation = activation_from_hf(c, "hidden_activation", Activation::GeGluTanh)?;
    arch.scales.logit_softcap = c.float_opt("final_logit_softcapping")?.map(|v| v as f32);
    dense_from_hf(c, &mut arch, WIDTH_DEFAULT)?;
    Ok(arch)
}

/// transformers 5 describes both rotary embeddings under the names of the layer types; earlier versions have
/// `rope_local_base_freq` beside one description, which is that of the full layers.
fn ropes_from_hf(c: &HfConfig, width: usize) -> Result<Vec<Rope>, OpenError> {
    const BOTH: &str = "rope_parameters";
    let both = c.object(BOTH)?;
    let of = |kind: &str| both.as_ref().map_or(Ok(None), |o| o.object(kind));
    let (full, sliding) = (of("full_attention")?, of("sliding_attention")?);
    let legacy = c.object("rope_scaling")?;
    let global = match (&full, &legacy) {
        (Some(o), _) => rope_from_object(c, Some((BOTH, o)), &GLOBAL, width)?,
        (None, Some(o)) => rope_from_object(c, Some(("rope_scaling", o)), &GLOBAL, width)?,
        (None, None) => rope_from_object(c, None, &GLOBAL, width)?,
    };
    let local = match (&sliding, c.float_opt("rope_local_base_freq")?) {
        (Some(o), _) => rope_from_object(c, Some((BOTH, o)), &LOCAL, width)?,
        (None, theta) => Rope::plain(theta.unwrap_or(LOCAL.theta), width, RopeLayout::HalfSplit),
    };
    Ok(vec![global, local])
}

/// What both formats have in common once windows and ropes are known.
fn finish(arch: &mut Arch, weight_offset: f32) {
    for view in &mut arch.views {
        view.rope = Some(if view.window.is_some() { LOCAL_ROPE } else { 0 });
    }
    arch.norms = Norms { weight_offset, post: true, ..arch.norms };
    arch.scales.embedding = (arch.hidden as f32).sqrt();
    arch.activation = Activation::GeGluTanh;
}

fn from_gguf(c: &GgufConfig<'_>) -> Result<Arch, OpenError> {
    let mut arch = gqa_from_gguf(c, NAME, RopeLayout::HalfSplit)?;
    let (hidden, layers) = (arch.hidden, arch.layers);
    let scale_stored = is_set(c, "attention.scale");
    let mut width = 0;
    with_gqa(&mut arch, |a| {
        a.qk_norm = Some(QkNorm::PerHead);
        if layers == LAYERS_OF_27B && !scale_stored {
            a.scale = 1.0 / ((hidden / a.heads) as f32).sqrt();
        }
        width = a.head_dim;
    });
    let dims = c.number_opt("rope.dimension_count", 1, HEAD_DIM_MAX)?.unwrap_or(width);
    let theta = c.float_opt("rope.freq_base_swa")?.unwrap_or(LOCAL.theta);
    arch.ropes.push(Rope::plain(theta, dims, RopeLayout::HalfSplit));
    views_from_gguf(c, &mut arch, |layer| !(layer + 1).is_multiple_of(FULL_INTERVAL_DEFAULT))?;
    // The converter has added the one already.
    finish(&mut arch, 0.0);
    arch.scales.logit_softcap =
        c.float_opt("final_logit_softcapping")?.filter(|&v| v > 0.0).map(|v| v as f32);
    dense_from_gguf(c, &mut arch)?;
    Ok(arch)
}
