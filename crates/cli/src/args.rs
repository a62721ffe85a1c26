//! The command line.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use calypte_engine::sampler::Sampling;
use calypte_engine::{IoMode, KvType, Options, Policy, Precision, Predictor, Size};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::bench::BenchArgs;
use crate::ids::Ids;
use crate::places;
use crate::replay::ReplayArgs;
use crate::template::TemplateArgs;
use crate::timeline::TimelineArgs;
use crate::tokenize::TokenizeArgs;
use crate::trace::TraceArgs;

/// Most compute threads; beyond this a number is a slip of the finger.
const THREADS_MAX: u64 = 1024;
/// Most positions, of a context as of a generation or a prefill step: models of today are made for up to 2²⁰.
const POSITIONS_MAX: u64 = 1 << 24;
/// Shortest chunk of `score`: the second half of a shorter one would predict nothing.
const CHUNK_MIN: u64 = 3;
/// Tokens that `run` generates unless told otherwise.
const TOKENS_DEFAULT: usize = 128;

const EXAMPLES: &str = "\
Examples:
  calypte run \"It was a bright cold morning\"     the bundled model goes on with a text
  calypte chat                                   talk to it, line by line
  calypte plan model.gguf --ram 24GiB            what would fit, and how fast
  calypte run model.gguf -p \"Once\" --ram 24GiB   a model of yours, within 24 GiB
  calypte inspect model.gguf                     what a file holds

MODEL is a GGUF file, a Hugging Face directory (config.json and *.safetensors), or nothing: the
bundled model. `calypte COMMAND --help` tells all about a command. CALYPTE_LOG=debug logs to stderr.

Exit codes: 0 fine, 2 bad usage, 3 the model cannot be opened, 4 it does not fit the memory budget,
5 a read failed while running, 130 stopped by Ctrl-C.";

/// Mixture-of-Experts language models far larger than memory.
#[derive(Debug, Parser)]
#[command(
    name = "calypte",
    bin_name = "calypte",
    version,
    about = "Runs Mixture-of-Experts language models that are far larger than memory: \
             the experts stay on disk and are read when they are needed.",
    after_help = EXAMPLES,
    arg_required_else_help = true,
    subcommand_required = true,
    max_term_width = 100
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Go on with a text
    Run(RunArgs),
    /// Talk to a model
    Chat(ChatArgs),
    /// Tell what would be where, and how fast it would be, before any weight is read
    Plan(PlanArgs),
    /// Measure how likely a model finds a text
    Score(ScoreArgs),
    /// Measure how fast a model is on this machine
    Bench(BenchArgs),
    /// List what a model file holds; reads headers only
    Inspect(InspectArgs),
    /// Turn a text into a model's token ids, or ids into text
    Tokenize(TokenizeArgs),
    /// Write the prompt that a model's chat template makes of messages
    Template(TemplateArgs),
    /// Record which experts a model's routers choose
    Trace(TraceArgs),
    /// Tell what a cache of experts would have made of a recorded run
    Replay(ReplayArgs),
}

const RUN_EXAMPLES: &str = "\
Examples:
  calypte run \"It was a bright cold morning\"
  calypte run model.gguf \"Once upon a time\" -n 200 --seed 7
  calypte run model.gguf --prompt-file letter.txt --ram 8GiB
  calypte run model-directory --prompt-ids 1,2,3 -n 32 --temp 0 --json

The text goes to stdout, progress and statistics go to stderr. The same model, prompt, options and
seed give the same text on every machine; --threads, --io, --ram, --expert-cache and --prefill-chunk
change the speed only.";

/// Arguments of `run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES)]
pub struct RunArgs {
    /// GGUF file or Hugging Face directory; the bundled model if left out
    ///
    /// A single argument is the model if it is an existing path, ends in `.gguf`, or has a path separator and no space;
    /// otherwise it is the prompt.
    #[arg(value_name = "MODEL")]
    pub first: Option<OsString>,
    /// Text to go on with
    #[arg(value_name = "PROMPT")]
    pub second: Option<OsString>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a docstring would become help text")]
    pub prompt: PromptArgs,
    /// Tokens to generate at most
    #[arg(short = 'n', long, value_name = "N", default_value_t = TOKENS_DEFAULT, value_parser = positions_or_zero)]
    pub tokens: usize,
    /// Stop before this text; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub stop: Vec<String>,
    /// Go on when the model says that it is done
    #[arg(long)]
    pub ignore_eos: bool,
    /// Print one JSON object instead of the text
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a docstring would become help text")]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a docstring would become help text")]
    pub engine: EngineArgs,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a docstring would become help text")]
    pub learning: LearningArgs,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a docstring would become help text")]
    pub timeline: TimelineArgs,
}

/// Where a prompt comes from besides the command line's own words.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct PromptArgs {
    /// Text to go on with; special tokens written out in it count as such
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// File with the text, used to the byte (UTF-8); `-` is stdin
    #[arg(long, value_name = "FILE")]
    pub prompt_file: Option<PathBuf>,
    /// Token ids, separated by commas or spaces; needs no tokenizer
    #[arg(long, value_name = "LIST")]
    pub prompt_ids: Option<Ids>,
    /// File with token ids, separated by commas or white space
    #[arg(long, value_name = "FILE")]
    pub ids_file: Option<PathBuf>,
}

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Temperature; 0 always takes the likeliest token
    #[arg(long = "temp", value_name = "F", default_value_t = 0.7, allow_negative_numbers = true, value_parser = temperature)]
    pub temperature: f32,
    /// Choose among the K likeliest tokens; 0: all
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: usize,
    /// Choose among the likeliest tokens that are this probable together
    #[arg(long, value_name = "F", default_value_t = 0.95, value_parser = share)]
    pub top_p: f32,
    /// Choose among tokens at least this probable relative to the likeliest
    #[arg(long, value_name = "F", default_value_t = 0.0, value_parser = share)]
    pub min_p: f32,
}

impl SamplingArgs {
    /// As the engine wants it.
    pub fn sampling(&self, seed: u64) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            seed,
        }
    }
}

/// Set-up of the engine, the same for every command.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Engine")]
pub struct EngineArgs {
    /// Memory for everything (weights, keys and values, working memory, experts): bytes, `24GiB`, `50%` of what is
    /// available, `all` or `min` [default: what is available, less a reserve]
    #[arg(long, value_name = "SIZE")]
    pub ram: Option<Size>,
    /// Memory for experts alone: bytes, `64MiB`, `25%` of all experts, `all` or `min` [default: what --ram leaves]
    #[arg(long, value_name = "SIZE")]
    pub expert_cache: Option<Size>,
    /// Positions to make room for [default: as many as the command needs; chat and plan: 4096]
    #[arg(long, value_name = "N", value_parser = positions)]
    pub ctx: Option<NonZeroUsize>,
    /// Compute threads [default: one per physical core that this process may use]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub threads: Option<NonZeroUsize>,
    /// Tokens of the prompt computed at once
    #[arg(long, value_name = "N", default_value_t = Options::default().prefill_chunk, value_parser = positions)]
    pub prefill_chunk: NonZeroUsize,
    /// How weights are read: uring-direct, pread-direct, pread-buffered or memory [default: the fastest that works]
    #[arg(long, value_name = "MODE")]
    pub io: Option<IoMode>,
    /// What integer weights are multiplied with; f32 is slower and for measuring the rounding of int8
    #[arg(long, value_name = "TYPE", default_value = "int8")]
    pub activations: ActivationsArg,
    /// What keys and values are kept as; f32 takes twice the memory and is slower [default: f16 where activations are
    /// rounded, f32 for a model in floats]
    #[arg(long, value_name = "TYPE")]
    pub kv: Option<KvArg>,
    /// Which experts lose their place in memory, of docs/residency.md: forecast, successor, dfreq, s3fifo, lru …
    #[arg(long, value_name = "POLICY", default_value_t = Policy::default())]
    pub policy: Policy,
    /// Who guesses the experts of later layers: gate_ahead, learned, trajectory, prev_token or none; with `:LAYERS`, how
    /// far ahead
    #[arg(long, value_name = "PREDICTOR", default_value_t = Predictor::default())]
    pub predictor: Predictor,
    /// Do not read experts on guesses, only keep those in memory that are expected
    #[arg(long)]
    pub no_prefetch: bool,
    /// Start of the random sequence [default: a new one each time]; nothing but sampling is random
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

/// Values of `--activations`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ActivationsArg {
    /// Rounded to 8 bits per block, as the weights are.
    Int8,
    /// Not rounded.
    F32,
}

/// Values of `--kv`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum KvArg {
    /// Half precision.
    F16,
    /// Single precision.
    F32,
}

impl EngineArgs {
    /// As the engine wants them; `context` unless `--ctx` says otherwise.
    pub fn options(&self, context: usize) -> Options {
        Options {
            threads: self.threads,
            io: self.io,
            disk_profiles: places::disk_profiles(),
            ram: self.ram,
            expert_cache: self.expert_cache,
            context: self.ctx.map_or(context, NonZeroUsize::get),
            prefill_chunk: self.prefill_chunk,
            precision: match self.activations {
                ActivationsArg::Int8 => Precision::Int8,
                ActivationsArg::F32 => Precision::F32,
            },
            kv: self.kv.map(|kv| match kv {
                KvArg::F16 => KvType::F16,
                KvArg::F32 => KvType::F32,
            }),
            policy: self.policy.clone(),
            predictor: self.predictor.clone(),
            prefetch: !self.no_prefetch,
            usage_directory: None,
        }
    }
}

/// What is remembered from one run to the next, by the commands that answer. Those that measure remember nothing, so that what
/// they find does not depend on what was done before.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Engine")]
pub struct LearningArgs {
    /// Neither read nor write which experts of the model were used: start as if it were the first run, and leave no trace
    #[arg(long)]
    pub no_learning: bool,
}

impl LearningArgs {
    /// `options`, with what is remembered.
    pub fn with(self, options: Options) -> Options {
        Options {
            usage_directory: if self.no_learning { None } else { places::usage_directory() },
            ..options
        }
    }
}

const CHAT_EXAMPLES: &str = "\
Examples:
  calypte chat
  calypte chat model.gguf --ram 24GiB --system \"Answer in one sentence.\"
  printf 'Hello\\n' | calypte chat model.gguf --temp 0

Ctrl-C stops an answer, and at the prompt clears the line; Ctrl-D leaves. A backslash at the end of
a line continues it on the next one. /help lists the commands. A model without a chat template goes
on with the text instead of answering.";

/// Arguments of `chat`.
#[derive(Debug, Args)]
#[command(after_help = CHAT_EXAMPLES)]
pub struct ChatArgs {
    /// GGUF file or Hugging Face directory; the bundled model if left out
    #[arg(value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// What the model is told before the conversation
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Tokens of an answer at most [default: what the context holds; without a chat template 128]
    #[arg(short = 'n', long, value_name = "N", value_parser = positions)]
    pub tokens: Option<NonZeroUsize>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a docstring would become help text")]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a docstring would become help text")]
    pub engine: EngineArgs,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a docstring would become help text")]
    pub learning: LearningArgs,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a docstring would become help text")]
    pub timeline: TimelineArgs,
}

const PLAN_EXAMPLES: &str = "\
Examples:
  calypte plan
  calypte plan model.gguf --ram 24GiB --ctx 8192
  calypte plan model.gguf --expert-cache 25% --json

Headers are read, and for a few seconds experts, to measure the disk the way the engine uses it,
with several depths of queue and sizes of reads, past the page cache and through it. What was best
is remembered for the device in $XDG_CACHE_HOME/calypte/disk.txt (~/.cache where that is not set),
and all commands read that way. When the budget cannot work, the plan shows the least that does and
the exit code is 4.";

/// Arguments of `plan`.
#[derive(Debug, Args)]
#[command(after_help = PLAN_EXAMPLES)]
pub struct PlanArgs {
    /// GGUF file or Hugging Face directory; the bundled model if left out
    #[arg(value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Do not measure the disk; what is remembered of it is used
    #[arg(long)]
    pub no_probe: bool,
    /// Measure the disk anew, though it is remembered
    #[arg(long, conflicts_with = "no_probe")]
    pub probe: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a docstring would become help text")]
    pub engine: EngineArgs,
}

const SCORE_EXAMPLES: &str = "\
Examples:
  calypte score --text-file chapter.txt
  calypte score model.gguf --ids-file ids.txt --json
  calypte score model.gguf --ids-file ids.txt --logits logits.safetensors --json
  calypte score model.gguf --text-file book.txt --chunk 512 --chunks 40

Output: `tokens` given; `nll`, the mean negative log-likelihood in nats of each token but the first,
given those before it; `ppl`, e to the nll; `argmax`, the likeliest next token after each token;
`logits_sha256`, SHA-256 over the logits of all tokens (little-endian f32, row by row), which is the
same for every setting of the engine but --activations and --kv.

With --chunk: `tokens` of the chunks; `counted`, how many of them `nll` and `ppl` are of; `chunks`, of
each the `nll` and the `logits_sha256`. This is how llama-perplexity counts with -c N.";

/// Arguments of `score`.
#[derive(Debug, Args)]
#[command(after_help = SCORE_EXAMPLES)]
pub struct ScoreArgs {
    /// GGUF file or Hugging Face directory; the bundled model if left out
    #[arg(value_name = "MODEL")]
    pub model: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a docstring would become help text")]
    pub source: ScoreSource,
    /// Write all logits to this file, as one F32 tensor `logits` [tokens, vocabulary]
    #[arg(long, value_name = "OUT.safetensors")]
    pub logits: Option<PathBuf>,
    /// Score the text in chunks of N tokens, each from an empty start, and count the second half of each only
    ///
    /// The first token of a chunk is replaced by the beginning-of-sequence token if the model expects one. What is left
    /// over at the end of the text is not scored.
    #[arg(long, value_name = "N", value_parser = chunk)]
    pub chunk: Option<NonZeroUsize>,
    /// Score no more than the first N chunks
    #[arg(long, value_name = "N", requires = "chunk", value_parser = positions)]
    pub chunks: Option<NonZeroUsize>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a docstring would become help text")]
    pub engine: EngineArgs,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a docstring would become help text")]
    pub learning: LearningArgs,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a docstring would become help text")]
    pub timeline: TimelineArgs,
}

/// What is scored.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct ScoreSource {
    /// File with token ids, separated by commas or white space; `-` is stdin
    #[arg(long, value_name = "FILE")]
    pub ids_file: Option<PathBuf>,
    /// File with text (UTF-8), used to the byte; `-` is stdin
    #[arg(long, value_name = "FILE")]
    pub text_file: Option<PathBuf>,
}

const INSPECT_EXAMPLES: &str = "\
Examples:
  calypte inspect model.gguf
  calypte inspect model-directory --tensors
  calypte inspect model-00001-of-00009.gguf    any file of a model in several
  calypte inspect --json

Of a model that cannot be run (files are missing, the architecture or a type is unknown) it prints
what the headers say, then what is wrong; the exit code is 3.";

/// Arguments of `inspect`.
#[derive(Debug, Args)]
#[command(after_help = INSPECT_EXAMPLES)]
pub struct InspectArgs {
    /// GGUF file or Hugging Face directory; the bundled model if left out
    #[arg(value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// List every tensor: type, shape, file, offset, bytes, name
    #[arg(long)]
    pub tensors: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

fn number(text: &str, low: u64, high: u64) -> Result<usize, String> {
    let wanted = || format!("expected a whole number from {low} to {high}");
    let value: u64 = text.parse().map_err(|_| wanted())?;
    if (low..=high).contains(&value) { usize::try_from(value).map_err(|_| wanted()) } else { Err(wanted()) }
}

fn non_zero(text: &str, high: u64) -> Result<NonZeroUsize, String> {
    Ok(NonZeroUsize::new(number(text, 1, high)?).unwrap_or(NonZeroUsize::MIN))
}

fn threads(text: &str) -> Result<NonZeroUsize, String> {
    non_zero(text, THREADS_MAX)
}

pub fn positions(text: &str) -> Result<NonZeroUsize, String> {
    non_zero(text, POSITIONS_MAX)
}

fn chunk(text: &str) -> Result<NonZeroUsize, String> {
    Ok(NonZeroUsize::new(number(text, CHUNK_MIN, POSITIONS_MAX)?).unwrap_or(NonZeroUsize::MIN))
}

pub fn positions_or_zero(text: &str) -> Result<usize, String> {
    number(text, 0, POSITIONS_MAX)
}

fn real(text: &str, high: f32, expected: &str) -> Result<f32, String> {
    let value = text.parse().ok();
    value
        .filter(|v: &f32| v.is_finite() && (0.0..=high).contains(v))
        .ok_or_else(|| format!("expected {expected}"))
}

fn temperature(text: &str) -> Result<f32, String> {
    real(text, f32::MAX, "a number that is not negative")
}

fn share(text: &str) -> Result<f32, String> {
    real(text, 1.0, "a number from 0 to 1")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn numbers_have_limits() {
        type IsAccepted = fn(&str) -> bool;
        let cases: [(IsAccepted, &str, bool); 14] = [
            (|t| threads(t).is_ok(), "1", true),
            (|t| threads(t).is_ok(), "0", false),
            (|t| threads(t).is_ok(), "1025", false),
            (|t| positions(t).is_ok(), "18446744073709551616", false),
            (|t| positions_or_zero(t).is_ok(), "0", true),
            (|t| chunk(t).is_ok(), "3", true),
            (|t| chunk(t).is_ok(), "2", false),
            (|t| temperature(t).is_ok(), "0", true),
            (|t| temperature(t).is_ok(), "-0.5", false),
            (|t| temperature(t).is_ok(), "nan", false),
            (|t| temperature(t).is_ok(), "inf", false),
            (|t| share(t).is_ok(), "1", true),
            (|t| share(t).is_ok(), "1.01", false),
            (|t| share(t).is_ok(), "warm", false),
        ];
        for (parse, text, ok) in cases {
            assert_eq!(parse(text), ok, "{text}");
        }
    }
}
