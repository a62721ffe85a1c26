//! What the examples share: how runs are summed up, and what the machine could do.

#![allow(dead_code, reason = "every example uses its own part")]

pub mod peak;
pub mod read;

use std::time::Instant;

/// The middle one; NaN of nothing.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The lowest that is a number; NaN of nothing.
pub fn lowest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NAN, f64::min)
}

/// The highest that is a number; NaN of nothing.
pub fn highest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NAN, f64::max)
}

/// Time that `work` takes.
pub fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

/// A number without decimals and as wide as `width`; a dash for NaN, which is what an unknown ceiling is.
pub fn whole(value: f64, width: usize) -> String {
    if value.is_nan() { format!("{:>width$}", "–") } else { format!("{value:width$.0}") }
}

/// `part` in percent of a ceiling.
pub fn percent(part: f64, ceiling: f64) -> String {
    format!("{} %", whole(100.0 * part / ceiling, 3))
}
