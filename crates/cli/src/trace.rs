//! `calypte trace`: record which experts a model's routers choose.

use std::io::Write;
use std::path::{Path, PathBuf};

use calypte_engine::{Engine, Event, Generation, Guess, Observer, Predictor, Stop};
use calypte_replay::{Recorder, Trace, TraceLayer};
use clap::Args;
use serde_json::json;

use crate::args::{EngineArgs, PromptArgs, SamplingArgs, positions_or_zero};
use crate::exit::Failure;
use crate::interrupt::Interrupts;
use crate::loading::{headers, load};
use crate::output::{Out, grouped, note};
use crate::partial_file::PartialFile;
use crate::progress::Progress;
use crate::prompt;
use crate::run::room;
use crate::stats::random_seed;

const EXAMPLES: &str = "\
Examples:
  calypte trace model.gguf -p \"Once upon a time\" -n 200 -o run.trace
  calypte trace model.gguf --prompt-file book.txt -n 0 --prefill-chunk 1 -o book.trace
  calypte replay run.trace --policy lru,dfreq,successor --slots 2k,4k

The trace holds, for every step and layer, the experts of every token, best first, and what the
predictor guessed of them; no text, no weights, no activations. A prompt is computed in steps of --prefill-chunk tokens, and recorded so; with 1
it is as if every token of it had been generated. `calypte replay` says what a cache would have
made of it, and with `--slots recorded` what this one did.";

/// Tokens that `trace` generates unless told otherwise.
const TOKENS_DEFAULT: usize = 128;

/// Arguments of `trace`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_group("PromptArgs", |prompt| prompt.required(true)))]
pub struct TraceArgs {
    /// GGUF file or Hugging Face directory; the bundled model if left out
    #[arg(value_name = "MODEL")]
    pub model: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a docstring would become help text")]
    pub prompt: PromptArgs,
    /// File to write
    #[arg(short, long, value_name = "TRACE")]
    pub out: PathBuf,
    /// Tokens to generate; an end token does not stop it
    #[arg(short = 'n', long, value_name = "N", default_value_t = TOKENS_DEFAULT, value_parser = positions_or_zero)]
    pub tokens: usize,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a docstring would become help text")]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a docstring would become help text")]
    pub engine: EngineArgs,
}

struct Routes(Recorder);

impl Observer for Routes {
    fn step_begins(&mut self, position: usize) {
        self.0.step_begins(position);
    }

    fn routed(&mut self, layer: usize, _position: usize, experts: &[u32], _weights: &[f32]) {
        self.0.routed(layer, experts);
    }

    fn guessed(&mut self, layer: usize, guesses: &[Guess]) {
        self.0.guessed(layer, guesses);
    }
}

/// Runs the model and writes the trace.
pub fn trace(args: &TraceArgs) -> Result<(), Failure> {
    let interrupts = Interrupts::catch();
    let prompt = prompt::required(&args.prompt)?;
    let file = TraceFile::create(&args.out)?;
    let mut progress = Progress::new();
    let positions = prompt.positions_max().saturating_add(args.tokens);
    let mut engine = load(headers(args.model.as_deref())?, &args.engine.options(positions), &mut progress)?;
    let layers = layers(&engine)?;
    let ids = prompt.tokens(&engine)?;
    room(&engine, ids.len() + args.tokens)?;
    let seed = args.engine.seed.unwrap_or_else(random_seed);
    let generation = Generation {
        tokens_max: args.tokens,
        sampling: args.sampling.sampling(seed),
        ignore_eos: true,
        stops: Vec::new(),
    };
    let mut routes = Routes(Recorder::new(layers));
    let mut session = engine.session();
    engine.reset_cache_stats();
    let outcome = interrupts.during(|cancelled| {
        let mut on_event = |event: Event<'_>| {
            if let Event::Prefill { done, total } = event {
                progress.tokens(done, total);
            }
        };
        engine.generate(&mut session, &ids, &generation, &mut on_event, &mut routes, cancelled)
    });
    progress.clear();
    let stop = outcome?.stop;
    let mut trace = routes.0.finish();
    trace.fingerprint = engine.catalog().fingerprint;
    trace.budget_bytes = engine.budget().expert_bytes;
    trace.predictor = engine.predictor().map(Predictor::to_string).unwrap_or_default();
    file.finish(&trace)?;
    if stop == Stop::Cancelled {
        // What was recorded until then is complete and written.
        return Err(Failure::Interrupted);
    }
    let stats = engine.cache_stats();
    if args.json {
        let object = json!({
            "trace": args.out.display().to_string(),
            "predictor": trace.predictor,
            "tokens": trace.tokens(),
            "steps": trace.steps().len(),
            "layers": trace.layers().len(),
            "expert_hits": stats.hits,
            "expert_misses": stats.misses,
            "evictions": stats.evictions,
        });
        return Out::new().line(&object.to_string());
    }
    note(&format!(
        "{}: {} tokens in {} steps, {} layers",
        args.out.display(),
        grouped(trace.tokens() as u64),
        grouped(trace.steps().len() as u64),
        trace.layers().len()
    ));
    Ok(())
}

/// A trace that is to be written, refused at once where no file can be.
pub struct TraceFile {
    path: PathBuf,
    file: PartialFile,
}

impl TraceFile {
    /// At `path`; nothing has that name until the trace is whole.
    pub fn create(path: &Path) -> Result<TraceFile, Failure> {
        let file = PartialFile::create(path).map_err(|source| cannot_write(path, source))?;
        Ok(TraceFile { path: path.to_owned(), file })
    }

    /// Writes the trace.
    pub fn finish(self, trace: &Trace) -> Result<(), Failure> {
        let TraceFile { path, mut file } = self;
        let written = file.write_all(&trace.to_bytes()).and_then(|()| file.finish());
        written.map_err(|source| cannot_write(&path, source))
    }
}

fn cannot_write(path: &Path, source: std::io::Error) -> Failure {
    Failure::Output { to: path.display().to_string(), source }
}

/// The layers whose experts are streamed.
fn layers(engine: &Engine) -> Result<Vec<TraceLayer>, Failure> {
    let layers: Vec<TraceLayer> =
        engine.expert_slots().into_iter().map(|(number, size)| TraceLayer::new(number, size)).collect();
    if layers.is_empty() {
        let path = engine.catalog().source.display();
        return Err(Failure::Usage(format!(
            "{path}: the model has no experts, so there is no routing to record"
        )));
    }
    Ok(layers)
}
