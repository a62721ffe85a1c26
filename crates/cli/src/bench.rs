//! `calypte bench`: how fast a model is on this machine.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use calypte_engine::{Engine, EngineError, ErrorKind, Session};
use clap::Args;
use serde_json::{Value, json};

use crate::args::{EngineArgs, positions, positions_or_zero};
use crate::exit::Failure;
use crate::interrupt::Interrupts;
use crate::loading::{headers, load};
use crate::output::{Out, table_row, three_digits};
use crate::progress::Progress;
use crate::run::room;
use crate::timeline::{self, TimelineArgs, record};

const EXAMPLES: &str = "\
Examples:
  calypte bench model.gguf
  calypte bench model.gguf -p 512,2048 -n 64 -r 5 --threads 2
  calypte bench model.gguf -p 0 -n 32 --depth 512,8192 --json

One line per test: ppN is N prompt tokens at once, tgN is N tokens one after the other; @D says that
D tokens came before them, which are computed once and not timed. The tokens are noise, the same
every time. The figures are tokens per second: the median of the runs, the slowest and the fastest.
One run before them is not counted; where not all experts fit the cache, each finds there what the
one before it left.";

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
    /// Count the first run too, whose caches are cold; otherwise one run comes before those that count
    #[arg(long)]
    pub no_warmup: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a docstring would become help text")]
    pub engine: EngineArgs,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a docstring would become help text")]
    pub timeline: TimelineArgs,
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
pub fn bench(args: &BenchArgs, recorded: Option<&Arc<timeline::Timeline>>) -> Result<(), Failure> {
    let interrupts = Interrupts::catch();
    let prompts = args.prompt.iter().map(|n| Work::Prompt(*n));
    let works: Vec<Work> = prompts.chain(args.tokens.iter().map(|n| Work::Generate(*n))).collect();
    let mut tests: Vec<Test> = args
        .depth
        .iter()
        .flat_map(|depth| works.iter().map(|work| Test { work: *work, depth: *depth, tok_s: Vec::new() }))
        .filter(|test| test.work.tokens() > 0)
        .collect();
    let most = tests.iter().map(Test::tokens).max().unwrap_or(0);
    if most == 0 {
        return Err(Failure::Usage("nothing to measure: give -p or -n a number above 0".to_owned()));
    }
    let mut progress = Progress::new();
    let mut engine = load(headers(args.model.as_deref())?, &args.engine.options(most), &mut progress)?;
    record(&mut engine, recorded);
    room(&engine, most)?;
    let mut out = (!args.json).then(Out::new);
    let width = tests.iter().map(|test| test.name().chars().count()).max().unwrap_or(0);
    let outcome: Result<(), Failure> = interrupts.during(|cancelled| {
        let mut timeline = Timeline::new(&mut engine, most, cancelled);
        for test in &mut tests {
            test.measure(&mut timeline, args.runs, !args.no_warmup, &mut progress).map_err(|e| {
                match e.kind() {
                    ErrorKind::Cancelled => Failure::Interrupted,
                    _ => e.into(),
                }
            })?;
            // Somebody who waits for hours wants to see what there is.
            if let Some(out) = &mut out {
                progress.clear();
                out.text(&table_row(&test.name(), &test.row(), width))?;
            }
        }
        Ok(())
    });
    progress.clear();
    outcome?;
    if args.json {
        let tests: Vec<Value> = tests.iter().map(Test::json).collect();
        let threads = engine.options().threads();
        Out::new().line(&json!({ "threads": threads, "tests": tests }).to_string())?;
    }
    Ok(())
}

/// One timeline for all tests. Its tokens are always the first ones of the same noise, so that what stands before a test is
/// computed once: afterwards the timeline is cut back to it, or goes on from it.
struct Timeline<'a> {
    engine: &'a mut Engine,
    session: Session,
    noise: Vec<u32>,
    cancelled: &'a AtomicBool,
}

impl<'a> Timeline<'a> {
    fn new(engine: &'a mut Engine, tokens_max: usize, cancelled: &'a AtomicBool) -> Self {
        let noise = noise(tokens_max, engine.catalog().arch.vocab);
        Timeline { session: engine.session(), engine, noise, cancelled }
    }

    /// Appends the next tokens, so that there are `len`, all at once (in prefill steps).
    fn extend(&mut self, len: usize, progress: &mut dyn FnMut(usize, usize)) -> Result<(), EngineError> {
        let next = &self.noise[self.session.tokens().len()..len];
        self.engine.prefill(&mut self.session, next, progress, &mut (), self.cancelled)
    }

    /// Makes it `len` tokens long.
    fn reach(&mut self, len: usize, progress: &mut Progress) -> Result<(), EngineError> {
        self.session.truncate(len);
        self.extend(len, &mut |done, total| progress.tokens(done, total))
    }
}

impl Work {
    fn tokens(self) -> usize {
        match self {
            Work::Prompt(n) | Work::Generate(n) => n,
        }
    }
}

impl Test {
    /// Tokens that the timeline has in the end.
    fn tokens(&self) -> usize {
        self.depth + self.work.tokens()
    }

    /// Runs that count, after one that does not, unless caches shall be cold.
    fn measure(
        &mut self,
        timeline: &mut Timeline<'_>,
        runs: NonZeroUsize,
        warmup: bool,
        progress: &mut Progress,
    ) -> Result<(), EngineError> {
        timeline.reach(self.depth, progress)?;
        progress.busy("Measuring");
        if warmup {
            self.run(timeline)?;
        }
        for _ in 0..runs.get() {
            timeline.session.truncate(self.depth);
            let tok_s = self.run(timeline)?;
            self.tok_s.push(tok_s);
        }
        self.tok_s.sort_by(f64::total_cmp);
        Ok(())
    }

    /// Tokens per second of one run, on a timeline of `depth` tokens.
    fn run(&self, timeline: &mut Timeline<'_>) -> Result<f64, EngineError> {
        let mut extend = |len| timeline.extend(len, &mut |_, _| {});
        let start = Instant::now();
        match self.work {
            Work::Prompt(_) => extend(self.tokens())?,
            Work::Generate(_) => (self.depth + 1..=self.tokens()).try_for_each(extend)?,
        }
        Ok(self.work.tokens() as f64 / start.elapsed().as_secs_f64())
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
