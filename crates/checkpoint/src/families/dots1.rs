//! dots.llm1 (arXiv 2506.05767): Qwen3's attention with DeepSeek-V3's mixture.

use super::Family;
use super::common::{HfDefaults, gqa_from_gguf, gqa_from_hf, with_gqa};
use super::names::Names;
use super::noaux::{NoauxDefaults, noaux_mixture_from_gguf, noaux_mixture_from_hf};
use super::rotary::{QWEN_WINDOW_DEFAULT, RopeDefaults, windows_from_hf};
use super::tables::{
    GGUF, GGUF_GQA, GGUF_GQA_BIAS, GGUF_MLP, GGUF_QK_NORM, GGUF_SHARED_MOE, HF, HF_DEEPSEEK_MOE, HF_GQA,
    HF_GQA_BIAS, HF_MLP, HF_QK_NORM,
};
use crate::arch::{Arch, QkNorm, RopeLayout};
use crate::error::OpenError;
use crate::gguf_config::GgufConfig;
use crate::hf_config::HfConfig;
use crate::limits::LAYERS_MAX;

const NAME: &str = "dots1";
const DEFAULTS: HfDefaults = HfDefaults {
    vocab: 152_064,
    hidden: 4608,
    layers: 62,
    heads: 32,
    kv_heads: Some(32),
    head_dim: None,
    context: 2048,
    norm_eps: 1e-6,
    rope: RopeDefaults { theta: 10_000.0, partial: 1.0, layout: RopeLayout::HalfSplit },
    tied: false,
};
const MIXTURE: NoauxDefaults = NoauxDefaults {
    dense_width: 10_944,
    dense_layers: 0,
    experts: 128,
    top_k: 6,
    width: 1408,
    shared: 2,
    normalize: false,
    scale: 1.0,
    groups: (1, 1),
};
const MAX_WINDOW_LAYERS_DEFAULT: usize = 62;

pub(crate) static FAMILY: Family = Family {
    model_type: NAME,
    model_type_aliases: &[],
    architectures: &["Dots1ForCausalLM"],
    gguf_arch: "dots1",
    claims_gguf: |_| true,
    from_hf,
    from_gguf,
    hf_names: Names { layer: &[HF_GQA, HF_GQA_BIAS, HF_QK_NORM, HF_MLP, HF_DEEPSEEK_MOE], ..HF },
    gguf_names: Names { layer: &[GGUF_GQA, GGUF_GQA_BIAS, GGUF_QK_NORM, GGUF_MLP, GGUF_SHARED_MOE], ..GGUF },
};

fn from_hf(c: &HfConfig) -> Result<Arch, OpenError> {
    let mut arch = gqa_from_hf(c, NAME, &DEFAULTS)?;
    with_gqa(&mut arch, |a| a.qk_norm = Some(QkNorm::PerHead));
    let first = c.number_opt("max_window_layers", 0, LAYERS_MAX)?.unwrap_or(MAX_WINDOW_LAYERS_DEFAULT);
    windows_from_hf(c, &mut arch, Some(QWEN_WINDOW_DEFAULT), |layer| layer >= first)?;
    noaux_mixture_from_hf(c, &mut arch, &MIXTURE)?;
    Ok(arch)
}

fn from_gguf(c: &GgufConfig<'_>) -> Result<Arch, OpenError> {
    let mut arch = gqa_from_gguf(c, NAME, RopeLayout::HalfSplit)?;
    with_gqa(&mut arch, |a| a.qk_norm = Some(QkNorm::PerHead));
    noaux_mixture_from_gguf(c, &mut arch)?;
    Ok(arch)
}
