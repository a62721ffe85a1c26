//! What a budget of bytes means in slots.
//!
//! Every layer owns a floor of slots that no other layer can take: a shared pool without floors scans the layers
//! cyclically and, below layers × k slots, never hits at all. Only the surplus is pooled: any layer may borrow what is
//! unused of it, and gives it back as soon as another layer wants its even share.

use crate::ResidencyError;

/// One MoE layer as the budget sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSize {
    /// Routed experts of the layer.
    pub experts: usize,
    /// Experts that the router picks for one token.
    pub top_k: usize,
    /// Memory that any one expert of the layer needs while it is resident, in bytes.
    pub slot_bytes: u64,
}

impl LayerSize {
    /// Slots the layer can always have: one token's experts, at least one so that a step can proceed, and never more
    /// than there are experts.
    pub fn slots_floor(&self) -> usize {
        self.top_k.max(1).min(self.experts)
    }

    /// Bytes of `slots` slots, saturating.
    pub fn bytes(&self, slots: usize) -> u64 {
        self.slot_bytes.saturating_mul(slots as u64)
    }
}

/// What a budget gives one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerShare {
    /// Slots that no other layer can take.
    pub slots_floor: usize,
    /// Slots when the surplus is spread as evenly as possible over the layers: what the layer has once all are busy.
    pub slots_even_share: usize,
    /// Slots when this layer has the whole surplus.
    pub slots_max: usize,
}

/// The least budget that works: the floor of every layer, in bytes.
pub fn floor_bytes(layers: &[LayerSize]) -> u64 {
    sum_bytes(layers, LayerSize::slots_floor)
}

/// The budget from which on nothing is read twice: every expert of every layer, in bytes.
pub fn whole_bytes(layers: &[LayerSize]) -> u64 {
    sum_bytes(layers, |layer| layer.experts)
}

/// What a budget of `budget_bytes` gives each layer, for the plan.
///
/// # Errors
/// [`ResidencyError::BelowFloor`] when the budget does not cover the floors.
pub fn share(layers: &[LayerSize], budget_bytes: u64) -> Result<Vec<LayerShare>, ResidencyError> {
    let surplus_bytes = surplus_bytes(layers, budget_bytes)?;
    let even = even_shares(layers, surplus_bytes);
    Ok(layers
        .iter()
        .zip(even)
        .map(|(layer, slots_even_share)| {
            let floor = layer.slots_floor();
            LayerShare {
                slots_floor: floor,
                slots_even_share,
                slots_max: slots_within(layer, floor, surplus_bytes),
            }
        })
        .collect())
}

/// Bytes left for the pool once every floor is paid.
pub(crate) fn surplus_bytes(layers: &[LayerSize], budget_bytes: u64) -> Result<u64, ResidencyError> {
    let floor_bytes = floor_bytes(layers);
    budget_bytes.checked_sub(floor_bytes).ok_or(ResidencyError::BelowFloor { budget_bytes, floor_bytes })
}

/// Adds one slot to every layer in turn until nothing fits. At most `max(experts)` rounds.
fn even_shares(layers: &[LayerSize], surplus_bytes: u64) -> Vec<usize> {
    let mut slots: Vec<usize> = layers.iter().map(LayerSize::slots_floor).collect();
    let mut left_bytes = surplus_bytes;
    loop {
        let mut grew = false;
        for (layer, slots) in layers.iter().zip(&mut slots) {
            if *slots < layer.experts && layer.slot_bytes <= left_bytes {
                *slots += 1;
                left_bytes -= layer.slot_bytes;
                grew = true;
            }
        }
        if !grew {
            return slots;
        }
    }
}

/// Slots of `layer` when `surplus_bytes` are spent on it alone.
fn slots_within(layer: &LayerSize, floor: usize, surplus_bytes: u64) -> usize {
    match surplus_bytes.checked_div(layer.slot_bytes) {
        Some(more) => {
            let more = usize::try_from(more).unwrap_or(usize::MAX);
            floor.saturating_add(more).min(layer.experts)
        }
        None => layer.experts,
    }
}

fn sum_bytes(layers: &[LayerSize], slots: impl Fn(&LayerSize) -> usize) -> u64 {
    layers.iter().map(|layer| layer.bytes(slots(layer))).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(experts: usize, top_k: usize, slot_bytes: u64) -> LayerSize {
        LayerSize { experts, top_k, slot_bytes }
    }

    /// `expected`: floor, even share and maximum of every layer, or the floor in bytes when the budget is refused.
    fn check(layers: &[LayerSize], budget_bytes: u64, expected: Result<&[(usize, usize, usize)], u64>) {
        let got = match share(layers, budget_bytes) {
            Ok(shares) => Ok(shares
                .iter()
                .map(|s| (s.slots_floor, s.slots_even_share, s.slots_max))
                .collect::<Vec<_>>()),
            Err(ResidencyError::BelowFloor { floor_bytes, .. }) => Err(floor_bytes),
            Err(other) => panic!("{other}"),
        };
        assert_eq!(got, expected.map(<[_]>::to_vec), "budget {budget_bytes}");
    }

    #[test]
    fn a_budget_in_slots() {
        let equal = [layer(8, 2, 10), layer(8, 2, 10)];
        check(&equal, 39, Err(40));
        check(&equal, 40, Ok(&[(2, 2, 2), (2, 2, 2)]));
        check(&equal, 59, Ok(&[(2, 3, 3), (2, 2, 3)]));
        check(&equal, 160, Ok(&[(2, 8, 8), (2, 8, 8)]));
        check(&equal, u64::MAX, Ok(&[(2, 8, 8), (2, 8, 8)]));
        let mixed = [layer(4, 2, 10), layer(4, 2, 30)];
        check(&mixed, 80 + 39, Ok(&[(2, 4, 4), (2, 2, 3)]));
        check(&mixed, 80 + 40, Ok(&[(2, 3, 4), (2, 3, 3)]));
        // More picked than there are, none picked, no experts, no bytes.
        check(&[layer(2, 8, 10)], 20, Ok(&[(2, 2, 2)]));
        check(&[layer(2, 0, 10)], 10, Ok(&[(1, 1, 1)]));
        check(&[layer(0, 4, 10)], 0, Ok(&[(0, 0, 0)]));
        check(&[layer(3, 1, 0)], 0, Ok(&[(1, 3, 3)]));
    }

    #[test]
    fn floor_and_whole() {
        let layers = [layer(4, 2, 10), layer(4, 3, 30)];
        assert_eq!(floor_bytes(&layers), 110);
        assert_eq!(whole_bytes(&layers), 160);
        assert_eq!(whole_bytes(&[layer(usize::MAX, 1, u64::MAX); 2]), u64::MAX, "saturates");
    }
}
