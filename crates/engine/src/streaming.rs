//! Which experts to keep and which to read ahead, by name. These choices decide speed and nothing else.

use std::fmt;
use std::str::FromStr;

use calypte_model::Lookahead;
use calypte_residency::{Evict, LayerSize, policy, predict};

/// Layers that a predictor may be asked for ahead.
const LAYERS_AHEAD_MAX: usize = 8;

/// An eviction policy with its parameters, such as `successor` or `dfreq:32`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy(String);

impl Policy {
    /// A fresh one.
    pub(crate) fn make(&self) -> Box<dyn Evict> {
        policy::by_name(&self.0).unwrap_or_else(|| Box::<policy::Successor>::default())
    }

    /// What the budget counts for it.
    pub(crate) fn memory_bytes(&self, layers: &[LayerSize]) -> u64 {
        self.make().memory_bytes(layers)
    }
}

impl Default for Policy {
    fn default() -> Self {
        Policy(policy::DEFAULT.to_owned())
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(spec: &str) -> Result<Self, Self::Err> {
        match policy::by_name(spec) {
            Some(_) => Ok(Policy(spec.to_owned())),
            None => Err(format!(
                "no policy is called so, or its parameters are wrong; there are {}",
                policy::NAMES.join(", ")
            )),
        }
    }
}

/// A predictor of routing and how far it looks, such as `gate_ahead` or `learned:2`; or `none`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Predictor {
    name: String,
    layers_ahead: usize,
}

impl Predictor {
    /// None at all.
    pub fn none() -> Predictor {
        Predictor { name: "none".to_owned(), layers_ahead: 0 }
    }

    /// What the budget counts for it.
    pub(crate) fn memory_bytes(&self, layers: &[LayerSize]) -> u64 {
        predict::by_name(&self.name).map_or(0, |predictor| predictor.memory_bytes(layers, self.layers_ahead))
    }

    /// At work, or the one that never guesses.
    pub(crate) fn make(&self, read: bool) -> Lookahead {
        match predict::by_name(&self.name) {
            Some(predictor) => Lookahead::new(predictor, self.layers_ahead, read),
            None => Lookahead::default(),
        }
    }
}

impl Default for Predictor {
    fn default() -> Self {
        Predictor { name: predict::DEFAULT.to_owned(), layers_ahead: 1 }
    }
}

impl fmt::Display for Predictor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layers_ahead {
            0 | 1 => f.write_str(&self.name),
            layers => write!(f, "{}:{layers}", self.name),
        }
    }
}

impl FromStr for Predictor {
    type Err = String;

    fn from_str(spec: &str) -> Result<Self, Self::Err> {
        let (name, layers) = spec.split_once(':').unwrap_or((spec, "1"));
        let layers_ahead = layers.parse().ok().filter(|layers| (1..=LAYERS_AHEAD_MAX).contains(layers));
        match (name, layers_ahead) {
            ("none", _) if spec == "none" => Ok(Predictor::none()),
            (name, Some(layers_ahead)) if predict::NAMES.contains(&name) => {
                Ok(Predictor { name: name.to_owned(), layers_ahead })
            }
            _ => Err(format!(
                "no predictor is called so; there are none, {}, each with or without `:LAYERS` to look ahead \
                 (1 to {LAYERS_AHEAD_MAX})",
                predict::NAMES.join(", ")
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check<T: FromStr<Err = String> + fmt::Display>(spec: &str, known: bool) {
        match spec.parse::<T>() {
            Ok(parsed) => assert!(known && parsed.to_string() == spec, "{spec} became {parsed}"),
            Err(error) => assert!(!known && error.contains("there are"), "{spec}: {error}"),
        }
    }

    #[test]
    fn names_are_known_or_refused_with_those_that_are() {
        for name in policy::NAMES {
            check::<Policy>(name, true);
        }
        check::<Policy>("dfreq:32", true);
        for wrong in ["", "belady", "lru:3", "dfreq:0", "dfreq:x"] {
            check::<Policy>(wrong, false);
        }
        for name in predict::NAMES.iter().chain(&["none", "gate_ahead:2", "learned:8"]) {
            check::<Predictor>(name, true);
        }
        for wrong in ["", "gate", "gate_ahead:", "gate_ahead:0", "gate_ahead:9", "none:1", "draft_tokens"] {
            check::<Predictor>(wrong, false);
        }
    }
}
