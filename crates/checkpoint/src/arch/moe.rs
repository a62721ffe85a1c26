//! The mixture of experts and its router.

/// A mixture of gated MLPs.
#[derive(Clone, Debug, PartialEq)]
pub struct Moe {
    /// Routed experts per layer.
    pub experts: usize,
    /// Experts each token visits.
    pub top_k: usize,
    /// Inner width of a routed expert.
    pub width: usize,
    /// Inner width of the shared expert, if there is one (several are stored as one wide one).
    pub shared_width: Option<usize>,
    /// The shared expert's output is multiplied by the sigmoid of a learned projection of the input (Qwen2-MoE).
    pub shared_gate: bool,
    /// Experts have biases (gpt-oss).
    pub expert_bias: bool,
    /// How the router's logits become weights.
    pub gate: Gate,
}

impl Moe {
    /// Routed experts alone: none shared, no biases.
    pub fn routed(experts: usize, top_k: usize, width: usize, gate: Gate) -> Moe {
        Moe { experts, top_k, width, shared_width: None, shared_gate: false, expert_bias: false, gate }
    }
}

/// The router's arithmetic, in the order in which it is applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Gate {
    /// The router has a bias that is part of its logits.
    pub logit_bias: bool,
    /// From logits to scores.
    pub score: GateScore,
    /// A learned bias is added for the *selection* only (DeepSeek-V3's loss-free balancing, arXiv 2408.15664).
    pub selection_bias: bool,
    /// Experts are chosen from the best groups only (DeepSeek-V2's device-limited routing).
    pub groups: Option<GateGroups>,
    /// What the chosen scores are divided by.
    pub normalization: GateNormalization,
    /// The weights are multiplied by this at the end.
    pub scale: f32,
}

impl Gate {
    /// Scores as they are: no biases, groups, normalisation or scale.
    pub const fn plain(score: GateScore) -> Gate {
        Gate {
            logit_bias: false,
            score,
            selection_bias: false,
            groups: None,
            normalization: GateNormalization::None,
            scale: 1.0,
        }
    }
}

/// What the scores of the chosen experts are divided by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GateNormalization {
    /// Nothing.
    None,
    /// Their sum and this little more.
    Sum {
        /// Added to the sum.
        eps: f32,
    },
    /// Their sum, but at least this.
    SumAtLeast {
        /// Lower bound of the divisor.
        min: f32,
    },
}

impl GateNormalization {
    /// Division by the sum if `normalize`, with `eps` added to it.
    pub fn sum_if(normalize: bool, eps: f32) -> GateNormalization {
        if normalize { GateNormalization::Sum { eps } } else { GateNormalization::None }
    }
}

/// Consecutive experts in groups of equal size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateGroups {
    /// Groups; divides the number of experts.
    pub count: usize,
    /// Groups that experts are chosen from.
    pub kept: usize,
    /// How groups compare.
    pub worth: GroupWorth,
}

/// How much a group of experts counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupWorth {
    /// As much as its best expert (DeepSeek-V2).
    Best,
    /// As much as its two best experts together (DeepSeek-V3).
    TwoBest,
}

/// From router logits to scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateScore {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each logit.
    Sigmoid,
    /// The logits choose, and the weights are the softmax over the chosen ones only.
    SoftmaxOfChosen,
}
