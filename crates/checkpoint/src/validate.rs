//! Relations that every [`Arch`] must satisfy. Ranges of single values are checked where they are read.

use std::path::Path;

use crate::arch::{Arch, Attention, Ffn, GateGroups, Moe};
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
    let eps_fits = a.norm_eps.is_finite() && a.norm_eps >= 0.0 && a.norm_eps < 1.0;
    let layers = a.layers + a.mtp_layers;
    vec![
        rule(eps_fits, "norm epsilon", "a number between 0 and 1", a.norm_eps),
        rule(layers <= LAYERS_MAX, "layers", format!("at most {LAYERS_MAX} with prediction layers"), layers),
        rule(a.ffn.len() == layers, "layer types", format!("one for each of {layers} layers"), a.ffn.len()),
    ]
}

fn attention_rules(attention: &Attention) -> Vec<Rule> {
    match *attention {
        Attention::Gqa { heads, kv_heads, .. } => {
            let divides = kv_heads > 0 && heads.is_multiple_of(kv_heads);
            vec![rule(divides, "key/value heads", format!("a divisor of the {heads} query heads"), kv_heads)]
        }
        Attention::Mla { .. } => Vec::new(),
    }
}

fn rope_rules(a: &Arch) -> Vec<Rule> {
    let dims = a.rope.dims;
    let theta_fits = a.rope.theta.is_finite() && a.rope.theta > 0.0;
    let width = match a.attention {
        Attention::Gqa { head_dim, .. } => head_dim,
        Attention::Mla { rope, .. } => rope,
    };
    let mut rules = vec![
        rule(theta_fits, "rope theta", "a positive number", a.rope.theta),
        rule(dims > 0 && dims.is_multiple_of(2), "rotated values per head", "an even number", dims),
        rule(dims <= width, "rotated values per head", format!("at most the head's {width}"), dims),
    ];
    if let Some(dsa) = &a.dsa {
        let expected = format!("at least the {dims} rotated values");
        rules.push(rule(dsa.head_dim >= dims, "indexer head width", expected, dsa.head_dim));
        let layers = a.layers + a.mtp_layers;
        let expected = format!("one for each of {layers} layers");
        rules.push(rule(dsa.layers.len() == layers, "indexer types", expected, dsa.layers.len()));
    }
    rules
}

fn groups_fit(groups: GateGroups, moe: &Moe) -> bool {
    let GateGroups { count, kept } = groups;
    count > 0
        && moe.experts.is_multiple_of(count)
        && moe.experts / count >= 2
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
            "equal groups of at least two experts, the kept ones holding at least the experts per token",
            format!("{:?} of {} experts, {} per token", moe.gate.groups, moe.experts, moe.top_k),
        ),
        rule(scale_fits, "scale of expert weights", "a positive number", moe.gate.scale),
    ]
}
