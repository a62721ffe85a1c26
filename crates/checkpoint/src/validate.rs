//! Relations that every [`Arch`] must satisfy. Ranges of single values are checked where they are read.

use std::path::Path;

use crate::arch::{Arch, Attention, Ffn, GateGroups, GroupWorth, Moe, Rope, RopeScaling, View};
use crate::error::OpenError;
use crate::limits::LAYERS_MAX;

/// Checks `arch`, which the file `path` describes.
///
/// # Errors
/// [`OpenError::Config`]; since both formats come here, keys are named by what they mean.
pub(crate) fn check(path: &Path, arch: &Arch) -> Result<(), OpenError> {
    let rules = [general_rules(arch), attention_rules(&arch.attention), rope_rules(arch), moe_rules(arch)];
    match rules.into_iter().flatten().find(|rule| !rule.holds) {
        None => Ok(()),
        Some(Rule { key, expected, found, .. }) => {
            Err(OpenError::Config { path: path.to_owned(), key: key.to_owned(), expected, found })
        }
    }
}

struct Rule {
    holds: bool,
    key: &'static str,
    expected: String,
    found: String,
}

fn rule(holds: bool, key: &'static str, expected: impl Into<String>, found: impl ToString) -> Rule {
    Rule { holds, key, expected: expected.into(), found: found.to_string() }
}

fn general_rules(a: &Arch) -> Vec<Rule> {
    let eps = a.norms.eps;
    let eps_fits = eps.is_finite() && (0.0..1.0).contains(&eps);
    let layers = a.layers_stored();
    let scales = [a.scales.embedding, a.scales.residual, a.scales.logits];
    let scales_fit = scales.iter().all(|s| s.is_finite()) && a.scales.logit_softcap.is_none_or(is_cap);
    let conv_fits = a.short_conv.as_ref().is_none_or(|c| c.length > 0 && c.layers.len() == layers);
    vec![
        rule(eps_fits, "norm epsilon", "a number between 0 and 1", eps),
        rule(layers <= LAYERS_MAX, "layers", format!("at most {LAYERS_MAX} with prediction layers"), layers),
        rule(a.ffn.len() == layers, "layer types", format!("one for each of {layers} layers"), a.ffn.len()),
        rule(a.views.len() == layers, "windows", format!("one for each of {layers} layers"), a.views.len()),
        rule(
            conv_fits,
            "layers with a convolution",
            "one answer for each layer",
            format!("{:?}", a.short_conv),
        ),
        rule(scales_fit, "multipliers", "finite numbers", format!("{:?}", a.scales)),
    ]
}

fn is_cap(cap: f32) -> bool {
    cap.is_finite() && cap > 0.0
}

fn attention_rules(attention: &Attention) -> Vec<Rule> {
    let scale_rule =
        |s: f32| rule(s.is_finite() && s > 0.0, "scale of attention scores", "a positive number", s);
    match attention {
        Attention::Gqa(a) => {
            let divides = a.kv_heads > 0 && a.heads.is_multiple_of(a.kv_heads);
            let expected = format!("a divisor of the {} query heads", a.heads);
            vec![
                rule(divides, "key/value heads", expected, a.kv_heads),
                rule(
                    a.clip.is_none_or(is_cap),
                    "clamp of queries, keys and values",
                    "a positive number",
                    format!("{:?}", a.clip),
                ),
                scale_rule(a.scale),
            ]
        }
        Attention::Mla(a) => vec![scale_rule(a.scale)],
    }
}

fn rope_rules(a: &Arch) -> Vec<Rule> {
    let width = a.attention.rotated_max();
    let mut rules: Vec<Rule> = a.ropes.iter().flat_map(|r| one_rope(r, width)).collect();
    let known = a.views.iter().filter_map(|v| v.rope).all(|i| i < a.ropes.len());
    rules.push(rule(known, "rotary embeddings", "one for every layer that has positions", a.ropes.len()));
    // One table of angles serves attention and indexer, and latent attention knows no layer without positions.
    let latent = matches!(a.attention, Attention::Mla(_));
    let uniform = a.ropes.len() == 1 && a.ropes[0].dims == width && a.views.iter().all(|v| *v == View::FULL);
    rules.push(rule(
        !latent || uniform,
        "positions of latent attention",
        "the same in all layers",
        a.ropes.len(),
    ));
    if let (Some(dsa), Some(rope)) = (&a.dsa, a.ropes.first()) {
        let expected = format!("at least the {} rotated values", rope.dims);
        rules.push(rule(dsa.head_dim >= rope.dims, "indexer head width", expected, dsa.head_dim));
        let layers = a.layers_stored();
        let expected = format!("one for each of {layers} layers");
        rules.push(rule(dsa.layers.len() == layers, "indexer types", expected, dsa.layers.len()));
        let bottleneck = matches!(&a.attention, Attention::Mla(m) if m.q_lora.is_some());
        rules.push(rule(bottleneck, "query bottleneck", "one, since the indexer reads from it", "none"));
    }
    rules
}

fn one_rope(rope: &Rope, width: usize) -> Vec<Rule> {
    let (theta, dims) = (rope.theta, rope.dims);
    let scaling_fits = match rope.scaling {
        RopeScaling::None | RopeScaling::Stored => true,
        RopeScaling::Linear { factor } => factor.is_finite() && factor > 0.0,
        RopeScaling::Llama3 { factor, low, high, original_context } => {
            [factor, low, original_context].iter().all(|v| v.is_finite() && *v > 0.0) && high > low
        }
        RopeScaling::Yarn { factor, beta_fast, beta_slow, original_context, attention_factor, .. } => {
            let positive = [factor, beta_fast, beta_slow, original_context, attention_factor as f64];
            positive.iter().all(|v| v.is_finite() && *v > 0.0) && theta != 1.0
        }
    };
    vec![
        rule(theta.is_finite() && theta > 0.0, "rope theta", "a positive number", theta),
        rule(dims > 0 && dims.is_multiple_of(2), "rotated values per head", "an even number", dims),
        rule(dims <= width, "rotated values per head", format!("at most the head's {width}"), dims),
        rule(scaling_fits, "rope scaling", "positive numbers in order", format!("{:?}", rope.scaling)),
    ]
}

fn groups_fit(groups: GateGroups, moe: &Moe) -> bool {
    let GateGroups { count, kept, worth } = groups;
    let size_min = match worth {
        GroupWorth::Best => 1,
        GroupWorth::TwoBest => 2,
    };
    count > 0
        && moe.experts.is_multiple_of(count)
        && moe.experts / count >= size_min
        && kept <= count
        && kept * (moe.experts / count) >= moe.top_k
}

fn moe_rules(a: &Arch) -> Vec<Rule> {
    let needs_moe = a.ffn.contains(&Ffn::Moe);
    let Some(moe) = &a.moe else {
        return vec![rule(!needs_moe, "experts", "a mixture for the layers that have one", "none")];
    };
    let scale_fits = moe.gate.scale.is_finite() && moe.gate.scale > 0.0;
    vec![
        rule(
            moe.top_k <= moe.experts,
            "experts per token",
            format!("at most the {} experts", moe.experts),
            moe.top_k,
        ),
        rule(
            moe.gate.groups.is_none_or(|g| groups_fit(g, moe)),
            "expert groups",
            "equal groups of at least two experts (one if only the best counts), the kept ones holding at least the experts per token",
            format!("{:?} of {} experts, {} per token", moe.gate.groups, moe.experts, moe.top_k),
        ),
        rule(scale_fits, "scale of expert weights", "a positive number", moe.gate.scale),
    ]
}
