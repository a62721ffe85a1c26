//! Generation: a prompt in, a stream of events out.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use calypte_disk::IoMode;
use calypte_model::Observer;
use calypte_residency::CacheStats;
use calypte_text::{StopMatcher, Utf8Stream};

use crate::memory::peak_rss_bytes;
use crate::sampler::{Sampler, Sampling};
use crate::stopwatch::Stopwatch;
use crate::{Engine, EngineError, ErrorKind, Session};

/// What to generate.
#[derive(Clone, Debug)]
pub struct Generation {
    /// Tokens at most.
    pub tokens_max: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Go on after an end token.
    pub ignore_eos: bool,
    /// Texts that end the generation; they are not part of the output.
    pub stops: Vec<String>,
}

/// What happens while generating.
#[derive(Debug)]
pub enum Event<'a> {
    /// `done` of `total` prompt tokens are computed.
    Prefill {
        /// Tokens done.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// A token was chosen.
    Token(u32),
    /// More text is certain. Characters are never split; nothing of a stop text appears.
    Text(&'a str),
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// `tokens_max` tokens were generated.
    Length,
    /// An end token came.
    Eos,
    /// A stop text came.
    Stop,
    /// The caller cancelled.
    Cancelled,
}

impl Stop {
    /// The name in the machine interface.
    pub fn name(self) -> &'static str {
        match self {
            Stop::Length => "length",
            Stop::Eos => "eos",
            Stop::Stop => "stop",
            Stop::Cancelled => "cancelled",
        }
    }
}

/// A finished generation.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The tokens, an end token included.
    pub ids: Vec<u32>,
    /// Their text, without end token and stop text; empty when the model has no tokenizer.
    pub text: String,
    /// Why it ended.
    pub stop: Stop,
    /// What it took.
    pub stats: Stats,
}

/// What a generation took.
#[derive(Clone, Copy, Debug)]
pub struct Stats {
    /// Prompt tokens computed.
    pub prefill_tokens: usize,
    /// Time for them.
    pub prefill: Duration,
    /// Tokens computed after the first.
    pub decode_tokens: usize,
    /// Time for them.
    pub decode: Duration,
    /// From the request to the first token.
    pub first_token: Duration,
    /// What the expert cache did, all in all.
    pub experts: CacheStats,
    /// What of it it did after the first token.
    pub experts_decode: CacheStats,
    /// How they were read.
    pub io: IoMode,
    /// Highest resident size of the process.
    pub peak_rss_bytes: u64,
}

impl Stats {
    /// Prompt tokens per second.
    pub fn prefill_tok_s(&self) -> f64 {
        rate(self.prefill_tokens, self.prefill)
    }

    /// Generated tokens per second, the first (which belongs to the prompt) not counted.
    pub fn decode_tok_s(&self) -> f64 {
        rate(self.decode_tokens, self.decode)
    }
}

fn rate(n: usize, time: Duration) -> f64 {
    if n == 0 || time.is_zero() { 0.0 } else { n as f64 / time.as_secs_f64() }
}

/// Turns tokens into text and looks for stops; does nothing without a tokenizer.
struct TextOut {
    utf8: Utf8Stream,
    stops: StopMatcher,
    text: String,
}

impl TextOut {
    fn push(
        &mut self,
        engine: &Engine,
        id: u32,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Result<bool, EngineError> {
        let Ok(tokenizer) = engine.tokenizer() else { return Ok(false) };
        if tokenizer.is_special(id) {
            return Ok(false);
        }
        let piece = self.utf8.push(tokenizer.token_bytes(id)?);
        Ok(self.emit(&piece, on_event))
    }

    fn emit(&mut self, piece: &str, on_event: &mut dyn FnMut(Event<'_>)) -> bool {
        let emit = self.stops.push(piece);
        self.show(&emit.text, on_event);
        emit.stopped.is_some()
    }

    fn show(&mut self, text: &str, on_event: &mut dyn FnMut(Event<'_>)) {
        if !text.is_empty() {
            self.text.push_str(text);
            on_event(Event::Text(text));
        }
    }

    /// Lets out what was held back; true when that completes a stop text.
    fn finish(&mut self, on_event: &mut dyn FnMut(Event<'_>)) -> bool {
        let rest = self.utf8.finish();
        let stopped = self.emit(&rest, on_event);
        if !stopped {
            let rest = self.stops.finish();
            self.show(&rest.text, on_event);
        }
        stopped
    }
}

impl Engine {
    /// Appends `prompt` to the session and generates from there.
    ///
    /// Cancelling (at any time, from any thread, through `cancelled`) ends the generation with what there is. After an
    /// error nothing of the failed token was sent.
    pub fn generate(
        &mut self,
        session: &mut Session,
        prompt: &[u32],
        generation: &Generation,
        on_event: &mut dyn FnMut(Event<'_>),
        observer: &mut dyn Observer,
        cancelled: &AtomicBool,
    ) -> Result<Outcome, EngineError> {
        self.check_ids(prompt)?;
        if prompt.is_empty() && session.logits.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        let start = Stopwatch::start();
        let before = self.cache_stats();
        let mut ids = Vec::new();
        let mut out = TextOut {
            utf8: Utf8Stream::new(),
            stops: StopMatcher::new(generation.stops.clone()),
            text: String::new(),
        };
        let mut sampler = Sampler::new(generation.sampling);
        let mut progress = |done, total| on_event(Event::Prefill { done, total });
        let prefilled = self.prefill(session, prompt, &mut progress, observer, cancelled);
        let prefill = start.elapsed();
        let mut first_token = prefill;
        let prefilled_stats = self.cache_stats();
        let stop = match prefilled {
            Ok(()) => loop {
                if ids.len() == generation.tokens_max {
                    break Stop::Length;
                }
                let id = sampler.sample(session.logits());
                if ids.is_empty() {
                    first_token = start.elapsed();
                }
                ids.push(id);
                on_event(Event::Token(id));
                if !generation.ignore_eos && self.is_end(id) {
                    break Stop::Eos;
                }
                if out.push(self, id, on_event)? {
                    break Stop::Stop;
                }
                if ids.len() == generation.tokens_max {
                    break Stop::Length;
                }
                match self.advance(session, &[id], observer, cancelled) {
                    Ok(()) => {}
                    Err(e) if e.kind() == ErrorKind::Cancelled => break Stop::Cancelled,
                    Err(e) => return Err(e),
                }
            },
            Err(e) if e.kind() == ErrorKind::Cancelled => Stop::Cancelled,
            Err(e) => return Err(e),
        };
        let total = start.elapsed();
        let stop = if out.finish(on_event) { Stop::Stop } else { stop };
        let after = self.cache_stats();
        Ok(Outcome {
            stats: Stats {
                prefill_tokens: prompt.len(),
                prefill,
                decode_tokens: ids.len().saturating_sub(1),
                decode: total.saturating_sub(first_token),
                first_token,
                experts: after.since(&before),
                experts_decode: after.since(&prefilled_stats),
                io: self.io(),
                peak_rss_bytes: peak_rss_bytes(),
            },
            ids,
            text: out.text,
            stop,
        })
    }

    /// Refuses ids that the model does not have, before anything is computed.
    pub(crate) fn check_ids(&self, ids: &[u32]) -> Result<(), EngineError> {
        let vocab = self.catalog().arch.vocab;
        match ids.iter().find(|id| **id as usize >= vocab) {
            Some(id) => Err(EngineError::TokenOutOfRange { id: *id, vocab }),
            None => Ok(()),
        }
    }
}
