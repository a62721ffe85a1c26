//! The model families, one file each, and how one is found for a checkpoint.
//!
//! A family file holds everything that a new family needs: its names in both formats, how its configuration becomes
//! an [`Arch`], and how its tensors are spelled. What several families share is in `common`, `rotary`, `mixture`, `noaux`
//! and `latent` (configuration), `names` and `tables` (tensors).

mod common;
mod deepseek_v2;
mod deepseek_v3;
mod deepseek_v32;
mod dots1;
mod ernie4_5_moe;
mod gemma3_text;
mod glm4_moe;
mod glm4_moe_lite;
mod glm_moe_dsa;
mod gpt_oss;
mod granitemoe;
mod latent;
mod lfm2_moe;
mod llama;
mod minimax_m2;
mod mixtral;
mod mixture;
pub(crate) mod names;
mod noaux;
mod olmoe;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_moe;
mod rotary;
mod smollm3;
mod tables;
#[cfg(test)]
mod tests;

use crate::arch::Arch;
use crate::error::{OpenError, quote};
use crate::gguf::Gguf;
use crate::gguf_config::{GgufConfig, text, wrong};
use crate::hf_config::HfConfig;
use names::Names;

/// One family.
pub(crate) struct Family {
    /// Hugging Face's `model_type`.
    pub model_type: &'static str,
    /// Other `model_type`s of the same shape.
    pub model_type_aliases: &'static [&'static str],
    /// Hugging Face's class names; the first one is the usual one.
    pub architectures: &'static [&'static str],
    /// GGUF's `general.architecture`.
    pub gguf_arch: &'static str,
    /// Whether a GGUF file of that architecture is of this family (several families may share one).
    pub claims_gguf: fn(&GgufConfig<'_>) -> bool,
    /// What `config.json` describes. The caller fills in token ids and tied embeddings.
    pub from_hf: fn(&HfConfig) -> Result<Arch, OpenError>,
    /// What GGUF metadata describes. The caller fills in token ids and tied embeddings.
    pub from_gguf: fn(&GgufConfig<'_>) -> Result<Arch, OpenError>,
    /// Tensor names in safetensors files.
    pub hf_names: Names,
    /// Tensor names in GGUF files.
    pub gguf_names: Names,
}

static FAMILIES: [&Family; 21] = [
    &llama::FAMILY,
    &qwen2::FAMILY,
    &qwen3::FAMILY,
    &smollm3::FAMILY,
    &gemma3_text::FAMILY,
    &mixtral::FAMILY,
    &olmoe::FAMILY,
    &qwen2_moe::FAMILY,
    &qwen3_moe::FAMILY,
    &granitemoe::FAMILY,
    &gpt_oss::FAMILY,
    &glm4_moe::FAMILY,
    &glm4_moe_lite::FAMILY,
    &deepseek_v2::FAMILY,
    &deepseek_v3::FAMILY,
    &deepseek_v32::FAMILY,
    &glm_moe_dsa::FAMILY,
    &minimax_m2::FAMILY,
    &ernie4_5_moe::FAMILY,
    &lfm2_moe::FAMILY,
    &dots1::FAMILY,
];

/// How a supported family is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FamilyNames {
    /// Hugging Face's `model_type`, which is also [`Arch::family`].
    pub model_type: &'static str,
    /// Hugging Face's class names.
    pub architectures: &'static [&'static str],
    /// GGUF's `general.architecture`.
    pub gguf_arch: &'static str,
}

/// Every family that [`open`](crate::open) understands.
pub fn supported_families() -> Vec<FamilyNames> {
    let names = |f: &&Family| FamilyNames {
        model_type: f.model_type,
        architectures: f.architectures,
        gguf_arch: f.gguf_arch,
    };
    FAMILIES.iter().map(names).collect()
}

fn supported_in_words() -> String {
    let each =
        |f: &&Family| format!("{} ({}; GGUF {})", f.model_type, f.architectures.join(", "), f.gguf_arch);
    FAMILIES.iter().map(each).collect::<Vec<_>>().join(", ")
}

/// The family of a `config.json`.
pub(crate) fn of_hf(config: &HfConfig) -> Result<&'static Family, OpenError> {
    let model_type = config.text_opt("model_type")?;
    let classes = config.texts_opt("architectures")?.unwrap_or_default();
    // The class decides between a language model and, say, a classifier with the same backbone.
    let fits = |f: &&&Family| {
        model_type.is_none_or(|t| t == f.model_type || f.model_type_aliases.contains(&t))
            && (classes.is_empty() || classes.iter().any(|c| f.architectures.contains(c)))
    };
    if model_type.is_none() && classes.is_empty() {
        return Err(config.wrong("model_type", "the name of an architecture, as a string"));
    }
    FAMILIES.iter().find(fits).copied().ok_or_else(|| OpenError::UnknownArchitecture {
        path: config.path().to_owned(),
        found: match (model_type, classes.first()) {
            (Some(t), Some(c)) => format!("{} ({})", quote(t), quote(c)),
            (Some(t), None) => quote(t),
            (None, c) => quote(c.unwrap_or(&"")),
        },
        supported: supported_in_words(),
    })
}

/// The family of a GGUF file and its `general.architecture`.
pub(crate) fn of_gguf(gguf: &Gguf) -> Result<(&'static Family, String), OpenError> {
    const KEY: &str = "general.architecture";
    let Some(name) = text(gguf, KEY)? else {
        return Err(wrong(&gguf.path, KEY, "the name of an architecture, as a string", "nothing".to_owned()));
    };
    let config = GgufConfig::new(gguf, &name);
    let family = FAMILIES.iter().find(|f| f.gguf_arch == name && (f.claims_gguf)(&config)).copied();
    match family {
        Some(family) => Ok((family, name)),
        None => Err(OpenError::UnknownArchitecture {
            path: gguf.path.clone(),
            found: quote(&name),
            supported: supported_in_words(),
        }),
    }
}
