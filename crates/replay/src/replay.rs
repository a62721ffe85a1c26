//! A trace through the state machine.

use std::sync::Arc;

use calypte_residency::policy;
use calypte_residency::predict::{self, Guess, Predict, Routed};
use calypte_residency::{Command, Event, Evict, Key, LayerSize, Machine, ResidencyError, SlotState, share};

use crate::draft::DRAFT_WINDOW_MAX;
use crate::timing::Clock;
use crate::{Belady, DRAFT_DEFAULT, Draft, DraftTokens, Log, Timing, Trace, Uses, bypass_hits};

/// Tokens ahead for which predictors are asked whom to keep; those of draft tokens, for their whole window.
const HORIZON_TOKENS: u32 = 4;
/// Belady's rule within the machine.
const BELADY: &str = "belady";
/// The bound of every cache, which is no policy of the machine.
const BYPASS: &str = "belady_bypass";
/// Policies that only a replay has.
pub const CLAIRVOYANT: &[&str] = &[BELADY, BYPASS];
/// Predictors that only a replay has, and that of no guesses.
pub const SIMULATED: &[&str] = &["none", "draft_tokens"];
/// The predictor of the run itself, whose guesses its trace has.
pub const RECORDED: &str = "recorded";

/// Memory for experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// As many slots in every layer.
    SlotsPerLayer(usize),
    /// A budget as the engine has it, over slots of the sizes that the trace gives.
    Bytes(u64),
}

/// One way to replay a trace.
#[derive(Clone, Debug)]
pub struct Setting {
    /// A name of [`policy::NAMES`] with or without parameters (see [`policy::by_name`]), or of [`CLAIRVOYANT`].
    pub policy: String,
    /// A name of [`predict::OF_ROUTING`] or [`SIMULATED`]; [`RECORDED`], or the name of who guessed during the run if it is none of these.
    /// `draft_tokens` takes parameters: `draft_tokens:4:70:90` is a window of four tokens, an acceptance of 70 % and an accuracy of
    /// 90 %.
    pub predictor: String,
    /// Memory for experts.
    pub memory: Memory,
    /// Whether experts are read on guesses, in idle disk time; otherwise guesses only tell the policy whom to keep.
    pub prefetch: bool,
    /// Layers ahead for which experts are guessed, at least 1. Recorded guesses are of whatever they are of.
    pub layers_ahead: usize,
    /// Disk and compute.
    pub timing: Timing,
}

/// Why a trace cannot be replayed in this way.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// There is no such policy, or its parameters are wrong.
    #[error(
        "no policy is called {0:?}, or its parameters are wrong; there are {known}",
        known = names(policy::NAMES, CLAIRVOYANT)
    )]
    Policy(String),
    /// There is no such predictor, or its parameters are wrong.
    #[error(
        "no predictor is called {0:?}, or its parameters are wrong; there are {known}, {RECORDED} if the trace has guesses, and draft_tokens takes \
         a window of 1 to {DRAFT_WINDOW_MAX} tokens, an acceptance and an accuracy in percent",
        known = names(SIMULATED, predict::OF_ROUTING)
    )]
    Predictor(String),
    /// Nobody guessed during the run.
    #[error(
        "the trace has no guesses: no predictor was asked, or the expert cache held everything; record one with `calypte trace`, a --predictor other than none and a smaller --expert-cache"
    )]
    NothingRecorded,
    /// A predictor that looks into a running model.
    #[error(
        "{name} needs a running model; record a trace with `calypte trace --predictor {name}` and replay what it guessed \
         ({RECORDED}); this trace has the guesses of {recorded}",
        recorded = if .recorded.is_empty() { "nobody" } else { .recorded.as_str() }
    )]
    NeedsModel {
        /// Its name.
        name: String,
        /// Whose guesses the trace has; empty if it has none.
        recorded: String,
    },
    /// The memory is too small.
    #[error(transparent)]
    Residency(#[from] ResidencyError),
}

fn names(first: &[&str], then: &[&str]) -> String {
    first.iter().chain(then).copied().collect::<Vec<_>>().join(", ")
}

/// What guesses were worth. Only tokens computed alone count: for a chunk nobody guesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuessCounts {
    /// Experts guessed for a layer, no more than it uses per token: the likeliest.
    pub guessed: u64,
    /// Experts that were needed where something was guessed.
    pub needed: u64,
    /// Experts both guessed and needed.
    pub right: u64,
    /// Those of them that were in memory when their step began.
    pub timely: u64,
}

/// What came of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Tokens replayed.
    pub tokens: u64,
    /// Experts needed that were in memory; each counts once a step.
    pub hits: u64,
    /// Experts needed that were not.
    pub misses: u64,
    /// Experts that lost their slot.
    pub evictions: u64,
    /// Bytes read because a step needed them.
    pub demand_bytes: u64,
    /// Bytes read on a guess, and used before they were evicted.
    pub useful_bytes: u64,
    /// Bytes read on a guess, and not used.
    pub wasted_bytes: u64,
    /// Time in which nothing was computed, in seconds; `None` for a policy that is not replayed through the machine.
    pub stall_s: Option<f64>,
    /// What guesses were worth; `None` when nobody guessed.
    pub guesses: Option<GuessCounts>,
}

impl Outcome {
    /// Hits as a share of all experts needed, 0 to 1; 0 for an empty trace.
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / (self.hits + self.misses).max(1) as f64
    }
}

/// Replays a trace from a cold start. `uses` are its uses ([`Uses::of`]), for the policies that know the future.
///
/// # Errors
/// [`ReplayError`] for unknown names, and when the memory does not hold one token's experts of every layer.
pub fn replay(trace: &Arc<Trace>, uses: &Arc<Uses>, setting: &Setting) -> Result<Outcome, ReplayError> {
    if setting.policy == BYPASS {
        predictor(trace, &setting.predictor)?;
        return bypassing(trace, uses, setting);
    }
    let policy = evictor(uses, &setting.policy)?;
    Ok(Replay::new(trace, setting, policy)?.run())
}

/// As [`replay()`], with all hits, misses and evictions.
///
/// # Errors
/// As [`replay()`]; `belady_bypass` is no policy of the machine.
pub fn replay_watched(
    trace: &Arc<Trace>,
    uses: &Arc<Uses>,
    setting: &Setting,
) -> Result<(Outcome, Log), ReplayError> {
    let log = Log::default();
    let policy = log.watch(evictor(uses, &setting.policy)?);
    Ok((Replay::new(trace, setting, policy)?.run(), log))
}

/// Whether [`replay()`] knows these names, so that a refusal need not come after half of the results.
///
/// # Errors
/// [`ReplayError`] for the first that it does not know.
pub fn check(trace: &Arc<Trace>, uses: &Arc<Uses>, policy: &str, guesser: &str) -> Result<(), ReplayError> {
    if policy != BYPASS {
        evictor(uses, policy)?;
    }
    predictor(trace, guesser).map(drop)
}

fn evictor(uses: &Arc<Uses>, spec: &str) -> Result<Box<dyn Evict>, ReplayError> {
    if spec == BELADY {
        return Ok(Box::new(Belady::new(Arc::clone(uses))));
    }
    policy::by_name(spec).ok_or_else(|| ReplayError::Policy(spec.to_owned()))
}

/// Who guesses.
enum Guesser {
    Nobody,
    /// A predictor, and the tokens ahead for which it is asked whom to keep.
    Asked(Box<dyn Predict>, u32),
    /// Whoever did during the run.
    Recorded,
}

fn predictor(trace: &Arc<Trace>, spec: &str) -> Result<Guesser, ReplayError> {
    let unknown = || ReplayError::Predictor(spec.to_owned());
    if spec == "none" {
        return Ok(Guesser::Nobody);
    }
    if spec == RECORDED {
        return if trace.predictor.is_empty() {
            Err(ReplayError::NothingRecorded)
        } else {
            Ok(Guesser::Recorded)
        };
    }
    let Some(parameters) = spec.strip_prefix("draft_tokens") else {
        let name = spec.split(':').next().unwrap_or(spec);
        if predict::NAMES.contains(&name) && !predict::OF_ROUTING.contains(&name) {
            if spec == trace.predictor {
                return Ok(Guesser::Recorded);
            }
            return Err(ReplayError::NeedsModel { name: spec.to_owned(), recorded: trace.predictor.clone() });
        }
        let found = predict::by_name(spec).ok_or_else(unknown)?;
        return Ok(Guesser::Asked(found, HORIZON_TOKENS));
    };
    let draft = draft(parameters).ok_or_else(unknown)?;
    Ok(Guesser::Asked(Box::new(DraftTokens::new(Arc::clone(trace), draft)), draft.window))
}

/// Up to three numbers, each after a colon: window, acceptance and accuracy in percent.
fn draft(parameters: &str) -> Option<Draft> {
    let mut parts = parameters.split(':');
    let (before, mut draft) = (parts.next()?, DRAFT_DEFAULT);
    let numbers: Vec<u32> = parts.map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let percent = |n: u32| (n <= 100).then(|| f64::from(n) / 100.0);
    if let Some(&window) = numbers.first() {
        draft.window = Some(window).filter(|n| (1..=DRAFT_WINDOW_MAX).contains(n))?;
    }
    if let Some(&acceptance) = numbers.get(1) {
        draft.acceptance = percent(acceptance)?;
    }
    if let Some(&accuracy) = numbers.get(2) {
        draft.accuracy = percent(accuracy)?;
    }
    (before.is_empty() && numbers.len() <= 3).then_some(draft)
}

/// Slots of one byte for [`Memory::SlotsPerLayer`], so that every layer gets as many; real sizes otherwise.
fn sizes_and_budget(trace: &Trace, memory: Memory) -> (Vec<LayerSize>, u64) {
    let mut sizes = trace.sizes();
    match memory {
        Memory::Bytes(bytes) => (sizes, bytes),
        Memory::SlotsPerLayer(slots) => {
            sizes.iter_mut().for_each(|size| size.slot_bytes = 1);
            let budget_bytes = sizes.iter().map(|size| slots.min(size.experts) as u64).sum();
            (sizes, budget_bytes)
        }
    }
}

/// The union of a step, ascending.
fn union_of(routed: &[u16], out: &mut Vec<u32>) {
    out.clear();
    out.extend(routed.iter().map(|&id| u32::from(id)));
    out.sort_unstable();
    out.dedup();
}

fn bypassing(trace: &Trace, uses: &Uses, setting: &Setting) -> Result<Outcome, ReplayError> {
    let (sizes, budget_bytes) = sizes_and_budget(trace, setting.memory);
    // Of a budget in bytes a layer may borrow more for a while; its share is what it has once all are busy.
    let shares = share(&sizes, budget_bytes)?;
    let slots: Vec<usize> = shares.iter().map(|share| share.slots_even_share).collect();
    let mut outcome = Outcome { tokens: trace.tokens() as u64, ..Outcome::default() };
    let mut union = Vec::new();
    for (layer, hits) in bypass_hits(trace, uses, &slots).into_iter().enumerate() {
        let mut needed = 0;
        for step in 0..trace.steps().len() {
            union_of(trace.routed(step, layer), &mut union);
            needed += union.len() as u64;
        }
        let misses = needed - hits;
        outcome.hits += hits;
        outcome.misses += misses;
        outcome.demand_bytes += misses * expert_bytes(trace.layers()[layer].slot_bytes, &setting.timing);
    }
    Ok(outcome)
}

fn expert_bytes(slot_bytes: u64, timing: &Timing) -> u64 {
    if slot_bytes > 0 { slot_bytes } else { timing.expert_bytes }
}

struct Replay<'a> {
    trace: &'a Trace,
    setting: &'a Setting,
    machine: Machine,
    guesser: Guesser,
    clock: Clock,
    outcome: Outcome,
    counts: GuessCounts,
    prefetched_bytes: u64,
    /// Per layer: what is guessed for its next step.
    guessed: Vec<Vec<u32>>,
    commands: Vec<Command>,
    guesses: Vec<Guess>,
    union: Vec<u32>,
    last_row: Vec<u32>,
}

impl<'a> Replay<'a> {
    fn new(
        trace: &'a Arc<Trace>,
        setting: &'a Setting,
        policy: Box<dyn Evict>,
    ) -> Result<Replay<'a>, ReplayError> {
        let (sizes, budget_bytes) = sizes_and_budget(trace, setting.memory);
        Ok(Replay {
            guesser: predictor(trace, &setting.predictor)?,
            machine: Machine::new(&sizes, budget_bytes, policy)?,
            trace,
            setting,
            clock: Clock::default(),
            outcome: Outcome::default(),
            counts: GuessCounts::default(),
            prefetched_bytes: 0,
            guessed: vec![Vec::new(); sizes.len()],
            commands: Vec::new(),
            guesses: Vec::new(),
            union: Vec::new(),
            last_row: Vec::new(),
        })
    }

    fn run(mut self) -> Outcome {
        for (index, step) in self.trace.steps().iter().enumerate() {
            if step.begins_sequence {
                self.tell(Event::Sequence);
                if let Guesser::Asked(predictor, _) = &mut self.guesser {
                    predictor.sequence_begins();
                }
            }
            for layer in 0..self.trace.layers().len() {
                self.layer(index, layer, step.rows == 1);
            }
        }
        let counts = self.machine.counts();
        Outcome {
            tokens: self.trace.tokens() as u64,
            hits: counts.hits,
            misses: counts.misses,
            evictions: counts.evictions,
            wasted_bytes: self.prefetched_bytes - self.outcome.useful_bytes,
            stall_s: Some(self.clock.stall_s),
            guesses: (!matches!(self.guesser, Guesser::Nobody)).then_some(self.counts),
            ..self.outcome
        }
    }

    /// For events that the trace's own checks make sure of.
    fn tell(&mut self, event: Event<'_>) {
        let told = self.machine.apply(event, &mut self.commands);
        debug_assert!(told.is_ok(), "{told:?}");
    }

    fn layer(&mut self, step: usize, layer: usize, alone: bool) {
        let size = self.trace.layers()[layer];
        let routed = self.trace.routed(step, layer);
        let last = &routed[routed.len() - size.top_k as usize..];
        self.last_row.clear();
        self.last_row.extend(last.iter().map(|&id| u32::from(id)));
        union_of(routed, &mut self.union);
        self.judge(layer, alone);
        self.expect(layer);

        let bytes = expert_bytes(size.slot_bytes, &self.setting.timing);
        let used = self.machine.counts().prefetches_used;
        let union = std::mem::take(&mut self.union);
        self.tell(Event::Begin { layer: layer as u32, union: &union });
        self.expect_as_recorded(step, layer);
        let reads = self.finish_step();
        let used = self.machine.counts().prefetches_used - used;
        self.outcome.useful_bytes += used * bytes;
        self.outcome.demand_bytes += reads as u64 * bytes;
        self.clock.begin(&self.setting.timing, bytes, reads, union.len(), size.top_k as usize);
        self.union = union;
        self.look_ahead(step, layer);
        self.clock.end();
    }

    /// Every read lands at once and every lease is given back at once: neither changes who stays. Returns the reads.
    fn finish_step(&mut self) -> usize {
        let (mut done, mut reads) = (0, 0);
        while let Some(&command) = self.commands.get(done) {
            done += 1;
            match command {
                Command::Evict(_) => {}
                Command::Load(key) => {
                    reads += 1;
                    self.tell(Event::Landed(key));
                }
                Command::HandOut(key) => self.tell(Event::Released(key)),
            }
            if done == self.commands.len() && self.machine.step_left() > 0 {
                self.tell(Event::Stalled);
            }
        }
        self.commands.clear();
        reads
    }

    /// Compares what was guessed for this step with what it needs.
    fn judge(&mut self, layer: usize, alone: bool) {
        let guessed = std::mem::take(&mut self.guessed[layer]);
        if matches!(self.guesser, Guesser::Recorded) && !guessed.is_empty() {
            // As the engine does.
            self.tell(Event::Expect { layer: layer as u32, guesses: &[] });
        }
        if alone && !guessed.is_empty() {
            self.counts.guessed += guessed.len() as u64;
            self.counts.needed += self.union.len() as u64;
            for &expert in guessed.iter().filter(|expert| self.union.contains(expert)) {
                self.counts.right += 1;
                let key = Key { layer: layer as u32, expert };
                self.counts.timely += u64::from(self.machine.state(key) == SlotState::Ready);
            }
        }
    }

    /// Tells the predictor what was routed, and the policy what the predictor makes of it for the next tokens.
    fn expect(&mut self, layer: usize) {
        let Guesser::Asked(predictor, horizon_tokens) = &mut self.guesser else { return };
        let layer = layer as u32;
        predictor.observe(&Routed { layer, experts: &self.last_row, inside: None });
        let mut guesses = std::mem::take(&mut self.guesses);
        guesses.clear();
        (1..=*horizon_tokens).for_each(|ahead| predictor.predict(layer, ahead, &mut (), &mut guesses));
        self.tell(Event::Expect { layer, guesses: &guesses });
        self.guesses = guesses;
    }

    /// Tells the policy what was guessed at this moment of the run.
    fn expect_as_recorded(&mut self, step: usize, layer: usize) {
        if !matches!(self.guesser, Guesser::Recorded) {
            return;
        }
        let trace = self.trace;
        for expected in trace.expected_after(step, layer) {
            self.tell(Event::Expect { layer: expected.layer, guesses: &expected.guesses });
            self.note(expected.layer as usize, &expected.guesses);
        }
    }

    /// Guesses for a layer ahead, and reads what is worth it.
    fn look_ahead(&mut self, step: usize, layer: usize) {
        let trace = self.trace;
        match &mut self.guesser {
            Guesser::Nobody => {}
            Guesser::Recorded if self.setting.prefetch => {
                for expected in trace.expected_after(step, layer) {
                    self.read(expected.layer as usize, &expected.guesses);
                }
            }
            Guesser::Recorded => {}
            Guesser::Asked(predictor, _) => {
                let count = trace.layers().len();
                let target = (layer + self.setting.layers_ahead) % count;
                let tokens_ahead = (layer + self.setting.layers_ahead) / count;
                let mut guesses = std::mem::take(&mut self.guesses);
                guesses.clear();
                predictor.predict(target as u32, tokens_ahead as u32, &mut (), &mut guesses);
                self.note(target, &guesses);
                if self.setting.prefetch {
                    self.tell(Event::Expect { layer: target as u32, guesses: &guesses });
                    self.read(target, &guesses);
                }
                self.guesses = guesses;
            }
        }
    }

    /// Remembers guesses until they come true or not.
    fn note(&mut self, layer: usize, guesses: &[Guess]) {
        let best = guesses.iter().take(self.trace.layers()[layer].top_k as usize);
        self.guessed[layer] = best.map(|guess| guess.expert).collect();
    }

    /// Reads what is worth it, as long as there is time.
    fn read(&mut self, layer: usize, guesses: &[Guess]) {
        let bytes = expert_bytes(self.trace.layers()[layer].slot_bytes, &self.setting.timing);
        for guess in guesses {
            if !self.clock.has_time(&self.setting.timing, bytes) {
                break;
            }
            let key = Key { layer: layer as u32, expert: guess.expert };
            if self.clock.worth_it(guess.probability) && self.machine.state(key) == SlotState::Free {
                self.tell(Event::Prefetch(key));
                self.land(bytes);
            }
        }
    }

    /// Lands a prefetch, if the machine had a slot for it: there was time for it before the next step.
    fn land(&mut self, bytes: u64) {
        for command in std::mem::take(&mut self.commands) {
            if let Command::Load(key) = command {
                self.clock.prefetch(&self.setting.timing, bytes);
                self.prefetched_bytes += bytes;
                self.tell(Event::Landed(key));
            }
        }
        self.commands.clear();
    }
}
