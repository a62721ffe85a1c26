//! GLM-5 and its successors: multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) with DeepSeek sparse attention,
//! a sigmoid router with a selection bias, a shared expert, and layers for multi-token prediction.

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
use crate::limits::LAYERS_MAX;

const NAME: &str = "glm_moe_dsa";
const DEFAULTS: HfDefaults = HfDefaults {
    vocab: 154_880,
    hidden: 6144,
    layers: 78,
    heads: 64,
    kv_heads: None,
    head_dim: None,
    context: 202_752,
    norm_eps: 1e-5,
    rope: RopeDefaults { theta: 10_000.0, partial: 1.0, layout: RopeLayout::Interleaved },
    tied: false,
};
const WIDTHS: MlaDefaults = MlaDefaults { q_lora: 2048, kv_lora: 512, nope: 192, rope: 64, v: 256 };
const INDEXER: DsaDefaults = DsaDefaults { heads: 32, head_dim: 128, topk: 2048 };
const MIXTURE: NoauxDefaults = NoauxDefaults {
    dense_width: 12_288,
    dense_layers: 3,
    experts: 256,
    top_k: 8,
    width: 2048,
    shared: 1,
    normalize: true,
    scale: 2.5,
    groups: (1, 1),
};
const TODO_VARIANT: &str = "use another variant of the model";

pub(crate) static FAMILY: Family = Family {
    model_type: NAME,
    model_type_aliases: &[],
    architectures: &["GlmMoeDsaForCausalLM"],
    gguf_arch: "glm-dsa",
    claims_gguf: |_| true,
    from_hf,
    from_gguf,
    hf_names: Names { layer: &[HF_MLA, HF_INDEXER, HF_MLP, HF_DEEPSEEK_MOE, HF_MTP], ..HF },
    gguf_names: Names { layer: &[GGUF_MLA, GGUF_INDEXER, GGUF_MLP, GGUF_SHARED_MOE, GGUF_MTP], ..GGUF },
};

fn from_hf(c: &HfConfig) -> Result<Arch, OpenError> {
    for key in ["rope_interleave", "indexer_rope_interleave"] {
        if c.bool_opt(key)? == Some(false) {
            return Err(c.unsupported(key, "true", TODO_VARIANT));
        }
    }
    let mut arch = mla_from_hf(c, NAME, &DEFAULTS, &WIDTHS)?;
    mtp_from_hf(c, &mut arch)?;
    let kinds = indexers_from_hf(c, &arch)?;
    arch.dsa = Some(dsa_from_hf(c, &INDEXER, RopeLayout::Interleaved, kinds)?);
    noaux_mixture_from_hf(c, &mut arch, &MIXTURE)?;
    Ok(arch)
}

/// Which layers have an indexer: a list, else a pattern, else a period. Layers for multi-token prediction that the
/// configuration does not mention have one.
fn indexers_from_hf(c: &HfConfig, arch: &Arch) -> Result<Vec<IndexerKind>, OpenError> {
    const EXPECTED: &str = "one of `full` and `shared` for each layer, the first one `full`";
    let (key, kinds) = if let Some(types) = c.texts_opt("indexer_types")? {
        ("indexer_types", types.into_iter().map(indexer_kind).collect())
    } else if let Some(serde_json::Value::String(pattern)) = c.get("index_topk_pattern") {
        ("index_topk_pattern", pattern.chars().map(|p| indexer_kind(p.encode_utf8(&mut [0; 4]))).collect())
    } else if let Some(types) = c.texts_opt("index_topk_pattern")? {
        ("index_topk_pattern", types.into_iter().map(indexer_kind).collect())
    } else {
        let period = c.number_opt("index_topk_freq", 0, LAYERS_MAX)?.unwrap_or(1).max(1);
        let offset = c.number_opt("index_skip_topk_offset", 0, LAYERS_MAX)?.unwrap_or(2);
        let is_full = |i: usize| (i + 1).saturating_sub(offset).is_multiple_of(period);
        let kinds =
            (0..arch.layers).map(|i| Some(if is_full(i) { IndexerKind::Full } else { IndexerKind::Shared }));
        ("index_topk_freq", kinds.collect::<Option<Vec<_>>>())
    };
    complete(kinds, arch).ok_or_else(|| c.wrong(key, EXPECTED))
}

fn indexer_kind(name: &str) -> Option<IndexerKind> {
    match name {
        "full" | "F" => Some(IndexerKind::Full),
        "shared" | "S" => Some(IndexerKind::Shared),
        _ => None,
    }
}

/// The list, if it covers the trunk or all layers and starts with a full layer, extended to all layers.
fn complete(kinds: Option<Vec<IndexerKind>>, arch: &Arch) -> Option<Vec<IndexerKind>> {
    let mut kinds = kinds?;
    if kinds.first() != Some(&IndexerKind::Full) {
        return None;
    }
    if kinds.len() == arch.layers {
        kinds.extend(vec![IndexerKind::Full; arch.mtp_layers]);
    }
    (kinds.len() == arch.layers + arch.mtp_layers).then_some(kinds)
}

fn from_gguf(c: &GgufConfig<'_>) -> Result<Arch, OpenError> {
    let mut arch = mla_from_gguf(c, NAME)?;
    let kinds = indexers_from_gguf(c, &arch)?;
    arch.dsa = Some(dsa_from_gguf(c, RopeLayout::Interleaved, kinds)?);
    noaux_mixture_from_gguf(c, &mut arch)?;
    Ok(arch)
}

/// Some converters leave the list of indexers out.
fn indexers_from_gguf(c: &GgufConfig<'_>, arch: &Arch) -> Result<Vec<IndexerKind>, OpenError> {
    const TYPES: &str = "attention.indexer.types";
    let kind = |full: bool| if full { IndexerKind::Full } else { IndexerKind::Shared };
    let kinds = match c.flags_opt(TYPES)? {
        Some(flags) => flags.into_iter().map(kind).collect(),
        None => (0..arch.layers).map(|layer| stored_indexer(c, layer)).collect(),
    };
    let mut layers = complete(Some(kinds), arch)
        .ok_or_else(|| c.wrong(TYPES, format!("{} truth values, the first one true", arch.layers)))?;
    for (layer, kind) in layers.iter_mut().enumerate().skip(arch.layers) {
        *kind = stored_indexer(c, layer);
    }
    Ok(layers)
}
