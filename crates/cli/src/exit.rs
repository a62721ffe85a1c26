//! From failures to messages and exit codes.

use std::io::{self, Write};
use std::process::ExitCode;

use calypte_engine::{EngineError, ErrorKind};

/// Bad usage.
const USAGE: u8 = 2;
/// The model cannot be opened.
const OPEN: u8 = 3;
/// It does not fit the budget.
const BUDGET: u8 = 4;
/// Something failed while running.
const RUN: u8 = 5;
/// Stopped by Ctrl-C: 128 and the number of the signal, as shells have it.
pub const INTERRUPTED: u8 = 130;

/// Why a command did not come to its end.
#[derive(Debug)]
pub enum Failure {
    /// What was asked for makes no sense.
    Usage(String),
    /// The model cannot be opened.
    Open(String),
    /// The budget cannot work.
    Budget(String),
    /// The engine's own words.
    Engine(EngineError),
    /// What was computed cannot be written.
    Output {
        /// What was being written, e.g. a path.
        to: String,
        /// The system's own words.
        source: io::Error,
    },
    /// Whoever read our output has left. Like `head`, they had enough: no failure to speak of.
    NobodyListens,
    /// Ctrl-C.
    Interrupted,
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        Failure::Engine(error)
    }
}

impl Failure {
    fn code(&self) -> u8 {
        match self {
            Failure::Usage(_) => USAGE,
            Failure::Open(_) => OPEN,
            Failure::Budget(_) => BUDGET,
            Failure::Output { .. } => RUN,
            Failure::NobodyListens => 0,
            Failure::Interrupted => INTERRUPTED,
            Failure::Engine(error) => match error.kind() {
                ErrorKind::Usage => USAGE,
                ErrorKind::Open => OPEN,
                ErrorKind::Budget => BUDGET,
                ErrorKind::Run => RUN,
                ErrorKind::Cancelled => INTERRUPTED,
            },
        }
    }

    /// Whether asking for something else may help.
    pub fn is_usage(&self) -> bool {
        self.code() == USAGE
    }

    /// What to tell; `None` when there is nothing to tell.
    pub fn message(&self) -> Option<String> {
        match self {
            Failure::Usage(m) | Failure::Open(m) | Failure::Budget(m) => Some(m.clone()),
            Failure::Engine(error) => Some(with_causes(error)),
            Failure::Output { to, source } => Some(format!("{to}: cannot be written: {source}")),
            Failure::NobodyListens | Failure::Interrupted => None,
        }
    }
}

/// An error and its causes. Messages that quote their cause already do not repeat it.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let words = next.to_string();
        if !text.contains(&words) {
            text = format!("{text}\n  because: {words}");
        }
        cause = next.source();
    }
    text
}

/// Prints `calypte: …` on stderr. There is nobody to tell when that fails.
pub fn complain(message: &str) {
    let _ = writeln!(io::stderr().lock(), "calypte: {message}");
}

/// Prints what went wrong, and returns the exit code.
pub fn report(outcome: Result<(), Failure>) -> ExitCode {
    let Err(failure) = outcome else {
        return ExitCode::SUCCESS;
    };
    if let Some(message) = failure.message() {
        complain(&message);
    }
    ExitCode::from(failure.code())
}

/// Prints help, version or what was wrong with the command line, and returns the exit code.
pub fn usage(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(USAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Layered(&'static str, Option<Box<Layered>>);

    impl std::fmt::Display for Layered {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.0)
        }
    }

    impl std::error::Error for Layered {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            self.1.as_deref().map(|e| e as _)
        }
    }

    #[test]
    fn causes_are_told_once() {
        let chain = |a, b| Layered(a, Some(Box::new(Layered(b, None))));
        let cases = [
            (chain("a.gguf: short", "end of file"), "a.gguf: short\n  because: end of file"),
            (chain("a.gguf: end of file", "end of file"), "a.gguf: end of file"),
            (Layered("alone", None), "alone"),
        ];
        for (error, want) in cases {
            assert_eq!(with_causes(&error), want);
        }
    }
}
