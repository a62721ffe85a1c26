//! The state machine: events in, commands out, no clock, no threads, no memory of its own.
//!
//! Every expert has a slot that is FREE (it holds no memory), LOADING or READY. READY slots are reachable through
//! leases only; a leased or loading slot is never given up, and neither is one that the current step still has to hand
//! out.
//!
//! Replays must not depend on how fast a disk was, so everything that shapes the set of resident experts is decided
//! when a step begins. When the union exceeds what fits, the policy names at that moment the experts that will *pass*
//! through (read, handed out, given up as soon as they are released) while the rest *stay*; reads then go in waves.

mod plan;
mod room;

use std::collections::VecDeque;

use crate::budget::{LayerSize, share, surplus_bytes};
use crate::predict::Guess;
use crate::{Evict, MachineCounts, ResidencyError};

pub use room::AHEAD_SLOTS_MAX;

/// One routed expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// MoE layer, counted from 0 over the layers that have experts.
    pub layer: u32,
    /// Expert in that layer.
    pub expert: u32,
}

/// What the machine is told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<'a> {
    /// A step of `layer` needs the experts of `union`, to be read in this order; repeated experts count once. An
    /// unfinished step is aborted first.
    Begin {
        /// MoE layer.
        layer: u32,
        /// Experts.
        union: &'a [u32],
    },
    /// A [`Command::Load`] succeeded.
    Landed(Key),
    /// A [`Command::Load`] failed: the slot is FREE again. Nothing more is read for the step until it is aborted.
    Failed(Key),
    /// One lease of this expert was given back.
    Released(Key),
    /// Nothing that the step needs is being read, nothing will be released, and the step is not finished: experts that should stay may
    /// be given up too.
    Stalled,
    /// The step is over. Reads in flight still land, in slots that nobody waits for.
    Abort,
    /// The next steps are of another conversation.
    Sequence,
    /// From now on at most this many bytes, or the floors if they are more. An unfinished step is aborted. More than the budget of now
    /// changes nothing: what was given back stays so.
    Shrink {
        /// The new budget.
        budget_bytes: u64,
    },
    /// What a predictor expects of `layer` ([`Evict::expects`]). Only the policy cares.
    Expect {
        /// MoE layer.
        layer: u32,
        /// Experts, the tokens that will use them, and how likely that is.
        guesses: &'a [Guess],
    },
    /// Share of tokens that used each expert of `layer` in earlier runs, `[experts]` ([`Evict::seed`]). Of no effect once the layer
    /// had a step or holds an expert, or if there are not as many as experts. Only the policy cares.
    Seed {
        /// MoE layer.
        layer: u32,
        /// One number an expert, 0 to 1.
        shares: &'a [f32],
    },
    /// As [`Event::Prefetch`], but only into a slot of its layer's even share that nobody has: nothing is given up for it.
    Warm(Key),
    /// An expert that no step has asked for may be read, if its slot is FREE and its layer has a slot to spare. Worth it
    /// or not, the caller must know.
    Prefetch(Key),
    /// As [`Event::Prefetch`], for a step of many tokens, which will need all that its layer already has: the slot comes from what nobody
    /// uses, or from layer `after`, whose turn is over. Of no effect when that one has none to spare (see [`AHEAD_SLOTS_MAX`]).
    Ahead {
        /// What to read.
        key: Key,
        /// The layer before it.
        after: u32,
    },
}

/// What the machine wants done, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Give up the memory of this slot: nobody holds a lease.
    Evict(Key),
    /// Read this expert into memory; there is room.
    Load(Key),
    /// Give a lease of this READY expert to the step.
    HandOut(Key),
}

/// Whether a slot holds an expert.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlotState {
    /// It holds no memory.
    #[default]
    Free,
    /// A read is under way.
    Loading,
    /// The weights are complete.
    Ready,
}

/// What the current step does with an expert.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Role {
    /// The step does not use it.
    #[default]
    Outside,
    /// In the union; protected until the step is finished.
    Stays,
    /// In the union; may go once it was handed out and released.
    Passes,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    state: SlotState,
    role: Role,
    handed_out: bool,
    /// Whether the policy may name this slot as a victim.
    candidate: bool,
    /// Read on a guess, and not asked for by any step so far.
    unproven: bool,
    leases: u32,
}

impl Slot {
    fn may_be_evicted(&self) -> bool {
        let needed = match self.role {
            Role::Outside => false,
            Role::Stays => true,
            Role::Passes => !self.handed_out,
        };
        self.state == SlotState::Ready && self.leases == 0 && !needed
    }
}

#[derive(Debug)]
struct Layer {
    size: LayerSize,
    floor: usize,
    /// Slots when the surplus is spread evenly: above it, the layer only borrows what others do not use.
    share: usize,
    slots: Vec<Slot>,
    /// Slots that are LOADING or READY, or about to be.
    used: usize,
    /// Steps begun.
    clock: u64,
}

#[derive(Debug)]
struct Step {
    layer: u32,
    members: Vec<u32>,
    /// Misses without a slot so far, in the order of reading.
    pending: VecDeque<u32>,
    /// Members not handed out so far.
    left: usize,
    failed: bool,
}

/// The state machine. See the head of this module.
pub struct Machine {
    layers: Vec<Layer>,
    policy: Box<dyn Evict>,
    step: Option<Step>,
    budget_bytes: u64,
    /// Budget above the floors.
    surplus_bytes: u64,
    /// What the slots above their layers' floors hold of it.
    surplus_used_bytes: u64,
    counts: MachineCounts,
    /// Layers that shall lose a slot; kept for its memory.
    scope: Vec<u32>,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine")
            .field("policy", &self.policy.name())
            .field("step", &self.step)
            .field("budget_bytes", &self.budget_bytes)
            .field("used_bytes", &self.used_bytes())
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

impl Machine {
    /// A machine with nothing resident.
    ///
    /// # Errors
    /// [`ResidencyError::BelowFloor`] when `budget_bytes` does not cover every layer's floor.
    pub fn new(
        layers: &[LayerSize],
        budget_bytes: u64,
        mut policy: Box<dyn Evict>,
    ) -> Result<Machine, ResidencyError> {
        policy.prepare(layers);
        let surplus_bytes = surplus_bytes(layers, budget_bytes)?;
        let shares = share(layers, budget_bytes)?;
        let layers = layers.iter().zip(shares).map(|(&size, share)| Layer {
            size,
            floor: share.slots_floor,
            share: share.slots_even_share,
            slots: vec![Slot::default(); size.experts],
            used: 0,
            clock: 0,
        });
        Ok(Machine {
            layers: layers.collect(),
            policy,
            step: None,
            budget_bytes,
            surplus_bytes,
            surplus_used_bytes: 0,
            counts: MachineCounts::default(),
            scope: Vec::new(),
        })
    }

    /// Takes one event and appends the commands that follow from it.
    ///
    /// Events that do not fit the state (a read that was never asked for, a lease that is not out) change nothing.
    ///
    /// # Errors
    /// [`ResidencyError::UnknownExpert`] when a key names no expert; nothing changes then.
    pub fn apply(&mut self, event: Event<'_>, commands: &mut Vec<Command>) -> Result<(), ResidencyError> {
        match event {
            Event::Begin { layer, union } => {
                self.check_known(layer, union)?;
                self.abort();
                self.begin(layer, union, commands);
            }
            Event::Landed(key) => {
                self.check_known(key.layer, &[key.expert])?;
                self.landed(key, commands);
            }
            Event::Failed(key) => {
                self.check_known(key.layer, &[key.expert])?;
                self.failed(key);
            }
            Event::Released(key) => {
                self.check_known(key.layer, &[key.expert])?;
                self.released(key, commands);
            }
            Event::Stalled => self.stalled(commands),
            Event::Abort => self.abort(),
            Event::Sequence => self.policy.sequence_begins(),
            Event::Shrink { budget_bytes } => {
                self.abort();
                self.shrink_to(budget_bytes, commands);
            }
            Event::Expect { layer, guesses } => {
                let experts = self.layers.get(layer as usize).map_or(0, |l| l.slots.len());
                let unknown = guesses.iter().map(|guess| guess.expert).find(|&e| e as usize >= experts);
                self.check_known(layer, unknown.as_slice())?;
                self.policy.expects(layer, guesses);
            }
            Event::Seed { layer, shares } => {
                self.check_known(layer, &[])?;
                let of_layer = &self.layers[layer as usize];
                let untouched = of_layer.clock == 0 && of_layer.used == 0;
                if untouched && of_layer.slots.len() == shares.len() {
                    self.policy.seed(layer, shares);
                }
            }
            Event::Prefetch(key) => {
                self.check_known(key.layer, &[key.expert])?;
                self.prefetch(key, commands, |machine, commands| machine.acquire(key.layer, commands));
            }
            Event::Warm(key) => {
                self.check_known(key.layer, &[key.expert])?;
                self.prefetch(key, commands, |machine, _| {
                    let layer = &machine.layers[key.layer as usize];
                    layer.used < layer.share && machine.grow(key.layer)
                });
            }
            Event::Ahead { key, after } => {
                self.check_known(key.layer, &[key.expert])?;
                self.check_known(after, &[])?;
                self.prefetch(key, commands, |machine, commands| {
                    machine.acquire_from(after, key.layer, commands)
                });
            }
        }
        Ok(())
    }

    /// The layer of the step under way.
    pub fn step_layer(&self) -> Option<u32> {
        self.step.as_ref().map(|step| step.layer)
    }

    /// Whether a read of the step under way failed, so that it must be aborted.
    pub fn step_failed(&self) -> bool {
        self.step.as_ref().is_some_and(|step| step.failed)
    }

    /// Experts of the step under way that were not handed out so far.
    pub fn step_left(&self) -> usize {
        self.step.as_ref().map_or(0, |step| step.left)
    }

    /// Whether the step under way has failed, or waits for slots: then nothing is read on a guess.
    pub fn step_waits(&self) -> bool {
        self.step.as_ref().is_some_and(|step| step.failed || !step.pending.is_empty())
    }

    /// Whether an expert of the step under way is being read.
    pub fn step_reads(&self) -> bool {
        let Some(step) = &self.step else { return false };
        step.members.iter().any(|&expert| self.state(Key { layer: step.layer, expert }) == SlotState::Loading)
    }

    /// The slot of an expert; FREE for experts that do not exist.
    pub fn state(&self, key: Key) -> SlotState {
        self.slot(key).map_or(SlotState::Free, |slot| slot.state)
    }

    /// Whether the step under way waits for an expert.
    pub fn awaited(&self, key: Key) -> bool {
        self.state(key) == SlotState::Loading && self.slot(key).is_some_and(|slot| slot.role != Role::Outside)
    }

    /// Leases of an expert that are out.
    pub fn leases(&self, key: Key) -> u32 {
        self.slot(key).map_or(0, |slot| slot.leases)
    }

    /// Slots of a layer that hold or await an expert; 0 for layers that do not exist.
    pub fn slots_used(&self, layer: u32) -> usize {
        self.layers.get(layer as usize).map_or(0, |l| l.used)
    }

    /// Bytes of all slots that hold or await an expert; never above [`Machine::budget_bytes`], unless it was shrunk while slots were leased or
    /// loading.
    pub fn used_bytes(&self) -> u64 {
        let bytes = |layer: &Layer| layer.size.bytes(layer.used);
        self.layers.iter().map(bytes).sum()
    }

    /// The budget it was made with, or shrunk to.
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// The policy's name.
    pub fn policy_name(&self) -> &'static str {
        self.policy.name()
    }

    /// What was counted since the last reset.
    pub fn counts(&self) -> MachineCounts {
        self.counts
    }

    /// Sets all counts to 0; what is resident and what was learned stay.
    pub fn reset_counts(&mut self) {
        self.counts = MachineCounts::default();
    }

    fn check_known(&self, layer: u32, experts: &[u32]) -> Result<(), ResidencyError> {
        let known = self.layers.get(layer as usize).map(|l| l.slots.len());
        let unknown = match known {
            Some(count) => experts.iter().find(|&&expert| expert as usize >= count),
            None => experts.first().or(Some(&0)),
        };
        match unknown {
            None => Ok(()),
            Some(&expert) => Err(ResidencyError::UnknownExpert {
                layer: layer as usize,
                expert,
                layers: self.layers.len(),
                experts: known.unwrap_or(0),
            }),
        }
    }

    fn slot(&self, key: Key) -> Option<&Slot> {
        let layer = self.layers.get(key.layer as usize)?;
        layer.slots.get(key.expert as usize)
    }

    /// Only for keys that `check_known` let through.
    fn slot_mut(&mut self, key: Key) -> &mut Slot {
        &mut self.layers[key.layer as usize].slots[key.expert as usize]
    }

    /// Tells the policy when a slot became or ceased to be a candidate.
    fn refresh(&mut self, key: Key) {
        let slot = self.slot_mut(key);
        let before = slot.candidate;
        let now = slot.may_be_evicted();
        slot.candidate = now;
        match (before, now) {
            (false, true) => self.policy.unpinned(key),
            (true, false) => self.policy.pinned(key),
            _ => {}
        }
    }

    fn landed(&mut self, key: Key, commands: &mut Vec<Command>) {
        let slot = self.slot_mut(key);
        if slot.state != SlotState::Loading {
            return;
        }
        slot.state = SlotState::Ready;
        let wanted = slot.role != Role::Outside;
        self.policy.inserted(key);
        if wanted {
            self.hand_out(key, commands);
        }
        self.refresh(key);
        if !wanted {
            // A slot that the step under way may have.
            self.issue_pending(commands);
        }
    }

    fn failed(&mut self, key: Key) {
        let slot = self.slot_mut(key);
        if slot.state != SlotState::Loading {
            return;
        }
        slot.state = SlotState::Free;
        let unproven = std::mem::take(&mut slot.unproven);
        let wanted = slot.role != Role::Outside;
        self.counts.prefetches_wasted += u64::from(unproven);
        self.shrink(key.layer);
        if let (true, Some(step)) = (wanted, &mut self.step) {
            step.failed = true;
        }
    }

    fn released(&mut self, key: Key, commands: &mut Vec<Command>) {
        let slot = self.slot_mut(key);
        slot.leases = slot.leases.saturating_sub(1);
        self.refresh(key);
        self.issue_pending(commands);
    }

    fn stalled(&mut self, commands: &mut Vec<Command>) {
        let Some(step) = &self.step else { return };
        let (layer, members) = (step.layer, step.members.clone());
        for expert in members {
            let key = Key { layer, expert };
            self.slot_mut(key).role = Role::Passes;
            self.refresh(key);
        }
        self.issue_pending(commands);
    }

    fn abort(&mut self) {
        let Some(step) = self.step.take() else { return };
        for expert in step.members {
            let key = Key { layer: step.layer, expert };
            let slot = self.slot_mut(key);
            slot.role = Role::Outside;
            slot.handed_out = false;
            self.refresh(key);
        }
    }

    fn hand_out(&mut self, key: Key, commands: &mut Vec<Command>) {
        let slot = self.slot_mut(key);
        slot.leases += 1;
        slot.handed_out = true;
        self.refresh(key);
        commands.push(Command::HandOut(key));
        if let Some(step) = &mut self.step {
            step.left -= 1;
        }
        if self.step_left() == 0 {
            // Complete: what stayed is an ordinary resident from here on.
            self.abort();
        }
    }

    /// Reads what waits for a slot, as far as there is room.
    fn issue_pending(&mut self, commands: &mut Vec<Command>) {
        while let Some(step) = &self.step {
            let layer = step.layer;
            if step.failed || step.pending.is_empty() || !self.acquire(layer, commands) {
                return;
            }
            let next = self.step.as_mut().and_then(|step| step.pending.pop_front());
            if let Some(expert) = next {
                self.load(Key { layer, expert }, commands);
            }
        }
    }

    /// Starts a read into a slot that was acquired before.
    fn load(&mut self, key: Key, commands: &mut Vec<Command>) {
        self.slot_mut(key).state = SlotState::Loading;
        commands.push(Command::Load(key));
    }

    /// Reads an expert that no step asked for, if `acquire` finds a slot for it. The step under way, if it is one of
    /// the same layer, keeps what it needs: its experts are no candidates.
    fn prefetch(
        &mut self,
        key: Key,
        commands: &mut Vec<Command>,
        acquire: impl FnOnce(&mut Machine, &mut Vec<Command>) -> bool,
    ) {
        if self.step_waits() || self.state(key) != SlotState::Free || !acquire(self, commands) {
            return;
        }
        self.slot_mut(key).unproven = true;
        self.counts.prefetches += 1;
        self.load(key, commands);
    }
}
