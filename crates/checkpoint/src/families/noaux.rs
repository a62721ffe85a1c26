//! DeepSeek-V3's mixture (arXiv 2412.19437): sigmoid scores, a bias that only selects, groups, a shared expert. GLM has
//! it too.

use super::common::is_set;
use super::mixture::{
    groups, groups_from_gguf, has_selection_bias, leading_dense, leading_dense_from_gguf, moe_from_gguf,
    weights_scale,
};
use crate::arch::{Arch, Ffn, Gate, GateGroups, GateNormalization, GateScore, GroupWorth, Moe};
use crate::error::OpenError;
use crate::gguf_config::GgufConfig;
use crate::hf_config::HfConfig;
use crate::limits::{EXPERTS_MAX, LAYERS_MAX, SHARED_EXPERTS_MAX, WIDTH_MAX};

/// Keeps the sum of the chosen scores away from 0.
const NORMALIZE_EPS: f32 = 1e-20;
/// GGUF's number for a sigmoid router.
const GGUF_SIGMOID: usize = 2;
const TODO_VARIANT: &str = "use another variant of the model";

/// What transformers assumes when `config.json` does not say.
pub(super) struct NoauxDefaults {
    pub dense_width: usize,
    /// Dense layers before the mixtures.
    pub dense_layers: usize,
    pub experts: usize,
    pub top_k: usize,
    pub width: usize,
    /// Shared experts.
    pub shared: usize,
    /// The chosen weights are divided by their sum.
    pub normalize: bool,
    pub scale: f64,
    /// Groups of experts, and how many of them are kept.
    pub groups: (usize, usize),
}

/// Puts feed-forward layers and mixture into `arch`, whose layers for multi-token prediction are known.
pub(super) fn noaux_mixture_from_hf(
    c: &HfConfig,
    arch: &mut Arch,
    d: &NoauxDefaults,
) -> Result<(), OpenError> {
    // Keys that transformers ignores: following neither it nor them would be right.
    if c.number_opt("moe_layer_freq", 0, LAYERS_MAX)?.is_some_and(|n| n != 1) {
        return Err(c.unsupported("moe_layer_freq", "1", TODO_VARIANT));
    }
    if c.text_opt("topk_method")?.is_some_and(|v| v != "noaux_tc") {
        return Err(c.unsupported("topk_method", "noaux_tc", TODO_VARIANT));
    }
    // The second name is that of the selection, which some files give here.
    if c.text_opt("scoring_func")?.is_some_and(|v| v != "sigmoid" && v != "noaux_tc") {
        return Err(c.unsupported("scoring_func", "sigmoid", TODO_VARIANT));
    }
    arch.ffn = layers_from_hf(c, arch, d)?;
    let experts = match c.number_opt("n_routed_experts", 1, EXPERTS_MAX)? {
        Some(n) => n,
        None => c.count_or("num_experts", d.experts, EXPERTS_MAX)?,
    };
    let width = c.count_or("moe_intermediate_size", d.width, WIDTH_MAX)?;
    let shared = c.number_opt("n_shared_experts", 0, SHARED_EXPERTS_MAX)?.unwrap_or(d.shared);
    let count = c.number_opt("n_group", 1, EXPERTS_MAX)?.unwrap_or(d.groups.0);
    let kept = c.number_opt("topk_group", 1, EXPERTS_MAX)?.unwrap_or(d.groups.1);
    arch.moe = Some(Moe {
        shared_width: (shared > 0).then_some(shared * width),
        ..Moe::routed(
            experts,
            c.count_or("num_experts_per_tok", d.top_k, EXPERTS_MAX)?,
            width,
            noaux_gate(
                c.bool_opt("norm_topk_prob")?.unwrap_or(d.normalize),
                c.float_opt("routed_scaling_factor")?.unwrap_or(d.scale) as f32,
                groups(Some(count), Some(kept), GroupWorth::TwoBest),
            ),
        )
    });
    Ok(())
}

/// The kind of each layer: a list, else a number of dense ones before the mixtures. Layers for multi-token prediction
/// are mixtures.
fn layers_from_hf(c: &HfConfig, arch: &Arch, d: &NoauxDefaults) -> Result<Vec<Ffn>, OpenError> {
    const KEY: &str = "mlp_layer_types";
    let dense = Ffn::Dense { width: c.count_or("intermediate_size", d.dense_width, WIDTH_MAX)? };
    let mut ffn = match c.texts_opt(KEY)? {
        None => {
            let first = c.number_opt("first_k_dense_replace", 0, LAYERS_MAX)?.unwrap_or(d.dense_layers);
            leading_dense(first, dense, arch.layers)
        }
        Some(types) => {
            let each = |t: &&str| match *t {
                "dense" => Some(dense),
                "sparse" => Some(Ffn::Moe),
                _ => None,
            };
            let ffn: Option<Vec<Ffn>> = types.iter().map(each).collect();
            let expected = || format!("{} times `dense` or `sparse`, one for each layer", arch.layers);
            ffn.filter(|f| f.len() == arch.layers).ok_or_else(|| c.wrong(KEY, expected()))?
        }
    };
    ffn.extend(vec![Ffn::Moe; arch.mtp_layers]);
    Ok(ffn)
}

/// Whether a GGUF file has this router: by its number, else by its bias.
pub(super) fn is_noaux_gguf(c: &GgufConfig<'_>) -> Result<bool, OpenError> {
    match c.number_opt("expert_gating_func", 0, usize::MAX)?.filter(|&f| f != 0) {
        Some(f) => Ok(f == GGUF_SIGMOID),
        None => Ok(has_selection_bias(c)),
    }
}

/// Puts feed-forward layers and mixture into `arch`, whose layers for multi-token prediction are known.
pub(super) fn noaux_mixture_from_gguf(c: &GgufConfig<'_>, arch: &mut Arch) -> Result<(), OpenError> {
    if is_set(c, "expert_gating_func") && !is_noaux_gguf(c)? {
        return Err(c.unsupported("expert_gating_func", "2 (sigmoid)", TODO_VARIANT));
    }
    arch.ffn = leading_dense_from_gguf(c, arch.layers)?;
    arch.ffn.extend(vec![Ffn::Moe; arch.mtp_layers]);
    let gate = noaux_gate(
        c.bool_or("expert_weights_norm", true)?,
        weights_scale(c)?,
        groups_from_gguf(c, GroupWorth::TwoBest)?,
    );
    arch.moe = Some(moe_from_gguf(c, gate)?);
    Ok(())
}

fn noaux_gate(normalize: bool, scale: f32, groups: Option<GateGroups>) -> Gate {
    Gate {
        selection_bias: true,
        groups,
        // Transformers adds it only where it divides, so an absent division has none.
        normalization: GateNormalization::sum_if(normalize, NORMALIZE_EPS),
        scale,
        ..Gate::plain(GateScore::Sigmoid)
    }
}
