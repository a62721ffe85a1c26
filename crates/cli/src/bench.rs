//! `calypte bench`: how fast a model is on this machine.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use calypte_engine::{Engine, EngineError, ErrorKind, Session};
use clap::Args;
use serde_json::{Value, json};

use crate::args::{EngineArgs, positions, positions_or_zero};
use crate::exit::Failure;
use crate::interrupt::Interrupts;
use crate::loading::{headers, load};
use crate::output::{Out, table, three_digits};
use crate::progress::Progress;
use crate::run::room;

const EXAMPLES: &str = "\
Examples:
  calypte bench model.gguf
  calypte bench model.gguf -p 512,2048 -n 64 -r 5 --threads 2
  calypte bench model.gguf -p 0 -n 32 --depth 512,8192 --json

One line per test: ppN is N prompt tokens at once, tgN is N tokens one after the other; @D says that
D tokens came before them, which are not timed. The tokens are noise, the same every time. The
figures are tokens per second: the median of the runs, the slowest and the fastest. One run before
them is not counted.";

/// Runs of each test that count unless told otherwise.
const RUNS_DEFAULT: &str = "5";

/// Arguments of `bench`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchArgs {
    /// GGUF file or Hugging Face directory; the bundled model if left out
    #[arg(value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Prompt lengths to measure, separated by commas; 0 is none
    #[arg(short, long, value_name = "N,…", default_value = "512", value_delimiter = ',', value_parser = positions_or_zero)]
    pub prompt: Vec<usize>,
    /// Numbers of tokens to generate, separated by commas; 0 is none
    #[arg(short = 'n', long, value_name = "N,…", default_value = "64", value_delimiter = ',', value_parser = positions_or_zero)]
    pub tokens: Vec<usize>,
    /// Numbers of tokens that come before, separated by commas
    #[arg(short, long, value_name = "N,…", default_value = "0", value_delimiter = ',', value_parser = positions_or_zero)]
    pub depth: Vec<usize>,
    /// Runs of each test
    #[arg(short, long, value_name = "N", default_value = RUNS_DEFAULT, value_parser = positions)]
    pub runs: NonZeroUsize,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a docstring would become help text")]
    pub engine: EngineArgs,
}

/// What is timed.
#[derive(Clone, Copy)]
enum Work {
    /// So many tokens at once.
    Prompt(usize),
    /// So many, one after the other.
    Generate(usize),
}

/// One line of the result.
struct Test {
    work: Work,
    depth: usize,
    /// Tokens per second of each run, sorted.
    tok_s: Vec<f64>,
}

/// Runs the tests and prints.
pub fn bench(args: &BenchArgs) -> Result<(), Failure> {
    let interrupts = Interrupts::catch();
    let prompts = args.prompt.iter().map(|n| Work::Prompt(*n));
    let works: Vec<Work> = prompts.chain(args.tokens.iter().map(|n| Work::Generate(*n))).collect();
    let mut tests: Vec<Test> = args
        .depth
        .iter()
        .flat_map(|depth| works.iter().map(|work| Test { work: *work, depth: *depth, tok_s: Vec::new() }))
        .filter(|test| test.work.tokens() > 0)
        .collect();
    let most = tests.iter().map(|t| t.depth + t.work.tokens()).max().unwrap_or(0);
    if most == 0 {
        return Err(Failure::Usage("nothing to measure: give -p or -n a number above 0".to_owned()));
    }
    let mut progress = Progress::new();
    let mut engine = load(headers(args.model.as_deref())?, &args.engine.options(most), &mut progress)?;
    room(&engine, most)?;
    let outcome = interrupts.during(|cancelled| {
        progress.busy("Measuring");
        for test in &mut tests {
            for run in 0..=args.runs.get() {
                let tok_s = test.run(&mut engine, cancelled)?;
                if run > 0 {
                    test.tok_s.push(tok_s);
                }
            }
            test.tok_s.sort_by(f64::total_cmp);
        }
        Ok::<(), EngineError>(())
    });
    progress.clear();
    outcome.map_err(|e| if e.kind() == ErrorKind::Cancelled { Failure::Interrupted } else { e.into() })?;
    if args.json {
        let tests: Vec<Value> = tests.iter().map(Test::json).collect();
        let threads = engine.options().threads();
        return Out::new().line(&json!({ "threads": threads, "tests": tests }).to_string());
    }
    let rows: Vec<_> = tests.iter().map(|test| (test.name(), test.row())).collect();
    Out::new().text(&table(&rows))
}

impl Work {
    fn tokens(self) -> usize {
        match self {
            Work::Prompt(n) | Work::Generate(n) => n,
        }
    }
}

impl Test {
    /// Tokens per second of one run, from an empty timeline.
    fn run(&self, engine: &mut Engine, cancelled: &AtomicBool) -> Result<f64, EngineError> {
        let mut session = engine.session();
        let vocab = engine.catalog().arch.vocab;
        let ids = noise(self.depth + self.work.tokens(), vocab);
        let (before, timed) = ids.split_at(self.depth);
        let mut feed = |session: &mut Session, ids: &[u32]| {
            engine.prefill(session, ids, &mut |_, _| {}, &mut (), cancelled)
        };
        feed(&mut session, before)?;
        let start = Instant::now();
        match self.work {
            Work::Prompt(_) => feed(&mut session, timed)?,
            Work::Generate(_) => timed.iter().try_for_each(|id| feed(&mut session, &[*id]))?,
        }
        Ok(timed.len() as f64 / start.elapsed().as_secs_f64())
    }

    fn name(&self) -> String {
        let name = match self.work {
            Work::Prompt(n) => format!("pp{n}"),
            Work::Generate(n) => format!("tg{n}"),
        };
        if self.depth > 0 { format!("{name} @{}", self.depth) } else { name }
    }

    fn median(&self) -> f64 {
        self.tok_s.get(self.tok_s.len() / 2).copied().unwrap_or(f64::NAN)
    }

    /// For people.
    fn row(&self) -> String {
        let [low, high] =
            [self.tok_s.first(), self.tok_s.last()].map(|v| three_digits(*v.unwrap_or(&f64::NAN)));
        format!("{} tok/s ({low} to {high})", three_digits(self.median()))
    }

    fn json(&self) -> Value {
        json!({ "test": self.name(), "tok_s": self.median(), "runs_tok_s": self.tok_s })
    }
}

/// Token ids that look like nothing in particular.
fn noise(count: usize, vocab: usize) -> Vec<u32> {
    /// Coprime to any vocabulary's size: a prime above them all.
    const STEP: u64 = 2_147_483_647;
    (1..=count as u64).map(|i| (i.wrapping_mul(STEP) % vocab.max(1) as u64) as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_was_measured() {
        let test = |work, depth| Test { work, depth, tok_s: vec![1.0, 20.0, 300.0] };
        assert_eq!(test(Work::Prompt(512), 0).name(), "pp512");
        assert_eq!(test(Work::Generate(8), 4096).name(), "tg8 @4096");
        assert_eq!(test(Work::Generate(8), 0).row(), "20.0 tok/s (1.00 to 300)");
    }

    #[test]
    fn noise_stays_inside_the_vocabulary() {
        let ids = noise(1000, 48);
        assert!(ids.iter().all(|id| *id < 48));
        assert!((0..48).all(|id| ids.contains(&id)));
    }
}
