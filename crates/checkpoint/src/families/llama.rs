//! Llama (arXiv 2307.09288) and its many relatives of the same shape, such as SmolLM2: dense, grouped-query attention.

use super::Family;
use super::common::{HfDefaults, gqa_from_gguf, gqa_from_hf, is_set};
use super::names::{
    GGUF_GLOBALS, GGUF_GQA, GGUF_LAYER, GGUF_MLP, GGUF_REFUSED, HF_BUFFERS, HF_GLOBALS, HF_GQA, HF_LAYER,
    HF_MLP, Names,
};
use crate::arch::{Arch, Ffn, RopeLayout};
use crate::error::OpenError;
use crate::gguf_config::GgufConfig;
use crate::hf_config::HfConfig;
use crate::limits::WIDTH_MAX;

const NAME: &str = "llama";
const DEFAULTS: HfDefaults = HfDefaults {
    vocab: 32_000,
    hidden: 4096,
    layers: 32,
    heads: 32,
    kv_heads: None,
    context: 2048,
    norm_eps: 1e-6,
    theta: 10_000.0,
};
const WIDTH_DEFAULT: usize = 11_008;

pub(crate) static FAMILY: Family = Family {
    model_type: NAME,
    architectures: &["LlamaForCausalLM"],
    gguf_arch: "llama",
    claims_gguf: |c| !is_set(c, "expert_count"),
    from_hf,
    from_gguf,
    hf_names: Names {
        layer_prefix: HF_LAYER,
        globals: HF_GLOBALS,
        layer: &[HF_GQA, HF_MLP],
        expert: &[],
        stacked: &[],
        buffers: HF_BUFFERS,
        refused: &[],
    },
    gguf_names: Names {
        layer_prefix: GGUF_LAYER,
        globals: GGUF_GLOBALS,
        layer: &[GGUF_GQA, GGUF_MLP],
        expert: &[],
        stacked: &[],
        buffers: &[],
        refused: GGUF_REFUSED,
    },
};

fn from_hf(c: &HfConfig) -> Result<Arch, OpenError> {
    let mut arch = gqa_from_hf(c, NAME, &DEFAULTS, false)?;
    arch.ffn =
        vec![Ffn::Dense { width: c.count_or("intermediate_size", WIDTH_DEFAULT, WIDTH_MAX)? }; arch.layers];
    Ok(arch)
}

fn from_gguf(c: &GgufConfig<'_>) -> Result<Arch, OpenError> {
    // The converter permutes the rows of q and k, so that neighbours are rotated together.
    let mut arch = gqa_from_gguf(c, NAME, false, RopeLayout::Interleaved)?;
    arch.ffn = vec![Ffn::Dense { width: c.count("feed_forward_length", WIDTH_MAX)? }; arch.layers];
    Ok(arch)
}
