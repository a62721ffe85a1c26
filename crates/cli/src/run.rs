//! `calypte run`: go on with a text.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use calypte_engine::{Engine, Event, Generation, Outcome, Stop};
use serde_json::json;

use crate::args::RunArgs;
use crate::exit::Failure;
use crate::interrupt::Interrupts;
use crate::loading::{headers, load};
use crate::output::{Out, note};
use crate::progress::Progress;
use crate::prompt::{self, Prompt};
use crate::stats;
use crate::timeline::{Timeline, record};

/// Generates and prints.
pub fn run(args: &RunArgs, timeline: Option<&Arc<Timeline>>) -> Result<(), Failure> {
    let interrupts = Interrupts::catch();
    let (model, prompt) = prompt::of_run(args)?;
    let text = match &prompt {
        Prompt::Text(text) => Some(text.clone()),
        Prompt::Ids(_) => None,
    };
    let mut progress = Progress::new();
    let positions = prompt.positions_max().saturating_add(args.tokens);
    let options = args.learning.with(args.engine.options(positions));
    let mut engine = load(headers(model.as_deref())?, &options, &mut progress)?;
    record(&mut engine, timeline);
    let ids = prompt.tokens(&engine)?;
    let seed = args.engine.seed.unwrap_or_else(stats::random_seed);
    let generation = Generation {
        tokens_max: room(&engine, ids.len())?.min(args.tokens),
        sampling: args.sampling.sampling(seed),
        ignore_eos: args.ignore_eos,
        stops: args.stop.clone(),
    };
    let mut printer = Printer::new(&engine, &ids, text, args.json);
    let outcome = interrupts.during(|cancelled| {
        let mut session = engine.session();
        let mut on_event = |event: Event<'_>| printer.event(&event, &mut progress, cancelled);
        engine.generate(&mut session, &ids, &generation, &mut on_event, &mut (), cancelled)
    });
    progress.clear();
    let outcome = outcome?;
    printer.finish()?;
    if args.json {
        let object = json!({
            "prompt_ids": ids,
            "ids": outcome.ids,
            "text": outcome.text,
            "stop": outcome.stop.name(),
            "stats": stats::json(&outcome.stats, &engine, seed),
        });
        Out::new().line(&object.to_string())?;
    } else {
        note(&stats::line(&outcome, &engine, (args.sampling.temperature > 0.0).then_some(seed)));
    }
    interrupted(&outcome)
}

/// Tokens for which there is room after a prompt of `prompt_tokens`.
pub fn room(engine: &Engine, prompt_tokens: usize) -> Result<usize, Failure> {
    let context = engine.options().context;
    context.checked_sub(prompt_tokens).ok_or_else(|| {
        Failure::Usage(format!(
            "the text has {prompt_tokens} tokens, and there is room for {context}; give a larger --ctx"
        ))
    })
}

fn interrupted(outcome: &Outcome) -> Result<(), Failure> {
    match outcome.stop {
        Stop::Cancelled => Err(Failure::Interrupted),
        _ => Ok(()),
    }
}

/// Prints the prompt once, then what is generated as it comes; with `--json` nothing.
struct Printer {
    out: Option<Out>,
    /// What stands before the first generated token.
    prompt: Option<String>,
    /// Without a tokenizer ids are all there is to print.
    ids_only: bool,
    ends_line: bool,
    failure: Option<Failure>,
}

impl Printer {
    fn new(engine: &Engine, ids: &[u32], text: Option<String>, json: bool) -> Printer {
        let tokenizer = engine.tokenizer().ok();
        let words = |ids: &[u32]| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
        let decoded = || tokenizer.map_or_else(|| words(ids), |t| t.decode(ids));
        Printer {
            out: (!json).then(Out::new),
            prompt: Some(text.unwrap_or_else(decoded)),
            ids_only: tokenizer.is_none(),
            ends_line: true,
            failure: None,
        }
    }

    fn event(&mut self, event: &Event<'_>, progress: &mut Progress, cancelled: &AtomicBool) {
        match event {
            Event::Prefill { done, total } => progress.tokens(*done, *total),
            Event::Token(id) => {
                progress.clear();
                self.start();
                if self.ids_only {
                    self.print(&format!(" {id}"));
                }
            }
            Event::Text(text) => self.print(text),
        }
        if self.failure.is_some() {
            // Nobody will see the rest, so there is no point in computing it.
            cancelled.store(true, Ordering::SeqCst);
        }
    }

    fn start(&mut self) {
        if let Some(prompt) = self.prompt.take() {
            self.print(&prompt);
        }
    }

    fn print(&mut self, text: &str) {
        let (Some(out), None) = (&mut self.out, &self.failure) else {
            return;
        };
        self.failure = out.text(text).err();
        self.ends_line = text.ends_with('\n') || (self.ends_line && text.is_empty());
    }

    /// After the last token: ends the line.
    fn finish(mut self) -> Result<(), Failure> {
        self.start();
        if !self.ends_line {
            self.print("\n");
        }
        self.failure.map_or(Ok(()), Err)
    }
}
