//! DeepSeek-V3.2: V3 with sparse attention; its indexer rotates half-split pairs where the attention rotates neighbours.

use super::Family;
use super::common::{HfDefaults, mtp_from_hf};
use super::latent::{
    DsaDefaults, MlaDefaults, dsa_from_gguf, dsa_from_hf, mla_from_gguf, mla_from_hf, stored_indexer,
};
use super::names::Names;
use super::noaux::{NoauxDefaults, noaux_mixture_from_gguf, noaux_mixture_from_hf};
use super::rotary::RopeDefaults;
use super::tables::{
    GGUF, GGUF_INDEXER, GGUF_MLA, GGUF_MLP, GGUF_MTP, GGUF_SHARED_MOE, HF, HF_DEEPSEEK_MOE, HF_INDEXER,
    HF_MLA, HF_MLP, HF_MTP,
};
use crate::arch::{Arch, IndexerKind, RopeLayout};
use crate::error::OpenError;
use crate::gguf_config::GgufConfig;
use crate::hf_config::HfConfig;

const NAME: &str = "deepseek_v32";
const DEFAULTS: HfDefaults = HfDefaults {
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
const WIDTHS: MlaDefaults = MlaDefaults { q_lora: 1536, kv_lora: 512, nope: 128, rope: 64, v: 128 };
const MIXTURE: NoauxDefaults = NoauxDefaults {
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
