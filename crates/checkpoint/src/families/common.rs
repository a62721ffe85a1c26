//! Configuration that several families share.

use crate::arch::{Arch, Attention, Rope, RopeLayout};
use crate::error::OpenError;

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
    pub context: usize,
    pub norm_eps: f64,
    pub theta: f64,
}

const TODO_VARIANT: &str = "use another variant of the model";
const TODO_WEIGHTS: &str = "use the BF16 checkpoint, or a GGUF file of the model";

/// The family-independent part of `config.json`, without feed-forward layers; attention and rope are placeholders
/// that the caller replaces.
pub(super) fn base_from_hf(c: &HfConfig, family: &'static str, d: &HfDefaults) -> Result<Arch, OpenError> {
    if c.text_opt("hidden_act")?.is_some_and(|a| a != "silu" && a != "swish") {
        return Err(c.unsupported("hidden_act", "silu", TODO_VARIANT));
    }
    for key in ["attention_bias", "mlp_bias"] {
        if c.bool_opt(key)? == Some(true) {
            return Err(c.unsupported(key, "false", TODO_VARIANT));
        }
    }
    if c.get("quantization_config").is_some() {
        return Err(c.unsupported("quantization_config", "plain weights", TODO_WEIGHTS));
    }
    Ok(Arch {
        family,
        vocab: c.count_or("vocab_size", d.vocab, VOCAB_MAX)?,
        hidden: c.count_or("hidden_size", d.hidden, WIDTH_MAX)?,
        layers: c.count_or("num_hidden_layers", d.layers, LAYERS_MAX)?,
        mtp_layers: 0,
        norm_eps: c.float_opt("rms_norm_eps")?.unwrap_or(d.norm_eps) as f32,
        context_max: c.number_opt("max_position_embeddings", 0, CONTEXT_MAX)?.unwrap_or(d.context),
        attention: Attention::Gqa { heads: 1, kv_heads: 1, head_dim: 2, qk_norm: false },
        rope: Rope { theta: theta_from_hf(c, d.theta)?, dims: 2, layout: RopeLayout::HalfSplit },
        dsa: None,
        ffn: Vec::new(),
        moe: None,
        tied_embeddings: false,
        bos: None,
        eos: Vec::new(),
    })
}

/// The rotary base; every kind of scaling is refused. transformers 5 writes `rope_parameters`, earlier versions
/// `rope_theta` and `rope_scaling`.
fn theta_from_hf(c: &HfConfig, default: f64) -> Result<f64, OpenError> {
    let mut theta = None;
    for key in ["rope_parameters", "rope_scaling"] {
        let Some(rope) = c.object(key)? else { continue };
        for kind in ["rope_type", "type"] {
            if rope.text_opt(kind)?.is_some_and(|k| k != "default" && k != "none") {
                return Err(c.unsupported(key, "rope_type `default`", TODO_VARIANT));
            }
        }
        if rope.float_opt("partial_rotary_factor")?.is_some_and(|f| f != 1.0) {
            return Err(c.unsupported(key, "a partial_rotary_factor of 1", TODO_VARIANT));
        }
        theta = theta.or(rope.float_opt("rope_theta")?);
    }
    if c.float_opt("partial_rotary_factor")?.is_some_and(|f| f != 1.0) {
        return Err(c.unsupported("partial_rotary_factor", "1", TODO_VARIANT));
    }
    Ok(theta.or(c.float_opt("rope_theta")?).unwrap_or(default))
}

/// `config.json` of a family with grouped-query attention, without feed-forward layers.
pub(super) fn gqa_from_hf(
    c: &HfConfig,
    family: &'static str,
    d: &HfDefaults,
    qk_norm: bool,
) -> Result<Arch, OpenError> {
    let mut arch = base_from_hf(c, family, d)?;
    let heads = c.count_or("num_attention_heads", d.heads, HEADS_MAX)?;
    let kv_heads = match c.number_opt("num_key_value_heads", 1, HEADS_MAX)? {
        Some(n) => n,
        // An explicit null means multi-head attention, whatever the default is.
        None if c.has("num_key_value_heads") => heads,
        None => d.kv_heads.unwrap_or(heads),
    };
    let head_dim = match c.number_opt("head_dim", 1, HEAD_DIM_MAX)? {
        Some(n) => n,
        None if arch.hidden.is_multiple_of(heads) => arch.hidden / heads,
        None => {
            let expected = format!("a divisor of hidden_size {} when head_dim is absent", arch.hidden);
            return Err(c.wrong("num_attention_heads", expected));
        }
    };
    arch.attention = Attention::Gqa { heads, kv_heads, head_dim, qk_norm };
    arch.rope.dims = head_dim;
    Ok(arch)
}

/// Refuses a sliding window that the model's positions do not fit in.
pub(super) fn no_window_in_hf(c: &HfConfig, arch: &Arch) -> Result<(), OpenError> {
    let window = c.number_opt("sliding_window", 0, usize::MAX)?;
    if window.is_some_and(|w| arch.context_max == 0 || w < arch.context_max) {
        return Err(c.unsupported("sliding_window", "null", TODO_VARIANT));
    }
    Ok(())
}

/// The family-independent part of GGUF metadata, as [`base_from_hf`] does it. `layers` still counts the layers for
/// multi-token prediction.
pub(super) fn base_from_gguf(c: &GgufConfig<'_>, family: &'static str) -> Result<Arch, OpenError> {
    refuse_gguf_scaling(c)?;
    let context_max = c.number_opt("context_length", 0, CONTEXT_MAX)?.unwrap_or(0);
    if c.number_opt("attention.sliding_window", 0, usize::MAX)?.is_some_and(|w| w != 0 && w < context_max) {
        return Err(c.unsupported("attention.sliding_window", "none", TODO_VARIANT));
    }
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
    Ok(Arch {
        family,
        vocab,
        hidden: c.count("embedding_length", WIDTH_MAX)?,
        layers: c.count("block_count", LAYERS_MAX)?,
        mtp_layers: 0,
        norm_eps: norm_eps as f32,
        context_max,
        attention: Attention::Gqa { heads: 1, kv_heads: 1, head_dim: 2, qk_norm: false },
        rope: Rope {
            theta: c.float_opt("rope.freq_base")?.unwrap_or(10_000.0),
            dims: 2,
            layout: RopeLayout::Interleaved,
        },
        dsa: None,
        ffn: Vec::new(),
        moe: None,
        tied_embeddings: false,
        bos: None,
        eos: Vec::new(),
    })
}

fn refuse_gguf_scaling(c: &GgufConfig<'_>) -> Result<(), OpenError> {
    let kind = c.text_opt("rope.scaling.type")?.unwrap_or("linear");
    let mut factors = [None; 2];
    for (factor, key) in factors.iter_mut().zip(["rope.scaling.factor", "rope.scale_linear"]) {
        *factor = c.float_opt(key)?;
    }
    // A linear scale of 1 (or 0, which writers use for "unset") scales nothing.
    let scaled = factors.iter().flatten().any(|&f| f != 0.0 && f != 1.0);
    match kind {
        "none" => Ok(()),
        "linear" if !scaled => Ok(()),
        "linear" => Err(c.unsupported("rope.scaling.factor", "1 (no scaling)", TODO_VARIANT)),
        _ => Err(c.unsupported("rope.scaling.type", "`none`", TODO_VARIANT)),
    }
}

/// GGUF metadata of a family with grouped-query attention, without feed-forward layers.
pub(super) fn gqa_from_gguf(
    c: &GgufConfig<'_>,
    family: &'static str,
    qk_norm: bool,
    layout: RopeLayout,
) -> Result<Arch, OpenError> {
    let mut arch = base_from_gguf(c, family)?;
    let heads = c.count("attention.head_count", HEADS_MAX)?;
    let kv_heads = c.number_opt("attention.head_count_kv", 1, HEADS_MAX)?.unwrap_or(heads);
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
    arch.attention = Attention::Gqa { heads, kv_heads, head_dim, qk_norm };
    arch.rope.dims = c.number_opt("rope.dimension_count", 1, HEAD_DIM_MAX)?.unwrap_or(head_dim);
    arch.rope.layout = layout;
    Ok(arch)
}

/// What the weights of the chosen experts are multiplied by; writers use 0 for "unset".
pub(super) fn weights_scale(c: &GgufConfig<'_>) -> Result<f32, OpenError> {
    Ok(c.float_opt("expert_weights_scale")?.filter(|&s| s != 0.0).unwrap_or(1.0) as f32)
}

/// Whether a GGUF key is there and is not 0.
pub(super) fn is_set(c: &GgufConfig<'_>, key: &str) -> bool {
    match c.get(key) {
        None | Some(Value::Unsigned(0) | Value::Signed(0)) => false,
        Some(Value::List(List::Unsigned(v))) => v.iter().any(|&x| x != 0),
        Some(_) => true,
    }
}
