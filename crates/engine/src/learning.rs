//! What the engine learns of a model's use, for its own next run.
//!
//! Only what the routers chose is counted, token by token: where experts were, how steps were cut and who guessed what make no
//! difference. It seeds the eviction policy and the warm start ([`calypte_residency::ExpertCache::remember`]) and can change no answer.

use calypte_checkpoint::Catalog;
use calypte_model::Observer;
use calypte_residency::Usage;
use calypte_residency::predict::Guess;

use crate::Options;
use crate::usage::{UsageFile, file_bytes};

/// Tokens after which usage is written though the run goes on, so that a run that is killed has not learned in vain.
const TOKENS_BETWEEN_WRITES: u64 = 512;

/// Usage of the run so far, and where it goes.
#[derive(Debug)]
pub(crate) struct Learning {
    file: UsageFile,
    /// Of this run, since it was last written.
    usage: Usage,
    /// Its tokens when it is to be written.
    write_at_tokens: u64,
    experts: Vec<usize>,
    /// Index among the layers that the expert cache knows, by the layer of the model.
    cache_layers: Vec<Option<usize>>,
}

/// Memory for it, in bytes: the run's usage, and while it is written what the file held, the sum, and the new content.
pub(crate) fn memory_bytes(experts: impl Iterator<Item = usize> + Clone) -> u64 {
    3 * Usage::memory_bytes(experts.clone()) + 2 * file_bytes(experts)
}

impl Learning {
    /// `None` where nothing shall be remembered, or there is nothing to remember.
    pub fn open(catalog: &Catalog, options: &Options) -> Option<Learning> {
        let directory = options.usage_directory.as_ref()?;
        let experts: Vec<usize> = catalog.trunk_experts().map(|layer| layer.extents.len()).collect();
        if experts.is_empty() {
            return None;
        }
        let cache_layers = (0..catalog.arch.layers).map(|layer| catalog.experts_of(layer)).collect();
        Some(Learning {
            file: UsageFile::new(directory, catalog.fingerprint, experts.clone()),
            usage: Usage::new(experts.iter().copied()),
            write_at_tokens: TOKENS_BETWEEN_WRITES,
            experts,
            cache_layers,
        })
    }

    /// What earlier runs left, if they did and it can be believed.
    pub fn remembered(&self) -> Option<Usage> {
        let path = self.file.path().display();
        match self.file.read() {
            Ok(usage) => {
                tracing::debug!(%path, tokens = usage.as_ref().map(Usage::tokens), "usage of earlier runs");
                usage
            }
            Err(error) => {
                tracing::debug!(%path, %error, "the usage kept of this model is not believed");
                None
            }
        }
    }

    /// Writes what there is if there is enough of it.
    pub fn step_ended(&mut self) {
        if self.usage.tokens() >= self.write_at_tokens {
            self.write();
            // What could not be written stays, and is tried again as late.
            self.write_at_tokens = self.usage.tokens() + TOKENS_BETWEEN_WRITES;
        }
    }

    /// Writes what there is. A failure is no reason to fail: it costs the next run some speed.
    pub fn write(&mut self) {
        if self.usage.tokens() == 0 {
            return;
        }
        match self.file.append(&self.usage) {
            Ok(true) => self.usage = Usage::new(self.experts.iter().copied()),
            Ok(false) => tracing::debug!("another process is writing the usage of this model"),
            Err(error) => {
                tracing::debug!(path = %self.file.path().display(), %error, "the usage of this model cannot be kept");
            }
        }
    }
}

impl Drop for Learning {
    fn drop(&mut self) {
        self.write();
    }
}

/// Counts, if anything is remembered, and tells `inner` everything. What an unfinished step told counts too: the experts were asked for.
pub(crate) struct Counting<'a> {
    pub learning: Option<&'a mut Learning>,
    pub inner: &'a mut dyn Observer,
}

impl Observer for Counting<'_> {
    fn step_begins(&mut self, position: usize) {
        self.inner.step_begins(position);
    }

    fn routed(&mut self, layer: usize, position: usize, experts: &[u32], weights: &[f32]) {
        if let Some(learning) = &mut self.learning
            && let Some(&Some(layer)) = learning.cache_layers.get(layer)
        {
            learning.usage.record(layer, experts);
        }
        self.inner.routed(layer, position, experts, weights);
    }

    fn guessed(&mut self, layer: usize, guesses: &[Guess]) {
        self.inner.guessed(layer, guesses);
    }

    fn selected(&mut self, layer: usize, position: usize, positions: Option<&[u32]>) {
        self.inner.selected(layer, position, positions);
    }
}
