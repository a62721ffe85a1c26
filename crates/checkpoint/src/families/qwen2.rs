//! Qwen2 and Qwen2.5 (arXiv 2407.10671, 2412.15115): Llama's shape with biases on queries, keys and values.

use super::Family;
use super::common::{HfDefaults, dense_from_gguf, dense_from_hf, gqa_from_gguf, gqa_from_hf, with_gqa};
use super::names::Names;
use super::rotary::{RopeDefaults, late_windows_from_hf};
use super::tables::{GGUF, GGUF_GQA, GGUF_GQA_BIAS, GGUF_MLP, HF, HF_GQA, HF_GQA_BIAS, HF_MLP};
use crate::arch::{Arch, RopeLayout};
use crate::error::OpenError;
use crate::gguf_config::GgufConfig;
use crate::hf_config::HfConfig;

const NAME: &str = "qwen2";
const DEFAULTS: HfDefaults = HfDefaults {
    vocab: 151_936,
    hidden: 4096,
    layers: 32,
    heads: 32,
    kv_heads: Some(32),
    head_dim: None,
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
    architectures: &["Qwen2ForCausalLM"],
    gguf_arch: "qwen2",
    claims_gguf: |_| true,
    from_hf,
    from_gguf,
    hf_names: Names { layer: &[HF_GQA, HF_GQA_BIAS, HF_MLP], ..HF },
    gguf_names: Names { layer: &[GGUF_GQA, GGUF_GQA_BIAS, GGUF_MLP], ..GGUF },
};

fn from_hf(c: &HfConfig) -> Result<Arch, OpenError> {
    let mut arch = gqa_from_hf(c, NAME, &DEFAULTS)?;
    // Without a key for it: these three always have a bias, the output never.
    with_gqa(&mut arch, |a| (a.qkv_bias, a.out_bias) = (true, false));
    late_windows_from_hf(c, &mut arch, MAX_WINDOW_LAYERS_DEFAULT)?;
    dense_from_hf(c, &mut arch, WIDTH_DEFAULT)?;
    Ok(arch)
}

fn from_gguf(c: &GgufConfig<'_>) -> Result<Arch, OpenError> {
    let mut arch = gqa_from_gguf(c, NAME, RopeLayout::HalfSplit)?;
    dense_from_gguf(c, &mut arch)?;
    Ok(arch)
}
