//! The program: what a person types, and what they see.
//!
//! What lives here: the command line, the terminal (progress, line editor, Ctrl-C), the JSON of the machine interface and
//! the exit codes. Every command is one file; what it needs of a model it asks of `calypte-engine`.
//!
//! What must never live here: inference, sampling, caching, file formats.

mod args;
mod bench;
mod bundled;
mod chat;
mod conversation;
mod editor;
mod exit;
mod ids;
mod inspect;
mod interrupt;
mod loading;
mod logits_file;
mod output;
mod partial_file;
mod places;
mod plan;
mod progress;
mod prompt;
mod replay;
mod run;
mod score;
mod stats;
mod template;
mod timeline;
mod tokenize;
mod trace;

use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use crate::args::{Cli, Command};
use crate::exit::Failure;

/// Environment variable that turns logging on, e.g. `CALYPTE_LOG=debug`.
const LOG_ENV: &str = "CALYPTE_LOG";

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return exit::usage(&error),
    };
    log_to_stderr();
    exit::report(dispatch(&cli.command))
}

fn dispatch(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Run(args) => timeline::during(&args.timeline, |t| run::run(args, t)),
        Command::Chat(args) => timeline::during(&args.timeline, |t| chat::chat(args, t)),
        Command::Plan(args) => plan::plan(args),
        Command::Score(args) => timeline::during(&args.timeline, |t| score::score(args, t)),
        Command::Bench(args) => timeline::during(&args.timeline, |t| bench::bench(args, t)),
        Command::Inspect(args) => inspect::inspect(args),
        Command::Tokenize(args) => tokenize::tokenize(args),
        Command::Template(args) => template::template(args),
        Command::Trace(args) => trace::trace(args),
        Command::Replay(args) => replay::replays(args),
    }
}

/// Logs nothing unless asked to: what everybody should know is printed, not logged.
fn log_to_stderr() {
    if let Ok(filter) = EnvFilter::try_from_env(LOG_ENV) {
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(false)
            .init();
    }
}
