//! What happens when a step begins: all decisions that shape what is resident.

use std::collections::VecDeque;

use super::{Command, Key, Machine, Role, SlotState, Step};

impl Machine {
    /// Classifies the union against what is resident, makes room, decides who stays, and starts the reads.
    pub(super) fn begin(&mut self, layer: u32, union: &[u32], commands: &mut Vec<Command>) {
        let members = self.enlist(layer, union);
        let in_state = |machine: &Machine, state| -> Vec<u32> {
            let of = |&expert: &u32| machine.state(Key { layer, expert }) == state;
            members.iter().copied().filter(of).collect()
        };
        let hits = in_state(self, SlotState::Ready);
        let mut missing = in_state(self, SlotState::Free);
        self.counts.steps += 1;
        self.counts.hits += hits.len() as u64;
        self.counts.misses += (members.len() - hits.len()) as u64;

        let mut rooms = 0;
        while rooms < missing.len() && self.acquire(layer, commands) {
            rooms += 1;
        }
        let short = missing.len() - rooms;
        if short > 0 {
            let loading = in_state(self, SlotState::Loading);
            self.choose_passing(layer, &[&hits[..], &loading].concat(), &missing, rooms, short);
            // What stays must come last: it never frees a slot for what is still to come.
            missing.sort_by_key(|&expert| self.role(Key { layer, expert }) == Role::Stays);
        }
        for &expert in &missing[..rooms] {
            self.load(Key { layer, expert }, commands);
        }
        let left = members.len();
        self.step = Some(Step {
            layer,
            members,
            pending: VecDeque::from(missing.split_off(rooms)),
            left,
            failed: false,
        });
        for expert in hits {
            self.hand_out(Key { layer, expert }, commands);
        }
        if self.step_left() == 0 {
            self.abort();
        }
    }

    /// Marks the union's experts as needed, each once, and tells the policy of their use.
    fn enlist(&mut self, layer: u32, union: &[u32]) -> Vec<u32> {
        self.layers[layer as usize].clock += 1;
        let clock = self.layers[layer as usize].clock;
        let mut members = Vec::with_capacity(union.len());
        for &expert in union {
            let key = Key { layer, expert };
            let slot = self.slot_mut(key);
            if slot.role == Role::Outside {
                slot.role = Role::Stays;
                let proven = std::mem::take(&mut slot.unproven);
                self.counts.prefetches_used += u64::from(proven);
                self.refresh(key);
                self.policy.touched(key, clock);
                members.push(expert);
            }
        }
        self.policy.step_touched(layer, clock, &members);
        members
    }

    /// Has the policy name `short` members that will not keep their slots, when `rooms` slots are free for misses;
    /// `held` are the members that have slots.
    ///
    /// At least a floor of slots keeps passing experts on, so that reads never trickle one at a time: those that are held make way if
    /// the free slots are fewer. That also rules out the deadlock in which every slot is held by one that stays.
    /// Experts that a caller leased before this step are not chosen: nobody knows when they are released.
    fn choose_passing(&mut self, layer: u32, held: &[u32], missing: &[u32], rooms: usize, short: usize) {
        let flow = self.layers[layer as usize].floor;
        let from_held = flow.saturating_sub(rooms).min(short);
        let leasable: Vec<u32> =
            held.iter().copied().filter(|&expert| self.leases(Key { layer, expert }) == 0).collect();
        self.offer(layer, &leasable);
        let chosen = self.take_passing(layer, from_held);
        self.offer(layer, missing);
        self.take_passing(layer, short - chosen);
        for &expert in leasable.iter().chain(missing) {
            let key = Key { layer, expert };
            if self.role(key) == Role::Stays {
                self.policy.pinned(key);
            }
        }
    }

    fn offer(&mut self, layer: u32, experts: &[u32]) {
        for &expert in experts {
            self.policy.unpinned(Key { layer, expert });
        }
    }

    /// Gives up to `count` offered members the role of passing through; returns how many.
    fn take_passing(&mut self, layer: u32, count: usize) -> usize {
        for taken in 0..count {
            let Some(key) = self.policy.victim(&[layer]) else {
                return taken;
            };
            // Guards against a policy that names what was not offered.
            if key.layer != layer || self.role(key) != Role::Stays {
                return taken;
            }
            self.slot_mut(key).role = Role::Passes;
            self.policy.pinned(key);
        }
        count
    }

    fn role(&self, key: Key) -> Role {
        self.slot(key).map_or(Role::Outside, |slot| slot.role)
    }
}
