//! Mixtures as several families configure them.

use crate::arch::{Ffn, Gate, GateGroups, GateNormalization, GateScore, GroupWorth, Moe};
use crate::error::OpenError;
use crate::gguf_config::GgufConfig;
use crate::hf_config::HfConfig;
use crate::limits::{EXPERTS_MAX, LAYERS_MAX, WIDTH_MAX};

use super::tables::GGUF_LAYER;

/// The first of `keys` that is there, else `default`; a number of experts.
pub(super) fn experts_from_hf(c: &HfConfig, keys: &[&str], default: usize) -> Result<usize, OpenError> {
    for key in keys {
        if let Some(n) = c.number_opt(key, 1, EXPERTS_MAX)? {
            return Ok(n);
        }
    }
    Ok(default)
}

/// The first `dense_layers` layers are dense, the others mixtures.
pub(super) fn leading_dense(dense_layers: usize, dense: Ffn, layers: usize) -> Vec<Ffn> {
    (0..layers).map(|i| if i < dense_layers { dense } else { Ffn::Moe }).collect()
}

/// Qwen's choice of layers: a mixture unless it is listed as dense, and only every `decoder_sparse_step`th one.
pub(super) fn sparse_steps_from_hf(
    c: &HfConfig,
    layers: usize,
    dense_width_default: usize,
) -> Result<Vec<Ffn>, OpenError> {
    let dense_only = c.numbers_opt("mlp_only_layers")?.unwrap_or_default();
    let step = c.count_or("decoder_sparse_step", 1, LAYERS_MAX)?;
    let width = c.count_or("intermediate_size", dense_width_default, WIDTH_MAX)?;
    let is_moe = |i: usize| !dense_only.contains(&(i as u64)) && (i + 1).is_multiple_of(step);
    Ok((0..layers).map(|i| if is_moe(i) { Ffn::Moe } else { Ffn::Dense { width } }).collect())
}

/// Where no key says which layers are dense, the presence of a router does.
pub(super) fn routed_layers_from_gguf(c: &GgufConfig<'_>, layers: usize) -> Result<Vec<Ffn>, OpenError> {
    let has_router = |i: usize| c.tensor_shape(&format!("{GGUF_LAYER}{i}.ffn_gate_inp.weight")).is_some();
    // Files whose layers are all mixtures may leave the dense width out.
    let width = match c.number_opt("feed_forward_length", 0, WIDTH_MAX)? {
        Some(width) if width > 0 => width,
        _ if (0..layers).all(has_router) => 1,
        _ => return Err(c.wrong("feed_forward_length", "the width of the dense layers")),
    };
    Ok((0..layers).map(|i| if has_router(i) { Ffn::Moe } else { Ffn::Dense { width } }).collect())
}

/// Leading dense layers, then mixtures, as `leading_dense_block_count` says.
pub(super) fn leading_dense_from_gguf(c: &GgufConfig<'_>, layers: usize) -> Result<Vec<Ffn>, OpenError> {
    let dense_layers = c.number_opt("leading_dense_block_count", 0, LAYERS_MAX)?.unwrap_or(0);
    let width = match dense_layers {
        0 => 1,
        _ => c.count("feed_forward_length", WIDTH_MAX)?,
    };
    Ok(leading_dense(dense_layers, Ffn::Dense { width }, layers))
}

/// The widths of the routed experts and of the shared expert in a GGUF file: from the tensors, which keys do not always
/// agree with.
fn widths_from_gguf(c: &GgufConfig<'_>) -> Result<(usize, Option<usize>), OpenError> {
    let layers = c.count("block_count", LAYERS_MAX)?;
    let stored = |name: &str, dim: usize| {
        let mut shapes =
            (0..layers).filter_map(|i| c.tensor_shape(&format!("{GGUF_LAYER}{i}.{name}.weight")));
        shapes.next().and_then(|shape| shape.get(dim).copied())
    };
    let width = match stored("ffn_down_exps", 2).or_else(|| stored("ffn_down.0", 1)) {
        Some(width) => width,
        None => c.count("expert_feed_forward_length", WIDTH_MAX)?,
    };
    Ok((width, stored("ffn_up_shexp", 0)))
}

/// A mixture with everything but its gate; the caller changes what is special.
pub(super) fn moe_from_gguf(c: &GgufConfig<'_>, gate: Gate) -> Result<Moe, OpenError> {
    let (width, shared_width) = widths_from_gguf(c)?;
    Ok(Moe {
        shared_width,
        ..Moe::routed(
            c.count("expert_count", EXPERTS_MAX)?,
            c.count("expert_used_count", EXPERTS_MAX)?,
            width,
            gate,
        )
    })
}

/// Softmax over all experts; the chosen weights are divided by their sum if `normalize`.
pub(super) fn softmax_gate(normalize: bool, scale: f32) -> Gate {
    let normalization = GateNormalization::sum_if(normalize, 0.0);
    Gate { normalization, scale, ..Gate::plain(GateScore::Softmax) }
}

/// Whether a GGUF file has a bias for the selection of experts; older ones spell it without its ending.
pub(super) fn has_selection_bias(c: &GgufConfig<'_>) -> bool {
    c.has_tensor_ending(".exp_probs_b.bias") || c.has_tensor_ending(".exp_probs_b")
}

/// Routed experts as most families configure them: their number under the first of `experts_keys` that is there, their
/// width under `width_key`.
pub(super) fn routed_from_hf(
    c: &HfConfig,
    experts_keys: &[&str],
    width_key: &str,
    d: &RoutedDefaults,
    gate: Gate,
) -> Result<Moe, OpenError> {
    Ok(Moe::routed(
        experts_from_hf(c, experts_keys, d.experts)?,
        c.count_or("num_experts_per_tok", d.top_k, EXPERTS_MAX)?,
        c.count_or(width_key, d.width, WIDTH_MAX)?,
        gate,
    ))
}

/// What transformers assumes of routed experts when `config.json` does not say.
pub(super) struct RoutedDefaults {
    pub experts: usize,
    pub top_k: usize,
    pub width: usize,
}

/// What the weights of the chosen experts are multiplied by; writers use 0 for "unset".
pub(super) fn weights_scale(c: &GgufConfig<'_>) -> Result<f32, OpenError> {
    Ok(c.float_opt("expert_weights_scale")?.filter(|&s| s != 0.0).unwrap_or(1.0) as f32)
}

/// One group, or none stated, is no restriction. Without a number of groups to keep, transformers keeps one.
pub(super) fn groups(count: Option<usize>, kept: Option<usize>, worth: GroupWorth) -> Option<GateGroups> {
    let count = count.filter(|n| *n > 1)?;
    Some(GateGroups { count, kept: kept.unwrap_or(1), worth })
}

/// The groups of GGUF metadata.
pub(super) fn groups_from_gguf(
    c: &GgufConfig<'_>,
    worth: GroupWorth,
) -> Result<Option<GateGroups>, OpenError> {
    let count = c.number_opt("expert_group_count", 0, EXPERTS_MAX)?;
    let kept = c.number_opt("expert_group_used_count", 0, EXPERTS_MAX)?.filter(|&n| n > 0);
    Ok(groups(count, kept, worth))
}
