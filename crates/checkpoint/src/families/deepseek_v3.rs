//! DeepSeek-V3, R1 and V3.1 (arXiv 2412.19437), and Kimi-K2, which has the same shape.

use super::Family;
use super::common::{HfDefaults, mtp_from_hf};
use super::latent::{MlaDefaults, mla_from_gguf, mla_from_hf};
use super::names::Names;
use super::noaux::{NoauxDefaults, is_noaux_gguf, noaux_mixture_from_gguf, noaux_mixture_from_hf};
use super::rotary::RopeDefaults;
use super::tables::{
    GGUF, GGUF_MLA, GGUF_MLP, GGUF_MTP, GGUF_SHARED_MOE, HF, HF_DEEPSEEK_MOE, HF_MLA, HF_MLP, HF_MTP,
};
use crate::arch::{Arch, RopeLayout};
use crate::error::OpenError;
use crate::gguf_config::GgufConfig;
use crate::hf_config::HfConfig;

const NAME: &str = "deepseek_v3";
pub(super) const DEFAULTS: HfDefaults = HfDefaults {
    vocab: 129_280,
    hidden: 7168,
    layers: 61,
    heads: 128,
    kv_heads: None,
    head_dim: None,
    context: 163_840,
    norm_eps: 1e-6,
    rope: RopeDefaults { theta: 10_000.0, partial: 1.0, layout: RopeLayout::Interleaved },
    tied: false,
};
pub(super) const WIDTHS: MlaDefaults =
    MlaDefaults { q_lora: 1536, kv_lora: 512, nope: 128, rope: 64, v: 128 };
pub(super) const MIXTURE: NoauxDefaults = NoauxDefaults {
    dense_width: 18_432,
    dense_layers: 3,
    experts: 256,
    top_k: 8,
    width: 2048,
    shared: 1,
    normalize: true,
    scale: 2.5,
    groups: (8, 4),
};

pub(crate) static FAMILY: Family = Family {
    model_type: NAME,
    model_type_aliases: &["kimi_k2"],
    architectures: &["DeepseekV3ForCausalLM"],
    gguf_arch: "deepseek2",
    claims_gguf: |c| is_noaux_gguf(c).unwrap_or(false),
    from_hf,
    from_gguf,
    hf_names: Names { layer: &[HF_MLA, HF_MLP, HF_DEEPSEEK_MOE, HF_MTP], ..HF },
    gguf_names: Names { layer: &[GGUF_MLA, GGUF_MLP, GGUF_SHARED_MOE, GGUF_MTP], ..GGUF },
};

fn from_hf(c: &HfConfig) -> Result<Arch, OpenError> {
    let mut arch = mla_from_hf(c, NAME, &DEFAULTS, &WIDTHS)?;
    mtp_from_hf(c, &mut arch)?;
    noaux_mixture_from_hf(c, &mut arch, &MIXTURE)?;
    Ok(arch)
}

fn from_gguf(c: &GgufConfig<'_>) -> Result<Arch, OpenError> {
    let mut arch = mla_from_gguf(c, NAME)?;
    noaux_mixture_from_gguf(c, &mut arch)?;
    Ok(arch)
}
