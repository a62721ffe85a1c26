//! SmolLM3: Llama's shape in which every fourth layer has no positions (NoPE, arXiv 2305.19466).

use super::Family;
use super::common::{HfDefaults, dense_from_gguf, dense_from_hf, gqa_from_gguf, gqa_from_hf};
use super::names::Names;
use super::rotary::{RopeDefaults, windows_from_hf};
use super::tables::{GGUF, GGUF_GQA, GGUF_GQA_BIAS, GGUF_MLP, HF, HF_GQA, HF_GQA_BIAS, HF_MLP};
use crate::arch::{Arch, RopeLayout};
use crate::error::OpenError;
use crate::gguf_config::GgufConfig;
use crate::hf_config::HfConfig;
use crate::limits::LAYERS_MAX;

const NAME: &str = "smollm3";
const DEFAULTS: HfDefaults = HfDefaults {
    vocab: 128_256,
    hidden: 2048,
    layers: 36,
    heads: 16,
    kv_heads: Some(4),
    head_dim: None,
    context: 32_768,
    norm_eps: 1e-6,
    rope: RopeDefaults { theta: 2_000_000.0, partial: 1.0, layout: RopeLayout::HalfSplit },
    tied: true,
};
const WIDTH_DEFAULT: usize = 11_008;
/// Every so-manyth layer has no positions.
const NOPE_INTERVAL_DEFAULT: usize = 4;

pub(crate) static FAMILY: Family = Family {
    model_type: NAME,
    model_type_aliases: &[],
    architectures: &["SmolLM3ForCausalLM"],
    gguf_arch: "smollm3",
    claims_gguf: |_| true,
    from_hf,
    from_gguf,
    hf_names: Names { layer: &[HF_GQA, HF_GQA_BIAS, HF_MLP], ..HF },
    gguf_names: Names { layer: &[GGUF_GQA, GGUF_GQA_BIAS, GGUF_MLP], ..GGUF },
};

fn from_hf(c: &HfConfig) -> Result<Arch, OpenError> {
    const KEY: &str = "no_rope_layers";
    let mut arch = gqa_from_hf(c, NAME, &DEFAULTS)?;
    let interval = c.count_or("no_rope_layer_interval", NOPE_INTERVAL_DEFAULT, LAYERS_MAX)?;
    // Despite its name, the list holds 1 for layers *with* positions.
    let rotated: Vec<bool> = match c.numbers_opt(KEY)? {
        Some(flags) => flags.iter().map(|&f| f != 0).collect(),
        None => (0..arch.layers).map(|i| !(i + 1).is_multiple_of(interval)).collect(),
    };
    if rotated.len() != arch.layers {
        return Err(c.wrong(KEY, format!("{} numbers, one for each layer", arch.layers)));
    }
    for (view, rotated) in arch.views.iter_mut().zip(&rotated) {
        view.rope = rotated.then_some(0);
    }
    if c.bool_opt("use_sliding_window")? == Some(true) {
        windows_from_hf(c, &mut arch, None, |layer| !rotated.get(layer).copied().unwrap_or(true))?;
    }
    dense_from_hf(c, &mut arch, WIDTH_DEFAULT)?;
    arch.mlp_bias = c.bool_opt("mlp_bias")?.unwrap_or(false);
    Ok(arch)
}

fn from_gguf(c: &GgufConfig<'_>) -> Result<Arch, OpenError> {
    // Rows of q and k are permuted as in arch `llama`.
    let mut arch = gqa_from_gguf(c, NAME, RopeLayout::Interleaved)?;
    if c.get("attention.rope_pattern").is_none() {
        // Converters do not store which layers have no positions.
        for (layer, view) in arch.views.iter_mut().enumerate() {
            view.rope = (!(layer + 1).is_multiple_of(NOPE_INTERVAL_DEFAULT)).then_some(0);
        }
    }
    dense_from_gguf(c, &mut arch)?;
    Ok(arch)
}
