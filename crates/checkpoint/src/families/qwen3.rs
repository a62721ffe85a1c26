//! Qwen3 (arXiv 2505.09388), dense: normed queries and keys instead of biases.

use super::Family;
use super::common::{HfDefaults, dense_from_gguf, dense_from_hf, gqa_from_gguf, gqa_from_hf, with_gqa};
use super::names::Names;
use super::rotary::{RopeDefaults, late_windows_from_hf};
use super::tables::{
    GGUF, GGUF_GQA, GGUF_GQA_BIAS, GGUF_MLP, GGUF_QK_NORM, HF, HF_GQA, HF_GQA_BIAS, HF_MLP, HF_QK_NORM,
};
use crate::arch::{Arch, QkNorm, RopeLayout};
use crate::error::OpenError;
use crate::gguf_config::GgufConfig;
use crate::hf_config::HfConfig;

const NAME: &str = "qwen3";
const DEFAULTS: HfDefaults = HfDefaults {
    vocab: 151_936,
    hidden: 4096,
    layers: 32,
    heads: 32,
    kv_heads: Some(32),
    head_dim: Some(128),
    context: 32_768,
    norm_eps: 1e-6,
    rope: RopeDefaults { theta: 10_000.0, partial: 1.0, layout: RopeLayout::HalfSplit },
    tied: false,
};
const WIDTH_DEFAULT: usize = 22_016;
const MAX_WINDOW_LAYERS_DEFAULT: usize = 28;

pub(crate) static FAMILY: Family = Family {
    model_type: NAME,
    model_type_aliases: &[],
    architectures: &["Qwen3ForCausalLM"],
    gguf_arch: "qwen3",
    claims_gguf: |_| true,
    from_hf,
    from_gguf,
    hf_names: Names { layer: &[HF_GQA, HF_GQA_BIAS, HF_QK_NORM, HF_MLP], ..HF },
    gguf_names: Names { layer: &[GGUF_GQA, GGUF_GQA_BIAS, GGUF_QK_NORM, GGUF_MLP], ..GGUF },
};

fn from_hf(c: &HfConfig) -> Result<Arch, OpenError> {
    let mut arch = gqa_from_hf(c, NAME, &DEFAULTS)?;
    with_gqa(&mut arch, |a| a.qk_norm = Some(QkNorm::PerHead));
    late_windows_from_hf(c, &mut arch, MAX_WINDOW_LAYERS_DEFAULT)?;
    dense_from_hf(c, &mut arch, WIDTH_DEFAULT)?;
    Ok(arch)
}

fn from_gguf(c: &GgufConfig<'_>) -> Result<Arch, OpenError> {
    let mut arch = gqa_from_gguf(c, NAME, RopeLayout::HalfSplit)?;
    with_gqa(&mut arch, |a| a.qk_norm = Some(QkNorm::PerHead));
    dense_from_gguf(c, &mut arch)?;
    Ok(arch)
}
