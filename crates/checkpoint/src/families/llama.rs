//! Llama (arXiv 2307.09288, 2407.21783) and its many relatives of the same shape, such as SmolLM2: dense,
//! grouped-query attention.

use super::Family;
use super::common::{HfDefaults, dense_from_gguf, dense_from_hf, gqa_from_gguf, gqa_from_hf, is_set};
use super::names::Names;
use super::rotary::RopeDefaults;
use super::tables::{GGUF, GGUF_GQA, GGUF_GQA_BIAS, GGUF_MLP, HF, HF_GQA, HF_GQA_BIAS, HF_MLP};
use crate::arch::{Arch, RopeLayout};
use crate::error::OpenError;
use crate::gguf_config::GgufConfig;
use crate::hf_config::HfConfig;

const NAME: &str = "llama";
const DEFAULTS: HfDefaults = HfDefaults {
    vocab: 32_000,
    hidden: 4096,
    layers: 32,
    heads: 32,
    kv_heads: None,
    head_dim: None,
    context: 2048,
    norm_eps: 1e-6,
    rope: RopeDefaults { theta: 10_000.0, partial: 1.0, layout: RopeLayout::HalfSplit },
    tied: false,
};
const WIDTH_DEFAULT: usize = 11_008;

pub(crate) static FAMILY: Family = Family {
    model_type: NAME,
    model_type_aliases: &[],
    architectures: &["LlamaForCausalLM"],
    gguf_arch: "llama",
    claims_gguf: |c| !is_set(c, "expert_count"),
    from_hf,
    from_gguf,
    hf_names: Names { layer: &[HF_GQA, HF_GQA_BIAS, HF_MLP], ..HF },
    gguf_names: Names { layer: &[GGUF_GQA, GGUF_GQA_BIAS, GGUF_MLP], ..GGUF },
};

fn from_hf(c: &HfConfig) -> Result<Arch, OpenError> {
    let mut arch = gqa_from_hf(c, NAME, &DEFAULTS)?;
    dense_from_hf(c, &mut arch, WIDTH_DEFAULT)?;
    arch.mlp_bias = c.bool_opt("mlp_bias")?.unwrap_or(false);
    Ok(arch)
}

fn from_gguf(c: &GgufConfig<'_>) -> Result<Arch, OpenError> {
    // The converter permutes the rows of q and k, so that neighbours are rotated together.
    let mut arch = gqa_from_gguf(c, NAME, RopeLayout::Interleaved)?;
    dense_from_gguf(c, &mut arch)?;
    Ok(arch)
}
