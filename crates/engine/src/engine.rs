//! A loaded model.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use calypte_checkpoint::Catalog;
use calypte_disk::{Disk, IoMode};
use calypte_kernels::{Isa, Team};
use calypte_model::{
    Compute, Kv, LOGIT_ROWS_MAX, Loading, Lookahead, Model, Observer, Workspace, resident_extents,
};
use calypte_residency::timeline::{Recording, Timeline};
use calypte_residency::{CacheStats, Evict, ExpertCache, LayerSize};
use calypte_text::Tokenizer;

use crate::budget::{Budget, divide, expert_layers};
use crate::disk::Reads;
use crate::learning::{Counting, Learning};
use crate::pressure::Pressure;
use crate::recorded::StepBegun;
use crate::{EngineError, Options, Predictor, Session};

/// Told how the opening of a model goes.
pub trait Opening {
    /// `done` of `total` bytes of resident weights are in memory.
    fn weights(&mut self, done: u64, total: u64) {
        let _ = (done, total);
    }
}

impl Opening for () {}

/// A model ready to answer.
pub struct Engine {
    catalog: Catalog,
    budget: Budget,
    tokenizer: Option<Tokenizer>,
    model: Model,
    team: Team,
    options: Options,
    pub(crate) experts: ExpertCache,
    lookahead: Lookahead,
    learning: Option<Learning>,
    /// Of an automatic budget.
    pressure: Option<Pressure>,
    workspace: Workspace,
    timeline: Option<Arc<Timeline>>,
}

struct Progress<'a> {
    opening: &'a mut dyn Opening,
    done: u64,
    total: u64,
}

impl Loading for Progress<'_> {
    fn loaded(&mut self, bytes: u64) {
        self.done += bytes;
        self.opening.weights(self.done, self.total);
    }
}

/// What guesses. Where everything stays in memory there is nothing to guess.
fn lookahead(budget: &Budget, options: &Options) -> Lookahead {
    match budget.expert_bytes < budget.expert_bytes_whole {
        true => options.predictor.make(options.prefetch),
        false => Lookahead::default(),
    }
}

impl Engine {
    /// Opens the model at `path` (a GGUF file or a Hugging Face directory): headers, then the budget, and only when that
    /// holds, weights.
    pub fn open(path: &Path, options: &Options, opening: &mut dyn Opening) -> Result<Engine, EngineError> {
        Engine::from_catalog(calypte_checkpoint::open(path)?, options, opening)
    }

    /// [`Engine::open`] for a caller that has read the headers already.
    pub fn from_catalog(
        catalog: Catalog,
        options: &Options,
        opening: &mut dyn Opening,
    ) -> Result<Engine, EngineError> {
        let disk = Reads::new(&catalog).open(options)?;
        Engine::with_disk(catalog, disk, options, opening)
    }

    /// [`Engine::open`] over a disk of the caller's: tests with faults, and targets without files.
    pub fn with_disk(
        catalog: Catalog,
        disk: Disk,
        options: &Options,
        opening: &mut dyn Opening,
    ) -> Result<Engine, EngineError> {
        Engine::with_policy(catalog, disk, options.policy.make(), options, opening)
    }

    /// [`Engine::with_disk`] with an eviction policy of the caller's instead of that of the options.
    pub fn with_policy(
        catalog: Catalog,
        mut disk: Disk,
        policy: Box<dyn Evict>,
        options: &Options,
        opening: &mut dyn Opening,
    ) -> Result<Engine, EngineError> {
        Isa::from_env()?;
        let budget = divide(&catalog, &disk, options)?;
        let tokenizer = match &catalog.tokenizer {
            calypte_checkpoint::TokenizerSource::Missing => None,
            source => Some(Tokenizer::from_source(source)?),
        };
        let total = resident_extents(&catalog).map(|e| e.len).sum();
        let mut progress = Progress { opening, done: 0, total };
        let model = Model::load(&catalog, &mut disk, &mut progress).map_err(EngineError::Load)?;
        let mut experts = ExpertCache::new(expert_layers(&catalog), budget.expert_bytes, policy, disk)?;
        let learning = Learning::open(&catalog, options);
        let pressure = budget
            .reserve_bytes
            .filter(|_| budget.expert_bytes > budget.expert_bytes_floor)
            .map(Pressure::new);
        if let Some(usage) = learning.as_ref().and_then(Learning::remembered) {
            experts.remember(&usage);
        }
        Ok(Engine {
            lookahead: lookahead(&budget, options),
            learning,
            pressure,
            team: Team::new(options.threads()),
            options: options.clone(),
            workspace: Workspace::default(),
            catalog,
            budget,
            tokenizer,
            model,
            experts,
            timeline: None,
        })
    }

    /// What the files hold.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// The predictor that guesses, if one does.
    pub fn predictor(&self) -> Option<&Predictor> {
        self.lookahead.is_on().then_some(&self.options.predictor)
    }

    /// How memory was divided.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The set-up.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The instruction set that the arithmetic runs on.
    pub fn isa(&self) -> Isa {
        Isa::get()
    }

    /// The I/O mode achieved.
    pub fn io(&self) -> IoMode {
        self.experts.disk().mode()
    }

    /// Why the I/O mode is not the best there is, if it is not.
    pub fn io_fallback_reason(&self) -> Option<&str> {
        self.experts.disk().fallback_reason()
    }

    /// Hits, misses and bytes of the expert cache since the last reset.
    pub fn cache_stats(&self) -> CacheStats {
        self.experts.stats()
    }

    /// The layers whose experts are streamed, in order: their numbers in the model, and the slots of the expert cache.
    pub fn expert_slots(&self) -> Vec<(usize, LayerSize)> {
        let layers = expert_layers(&self.catalog);
        let sizes = layers.iter().map(|layer| layer.size(self.experts.disk()));
        self.catalog.trunk_experts().map(|e| e.layer).zip(sizes).collect()
    }

    /// Gives expert memory back to the system, so that at most `expert_bytes` are left, or the floor if that is more. Changes no answer, and is for
    /// good. An automatic budget does this by itself when others take what it left them.
    pub fn shrink(&mut self, expert_bytes: u64) {
        self.experts.shrink(expert_bytes);
        let left = self.experts.budget_bytes();
        if left < self.budget.expert_bytes {
            tracing::warn!(from = self.budget.expert_bytes, to = left, "the expert cache gave memory back");
            self.budget.expert_bytes = left;
            self.budget.reason = "shrunk while running".to_owned();
        }
        if !self.lookahead.is_on() {
            self.lookahead = lookahead(&self.budget, &self.options);
        }
    }

    /// Looks whether others have taken the reserve.
    fn give_way(&mut self) {
        let held_bytes = self.experts.resident_bytes();
        if let Some(wanted) = self.pressure.as_mut().and_then(|pressure| pressure.shrunk(held_bytes)) {
            self.shrink(wanted);
        }
    }

    /// Starts the cache's counts anew.
    pub fn reset_cache_stats(&mut self) {
        self.experts.reset_stats();
    }

    /// Writes down which experts were used so far, if this is remembered at all. Dropping the engine does too; this is for moments
    /// after which the program may end without notice.
    pub fn keep_usage(&mut self) {
        if let Some(learning) = &mut self.learning {
            learning.write();
        }
    }

    /// From now on every step, and what it is made of, goes to `timeline`.
    pub fn record(&mut self, timeline: Arc<Timeline>) {
        let numbers = self.expert_slots().into_iter().map(|(number, _)| number).collect();
        self.experts.record(timeline.clone(), numbers);
        self.timeline = Some(timeline);
    }

    /// Where spans go.
    fn recording(&self) -> Recording<'_> {
        Recording(self.timeline.as_deref())
    }

    fn begin_step(&self) -> StepBegun {
        StepBegun::new(self.recording(), &self.experts)
    }

    fn end_step(&self, begun: StepBegun, position: usize, rows: usize) {
        begun.end(self.recording(), &self.experts, position, rows);
    }

    /// The tokenizer, or an error that says that the model has none.
    pub fn tokenizer(&self) -> Result<&Tokenizer, EngineError> {
        self.tokenizer
            .as_ref()
            .ok_or_else(|| EngineError::NoTokenizer { path: self.catalog.source.display().to_string() })
    }

    /// Whether a token ends a generation, by the model's configuration or by its tokenizer's.
    pub fn is_end(&self, id: u32) -> bool {
        let tokenizer = self.tokenizer.as_ref();
        self.catalog.arch.eos.contains(&id) || tokenizer.is_some_and(|t| t.end_ids().contains(&id))
    }

    /// A new, empty timeline.
    pub fn session(&self) -> Session {
        Session {
            kv: Kv::new(&self.catalog.arch, self.options.kv(&self.catalog), self.options.context),
            tokens: Vec::new(),
            logits: Vec::new(),
        }
    }

    /// Appends `tokens` to the timeline as one step. After an error the timeline is as before.
    fn step(
        &mut self,
        session: &mut Session,
        tokens: &[u32],
        observer: &mut dyn Observer,
        cancelled: &AtomicBool,
    ) -> Result<(), EngineError> {
        self.give_way();
        let recording = Recording(self.timeline.as_deref());
        let compute = Compute { team: &self.team, precision: self.options.precision, recording };
        if session.tokens.is_empty() {
            self.experts.sequence_begins();
            self.lookahead.sequence_begins();
        }
        let Engine { model, experts, lookahead, learning, workspace, .. } = self;
        let mut counting = Counting { learning: learning.as_mut(), inner: observer };
        let kv = &mut session.kv;
        model
            .forward(&compute, tokens, kv, experts, lookahead, workspace, &mut counting, cancelled)
            .map_err(EngineError::Run)?;
        session.tokens.extend_from_slice(tokens);
        if let Some(learning) = learning {
            learning.step_ended();
        }
        Ok(())
    }

    /// Logits of some rows of the latest step, whose first row is at `position`.
    fn logits(&mut self, rows: Range<usize>, position: usize, out: &mut Vec<f32>) -> Result<(), EngineError> {
        let recording = Recording(self.timeline.as_deref());
        let compute = Compute { team: &self.team, precision: self.options.precision, recording };
        let position = position + rows.start;
        self.model.logits(&compute, &mut self.workspace, rows, position, out).map_err(EngineError::Run)
    }

    /// Appends one step and computes the logits of its last row. After an error the timeline is as before.
    pub(crate) fn advance(
        &mut self,
        session: &mut Session,
        tokens: &[u32],
        observer: &mut dyn Observer,
        cancelled: &AtomicBool,
    ) -> Result<(), EngineError> {
        let before = session.tokens.len();
        let begun = self.begin_step();
        let mut outcome = self.step(session, tokens, observer, cancelled);
        if outcome.is_ok() {
            let mut logits = std::mem::take(&mut session.logits);
            outcome = self.logits(tokens.len() - 1..tokens.len(), before, &mut logits);
            match &outcome {
                Ok(()) => session.logits = logits,
                Err(_) => session.truncate(before),
            }
        }
        self.end_step(begun, before, tokens.len());
        outcome
    }

    /// Appends one step and hands the logits of all its rows to `sink`, row by row. After an error the timeline is as
    /// before.
    pub(crate) fn advance_all(
        &mut self,
        session: &mut Session,
        tokens: &[u32],
        sink: &mut dyn FnMut(usize, &[f32]),
        observer: &mut dyn Observer,
        cancelled: &AtomicBool,
    ) -> Result<(), EngineError> {
        let before = session.tokens.len();
        let begun = self.begin_step();
        let outcome = self
            .step(session, tokens, observer, cancelled)
            .and_then(|()| self.all_logits(before, tokens.len(), sink));
        if outcome.is_err() {
            session.truncate(before);
        }
        self.end_step(begun, before, tokens.len());
        outcome
    }

    /// Hands the logits of all rows of the latest step, `rows` from position `first` on, to `sink`.
    fn all_logits(
        &mut self,
        first: usize,
        rows: usize,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), EngineError> {
        let vocab = self.catalog.arch.vocab;
        let mut logits = Vec::new();
        for start in (0..rows).step_by(LOGIT_ROWS_MAX) {
            self.logits(start..(start + LOGIT_ROWS_MAX).min(rows), first, &mut logits)?;
            for (i, row) in logits.chunks_exact(vocab).enumerate() {
                sink(first + start + i, row);
            }
        }
        Ok(())
    }

    /// Appends `tokens` in chunks; afterwards the session holds the logits of the last one.
    ///
    /// `progress(done, total)` is called after every chunk. After an error the timeline ends with the last whole chunk.
    pub fn prefill(
        &mut self,
        session: &mut Session,
        tokens: &[u32],
        progress: &mut dyn FnMut(usize, usize),
        observer: &mut dyn Observer,
        cancelled: &AtomicBool,
    ) -> Result<(), EngineError> {
        let mut done = 0;
        for chunk in tokens.chunks(self.options.prefill_chunk.get()) {
            if done + chunk.len() == tokens.len() {
                self.advance(session, chunk, observer, cancelled)?;
            } else {
                // What the timeline ends with is no longer what the logits belong to.
                session.logits.clear();
                let (begun, before) = (self.begin_step(), session.tokens.len());
                let outcome = self.step(session, chunk, observer, cancelled);
                self.end_step(begun, before, chunk.len());
                outcome?;
            }
            done += chunk.len();
            progress(done, tokens.len());
        }
        Ok(())
    }
}
