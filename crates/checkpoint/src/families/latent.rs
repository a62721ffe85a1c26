//! Multi-head latent attention and its sparse indexer as the two formats configure them.

use super::common::{HfDefaults, base_from_gguf, base_from_hf, mtp_from_gguf};
use super::rotary::{latent_yarn_from_gguf, rope_from_gguf, rope_from_hf, yarn_score_factor_from_hf};
use crate::arch::{Arch, Attention, Dsa, IndexerKind, Mla, RopeLayout};
use crate::error::OpenError;
use crate::gguf_config::GgufConfig;
use crate::hf_config::HfConfig;
use crate::limits::{CONTEXT_MAX, HEAD_DIM_MAX, HEADS_MAX, WIDTH_MAX};

/// The norms inside the bottlenecks are built without the configured epsilon, and no file states theirs.
const LATENT_NORM_EPS: f32 = 1e-6;
const TODO_VARIANT: &str = "use another variant of the model";

/// Widths that transformers assumes when `config.json` does not say.
pub(super) struct MlaDefaults {
    pub q_lora: usize,
    pub kv_lora: usize,
    pub nope: usize,
    pub rope: usize,
    pub v: usize,
}

/// `config.json` of a family with latent attention, without feed-forward layers.
pub(super) fn mla_from_hf(
    c: &HfConfig,
    family: &'static str,
    d: &HfDefaults,
    widths: &MlaDefaults,
) -> Result<Arch, OpenError> {
    for key in ["attention_bias", "mlp_bias"] {
        if c.bool_opt(key)? == Some(true) {
            return Err(c.unsupported(key, "false", TODO_VARIANT));
        }
    }
    let mut arch = base_from_hf(c, family, d)?;
    let heads = c.count_or("num_attention_heads", d.heads, HEADS_MAX)?;
    let q_lora = match c.number_opt("q_lora_rank", 1, WIDTH_MAX)? {
        // An explicit null means no bottleneck, whatever the default is.
        None if c.has("q_lora_rank") => None,
        n => Some(n.unwrap_or(widths.q_lora)),
    };
    let nope = c.count_or("qk_nope_head_dim", widths.nope, HEAD_DIM_MAX)?;
    let rope = c.count_or("qk_rope_head_dim", widths.rope, HEAD_DIM_MAX)?;
    let mut rotation = rope_from_hf(c, &d.rope, rope)?;
    if c.bool_opt("rope_interleave")? == Some(false) {
        rotation.layout = RopeLayout::HalfSplit;
    }
    arch.ropes = vec![rotation];
    arch.attention = Attention::Mla(Mla {
        heads,
        q_lora,
        kv_lora: c.count_or("kv_lora_rank", widths.kv_lora, WIDTH_MAX)?,
        nope,
        rope,
        v: c.count_or("v_head_dim", widths.v, HEAD_DIM_MAX)?,
        scale: score_scale(nope + rope) * yarn_score_factor_from_hf(c)?,
        latent_norm_eps: LATENT_NORM_EPS,
    });
    Ok(arch)
}

fn score_scale(head_dim: usize) -> f32 {
    1.0 / (head_dim as f32).sqrt()
}

/// GGUF metadata of a family with latent attention, without feed-forward layers; prediction layers are told apart.
///
/// In present files `key_length` and `value_length` describe the cached latent and the widths of a head are the `_mla`
/// ones; files of before April 2025 have the widths of a head under the plain names.
pub(super) fn mla_from_gguf(c: &GgufConfig<'_>, family: &'static str) -> Result<Arch, OpenError> {
    if c.float_opt("attention.temperature_scale")?.is_some_and(|s| s != 0.0) {
        return Err(c.unsupported("attention.temperature_scale", "0", TODO_VARIANT));
    }
    let mut arch = base_from_gguf(c, family)?;
    mtp_from_gguf(c, &mut arch)?;
    let rope = c.count("rope.dimension_count", HEAD_DIM_MAX)?;
    let [key_name, value_name] = match c.get("attention.key_length_mla") {
        Some(_) => ["attention.key_length_mla", "attention.value_length_mla"],
        None => ["attention.key_length", "attention.value_length"],
    };
    let key = c.count(key_name, HEAD_DIM_MAX)?;
    let Some(nope) = key.checked_sub(rope).filter(|&n| n > 0) else {
        return Err(c.wrong(key_name, format!("more than rope.dimension_count, {rope}")));
    };
    let mut rotation = rope_from_gguf(c, rope, RopeLayout::Interleaved)?;
    let score_factor = latent_yarn_from_gguf(c, &mut rotation)?;
    arch.ropes = vec![rotation];
    arch.attention = Attention::Mla(Mla {
        heads: c.count("attention.head_count", HEADS_MAX)?,
        q_lora: c.number_opt("attention.q_lora_rank", 0, WIDTH_MAX)?.filter(|&n| n > 0),
        kv_lora: c.count("attention.kv_lora_rank", WIDTH_MAX)?,
        nope,
        rope,
        v: c.count(value_name, HEAD_DIM_MAX)?,
        scale: score_scale(key) * score_factor,
        latent_norm_eps: LATENT_NORM_EPS,
    });
    Ok(arch)
}

/// Widths of the indexer that transformers assumes.
pub(super) struct DsaDefaults {
    pub heads: usize,
    pub head_dim: usize,
    pub topk: usize,
}

/// The indexer of `config.json` in the layers `kinds`.
pub(super) fn dsa_from_hf(
    c: &HfConfig,
    d: &DsaDefaults,
    rope_layout: RopeLayout,
    kinds: Vec<IndexerKind>,
) -> Result<Dsa, OpenError> {
    Ok(Dsa {
        heads: c.count_or("index_n_heads", d.heads, HEADS_MAX)?,
        head_dim: c.count_or("index_head_dim", d.head_dim, HEAD_DIM_MAX)?,
        topk: c.count_or("index_topk", d.topk, CONTEXT_MAX)?,
        rope_layout,
        layers: kinds,
    })
}

/// The indexer of GGUF metadata in the layers `kinds`.
pub(super) fn dsa_from_gguf(
    c: &GgufConfig<'_>,
    rope_layout: RopeLayout,
    kinds: Vec<IndexerKind>,
) -> Result<Dsa, OpenError> {
    Ok(Dsa {
        heads: c.count("attention.indexer.head_count", HEADS_MAX)?,
        head_dim: c.count("attention.indexer.key_length", HEAD_DIM_MAX)?,
        topk: c.count("attention.indexer.top_k", CONTEXT_MAX)?,
        rope_layout,
        layers: kinds,
    })
}

/// Some converters leave the indexer out of the layers for multi-token prediction. A layer has an indexer exactly if
/// the file has its query matrix.
pub(super) fn stored_indexer(c: &GgufConfig<'_>, layer: usize) -> IndexerKind {
    match c.tensor_shape(&format!("blk.{layer}.indexer.attn_q_b.weight")) {
        Some(_) => IndexerKind::Full,
        None => IndexerKind::Shared,
    }
}
