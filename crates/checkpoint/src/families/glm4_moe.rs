//! GLM-4.5 to 4.7 (arXiv 2508.06471): grouped-query attention with half-rotated heads, DeepSeek-V3's router, and a
//! layer for multi-token prediction.

use super::Family;
use super::common::{HfDefaults, gqa_from_gguf, gqa_from_hf, mtp_from_gguf, mtp_from_hf, with_gqa};
use super::names::Names;
use super::noaux::{NoauxDefaults, noaux_mixture_from_gguf, noaux_mixture_from_hf};
use super::rotary::RopeDefaults;
use super::tables::{
    GGUF, GGUF_GQA, GGUF_GQA_BIAS, GGUF_MLP, GGUF_MTP, GGUF_QK_NORM, GGUF_SHARED_MOE, HF, HF_DEEPSEEK_MOE,
    HF_GQA, HF_GQA_BIAS, HF_MLP, HF_MTP, HF_QK_NORM,
};
use crate::arch::{Arch, QkNorm, RopeLayout};
use crate::catalog::Role;
use crate::error::OpenError;
use crate::gguf_config::GgufConfig;
use crate::hf_config::HfConfig;

const NAME: &str = "glm4_moe";
const DEFAULTS: HfDefaults = HfDefaults {
    vocab: 151_552,
    hidden: 4096,
    layers: 46,
    heads: 96,
    kv_heads: Some(8),
    head_dim: None,
    context: 131_072,
    norm_eps: 1e-5,
    rope: RopeDefaults { theta: 10_000.0, partial: 0.5, layout: RopeLayout::HalfSplit },
    tied: false,
};
const DENSE_WIDTH_DEFAULT: usize = 10_944;
const WIDTH_DEFAULT: usize = 1408;
const EXPERTS_DEFAULT: usize = 128;
const TOP_K_DEFAULT: usize = 8;

pub(crate) static FAMILY: Family = Family {
    model_type: NAME,
    model_type_aliases: &[],
    architectures: &["Glm4MoeForCausalLM"],
    gguf_arch: "glm4moe",
    claims_gguf: |_| true,
    from_hf,
    from_gguf,
    hf_names: Names { layer: &[HF_GQA, HF_GQA_BIAS, HF_QK_NORM, HF_MLP, HF_DEEPSEEK_MOE, HF_MTP], ..HF },
    gguf_names: Names {
        layer: &[
            GGUF_GQA,
            &[("post_attention_norm.weight", Role::FfnNorm)],
            GGUF_GQA_BIAS,
            GGUF_QK_NORM,
            GGUF_MLP,
            GGUF_SHARED_MOE,
            GGUF_MTP,
        ],
        ..GGUF
    },
};

fn from_hf(c: &HfConfig) -> Result<Arch, OpenError> {
    let mut arch = gqa_from_hf(c, NAME, &DEFAULTS)?;
    let qk_norm = c.bool_opt("use_qk_norm")?.unwrap_or(false);
    with_gqa(&mut arch, |a| {
        a.out_bias = false;
        a.qk_norm = qk_norm.then_some(QkNorm::PerHead);
    });
    mtp_from_hf(c, &mut arch)?;
    noaux_mixture_from_hf(
        c,
        &mut arch,
        &NoauxDefaults {
            dense_width: DENSE_WIDTH_DEFAULT,
            dense_layers: 1,
            experts: EXPERTS_DEFAULT,
            top_k: TOP_K_DEFAULT,
            width: WIDTH_DEFAULT,
            shared: 1,
            normalize: true,
            scale: 1.0,
            groups: (1, 1),
        },
    )?;
    Ok(arch)
}

fn from_gguf(c: &GgufConfig<'_>) -> Result<Arch, OpenError> {
    let mut arch = gqa_from_gguf(c, NAME, RopeLayout::HalfSplit)?;
    let qk_norm = c.tensor_shape("blk.0.attn_q_norm.weight").is_some();
    with_gqa(&mut arch, |a| a.qk_norm = qk_norm.then_some(QkNorm::PerHead));
    mtp_from_gguf(c, &mut arch)?;
    noaux_mixture_from_gguf(c, &mut arch)?;
    Ok(arch)
}
