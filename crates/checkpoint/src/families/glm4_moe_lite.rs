//! GLM-4.7-Flash: DeepSeek-V3's attention and mixture in a small model. In GGUF it cannot be told from DeepSeek-V3, and
//! need not be.

use super::Family;
use super::common::{HfDefaults, mtp_from_hf};
use super::latent::{MlaDefaults, mla_from_gguf, mla_from_hf};
use super::names::Names;
use super::noaux::{NoauxDefaults, noaux_mixture_from_gguf, noaux_mixture_from_hf};
use super::rotary::RopeDefaults;
use super::tables::{
    GGUF, GGUF_MLA, GGUF_MLP, GGUF_MTP, GGUF_SHARED_MOE, HF, HF_DEEPSEEK_MOE, HF_MLA, HF_MLP, HF_MTP,
};
use crate::arch::{Arch, RopeLayout};
use crate::error::OpenError;
use crate::gguf_config::GgufConfig;
use crate::hf_config::HfConfig;

const NAME: &str = "glm4_moe_lite";
const DEFAULTS: HfDefaults = HfDefaults {
    vocab: 154_880,
    hidden: 2048,
    layers: 47,
    heads: 20,
    kv_heads: None,
    head_dim: None,
    context: 202_752,
    norm_eps: 1e-5,
    rope: RopeDefaults { theta: 10_000.0, partial: 1.0, layout: RopeLayout::Interleaved },
    tied: false,
};
const WIDTHS: MlaDefaults = MlaDefaults { q_lora: 768, kv_lora: 512, nope: 192, rope: 64, v: 256 };
const MIXTURE: NoauxDefaults = NoauxDefaults {
    dense_width: 10_240,
    dense_layers: 1,
    experts: 64,
    top_k: 4,
    width: 1536,
    shared: 1,
    normalize: true,
    scale: 1.8,
    groups: (1, 1),
};

pub(crate) static FAMILY: Family = Family {
    model_type: NAME,
    model_type_aliases: &[],
    architectures: &["Glm4MoeLiteForCausalLM"],
    gguf_arch: "deepseek2",
    claims_gguf: |_| false,
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
