//! What of a model was used, in counts that fade: what the next run is told of this one.
//!
//! Counted by tokens as the router sends them to experts, not by steps of the cache: so it says the same whatever the budget, the
//! size of prefill steps and the policy. A count is the sum over an expert's uses of `2^(-age / half-life)`, age in tokens: one
//! long evening with one subject does not erase what was before, and what never comes again is gone in time.

use std::sync::LazyLock;

/// Tokens after which a use counts half. Eight to thirty conversations of usual length: long against any one of them, short
/// against a change of what somebody does with a model. A power of two: its root is then a chain of square roots.
pub const HALF_LIFE_TOKENS: u32 = 1 << HALF_LIFE_TOKENS_LOG2;
const HALF_LIFE_TOKENS_LOG2: u32 = 13;

/// The unit of a layer is brought back to 1 before it is larger than this, far below where an f64 loses precision or ends.
const UNIT_MAX: f64 = (1u64 << 40) as f64;

/// No count can be larger: one use in every token there ever was is 1 / (1 - 2^(-1 / half-life)), which is below this.
pub const USES_MAX: f32 = 2.0 * HALF_LIFE_TOKENS as f32;

/// Decayed uses of every expert of every MoE layer, and how many tokens they are of.
#[derive(Clone, Debug, PartialEq)]
pub struct Usage {
    tokens: u64,
    layers: Vec<LayerUsage>,
}

#[derive(Clone, Debug, PartialEq)]
struct LayerUsage {
    /// In units of `unit`.
    uses: Vec<f64>,
    /// What a use counts now. It grows with every token, instead of everything before it shrinking.
    unit: f64,
    /// Tokens counted in this layer.
    tokens: u64,
}

/// How much more a use counts than one a token earlier: the half-life's root of 2. Square roots are exact to the last bit on every
/// platform, powers are not.
static GROWTH: LazyLock<f64> =
    LazyLock::new(|| (0..HALF_LIFE_TOKENS_LOG2).fold(2.0f64, |power, _| power.sqrt()));

/// What is left of a use after so many tokens, by squaring.
fn left_after(tokens: u64) -> f64 {
    let (mut left, mut factor, mut rest) = (1.0, 1.0 / *GROWTH, tokens);
    while rest > 0 && left > 0.0 {
        if rest & 1 == 1 {
            left *= factor;
        }
        factor *= factor;
        rest >>= 1;
    }
    left
}

impl LayerUsage {
    fn new(uses: Vec<f64>) -> LayerUsage {
        LayerUsage { uses, unit: 1.0, tokens: 0 }
    }

    fn record(&mut self, experts: &[u32]) {
        self.tokens += 1;
        self.unit *= *GROWTH;
        if self.unit > UNIT_MAX {
            self.uses.iter_mut().for_each(|uses| *uses /= self.unit);
            self.unit = 1.0;
        }
        for &expert in experts {
            if let Some(uses) = self.uses.get_mut(expert as usize) {
                *uses += self.unit;
            }
        }
    }

    fn now(&self) -> impl Iterator<Item = f64> {
        self.uses.iter().map(|uses| uses / self.unit)
    }
}

impl Usage {
    /// Nothing used so far, of layers with these numbers of experts.
    pub fn new(experts: impl IntoIterator<Item = usize>) -> Usage {
        let layers = experts.into_iter().map(|experts| LayerUsage::new(vec![0.0; experts]));
        Usage { tokens: 0, layers: layers.collect() }
    }

    /// What was written down before: `tokens` ever counted, and the decayed uses `[layer][expert]`. `None` unless all uses are
    /// numbers from 0 to [`USES_MAX`].
    pub fn from_uses(tokens: u64, uses: Vec<Vec<f32>>) -> Option<Usage> {
        let sane = uses.iter().flatten().all(|uses| (0.0..=USES_MAX).contains(uses));
        let layer = |uses: Vec<f32>| LayerUsage::new(uses.into_iter().map(f64::from).collect());
        sane.then(|| Usage { tokens, layers: uses.into_iter().map(layer).collect() })
    }

    /// The router of MoE layer `layer` sent a token to `experts`. Unknown layers and experts are ignored.
    pub fn record(&mut self, layer: usize, experts: &[u32]) {
        if let Some(usage) = self.layers.get_mut(layer) {
            usage.record(experts);
            // A token goes through all layers; the first one counts it.
            self.tokens += u64::from(layer == 0);
        }
    }

    /// `later` came after it: what was before fades by as many tokens. Layers and experts that `later` does not know are dropped.
    pub fn followed_by(&self, later: &Usage) -> Usage {
        let layers = later.layers.iter().enumerate().map(|(number, later)| {
            let left = left_after(later.tokens);
            let mut uses: Vec<f64> = later.now().collect();
            if let Some(before) = self.layers.get(number) {
                uses.iter_mut().zip(before.now()).for_each(|(uses, before)| *uses += before * left);
            }
            LayerUsage { uses, unit: 1.0, tokens: later.tokens }
        });
        Usage { tokens: self.tokens.saturating_add(later.tokens), layers: layers.collect() }
    }

    /// Tokens counted, faded or not.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// MoE layers.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// Decayed uses of every expert of a layer; none for a layer that does not exist.
    pub fn uses(&self, layer: usize) -> impl Iterator<Item = f32> {
        self.layers.get(layer).into_iter().flat_map(LayerUsage::now).map(|uses| uses as f32)
    }

    /// For every expert of a layer whose router picks `top_k`, the share of tokens that used it, 0 to 1, as far as they are not
    /// forgotten. All 0 when nothing was used.
    pub fn shares(&self, layer: usize, top_k: usize) -> Vec<f32> {
        let total: f32 = self.uses(layer).sum();
        let share = |uses: f32| if total > 0.0 { (uses * top_k as f32 / total).min(1.0) } else { 0.0 };
        self.uses(layer).map(share).collect()
    }

    /// Memory that the counts of layers of these numbers of experts take, in bytes.
    pub fn memory_bytes(experts: impl Iterator<Item = usize>) -> u64 {
        experts.map(|experts| experts as u64 * size_of::<f64>() as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The defining sum: uses of one expert by the number of the token, of `tokens` in all.
    #[track_caller]
    fn check(usage: &Usage, used_at: &[u64], tokens: u64) {
        let age = |at: &u64| (tokens - at) as f64 / f64::from(HALF_LIFE_TOKENS);
        let expected: f64 = used_at.iter().map(|at| 2f64.powf(-age(at))).sum();
        let got: Vec<f32> = usage.uses(0).collect();
        assert!((f64::from(got[0]) - expected).abs() <= 1e-6 * expected, "{got:?} instead of {expected}");
        assert_eq!(usage.tokens(), tokens);
    }

    /// Tokens `from..to`, of which those in `used_at` use expert 0 and all others expert 1.
    fn counted(used_at: &[u64], from: u64, to: u64) -> Usage {
        let mut usage = Usage::new([2]);
        (from..to).for_each(|at| usage.record(0, &[u32::from(!used_at.contains(&(at + 1)))]));
        usage
    }

    #[test]
    fn uses_fade_within_a_run_and_from_run_to_run() {
        let half = u64::from(HALF_LIFE_TOKENS);
        // The last one is beyond the largest unit.
        for tokens in [1, half, half + 5, 50 * half] {
            let used_at = [1, half / 2, half, 49 * half].map(|at| at.clamp(1, tokens));
            let used_at: Vec<u64> = std::collections::BTreeSet::from(used_at).into_iter().collect();
            check(&counted(&used_at, 0, tokens), &used_at, tokens);
            for cut in [0, tokens / 3, tokens] {
                let runs = counted(&used_at, 0, cut).followed_by(&counted(&used_at, cut, tokens));
                check(&runs, &used_at, tokens);
            }
        }
    }

    #[test]
    fn shares_are_of_tokens() {
        let mut usage = Usage::new([4, 4]);
        for experts in [[0, 1], [0, 2]].iter().cycle().take(100) {
            usage.record(0, experts);
        }
        for (share, expected) in usage.shares(0, 2).into_iter().zip([1.0, 0.5, 0.5, 0.0]) {
            assert!((share - expected).abs() < 0.01, "{share} for {expected}");
        }
        assert_eq!(usage.shares(1, 2), [0.0; 4], "nothing used");
        assert!(usage.shares(2, 2).is_empty(), "no such layer");
        usage.record(0, &[9]);
        usage.record(7, &[0]);
        assert_eq!(usage.tokens(), 101, "an unknown layer is no token");
    }

    #[test]
    fn only_what_can_be_is_believed() {
        for (uses, sane) in
            [(0.0, true), (USES_MAX, true), (-0.1, false), (USES_MAX * 1.1, false), (f32::NAN, false)]
        {
            assert_eq!(Usage::from_uses(1, vec![vec![1.0, uses]]).is_some(), sane, "{uses}");
        }
        let mut most = Usage::new([1]);
        (0..40 * HALF_LIFE_TOKENS).for_each(|_| most.record(0, &[0]));
        let uses: Vec<f32> = most.uses(0).collect();
        assert!(Usage::from_uses(1, vec![uses.clone()]).is_some(), "{uses:?} is what one expert can have");
    }
}
