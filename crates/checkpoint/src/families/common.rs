//! Configuration that several families share.

use crate::arch::{Activation, Arch, Attention, Ffn, Gqa, Norms, RopeLayout, Scales, View};
use crate::error::OpenError;

use super::rotary::{RopeDefaults, rope_from_gguf, rope_from_hf, views_from_gguf};
use crate::gguf_config::GgufConfig;
use crate::gguf_value::{List, Value};
use crate::hf_config::HfConfig;
use crate::limits::{CONTEXT_MAX, HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, VOCAB_MAX, WIDTH_MAX};

/// What transformers assumes when `config.json` does not say; the families differ.
pub(super) struct HfDefaults {
    pub vocab: usize,
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    /// `None`: as many as query heads.
    pub kv_heads: Option<usize>,
    /// `None`: `hidden_size / num_attention_heads`.
    pub head_dim: Option<usize>,
    pub context: usize,
    pub norm_eps: f64,
    pub rope: RopeDefaults,
    /// The output matrix is the embedding.
    pub tied: bool,
}

const TODO_VARIANT: &str = "use another variant of the model";

/// The family-independent part of `config.json`, without feed-forward layers; attention and rope are placeholders
/// that the caller replaces.
pub(super) fn base_from_hf(c: &HfConfig, family: &'static str, d: &HfDefaults) -> Result<Arch, OpenError> {
    let layers = c.count_or("num_hidden_layers", d.layers, LAYERS_MAX)?;
    Ok(Arch {
        family,
        vocab: c.count_or("vocab_size", d.vocab, VOCAB_MAX)?,
        hidden: c.count_or("hidden_size", d.hidden, WIDTH_MAX)?,
        layers,
        mtp_layers: 0,
        norms: norms(c.float_opt("rms_norm_eps")?.unwrap_or(d.norm_eps)),
        context_max: c.number_opt("max_position_embeddings", 0, CONTEXT_MAX)?.unwrap_or(d.context),
        attention: Attention::Gqa(Gqa::plain(1, 1, 2)),
        ropes: Vec::new(),
        views: vec![View::FULL; layers],
        dsa: None,
        short_conv: None,
        ffn: Vec::new(),
        moe: None,
        activation: activation_from_hf(c, "hidden_act", Activation::SwiGlu)?,
        mlp_bias: false,
        scales: Scales::ONE,
        tied_embeddings: d.tied,
        bos: None,
        eos: Vec::new(),
    })
}

/// The function under `key`, by the names that transformers gives them.
pub(super) fn activation_from_hf(
    c: &HfConfig,
    key: &str,
    default: Activation,
) -> Result<Activation, OpenError> {
    match c.text_opt(key)? {
        None => Ok(default),
        Some("silu" | "swish") => Ok(Activation::SwiGlu),
        Some("gelu_pytorch_tanh" | "gelu_new") => Ok(Activation::GeGluTanh),
        Some(_) => Err(c.unsupported(key, "silu or gelu_pytorch_tanh", TODO_VARIANT)),
    }
}

fn norms(eps: f64) -> Norms {
    Norms { eps: eps as f32, weight_offset: 0.0, post: false }
}

/// `config.json` of a family with grouped-query attention, without feed-forward layers. `attention_bias` puts biases
/// on all four projections, as it does in most families.
pub(super) fn gqa_from_hf(c: &HfConfig, family: &'static str, d: &HfDefaults) -> Result<Arch, OpenError> {
    let mut arch = base_from_hf(c, family, d)?;
    let heads = c.count_or("num_attention_heads", d.heads, HEADS_MAX)?;
    let kv_heads = match c.number_opt("num_key_value_heads", 1, HEADS_MAX)? {
        Some(n) => n,
        // An explicit null means multi-head attention, whatever the default is.
        None if c.has("num_key_value_heads") => heads,
        None => d.kv_heads.unwrap_or(heads),
    };
    let head_dim = match c.number_opt("head_dim", 1, HEAD_DIM_MAX)?.or(d.head_dim) {
        Some(n) => n,
        None if arch.hidden.is_multiple_of(heads) => arch.hidden / heads,
        None => {
            let expected = format!("a divisor of hidden_size {} when head_dim is absent", arch.hidden);
            return Err(c.wrong("num_attention_heads", expected));
        }
    };
    let bias = c.bool_opt("attention_bias")?.unwrap_or(false);
    arch.ropes = vec![rope_from_hf(c, &d.rope, head_dim)?];
    arch.attention =
        Attention::Gqa(Gqa { qkv_bias: bias, out_bias: bias, ..Gqa::plain(heads, kv_heads, head_dim) });
    Ok(arch)
}

/// Changes the grouped-query attention that [`gqa_from_hf`] or [`gqa_from_gguf`] made.
pub(super) fn with_gqa(arch: &mut Arch, change: impl FnOnce(&mut Gqa)) {
    if let Attention::Gqa(gqa) = &mut arch.attention {
        change(gqa);
    }
}

/// Every layer has one gated MLP as wide as `intermediate_size` says.
pub(super) fn dense_from_hf(c: &HfConfig, arch: &mut Arch, width_default: usize) -> Result<(), OpenError> {
    let width = c.count_or("intermediate_size", width_default, WIDTH_MAX)?;
    arch.ffn = vec![Ffn::Dense { width }; arch.layers];
    Ok(())
}

/// The family-independent part of GGUF metadata, as [`base_from_hf`] does it. `layers` still counts the layers for
/// multi-token prediction.
pub(super) fn base_from_gguf(c: &GgufConfig<'_>, family: &'static str) -> Result<Arch, OpenError> {
    let Some(norm_eps) = c.float_opt("attention.layer_norm_rms_epsilon")? else {
        return Err(c.wrong("attention.layer_norm_rms_epsilon", "a small number"));
    };
    let embedding = c.tensor_shape("token_embd.weight");
    let vocab = match (c.number_opt("vocab_size", 1, VOCAB_MAX)?, embedding) {
        (Some(n), _) => n,
        (None, Some([rows, _])) if *rows <= VOCAB_MAX => *rows,
        _ => {
            return Err(c.wrong("vocab_size", "a vocabulary size, here or from tensor `token_embd.weight`"));
        }
    };
    let layers = c.count("block_count", LAYERS_MAX)?;
    Ok(Arch {
        family,
        vocab,
        hidden: c.count("embedding_length", WIDTH_MAX)?,
        layers,
        mtp_layers: 0,
        norms: norms(norm_eps),
        context_max: c.number_opt("context_length", 0, CONTEXT_MAX)?.unwrap_or(0),
        attention: Attention::Gqa(Gqa::plain(1, 1, 2)),
        ropes: Vec::new(),
        views: vec![View::FULL; layers],
        dsa: None,
        short_conv: None,
        ffn: Vec::new(),
        moe: None,
        activation: Activation::SwiGlu,
        mlp_bias: false,
        scales: Scales::ONE,
        tied_embeddings: false,
        bos: None,
        eos: Vec::new(),
    })
}

/// GGUF metadata of a family with grouped-query attention, without feed-forward layers. No key says whether
/// projections have biases; the tensors do.
pub(super) fn gqa_from_gguf(
    c: &GgufConfig<'_>,
    family: &'static str,
    layout: RopeLayout,
) -> Result<Arch, OpenError> {
    let mut arch = base_from_gguf(c, family)?;
    let heads = c.count("attention.head_count", HEADS_MAX)?;
    let kv_heads = kv_heads_from_gguf(c, arch.layers)?.unwrap_or(heads);
    let head_dim = match c.number_opt("attention.key_length", 1, HEAD_DIM_MAX)? {
        Some(n) => n,
        None if arch.hidden.is_multiple_of(heads) => arch.hidden / heads,
        None => {
            let expected = format!("a divisor of embedding_length {} when key_length is absent", arch.hidden);
            return Err(c.wrong("attention.head_count", expected));
        }
    };
    if c.number_opt("attention.value_length", 1, HEAD_DIM_MAX)?.is_some_and(|v| v != head_dim) {
        return Err(c.unsupported("attention.value_length", "the same as key_length", TODO_VARIANT));
    }
    let has = |name: &str| c.tensor_shape(name).is_some();
    arch.ropes = vec![rope_from_gguf(c, head_dim, layout)?];
    let plain = Gqa::plain(heads, kv_heads, head_dim);
    // Writers use 0 for "unset".
    let scale = c.float_opt("attention.scale")?.filter(|&s| s != 0.0).map_or(plain.scale, |s| s as f32);
    arch.attention = Attention::Gqa(Gqa {
        qkv_bias: has("blk.0.attn_q.bias"),
        out_bias: has("blk.0.attn_output.bias"),
        scale,
        ..plain
    });
    views_from_gguf(c, &mut arch, |_| true)?;
    Ok(arch)
}

/// Key/value heads; a list for each layer has 0 where there is no attention, and one number elsewhere.
fn kv_heads_from_gguf(c: &GgufConfig<'_>, layers: usize) -> Result<Option<usize>, OpenError> {
    const KEY: &str = "attention.head_count_kv";
    let Some(Value::List(_)) = c.get(KEY) else { return c.number_opt(KEY, 1, HEADS_MAX) };
    let list = c.per_layer(KEY, layers, HEADS_MAX)?.unwrap_or_default();
    let mut present = list.iter().copied().filter(|&n| n > 0);
    match present.next() {
        Some(first) if present.all(|n| n == first) => Ok(Some(first)),
        _ => Err(c.unsupported(KEY, "one number of heads in all layers with attention", TODO_VARIANT)),
    }
}

/// Every layer has one gated MLP as wide as `feed_forward_length` says.
pub(super) fn dense_from_gguf(c: &GgufConfig<'_>, arch: &mut Arch) -> Result<(), OpenError> {
    arch.ffn = vec![Ffn::Dense { width: c.count("feed_forward_length", WIDTH_MAX)? }; arch.layers];
    arch.mlp_bias = c.tensor_shape("blk.0.ffn_gate.bias").is_some();
    Ok(())
}

/// Multi-token-prediction layers that `num_nextn_predict_layers` counts beside the trunk; they are mixtures.
pub(super) fn mtp_from_hf(c: &HfConfig, arch: &mut Arch) -> Result<(), OpenError> {
    arch.mtp_layers = c.number_opt("num_nextn_predict_layers", 0, LAYERS_MAX)?.unwrap_or(0);
    arch.views.extend(vec![View::FULL; arch.mtp_layers]);
    Ok(())
}

/// In GGUF the block count includes the layers for multi-token prediction.
pub(super) fn mtp_from_gguf(c: &GgufConfig<'_>, arch: &mut Arch) -> Result<(), OpenError> {
    let most = arch.layers.saturating_sub(1);
    arch.mtp_layers = c.number_opt("nextn_predict_layers", 0, most)?.unwrap_or(0);
    arch.layers -= arch.mtp_layers;
    Ok(())
}

/// Whether a GGUF key is there and is not 0.
pub(super) fn is_set(c: &GgufConfig<'_>, key: &str) -> bool {
    match c.get(key) {
        None | Some(Value::Unsigned(0) | Value::Signed(0)) => false,
        Some(Value::List(List::Unsigned(v))) => v.iter().any(|&x| x != 0),
        Some(_) => true,
    }
}
