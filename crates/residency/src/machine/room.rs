//! Who gets a slot, and who gives one up.

use super::{Command, Key, Layer, Machine, SlotState};
use crate::budget::{LayerSize, floor_bytes, share, surplus_bytes};

/// Slots that move along from layer to layer for reads ahead of a prompt: enough to keep a disk busy through an attention, and as
/// many fewer for what stays.
pub const AHEAD_SLOTS_MAX: usize = 16;

impl Machine {
    /// Makes room for one more slot of `layer`, if need be by eviction. `false` when nothing may be given up.
    pub(super) fn acquire(&mut self, layer: u32, commands: &mut Vec<Command>) -> bool {
        while !self.grow(layer) {
            self.set_scope_borrowers(layer);
            let borrowed = self.policy.victim(&self.scope);
            let victim = borrowed.or_else(|| self.policy.victim(&[layer]));
            if !victim.is_some_and(|victim| self.give_up(victim, commands)) {
                return false;
            }
        }
        true
    }

    /// Makes room for one more slot of `layer`, if need be by evictions from `giver`. That one gives what it borrowed, and a layer that did
    /// not borrow gives some of its own as long as few slots are away from where they belong.
    pub(super) fn acquire_from(&mut self, giver: u32, layer: u32, commands: &mut Vec<Command>) -> bool {
        while !self.grow(layer) {
            let borrowed = |layer: &Layer| layer.used.saturating_sub(layer.share);
            let of = &self.layers[giver as usize];
            let may_give = borrowed(of) > 0
                || of.used > of.floor && self.layers.iter().map(borrowed).sum::<usize>() < AHEAD_SLOTS_MAX;
            let victim = if may_give { self.policy.victim(&[giver]) } else { None };
            if !victim.is_some_and(|victim| self.give_up(victim, commands)) {
                return false;
            }
        }
        true
    }

    /// Evicts what the policy named. `false` when that is none of its candidates: such a policy is wrong, but must not be able to break a lease.
    fn give_up(&mut self, victim: Key, commands: &mut Vec<Command>) -> bool {
        let may = self.slot(victim).is_some_and(|slot| slot.candidate);
        if may {
            self.evict(victim, commands);
        }
        may
    }

    /// Takes a slot of `layer` from its floor or from the surplus.
    pub(super) fn grow(&mut self, layer: u32) -> bool {
        // Less than nothing is left after a budget was shrunk below what is leased.
        let left_bytes = self.surplus_bytes.saturating_sub(self.surplus_used_bytes);
        let layer = &mut self.layers[layer as usize];
        if layer.used >= layer.floor {
            if layer.size.slot_bytes > left_bytes {
                return false;
            }
            self.surplus_used_bytes += layer.size.slot_bytes;
        }
        layer.used += 1;
        true
    }

    /// Divides a smaller budget, and evicts what is beyond it: from the layers that are farthest above their new even shares.
    pub(super) fn shrink_to(&mut self, budget_bytes: u64, commands: &mut Vec<Command>) {
        let sizes: Vec<LayerSize> = self.layers.iter().map(|layer| layer.size).collect();
        let budget_bytes = budget_bytes.max(floor_bytes(&sizes));
        let (Ok(shares), Ok(surplus_bytes)) =
            (share(&sizes, budget_bytes), surplus_bytes(&sizes, budget_bytes))
        else {
            return;
        };
        if budget_bytes > self.budget_bytes {
            return;
        }
        for (layer, share) in self.layers.iter_mut().zip(shares) {
            layer.share = share.slots_even_share;
        }
        (self.budget_bytes, self.surplus_bytes) = (budget_bytes, surplus_bytes);
        let mut givers: Vec<u32> = (0..self.layers.len() as u32).collect();
        while self.surplus_used_bytes > self.surplus_bytes {
            let above = |&giver: &u32| {
                let layer = &self.layers[giver as usize];
                layer.used.saturating_sub(layer.share)
            };
            let Some(at) = (0..givers.len()).max_by_key(|&at| above(&givers[at])) else { return };
            let giver = givers[at];
            let victim = if above(&giver) > 0 { self.policy.victim(&[giver]) } else { None };
            if !victim.is_some_and(|victim| self.give_up(victim, commands)) {
                // All of it is leased or being read.
                givers.swap_remove(at);
            }
        }
    }

    /// Gives a slot of `layer` back to the surplus or to its floor.
    pub(super) fn shrink(&mut self, layer: u32) {
        let layer = &mut self.layers[layer as usize];
        if layer.used > layer.floor {
            self.surplus_used_bytes -= layer.size.slot_bytes;
        }
        layer.used -= 1;
    }

    /// Which layers lose a slot so that `layer` gains one: those above their even share while it is below its own.
    ///
    /// Otherwise every layer keeps to itself: a policy's values rank the experts of one layer, but across layers they
    /// favour those whose routing is concentrated, which costs hits. Ties go to the layer whose next turn is farthest:
    /// backwards from this one.
    fn set_scope_borrowers(&mut self, layer: u32) {
        self.scope.clear();
        let layers = &self.layers;
        let own = &layers[layer as usize];
        if own.used < own.share {
            let count = layers.len() as u32;
            let others = (0..layer).rev().chain((layer + 1..count).rev());
            let borrows = |&other: &u32| layers[other as usize].used > layers[other as usize].share;
            self.scope.extend(others.filter(borrows));
        }
    }

    pub(super) fn evict(&mut self, key: Key, commands: &mut Vec<Command>) {
        let slot = self.slot_mut(key);
        slot.state = SlotState::Free;
        slot.candidate = false;
        let unproven = std::mem::take(&mut slot.unproven);
        self.policy.evicted(key);
        self.shrink(key.layer);
        self.counts.evictions += 1;
        self.counts.prefetches_wasted += u64::from(unproven);
        commands.push(Command::Evict(key));
    }
}
