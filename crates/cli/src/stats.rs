//! What a generation took, for people and for programs.

use std::hash::{BuildHasher, RandomState};

use calypte_engine::size::human;
use calypte_engine::{Engine, Outcome, Stats};
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
    let asked = s.expert_hits + s.expert_misses;
    if asked == 0 {
        return format!("no experts, {io}");
    }
    format!(
        "experts {} hits, {} misses ({:.1} % hits), {} read by {io}",
        s.expert_hits,
        s.expert_misses,
        s.expert_hits as f64 / asked as f64 * 100.0,
        human(s.bytes_read),
    )
}

/// The `stats` object of the machine interface.
pub fn json(stats: &Stats, engine: &Engine, seed: u64) -> Value {
    json!({
        "prefill_tok_s": stats.prefill_tok_s(),
        "decode_tok_s": stats.decode_tok_s(),
        "ttft_ms": stats.first_token.as_secs_f64() * 1e3,
        "expert_hits": stats.expert_hits,
        "expert_misses": stats.expert_misses,
        "bytes_read": stats.bytes_read,
        "io": stats.io.to_string(),
        "peak_rss_bytes": stats.peak_rss_bytes,
        "io_fallback": engine.io_fallback_reason(),
        "budget_bytes": engine.budget().total_bytes(),
        "expert_cache_bytes": engine.budget().expert_bytes,
        "isa": engine.isa().name(),
        "seed": seed,
    })
}
