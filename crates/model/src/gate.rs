//! The router's arithmetic: from logits to the chosen experts and their weights.

use calypte_checkpoint::arch::{Gate, GateGroups, GateNormalization, GateScore, GroupWorth};
use calypte_kernels::{math, ops};

/// One row's choice.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Choice {
    /// Experts, best first. This order is the order of summation.
    pub experts: Vec<u32>,
    /// Their weights.
    pub weights: Vec<f32>,
}

/// Chooses `top_k` experts from `logits` (turned into scores in place). `None` when a score is not finite.
///
/// `bias` counts for the choice only. Equal scores: the lower expert number wins.
pub(crate) fn choose(gate: &Gate, top_k: usize, bias: Option<&[f32]>, logits: &mut [f32]) -> Option<Choice> {
    match gate.score {
        GateScore::Softmax => ops::softmax(logits),
        GateScore::Sigmoid => logits.iter_mut().for_each(|v| *v = math::sigmoid(*v)),
        GateScore::SoftmaxOfChosen => {}
    }
    let scores = &*logits;
    if scores.iter().any(|s| !s.is_finite()) {
        return None;
    }
    let rank = |e: u32| scores[e as usize] + bias.map_or(0.0, |b| b[e as usize]);
    let best_first = |a: &u32, b: &u32| rank(*b).total_cmp(&rank(*a)).then(a.cmp(b));
    let mut experts: Vec<u32> = (0..scores.len() as u32).collect();
    if let Some(groups) = gate.groups {
        keep_groups(groups, rank, best_first, &mut experts);
    }
    experts.sort_unstable_by(best_first);
    experts.truncate(top_k);
    let mut weights: Vec<f32> = experts.iter().map(|e| scores[*e as usize]).collect();
    if gate.score == GateScore::SoftmaxOfChosen {
        ops::softmax(&mut weights);
    }
    let sum = || weights.iter().sum::<f32>();
    let divisor = match gate.normalization {
        GateNormalization::None => None,
        GateNormalization::Sum { eps } => Some(sum() + eps),
        GateNormalization::SumAtLeast { min } => Some(sum().max(min)),
    };
    if let Some(divisor) = divisor {
        weights.iter_mut().for_each(|w| *w /= divisor);
    }
    if gate.scale != 1.0 {
        weights.iter_mut().for_each(|w| *w *= gate.scale);
    }
    Some(Choice { experts, weights })
}

/// Keeps the experts of the best groups. Equal groups: the lower one wins.
fn keep_groups(
    groups: GateGroups,
    rank: impl Fn(u32) -> f32,
    best_first: impl Fn(&u32, &u32) -> std::cmp::Ordering,
    experts: &mut Vec<u32>,
) {
    let size = experts.len() / groups.count;
    let counted = match groups.worth {
        GroupWorth::Best => 1,
        GroupWorth::TwoBest => 2,
    };
    let mut worth: Vec<(f32, usize)> = experts
        .chunks_exact(size)
        .enumerate()
        .map(|(g, members)| {
            let mut members = members.to_vec();
            members.sort_unstable_by(&best_first);
            (members.iter().take(counted).map(|e| rank(*e)).sum(), g)
        })
        .collect();
    worth.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    worth.truncate(groups.kept);
    experts.retain(|e| worth.iter().any(|w| w.1 == *e as usize / size));
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGMOID: Gate = Gate {
        selection_bias: true,
        normalization: GateNormalization::Sum { eps: 1e-20 },
        scale: 2.0,
        ..Gate::plain(GateScore::Sigmoid)
    };
    const SOFTMAX: Gate = Gate::plain(GateScore::Softmax);

    #[track_caller]
    fn check(gate: &Gate, bias: Option<&[f32]>, logits: &[f32], experts: &[u32], weights: &[f32]) {
        let got = choose(gate, experts.len(), bias, &mut logits.to_vec()).expect("finite scores");
        assert_eq!(got.experts, experts);
        for (got, want) in got.weights.iter().zip(weights) {
            assert!((got - want).abs() < 1e-6, "{got} is not {want}");
        }
    }

    #[test]
    fn the_bias_selects_but_does_not_weigh() {
        // Equal scores of 0.5 each: the bias alone decides who is chosen, and the weights stay equal.
        check(&SIGMOID, Some(&[0.0, 3.0, 1.0, 2.0]), &[0.0; 4], &[1, 3], &[1.0, 1.0]);
    }

    #[test]
    fn softmax_weights_are_shares_of_all_experts() {
        let ln = f32::ln;
        check(&SOFTMAX, None, &[ln(1.0), ln(5.0), ln(2.0), ln(2.0)], &[1, 2], &[0.5, 0.2]);
        let normalized = Gate { normalization: GateNormalization::Sum { eps: 0.0 }, ..SOFTMAX };
        check(&normalized, None, &[ln(1.0), ln(6.0), ln(2.0), ln(1.0)], &[1, 2], &[0.75, 0.25]);
    }

    #[test]
    fn softmax_over_the_chosen_is_the_normalised_softmax() {
        let gate = Gate::plain(GateScore::SoftmaxOfChosen);
        let ln = f32::ln;
        check(&gate, None, &[ln(1.0), ln(6.0), ln(2.0), ln(1.0)], &[1, 2], &[0.75, 0.25]);
    }

    #[test]
    fn a_sum_below_the_least_divisor_is_not_divided_by() {
        let gate = Gate { normalization: GateNormalization::SumAtLeast { min: 2.0 }, ..SOFTMAX };
        check(&gate, None, &[f32::ln(3.0), 0.0], &[0], &[0.375]);
    }

    #[test]
    fn a_group_may_be_worth_its_best_expert() {
        // Group 0 has the best expert and the worst pair.
        let groups = |worth| Some(GateGroups { count: 2, kept: 1, worth });
        let logits = [3.0, -9.0, 2.5, 2.5];
        let first = |worth, expert: u32| {
            let gate = Gate { groups: groups(worth), ..SOFTMAX };
            let choice = choose(&gate, 1, None, &mut logits.to_vec()).expect("finite scores");
            assert_eq!(choice.experts, [expert]);
        };
        first(GroupWorth::Best, 0);
        first(GroupWorth::TwoBest, 2);
    }

    #[test]
    fn groups_are_worth_their_two_best() {
        // Group 0 has the best expert, group 1 the best pair: only its experts are in question.
        let groups = GateGroups { count: 2, kept: 1, worth: GroupWorth::TwoBest };
        let gate = Gate { groups: Some(groups), scale: 1.0, ..SIGMOID };
        let bias = [0.9, 0.0, 0.0, 0.5, 0.6, 0.4];
        check(&gate, Some(&bias), &[0.0; 6], &[4, 3], &[0.5, 0.5]);
    }

    #[test]
    fn scores_that_are_not_finite_are_refused() {
        assert_eq!(choose(&SOFTMAX, 1, None, &mut [f32::NAN, 0.0]), None);
        assert_eq!(choose(&SIGMOID, 1, None, &mut [f32::NAN, 0.0]), None);
    }
}
