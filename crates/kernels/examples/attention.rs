//! How fast one thread attends, beside what the machine could do: multiply-accumulates a second against the peak of a
//! fused multiplication and addition, and how much of the cache is read a second, each byte counted once.
//!
//!     cargo run --release -p calypte-kernels --example attention [PART OF A NAME]
//!
//! Multiply-accumulates are those of keys and values that a query sees; softmax costs time and counts for nothing. Every figure
//! is the median of `RUNS` runs; peak and attention alternate, since the machine's speed drifts.

mod common;

use std::time::Instant;

use calypte_kernels::attention::{Heads, KvCache, KvType, Order, Query, Scratch, Visible, attend, grouped};
use calypte_kernels::{Isa, Team};
use common::{median, peak::float_peak_gmac_s, percent};

/// Runs of which the median counts.
const RUNS: usize = 7;

fn main() {
    println!("tier {}, one thread, medians of {RUNS}", Isa::get().name());
    for kind in [KvType::F16, KvType::F32] {
        println!("\ncache in {}", kind.name());
        let small = Heads { queries: 9, keys: 3, width: 64 };
        let wide = Heads { queries: 32, keys: 4, width: 128 };
        report("grouped, 9/3 heads of 64, prompt of 512", || GroupedCase::new(kind, small, 0, 512));
        report("grouped, 9/3 heads of 64, 512 tokens at 2048", || GroupedCase::new(kind, small, 1536, 512));
        report("grouped, 9/3 heads of 64, token 2048", || GroupedCase::new(kind, small, 2047, 1));
        report("grouped, 32/4 heads of 128, prompt of 512", || GroupedCase::new(kind, wide, 0, 512));
        report("grouped, 32/4 heads of 128, 64 tokens at 8192", || GroupedCase::new(kind, wide, 8128, 64));
        report("grouped, 32/4 heads of 128, token 8192", || GroupedCase::new(kind, wide, 8191, 1));
        report("latent, 64 heads of 512 + 64, token 8192", || LatentCase::new(kind, 8191, 1));
        report("latent, 64 heads of 512 + 64, 8 tokens at 8192", || LatentCase::new(kind, 8184, 8));
        report("latent, 64 heads of 512 + 64, 64 tokens at 8192", || LatentCase::new(kind, 8128, 64));
        for heads in [64, 16] {
            let name = format!("latent, {heads} heads, token 8192, 2048 selected");
            report(&name, || SelectedCase::new(kind, heads, 8192, 2048));
        }
    }
}

trait Case {
    fn run(&mut self);
    /// Multiply-accumulates.
    fn macs(&self) -> usize;
    /// What has to be read at least once.
    fn cache_bytes(&self) -> usize;
}

fn report<C: Case>(name: &str, case: impl FnOnce() -> C) {
    if std::env::args().nth(1).is_some_and(|part| !name.contains(&part)) {
        return;
    }
    let team = Team::new(1);
    let (mut case, mut times, mut peaks) = (case(), Vec::new(), Vec::new());
    case.run();
    for _ in 0..RUNS {
        peaks.push(float_peak_gmac_s(&team));
        let start = Instant::now();
        case.run();
        times.push(start.elapsed().as_secs_f64());
    }
    let (seconds, peak) = (median(&times), median(&peaks));
    let gmac_s = case.macs() as f64 / seconds / 1e9;
    let gb_s = case.cache_bytes() as f64 / seconds / 1e9;
    let share = if peak.is_nan() {
        "peak not known".to_string()
    } else {
        format!("{} of {peak:4.1}", percent(gmac_s, peak))
    };
    println!("{name:48} {gmac_s:5.1} GMAC/s = {share}, {gb_s:4.1} GB/s");
}

fn noise(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i * 7919 % 2003) as f32 / 1001.5 - 1.0).collect()
}

/// Keys that rows at positions `first ..` see, in all.
fn pairs(first: usize, rows: usize) -> usize {
    (0..rows).map(|row| first + row + 1).sum()
}

struct GroupedCase {
    team: Team,
    heads: Heads,
    first: usize,
    rows: usize,
    q: Vec<f32>,
    keys: KvCache,
    values: KvCache,
    bytes: usize,
    out: Vec<f32>,
}

impl GroupedCase {
    fn new(kind: KvType, heads: Heads, first: usize, rows: usize) -> Self {
        let cached = (first + rows) * heads.keys * heads.width;
        let cache = |order| {
            let mut cache = KvCache::new(kind, order, heads.keys, heads.width, first + rows);
            cache.push(&noise(cached));
            cache
        };
        let q = noise(rows * heads.queries * heads.width);
        let out = q.clone();
        let (keys, values) = (cache(Order::Lanes), cache(Order::Rows));
        GroupedCase {
            team: Team::new(1),
            heads,
            first,
            rows,
            q,
            keys,
            values,
            bytes: 2 * cached * kind.bytes(),
            out,
        }
    }
}

impl Case for GroupedCase {
    fn run(&mut self) {
        let visible = |row: usize| Visible::latest(self.first + row + 1, None);
        let scale = 1.0 / (self.heads.width as f32).sqrt();
        grouped(
            &self.team,
            self.heads,
            &self.q,
            &self.keys,
            &self.values,
            visible,
            scale,
            None,
            &mut self.out,
        );
    }

    fn macs(&self) -> usize {
        pairs(self.first, self.rows) * self.heads.queries * 2 * self.heads.width
    }

    fn cache_bytes(&self) -> usize {
        self.bytes
    }
}

/// Multi-head latent attention after absorption: all heads read the same vectors, as keys and, without the rotated part,
/// as values. The head shape is that of DeepSeek-V3 and GLM-5.2.
struct LatentCase {
    first: usize,
    rows: usize,
    q: Vec<f32>,
    cache: KvCache,
    bytes: usize,
    scratch: Scratch,
    out: Vec<f32>,
}

impl LatentCase {
    const HEADS: usize = 64;
    const LATENT: usize = 512;
    const KEY: usize = 512 + 64;

    fn new(kind: KvType, first: usize, rows: usize) -> Self {
        let numbers = (first + rows) * Self::KEY;
        let mut cache = KvCache::new(kind, Order::Rows, 1, Self::KEY, first + rows);
        cache.push(&noise(numbers));
        LatentCase {
            first,
            rows,
            q: noise(rows * Self::HEADS * Self::KEY),
            cache,
            bytes: numbers * kind.bytes(),
            scratch: Scratch::default(),
            out: vec![0.0; rows * Self::HEADS * Self::LATENT],
        }
    }
}

impl Case for LatentCase {
    fn run(&mut self) {
        let queries: Vec<Query<'_>> = self
            .q
            .chunks(Self::KEY)
            .enumerate()
            .map(|(i, vector)| {
                let visible = Visible::latest(self.first + i / Self::HEADS + 1, None);
                Query { vector, visible, sink: None }
            })
            .collect();
        let (keys, values) = (self.cache.view(0, Self::KEY), self.cache.view(0, Self::LATENT));
        attend(&queries, keys, values, 0.05, &mut self.scratch, &mut self.out);
    }

    fn macs(&self) -> usize {
        pairs(self.first, self.rows) * Self::HEADS * (Self::KEY + Self::LATENT)
    }

    fn cache_bytes(&self) -> usize {
        self.bytes
    }
}

/// As [`LatentCase`], of one token that sees a selection, in one layer after the other: what a cache holds of them does not stay in
/// the processor's.
struct SelectedCase {
    heads: usize,
    q: Vec<f32>,
    layers: Vec<KvCache>,
    selected: Vec<u32>,
    bytes: usize,
    scratch: Scratch,
    out: Vec<f32>,
}

impl SelectedCase {
    const LAYERS: usize = 8;

    fn new(kind: KvType, heads: usize, positions: usize, selected: usize) -> Self {
        let layer = || {
            let mut cache = KvCache::new(kind, Order::Rows, 1, LatentCase::KEY, positions);
            cache.push(&noise(positions * LatentCase::KEY));
            cache
        };
        // Each position as likely as another, the same ones every time: the highest of some hashes.
        let mut by_hash: Vec<u32> = (0..positions as u32).collect();
        by_hash.sort_by_key(|p| p.wrapping_mul(0x9E37_79B1));
        let mut of_all = by_hash.split_off(positions - selected);
        of_all.sort_unstable();
        SelectedCase {
            heads,
            q: noise(heads * LatentCase::KEY),
            layers: (0..Self::LAYERS).map(|_| layer()).collect(),
            bytes: Self::LAYERS * selected * LatentCase::KEY * kind.bytes(),
            selected: of_all,
            scratch: Scratch::default(),
            out: vec![0.0; heads * LatentCase::LATENT],
        }
    }
}

impl Case for SelectedCase {
    fn run(&mut self) {
        let visible = Visible::Selected(&self.selected);
        let of = |vector| Query { vector, visible, sink: None };
        let queries: Vec<Query<'_>> = self.q.chunks(LatentCase::KEY).map(of).collect();
        for cache in &self.layers {
            let (keys, values) = (cache.view(0, LatentCase::KEY), cache.view(0, LatentCase::LATENT));
            attend(&queries, keys, values, 0.05, &mut self.scratch, &mut self.out);
        }
    }

    fn macs(&self) -> usize {
        Self::LAYERS * self.selected.len() * self.heads * (LatentCase::KEY + LatentCase::LATENT)
    }

    fn cache_bytes(&self) -> usize {
        self.bytes
    }
}
