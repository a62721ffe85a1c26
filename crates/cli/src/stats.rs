//! What a generation took, for people and for programs.

use std::hash::{BuildHasher, RandomState};

use calypte_engine::size::human;
use calypte_engine::{CacheStats, Engine, Outcome, Stats};
use serde_json::{Value, json};

use crate::output::{three_digits, time};

/// A seed nobody chose. It is short, so that it can be typed again.
pub fn random_seed() -> u64 {
    RandomState::new().hash_one(std::process::id()) % 1_000_000_000
}

/// The statistics in one line. `seed` is told when it made a difference.
pub fn line(outcome: &Outcome, engine: &Engine, seed: Option<u64>) -> String {
    let s = &outcome.stats;
    let mut parts = vec![
        format!("prompt {} tokens, {} tok/s", s.prefill_tokens, three_digits(s.prefill_tok_s())),
        format!("first token after {}", time(s.first_token)),
        format!(
            "{} tokens, {} tok/s ({})",
            outcome.ids.len(),
            three_digits(s.decode_tok_s()),
            outcome.stop.name()
        ),
        experts(s, engine),
        format!("peak memory {}", human(s.peak_rss_bytes)),
    ];
    if let Some(seed) = seed {
        parts.push(format!("seed {seed}"));
    }
    format!("[{}]", parts.join(" · "))
}

fn experts(s: &Stats, engine: &Engine) -> String {
    let io = match engine.io_fallback_reason() {
        Some(reason) => format!("{} ({reason})", s.io),
        None => s.io.to_string(),
    };
    let experts = &s.experts;
    let Some(hit_rate) = experts.hit_rate() else { return format!("no experts, {io}") };
    format!(
        "experts {} hits, {} misses ({:.1} % hits), {} read by {io}",
        experts.hits,
        experts.misses,
        hit_rate * 100.0,
        human(experts.bytes_read),
    )
}

/// The `stats` object of the machine interface.
pub fn json(stats: &Stats, engine: &Engine, seed: u64) -> Value {
    json!({
        "prefill_tok_s": stats.prefill_tok_s(),
        "decode_tok_s": stats.decode_tok_s(),
        "ttft_ms": stats.first_token.as_secs_f64() * 1e3,
        "expert_hits": stats.experts.hits,
        "expert_misses": stats.experts.misses,
        "bytes_read": stats.experts.bytes_read,
        "decode": of_cache(&stats.experts_decode),
        "io": stats.io.to_string(),
        "peak_rss_bytes": stats.peak_rss_bytes,
        "io_fallback": engine.io_fallback_reason(),
        "budget_bytes": engine.budget().total_bytes(),
        "expert_cache_bytes": engine.budget().expert_bytes,
        "isa": engine.isa().name(),
        "seed": seed,
    })
}

/// What the cache did, for machines.
fn of_cache(stats: &CacheStats) -> Value {
    json!({
        "expert_hits": stats.hits,
        "expert_misses": stats.misses,
        "hit_rate": stats.hit_rate(),
        "bytes_read": stats.bytes_read,
        "wait_ms": stats.wait_ns as f64 / 1e6,
        "recall": stats.recall(),
        "precision": stats.precision(),
        "prefetches": stats.prefetches,
        "prefetches_used": stats.prefetches_used,
        "prefetches_wasted": stats.prefetches_wasted,
    })
}
