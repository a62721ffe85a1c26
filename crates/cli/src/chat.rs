//! `calypte chat`: talk to a model.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use calypte_engine::{Engine, Event, Generation, Session, Stop};

use crate::args::ChatArgs;
use crate::conversation::{Conversation, common_prefix};
use crate::editor::{Editor, Said};
use crate::exit::{Failure, complain};
use crate::interrupt::Interrupts;
use crate::loading::{context_default, headers, load};
use crate::output::{Out, note};
use crate::progress::Progress;
use crate::run::room;
use crate::stats;
use crate::timeline::{Timeline, record};

/// Tokens of an answer by a model that cannot tell when it is done.
const CONTINUATION_TOKENS_DEFAULT: usize = 128;

const HELP: &str = "\
/help         this list
/reset        forget the conversation
/stats        what the last answer took
/system TEXT  tell the model something before the conversation; without TEXT, take it back
/quit         leave (also Ctrl-D)
A backslash at the end of a line continues it on the next one. Ctrl-C stops an answer.";

/// Talks until the input ends.
pub fn chat(args: &ChatArgs, timeline: Option<&Arc<Timeline>>) -> Result<(), Failure> {
    let interrupts = Interrupts::catch();
    let catalog = headers(args.model.as_deref())?;
    let options = args.learning.with(args.engine.options(context_default(&catalog)));
    let mut progress = Progress::new();
    let mut engine = load(catalog, &options, &mut progress)?;
    record(&mut engine, timeline);
    let template = engine.tokenizer()?.chat_template();
    let template = template.map_err(|e| Failure::Engine(e.into()))?;
    let mut editor = Editor::open();
    let has_template = template.is_some();
    if editor.is_terminal() {
        interrupts.spare_program();
        note(&format!("{} · /help for help, Ctrl-D to leave", engine.catalog().name));
    }
    if !has_template {
        note("The model has no chat template: it goes on with the text instead of answering it.");
    }
    let mut talk = Talk {
        session: engine.session(),
        conversation: Conversation::new(template, args.system.clone()),
        tokens_max: answer_tokens(args.tokens, has_template),
        seed: args.engine.seed.unwrap_or_else(stats::random_seed),
        out: Out::new(),
        last_stats: None,
        args,
        engine,
        interrupts,
        progress,
    };
    loop {
        let said = match editor.read()? {
            Said::Message(said) => said,
            Said::Interrupted => continue,
            Said::End => return Ok(()),
        };
        let outcome = match said.trim_end().strip_prefix('/') {
            _ if said.trim().is_empty() => Ok(()),
            Some("quit") => return Ok(()),
            Some(command) => talk.command(command),
            None => talk.answer(&said),
        };
        match outcome {
            // What was said made no sense for this model; something else may.
            Err(failure) if failure.is_usage() => failure.message().iter().for_each(|m| complain(m)),
            other => other?,
        }
    }
}

fn answer_tokens(asked: Option<NonZeroUsize>, has_template: bool) -> usize {
    match asked {
        Some(n) => n.get(),
        None if has_template => usize::MAX,
        None => CONTINUATION_TOKENS_DEFAULT,
    }
}

/// A conversation going on.
struct Talk<'a> {
    args: &'a ChatArgs,
    engine: Engine,
    session: Session,
    conversation: Conversation,
    tokens_max: usize,
    seed: u64,
    out: Out,
    last_stats: Option<String>,
    interrupts: Interrupts,
    progress: Progress,
}

impl Talk<'_> {
    fn command(&mut self, command: &str) -> Result<(), Failure> {
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        match name {
            "help" => note(HELP),
            "reset" => {
                self.conversation.reset();
                note("The conversation starts anew.");
            }
            "stats" => note(self.last_stats.as_deref().unwrap_or("There was no answer yet.")),
            "system" => self.tell(rest.trim())?,
            _ => {
                let hint = format!("there is no command /{name}; /help lists them");
                return Err(Failure::Usage(hint));
            }
        }
        Ok(())
    }

    /// Changes what the model is told before the conversation.
    fn tell(&mut self, text: &str) -> Result<(), Failure> {
        match &mut self.conversation {
            Conversation::Chat { system, .. } => {
                *system = (!text.is_empty()).then(|| text.to_string());
                Ok(())
            }
            Conversation::Text { .. } => Err(Failure::Usage(
                "the model has no chat template, so it cannot be told anything before the text".to_string(),
            )),
        }
    }

    fn answer(&mut self, said: &str) -> Result<(), Failure> {
        let timeline = self.conversation.timeline(self.engine.tokenizer()?, said)?;
        let room = self.room(timeline.len())?;
        // What the session has already seen is not computed again; one token is, for its logits.
        let seen = common_prefix(self.session.tokens(), &timeline).min(timeline.len().saturating_sub(1));
        self.session.truncate(seen);
        let generation = Generation {
            tokens_max: room.min(self.tokens_max),
            sampling: self.args.sampling.sampling(self.seed),
            ignore_eos: false,
            stops: Vec::new(),
        };
        self.seed = self.seed.wrapping_add(1);
        let (engine, session, out, progress) =
            (&mut self.engine, &mut self.session, &mut self.out, &mut self.progress);
        let mut failure = None;
        let outcome = self.interrupts.during(|cancelled| {
            let mut on_event = |event: Event<'_>| match event {
                Event::Prefill { done, total } => progress.tokens(done, total),
                Event::Token(_) => progress.clear(),
                Event::Text(text) => {
                    if failure.is_none() {
                        failure = out.text(text).err();
                    }
                    if failure.is_some() {
                        cancelled.store(true, Ordering::SeqCst);
                    }
                }
            };
            let new = timeline.get(seen..).unwrap_or_default();
            engine.generate(session, new, &generation, &mut on_event, &mut (), cancelled)
        });
        self.progress.clear();
        // Ctrl-C while the next line is awaited may end the program at once.
        self.engine.keep_usage();
        let outcome = outcome?;
        failure.map_or(Ok(()), Err)?;
        self.out.text("\n")?;
        if outcome.stop == Stop::Cancelled {
            note("[stopped]");
        }
        let seed = (generation.sampling.temperature > 0.0).then_some(generation.sampling.seed);
        self.last_stats = Some(stats::line(&outcome, &self.engine, seed));
        self.conversation.answered(said, timeline, &outcome, |id| self.engine.is_end(id));
        Ok(())
    }

    /// Tokens that an answer may have.
    fn room(&self, timeline_tokens: usize) -> Result<usize, Failure> {
        match room(&self.engine, timeline_tokens) {
            Ok(left) if left > 0 => Ok(left),
            _ => Err(Failure::Usage(format!(
                "the conversation has {timeline_tokens} tokens, and there is room for {}; /reset, or start with a larger --ctx",
                self.engine.options().context
            ))),
        }
    }
}
