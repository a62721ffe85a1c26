//! DeepSeek-V3.2: V3 with sparse attention; its indexer rotates half-split pairs where the attention rotates neighbours.

use super::Family;
use super::common::mtp_from_hf;
use super::deepseek_v3::{DEFAULTS, MIXTURE, WIDTHS};
use super::latent::{DsaDefaults, dsa_from_gguf, dsa_from_hf, mla_from_gguf, mla_from_hf, stored_indexer};
use super::names::Names;
use super::noaux::{noaux_mixture_from_gguf, noaux_mixture_from_hf};
use super::tables::{
    GGUF, GGUF_INDEXER, GGUF_MLA, GGUF_MLP, GGUF_MTP, GGUF_SHARED_MOE, HF, HF_DEEPSEEK_MOE, HF_INDEXER,
    HF_MLA, HF_MLP, HF_MTP,
};
use crate::arch::{Arch, IndexerKind, RopeLayout};
use crate::error::OpenError;
use crate::gguf_config::GgufConfig;
use crate::hf_config::HfConfig;

const NAME: &str = "deepseek_v32";
const INDEXER: DsaDefaults = DsaDefaults { heads: 64, head_dim: 128, topk: 2048 };

pub(crate) static FAMILY: Family = Family {
    model_type: NAME,
    model_type_aliases: &[],
    architectures: &["DeepseekV32ForCausalLM"],
    gguf_arch: "deepseek32",
    claims_gguf: |_| true,
    from_hf,
    from_gguf,
    hf_names: Names { layer: &[HF_MLA, HF_INDEXER, HF_MLP, HF_DEEPSEEK_MOE, HF_MTP], ..HF },
    gguf_names: Names { layer: &[GGUF_MLA, GGUF_INDEXER, GGUF_MLP, GGUF_SHARED_MOE, GGUF_MTP], ..GGUF },
};

fn from_hf(c: &HfConfig) -> Result<Arch, OpenError> {
    let mut arch = mla_from_hf(c, NAME, &DEFAULTS, &WIDTHS)?;
    mtp_from_hf(c, &mut arch)?;
    let kinds = vec![IndexerKind::Full; arch.layers_stored()];
    arch.dsa = Some(dsa_from_hf(c, &INDEXER, RopeLayout::HalfSplit, kinds)?);
    noaux_mixture_from_hf(c, &mut arch, &MIXTURE)?;
    Ok(arch)
}

fn from_gguf(c: &GgufConfig<'_>) -> Result<Arch, OpenError> {
    let mut arch = mla_from_gguf(c, NAME)?;
    let mut kinds = vec![IndexerKind::Full; arch.layers];
    kinds.extend((arch.layers..arch.layers_stored()).map(|layer| stored_indexer(c, layer)));
    arch.dsa = Some(dsa_from_gguf(c, RopeLayout::HalfSplit, kinds)?);
    noaux_mixture_from_gguf(c, &mut arch)?;
    Ok(arch)
}
