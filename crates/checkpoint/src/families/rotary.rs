//! Rotary positions and windows as the two formats configure them.

use crate::arch::{Arch, Rope, RopeLayout, RopeScaling};
use crate::error::OpenError;
use crate::gguf_config::GgufConfig;
use crate::gguf_value::Value;
use crate::hf_config::HfConfig;
use crate::limits::{CONTEXT_MAX, HEAD_DIM_MAX, LAYERS_MAX};

const TODO: &str = "use another variant of the model";
/// YaRN's ends of the ramp when a file does not say (arXiv 2309.00071).
const BETA_FAST: f64 = 32.0;
const BETA_SLOW: f64 = 1.0;
/// The window of Qwen's families (and those made after them) when `config.json` does not say.
pub(super) const QWEN_WINDOW_DEFAULT: usize = 4096;
/// Where rotations are described: transformers 5 writes the second, earlier versions the first, which wins.
const KEYS: [&str; 2] = ["rope_scaling", "rope_parameters"];

/// What a family assumes when the configuration does not say.
pub(super) struct RopeDefaults {
    pub theta: f64,
    /// Share of the head that is rotated.
    pub partial: f64,
    pub layout: RopeLayout,
}

/// The rotary embedding of `config.json` for heads of `width` values.
pub(super) fn rope_from_hf(c: &HfConfig, d: &RopeDefaults, width: usize) -> Result<Rope, OpenError> {
    let mut found = None;
    for key in KEYS {
        if found.is_none() {
            found = c.object(key)?.map(|object| (key, object));
        }
    }
    rope_from_object(c, found.as_ref().map(|(key, object)| (*key, object)), d, width)
}

/// The rotary embedding that `object`, found under a key of `c`, describes.
pub(super) fn rope_from_object(
    c: &HfConfig,
    object: Option<(&'static str, &HfConfig)>,
    d: &RopeDefaults,
    width: usize,
) -> Result<Rope, OpenError> {
    let inside = |key: &str| object.map_or(Ok(None), |(_, o)| o.float_opt(key));
    let theta = match inside("rope_theta")? {
        Some(theta) => theta,
        None => c.float_opt("rope_theta")?.unwrap_or(d.theta),
    };
    let partial = match inside("partial_rotary_factor")? {
        Some(partial) => partial,
        None => c.float_opt("partial_rotary_factor")?.unwrap_or(d.partial),
    };
    if !(0.0..=1.0).contains(&partial) {
        return Err(c.wrong("partial_rotary_factor", "a number between 0 and 1"));
    }
    let scaling = match object {
        Some((key, object)) => scaling_from_hf(c, key, object)?,
        None => RopeScaling::None,
    };
    Ok(Rope { theta, dims: (width as f64 * partial) as usize, layout: d.layout, scaling })
}

fn kind_of(object: &HfConfig) -> Result<&str, OpenError> {
    Ok(match object.text_opt("rope_type")? {
        Some(kind) => kind,
        None => object.text_opt("type")?.unwrap_or("default"),
    })
}

fn scaling_from_hf(c: &HfConfig, key: &'static str, o: &HfConfig) -> Result<RopeScaling, OpenError> {
    let needed = |name: &str| positive(o, name)?.ok_or_else(|| o.wrong(name, "a positive number"));
    Ok(match kind_of(o)? {
        "default" | "none" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: needed("factor")? },
        "llama3" => RopeScaling::Llama3 {
            factor: needed("factor")?,
            low: needed("low_freq_factor")?,
            high: needed("high_freq_factor")?,
            original_context: original_context(c, o)?,
        },
        "yarn" => {
            let original_context = original_context(c, o)?;
            let factor = yarn_factor(c, o, original_context)?;
            let given = (positive(o, "mscale")?, positive(o, "mscale_all_dim")?);
            let attention_factor = match (positive(o, "attention_factor")?, given) {
                (Some(given), _) => given,
                (None, (Some(m), Some(all))) => yarn_mscale(factor, m) / yarn_mscale(factor, all),
                (None, _) => yarn_mscale(factor, 1.0),
            };
            RopeScaling::Yarn {
                factor,
                beta_fast: positive(o, "beta_fast")?.unwrap_or(BETA_FAST),
                beta_slow: positive(o, "beta_slow")?.unwrap_or(BETA_SLOW),
                original_context,
                truncate: o.bool_opt("truncate")?.unwrap_or(true),
                attention_factor: attention_factor as f32,
            }
        }
        _ => return Err(c.unsupported(key, "rope_type default, linear, llama3 or yarn", TODO)),
    })
}

fn positive(o: &HfConfig, key: &str) -> Result<Option<f64>, OpenError> {
    match o.float_opt(key)? {
        // transformers treats 0 as "not given" here.
        Some(v) if v < 0.0 => Err(o.wrong(key, "a positive number")),
        v => Ok(v.filter(|&v| v > 0.0)),
    }
}

fn yarn_factor(c: &HfConfig, o: &HfConfig, original_context: f64) -> Result<f64, OpenError> {
    match positive(o, "factor")? {
        Some(factor) => Ok(factor),
        None => {
            let context = c.number_opt("max_position_embeddings", 1, CONTEXT_MAX)?;
            let context = context.ok_or_else(|| o.wrong("factor", "a positive number"))?;
            Ok(context as f64 / original_context)
        }
    }
}

fn original_context(c: &HfConfig, o: &HfConfig) -> Result<f64, OpenError> {
    const KEY: &str = "original_max_position_embeddings";
    for source in [o, c] {
        if let Some(n) = positive(source, KEY)? {
            return Ok(n);
        }
    }
    match c.number_opt("max_position_embeddings", 1, CONTEXT_MAX)? {
        Some(n) => Ok(n as f64),
        None => Err(o.wrong(KEY, "a positive number")),
    }
}

/// YaRN's correction of attention for a context stretched `factor` times.
pub(super) fn yarn_mscale(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * libm::log(factor) + 1.0 }
}

/// What the scores of DeepSeek's latent attention are multiplied by when YaRN stretched the context.
pub(super) fn yarn_score_factor_from_hf(c: &HfConfig) -> Result<f32, OpenError> {
    for key in KEYS {
        let Some(o) = c.object(key)? else { continue };
        if kind_of(&o)? == "yarn"
            && let Some(all) = positive(&o, "mscale_all_dim")?
        {
            let mscale = yarn_mscale(yarn_factor(c, &o, original_context(c, &o)?)?, all);
            return Ok((mscale * mscale) as f32);
        }
    }
    Ok(1.0)
}

/// The sliding windows of `config.json`: `layer_types` says which layers have one; without it, `slides` does. `default` is
/// the window when there is no key for it; an explicit null means none.
pub(super) fn windows_from_hf(
    c: &HfConfig,
    arch: &mut Arch,
    default: Option<usize>,
    slides: impl Fn(usize) -> bool,
) -> Result<(), OpenError> {
    const KEY: &str = "sliding_window";
    let window = match c.has(KEY) {
        true => c.number_opt(KEY, 0, CONTEXT_MAX)?.filter(|&w| w > 0),
        false => default,
    };
    let kinds = sliding_layers(c, arch.layers)?;
    for (layer, view) in arch.views.iter_mut().enumerate().take(arch.layers) {
        let slides = kinds.as_ref().map_or_else(|| slides(layer), |k| k[layer]);
        if slides {
            view.window = window;
        }
    }
    Ok(())
}

/// Qwen's windows: off unless `use_sliding_window`, and then from layer `max_window_layers` on.
pub(super) fn late_windows_from_hf(
    c: &HfConfig,
    arch: &mut Arch,
    first_default: usize,
) -> Result<(), OpenError> {
    if c.bool_opt("use_sliding_window")? != Some(true) {
        return Ok(());
    }
    let first = c.number_opt("max_window_layers", 0, LAYERS_MAX)?.unwrap_or(first_default);
    windows_from_hf(c, arch, Some(QWEN_WINDOW_DEFAULT), |layer| layer >= first)
}

/// Which layers `layer_types` calls sliding.
pub(super) fn sliding_layers(c: &HfConfig, layers: usize) -> Result<Option<Vec<bool>>, OpenError> {
    const KEY: &str = "layer_types";
    let Some(types) = c.texts_opt(KEY)? else { return Ok(None) };
    let kind = |t: &&str| match *t {
        "sliding_attention" => Some(true),
        "full_attention" => Some(false),
        _ => None,
    };
    let kinds: Option<Vec<bool>> = types.iter().map(kind).collect();
    let expected = || format!("`full_attention` or `sliding_attention` for each of {layers} layers");
    kinds.filter(|k| k.len() == layers).map(Some).ok_or_else(|| c.wrong(KEY, expected()))
}

/// The rotary embedding of GGUF metadata for heads of `width` values. `stored`: the file has factors of its own.
pub(super) fn rope_from_gguf(
    c: &GgufConfig<'_>,
    width: usize,
    layout: RopeLayout,
) -> Result<Rope, OpenError> {
    const FREQUENCIES: &str = "rope_freqs.weight";
    let scaling = match c.tensor_shape(FREQUENCIES) {
        // Converters leave the key for this kind out, and readers apply the tensor whatever the keys say.
        Some(_) => RopeScaling::Stored,
        None => scaling_from_gguf(c)?,
    };
    Ok(Rope {
        theta: c.float_opt("rope.freq_base")?.unwrap_or(10_000.0),
        dims: c.number_opt("rope.dimension_count", 1, HEAD_DIM_MAX)?.unwrap_or(width),
        layout,
        scaling,
    })
}

fn scaling_from_gguf(c: &GgufConfig<'_>) -> Result<RopeScaling, OpenError> {
    // 0 is what writers use for "unset".
    let number = |key: &str| Ok(c.float_opt(key)?.filter(|&v| v > 0.0));
    let factor = match number("rope.scaling.factor")? {
        Some(factor) => Some(factor),
        None => number("rope.scale_linear")?,
    };
    let unless_one = factor.filter(|&f| f != 1.0);
    match (c.text_opt("rope.scaling.type")?.unwrap_or("linear"), unless_one) {
        ("none", _) | ("linear" | "yarn", None) => Ok(RopeScaling::None),
        ("linear", Some(factor)) => Ok(RopeScaling::Linear { factor }),
        ("yarn", Some(factor)) => {
            let context = c.number_opt("context_length", 1, CONTEXT_MAX)?.map(|n| n as f64);
            let original = number("rope.scaling.original_context_length")?;
            let Some(original_context) = original.or(context.map(|n| n / factor)) else {
                return Err(c.wrong("rope.scaling.original_context_length", "a positive number"));
            };
            let given = number("rope.scaling.yarn_attn_factor")?;
            let attention_factor = given.unwrap_or_else(|| yarn_mscale(factor, 1.0))
                * number("rope.scaling.attn_factor")?.unwrap_or(1.0);
            Ok(RopeScaling::Yarn {
                factor,
                beta_fast: number("rope.scaling.yarn_beta_fast")?.unwrap_or(BETA_FAST),
                beta_slow: number("rope.scaling.yarn_beta_slow")?.unwrap_or(BETA_SLOW),
                original_context,
                truncate: true,
                attention_factor: attention_factor as f32,
            })
        }
        _ => Err(c.unsupported("rope.scaling.type", "`none`, `linear` or `yarn`", TODO)),
    }
}

/// [`yarn_score_factor_from_hf`] for GGUF, where a tenth of `mscale_all_dim` is stored. Cosines and sines are not
/// scaled in these models, so the caller also gets the rope without its factor.
pub(super) fn latent_yarn_from_gguf(c: &GgufConfig<'_>, rope: &mut Rope) -> Result<f32, OpenError> {
    let RopeScaling::Yarn { factor, attention_factor, .. } = &mut rope.scaling else { return Ok(1.0) };
    *attention_factor = 1.0;
    let log_multiplier = c.float_opt("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0);
    // Stored in single precision; the shortest decimal that rounds to it is what was meant, and gives the same bits as
    // the other format.
    let meant: f64 = (log_multiplier as f32).to_string().parse().unwrap_or(log_multiplier);
    let mscale = yarn_mscale(*factor, meant * 10.0);
    Ok((mscale * mscale) as f32)
}

/// The sliding windows of GGUF metadata, and which layers have positions. A pattern in the file says which layers slide,
/// as a list or as "every so-manyth does not"; without it, `slides` does.
pub(super) fn views_from_gguf(
    c: &GgufConfig<'_>,
    arch: &mut Arch,
    slides: impl Fn(usize) -> bool,
) -> Result<(), OpenError> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    const ROTATED: &str = "attention.rope_pattern";
    let window = c.number_opt("attention.sliding_window", 0, usize::MAX)?.filter(|&w| w > 0);
    let (listed, interval) = match c.get(PATTERN) {
        Some(Value::List(_)) => (c.flags_opt(PATTERN)?, None),
        _ => (None, c.number_opt(PATTERN, 1, LAYERS_MAX)?),
    };
    let rotated = c.flags_opt(ROTATED)?;
    for (key, list) in [(PATTERN, &listed), (ROTATED, &rotated)] {
        if list.as_ref().is_some_and(|l| l.len() < arch.views.len()) {
            return Err(c.wrong(key, format!("one for each of {} layers", arch.views.len())));
        }
    }
    for (layer, view) in arch.views.iter_mut().enumerate() {
        let slides = match (&listed, interval) {
            (Some(list), _) => list[layer],
            (None, Some(n)) => !(layer + 1).is_multiple_of(n),
            (None, None) => slides(layer),
        };
        view.window = if slides { window } else { None };
        if rotated.as_ref().is_some_and(|r| !r[layer]) {
            view.rope = None;
        }
    }
    Ok(())
}
