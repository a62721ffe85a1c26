//! LFM2 MoE (arXiv 2511.23404): most layers mix positions by a short gated convolution, the others by grouped-query
//! attention; sigmoid scores whose choice is biased.

use super::Family;
use super::common::{HfDefaults, gqa_from_gguf, gqa_from_hf, with_gqa};
use super::mixture::{
    RoutedDefaults, has_selection_bias, leading_dense, leading_dense_from_gguf, moe_from_gguf,
    routed_from_hf, weights_scale,
};
use super::names::{Names, Part};
use super::rotary::RopeDefaults;
use super::tables::{GGUF, GGUF_GQA, GGUF_LAYER, GGUF_MLP, GGUF_QK_NORM, GGUF_SHARED_MOE, HF};
use crate::arch::{Arch, Ffn, Gate, GateNormalization, GateScore, QkNorm, RopeLayout, ShortConv};
use crate::catalog::Role;
use crate::error::OpenError;
use crate::gguf_config::GgufConfig;
use crate::hf_config::HfConfig;
use crate::limits::{LAYERS_MAX, WIDTH_MAX};

const NAME: &str = "lfm2_moe";
const DEFAULTS: HfDefaults = HfDefaults {
    vocab: 65_536,
    hidden: 2048,
    layers: 32,
    heads: 32,
    kv_heads: Some(8),
    head_dim: None,
    context: 128_000,
    norm_eps: 1e-5,
    rope: RopeDefaults { theta: 1_000_000.0, partial: 1.0, layout: RopeLayout::HalfSplit },
    tied: true,
};
const ROUTED: RoutedDefaults = RoutedDefaults { experts: 32, top_k: 4, width: 1792 };
const DENSE_WIDTH_DEFAULT: usize = 7168;
const DENSE_LAYERS_DEFAULT: usize = 2;
const CONV_LENGTH_DEFAULT: usize = 3;
/// A convolution over more positions is a slip: the cache is what keeps them.
const CONV_LENGTH_MAX: usize = 64;
/// Keeps the sum of the chosen scores away from 0.
const NORMALIZE_EPS: f32 = 1e-6;
const TODO_VARIANT: &str = "use another variant of the model";

pub(crate) static FAMILY: Family = Family {
    model_type: NAME,
    model_type_aliases: &[],
    architectures: &["Lfm2MoeForCausalLM"],
    gguf_arch: "lfm2moe",
    claims_gguf: |_| true,
    from_hf,
    from_gguf,
    hf_names: Names {
        globals: &[
            ("model.embed_tokens.weight", Role::TokenEmbedding),
            ("model.embedding_norm.weight", Role::OutputNorm),
            ("lm_head.weight", Role::Output),
        ],
        layer: &[HF_LAYER_NAMES],
        expert: &[
            ("feed_forward.experts.", ".w1.weight", Part::Gate),
            ("feed_forward.experts.", ".w3.weight", Part::Up),
            ("feed_forward.experts.", ".w2.weight", Part::Down),
        ],
        ..HF
    },
    gguf_names: Names {
        globals: &[
            ("token_embd.weight", Role::TokenEmbedding),
            ("output_norm.weight", Role::OutputNorm),
            // As converters have written the same norm.
            ("token_embd_norm.weight", Role::OutputNorm),
            ("output.weight", Role::Output),
        ],
        layer: &[GGUF_GQA, GGUF_QK_NORM, GGUF_MLP, GGUF_SHARED_MOE, GGUF_CONV],
        ..GGUF
    },
};

const HF_LAYER_NAMES: &[(&str, Role)] = &[
    ("operator_norm.weight", Role::AttnNorm),
    ("self_attn.q_proj.weight", Role::AttnQ),
    ("self_attn.k_proj.weight", Role::AttnK),
    ("self_attn.v_proj.weight", Role::AttnV),
    ("self_attn.out_proj.weight", Role::AttnOut),
    ("self_attn.q_layernorm.weight", Role::AttnQNorm),
    ("self_attn.k_layernorm.weight", Role::AttnKNorm),
    ("conv.in_proj.weight", Role::ConvIn),
    ("conv.conv.weight", Role::ConvKernel),
    ("conv.out_proj.weight", Role::ConvOut),
    ("ffn_norm.weight", Role::FfnNorm),
    ("feed_forward.w1.weight", Role::FfnGate),
    ("feed_forward.w3.weight", Role::FfnUp),
    ("feed_forward.w2.weight", Role::FfnDown),
    ("feed_forward.gate.weight", Role::Router),
    ("feed_forward.expert_bias", Role::RouterBias),
];

const GGUF_CONV: &[(&str, Role)] = &[
    ("shortconv.in_proj.weight", Role::ConvIn),
    ("shortconv.conv.weight", Role::ConvKernel),
    ("shortconv.out_proj.weight", Role::ConvOut),
];

fn from_hf(c: &HfConfig) -> Result<Arch, OpenError> {
    if c.bool_opt("conv_bias")? == Some(true) {
        return Err(c.unsupported("conv_bias", "false", TODO_VARIANT));
    }
    let mut arch = gqa_from_hf(c, NAME, &DEFAULTS)?;
    with_gqa(&mut arch, |a| {
        (a.qkv_bias, a.out_bias) = (false, false);
        a.qk_norm = Some(QkNorm::PerHead);
    });
    if let Some(eps) = c.float_opt("norm_eps")? {
        arch.norms.eps = eps as f32;
    }
    arch.short_conv = Some(ShortConv {
        length: c.count_or("conv_L_cache", CONV_LENGTH_DEFAULT, CONV_LENGTH_MAX)?,
        layers: conv_layers_from_hf(c, arch.layers)?,
    });
    let dense = Ffn::Dense { width: c.count_or("intermediate_size", DENSE_WIDTH_DEFAULT, WIDTH_MAX)? };
    let dense_layers = c.number_opt("num_dense_layers", 0, LAYERS_MAX)?.unwrap_or(DENSE_LAYERS_DEFAULT);
    arch.ffn = leading_dense(dense_layers, dense, arch.layers);
    arch.moe = Some(routed_from_hf(
        c,
        &["num_experts", "num_local_experts"],
        "moe_intermediate_size",
        &ROUTED,
        gate(
            c.bool_opt("use_expert_bias")?.unwrap_or(true),
            c.bool_opt("norm_topk_prob")?.unwrap_or(true),
            c.float_opt("routed_scaling_factor")?.unwrap_or(1.0) as f32,
        ),
    )?);
    Ok(arch)
}

fn conv_layers_from_hf(c: &HfConfig, layers: usize) -> Result<Vec<bool>, OpenError> {
    const KEY: &str = "layer_types";
    let kind = |t: &&str| match *t {
        "conv" => Some(true),
        "full_attention" => Some(false),
        _ => None,
    };
    let kinds: Option<Vec<bool>> = c.texts_opt(KEY)?.unwrap_or_default().iter().map(kind).collect();
    let expected = || format!("`conv` or `full_attention` for each of {layers} layers");
    kinds.filter(|k| k.len() == layers).ok_or_else(|| c.wrong(KEY, expected()))
}

fn from_gguf(c: &GgufConfig<'_>) -> Result<Arch, OpenError> {
    let mut arch = gqa_from_gguf(c, NAME, RopeLayout::HalfSplit)?;
    with_gqa(&mut arch, |a| {
        (a.qkv_bias, a.out_bias) = (false, false);
        a.qk_norm = Some(QkNorm::PerHead);
    });
    let is_conv = |i: usize| c.tensor_shape(&format!("{GGUF_LAYER}{i}.shortconv.conv.weight")).is_some();
    arch.short_conv = Some(ShortConv {
        length: c.count("shortconv.l_cache", CONV_LENGTH_MAX)?,
        layers: (0..arch.layers).map(is_conv).collect(),
    });
    arch.ffn = leading_dense_from_gguf(c, arch.layers)?;
    let biased = has_selection_bias(c);
    let gate = gate(biased, c.bool_or("expert_weights_norm", true)?, weights_scale(c)?);
    arch.moe = Some(moe_from_gguf(c, gate)?);
    Ok(arch)
}

fn gate(selection_bias: bool, normalize: bool, scale: f32) -> Gate {
    Gate {
        selection_bias,
        normalization: GateNormalization::sum_if(normalize, NORMALIZE_EPS),
        scale,
        ..Gate::plain(GateScore::Sigmoid)
    }
}
