//! `calypte replay`: what a cache of experts would have made of a recorded run.

use std::path::PathBuf;
use std::sync::Arc;

use calypte_replay::{Memory, Outcome, ReplayError, Setting, Timing, Trace, Uses, check, replay};
use clap::Args;
use serde_json::{Value, json};

use crate::exit::Failure;
use crate::output::{Out, grouped, three_digits};
use crate::trace::TraceFile;

const EXAMPLES: &str = "\
Examples:
  calypte replay run.trace
  calypte replay run.trace --policy lru,dfreq:8,successor --slots 2k,3k,4k
  calypte replay run.trace --policy elb,successor --predictor none,draft_tokens --json
  calypte replay code.npz --sequence 512 --import code.trace

Every policy is replayed with every predictor and every number of slots. Policies: lru, lfu,
dfreq[:HALF-LIFE], lfru, s3fifo, least_stale, eam, expert_map, spac[:UP:DOWN], elb[:HALF-LIFE],
successor[:HALF-LIFE], forecast, and belady and belady_bypass, which know the future. Predictors: none,
prev_token, trajectory, recorded (what the run's own predictor guessed), and draft_tokens[:WINDOW[:ACCEPTANCE%[:ACCURACY%]]], which is SIMULATED: it
is the trace's own future, made worse on purpose. Predictors tell a policy whom to keep; with
--prefetch experts are also read on guesses, in idle disk time. Of the policies, least_stale, spac,
elb, successor and forecast listen.

With --json one object a line for each setting. `hit_rate`: experts that were in memory when a step
needed them, from a cold start; `gap_closed`: how far it is from LRU (0) to Belady (1) with as many
slots; `recall` and `precision` of the guesses, no more of them than a token uses; `timely_recall`:
guessed and in memory; bytes per token that steps read (`demand`) and that guesses read and were
used (`useful`) or not (`wasted`); `stall_ms_per_token`: waiting for the disk that the options
describe. Details: docs/residency.md.";

/// Arguments of `replay`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ReplayArgs {
    /// A trace that `calypte trace` wrote, or an .npz with an array `experts` [layers, tokens, top-k]
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,
    /// Policies, separated by commas
    #[arg(long, value_name = "NAME,…", default_value = "lru,dfreq,forecast", value_delimiter = ',')]
    pub policy: Vec<String>,
    /// Predictors, separated by commas
    #[arg(long, value_name = "NAME,…", default_value = "none", value_delimiter = ',')]
    pub predictor: Vec<String>,
    /// Slots of a layer, or multiples of the experts per token, separated by commas; `recorded`: the memory of the run
    #[arg(long, value_name = "N,…", default_value = "2k,4k", value_delimiter = ',')]
    pub slots: Vec<Slots>,
    /// Read experts on guesses, in idle disk time
    #[arg(long)]
    pub prefetch: bool,
    /// Layers ahead for which experts are guessed
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..))]
    pub ahead: u16,
    /// What the disk reads, in MB per second
    #[arg(long, value_name = "N", default_value = "3000", value_parser = clap::value_parser!(u32).range(1..))]
    pub disk_mb_s: u32,
    /// Latency of a read, in microseconds
    #[arg(long, value_name = "N", default_value = "100")]
    pub latency_us: u32,
    /// Bytes of an expert, if the trace does not say
    #[arg(long, value_name = "N", default_value = "3145728", value_parser = clap::value_parser!(u64).range(1..))]
    pub expert_bytes: u64,
    /// Time to compute a layer for one token, in microseconds
    #[arg(long, value_name = "N", default_value = "700")]
    pub compute_us: u32,
    /// Of an .npz: tokens after which another conversation begins [default: one conversation]
    #[arg(long, value_name = "N", value_parser = crate::args::positions)]
    pub sequence: Option<std::num::NonZeroUsize>,
    /// Write what was read to this file, as a trace, and replay nothing
    #[arg(long, value_name = "OUT")]
    pub import: Option<PathBuf>,
    /// Print one JSON object a line for each setting
    #[arg(long)]
    pub json: bool,
}

/// A number of slots as it is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Slots {
    /// So many.
    Count(usize),
    /// So many times the experts per token.
    PerChoice(f64),
    /// The memory of the run.
    Recorded,
}

impl std::str::FromStr for Slots {
    type Err = String;

    fn from_str(text: &str) -> Result<Slots, String> {
        let factor = |digits: &str| digits.parse().ok().filter(|f: &f64| f.is_finite() && *f >= 1.0);
        let parsed = match text.strip_suffix('k') {
            _ if text == "recorded" => Some(Slots::Recorded),
            Some(digits) => factor(digits).map(Slots::PerChoice),
            None => text.parse().ok().filter(|n| *n > 0).map(Slots::Count),
        };
        parsed.ok_or_else(|| {
            "expected a number of slots (`32`), a multiple of the experts per token (`1.5k`), or `recorded`".to_owned()
        })
    }
}

/// What a hit rate is compared with, for one number of slots.
#[derive(Clone, Copy)]
struct Bounds {
    lru: f64,
    belady: f64,
    bypass: f64,
}

/// Replays and prints.
pub fn replays(args: &ReplayArgs) -> Result<(), Failure> {
    if let Some(path) = &args.import {
        let file = TraceFile::create(path)?;
        return file.finish(&read(args)?);
    }
    let trace = read(args)?;
    let trace = Arc::new(trace);
    let uses = Arc::new(Uses::of(&trace));
    for policy in &args.policy {
        args.predictor
            .iter()
            .try_for_each(|predictor| check(&trace, &uses, policy, predictor))
            .map_err(refused)?;
    }
    let top_k = trace.layers().iter().map(|l| l.top_k).max().unwrap_or(0) as usize;
    let setting = |policy: &str, predictor: &str, memory| Setting {
        policy: policy.to_owned(),
        predictor: predictor.to_owned(),
        memory,
        prefetch: args.prefetch,
        layers_ahead: usize::from(args.ahead),
        timing: Timing {
            bandwidth_bytes_s: f64::from(args.disk_mb_s) * 1e6,
            latency_s: f64::from(args.latency_us) * 1e-6,
            expert_bytes: args.expert_bytes,
            compute_s: f64::from(args.compute_us) * 1e-6,
        },
    };
    let run = |policy: &str, predictor: &str, memory| {
        replay(&trace, &uses, &setting(policy, predictor, memory)).map_err(refused)
    };
    let memories: Vec<Memory> =
        args.slots.iter().map(|slots| memory(&trace, *slots, top_k)).collect::<Result<_, _>>()?;
    let mut out = Out::new();
    for memory in memories {
        let mut known: Option<Bounds> = None;
        if !args.json {
            out.line(&heading(memory, top_k))?;
        }
        for policy in &args.policy {
            for predictor in &args.predictor {
                let outcome = run(policy, predictor, memory)?;
                let bounds = match known {
                    Some(bounds) => bounds,
                    None => {
                        let rate = |policy| run(policy, "none", memory).map(|outcome| outcome.hit_rate());
                        *known.insert(Bounds {
                            lru: rate("lru")?,
                            belady: rate("belady")?,
                            bypass: rate("belady_bypass")?,
                        })
                    }
                };
                let line = Line { policy, predictor, memory, outcome, bounds };
                out.line(&if args.json { line.json().to_string() } else { line.text() })?;
            }
        }
    }
    Ok(())
}

fn read(args: &ReplayArgs) -> Result<Trace, Failure> {
    Trace::read(&args.trace, args.sequence.map(std::num::NonZeroUsize::get))
        .map_err(|e| Failure::Open(e.to_string()))
}

fn refused(error: ReplayError) -> Failure {
    match error {
        ReplayError::Residency(e) => Failure::Budget(format!("the trace cannot be replayed: {e}")),
        other => Failure::Usage(other.to_string()),
    }
}

fn memory(trace: &Trace, slots: Slots, top_k: usize) -> Result<Memory, Failure> {
    let count = match slots {
        Slots::Count(count) => count,
        Slots::PerChoice(factor) => (factor * top_k as f64).round() as usize,
        Slots::Recorded if trace.budget_bytes > 0 => return Ok(Memory::Bytes(trace.budget_bytes)),
        Slots::Recorded => {
            let message = "the trace does not say how much memory the run had; give --slots a number";
            return Err(Failure::Usage(message.to_owned()));
        }
    };
    if count < top_k {
        return Err(Failure::Budget(format!(
            "{count} slots are less than the {top_k} experts that a token uses in every layer; give --slots at least {top_k}"
        )));
    }
    Ok(Memory::SlotsPerLayer(count))
}

fn heading(memory: Memory, top_k: usize) -> String {
    let memory = match memory {
        Memory::SlotsPerLayer(slots) => {
            format!("{slots} slots a layer, {} × k", three_digits(slots as f64 / top_k.max(1) as f64))
        }
        Memory::Bytes(bytes) => format!("{} bytes, as recorded", grouped(bytes)),
    };
    format!(
        "{memory}\n  {:16} {:18} {:>6} {:>7} {:>7} {:>7} {:>10} {:>10} {:>9}",
        "policy", "predictor", "hits", "gap", "recall", "timely", "read MB/t", "wasted", "stall ms"
    )
}

/// One setting with what came of it.
struct Line<'a> {
    policy: &'a str,
    predictor: &'a str,
    memory: Memory,
    outcome: Outcome,
    bounds: Bounds,
}

impl Line<'_> {
    /// `None` where LRU is as good as Belady.
    fn gap_closed(&self) -> Option<f64> {
        let gap = self.bounds.belady - self.bounds.lru;
        (gap > 0.0).then(|| (self.outcome.hit_rate() - self.bounds.lru) / gap)
    }

    fn per_token(&self, amount: u64) -> f64 {
        amount as f64 / self.outcome.tokens.max(1) as f64
    }

    /// Precision, recall and timely recall.
    fn guesses(&self) -> [Option<f64>; 3] {
        let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
        match self.outcome.guesses {
            Some(g) => [share(g.right, g.guessed), share(g.right, g.needed), share(g.timely, g.needed)],
            None => [None; 3],
        }
    }

    fn json(&self) -> Value {
        let o = &self.outcome;
        let [precision, recall, timely_recall] = self.guesses();
        let (slots, budget_bytes) = match self.memory {
            Memory::SlotsPerLayer(slots) => (Some(slots), None),
            Memory::Bytes(bytes) => (None, Some(bytes)),
        };
        json!({
            "policy": self.policy,
            "predictor": self.predictor,
            "slots": slots,
            "budget_bytes": budget_bytes,
            "tokens": o.tokens,
            "hit_rate": o.hit_rate(),
            "lru_hit_rate": self.bounds.lru,
            "belady_hit_rate": self.bounds.belady,
            "belady_bypass_hit_rate": self.bounds.bypass,
            "gap_closed": self.gap_closed(),
            "recall": recall,
            "precision": precision,
            "timely_recall": timely_recall,
            "hits": o.hits,
            "misses": o.misses,
            "evictions": o.evictions,
            "demand_bytes_per_token": self.per_token(o.demand_bytes),
            "useful_bytes_per_token": self.per_token(o.useful_bytes),
            "wasted_bytes_per_token": self.per_token(o.wasted_bytes),
            "stall_ms_per_token": o.stall_s.map(|s| s * 1e3 / o.tokens.max(1) as f64),
        })
    }

    fn text(&self) -> String {
        let o = &self.outcome;
        let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let percent = |value: Option<f64>| or_dash(value.map(|v| format!("{:.1}", 100.0 * v)));
        let mb = |bytes: u64| three_digits(self.per_token(bytes) / 1e6);
        let [_, recall, timely] = self.guesses();
        format!(
            "  {:16} {:18} {:>6} {:>7} {:>7} {:>7} {:>10} {:>10} {:>9}",
            self.policy,
            self.predictor,
            percent(Some(o.hit_rate())),
            percent(self.gap_closed()),
            percent(recall),
            percent(timely),
            mb(o.demand_bytes + o.useful_bytes + o.wasted_bytes),
            mb(o.wasted_bytes),
            or_dash(o.stall_s.map(|s| three_digits(s * 1e3 / o.tokens.max(1) as f64))),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_as_written() {
        let cases = [
            ("32", Some(Slots::Count(32))),
            ("1.5k", Some(Slots::PerChoice(1.5))),
            ("recorded", Some(Slots::Recorded)),
            ("0", None),
            ("0.5k", None),
            ("k", None),
            ("many", None),
        ];
        for (text, want) in cases {
            assert_eq!(text.parse::<Slots>().ok(), want, "{text}");
        }
    }
}
