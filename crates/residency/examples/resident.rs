//! What the cache costs when everything is in memory: one token's steps, all hits, per layer.
//!
//! `cargo run --release -p calypte-residency --example resident -- [LAYERS EXPERTS TOP_K]`
//!
//! Beside the time that a model takes for a layer (docs/perf.md) this is the price of streaming where nothing streams. The experts are
//! of one page; their size does not matter to a hit.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use calypte_disk::{Disk, Extent, FileId};
use calypte_residency::{ExpertCache, LayerExperts, policy};

const EXPERT_BYTES: u64 = 4096;
const TOKENS: usize = 2000;
const ROUNDS: usize = 7;

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let [layers, experts, top_k] = <[usize; 3]>::try_from(numbers).unwrap_or([24, 64, 8]);
    println!("{layers} layers, {top_k} of {experts} experts, {TOKENS} tokens, median of {ROUNDS}");
    for name in policy::NAMES {
        let mut rounds: Vec<f64> = (0..ROUNDS).map(|_| layer_us(name, layers, experts, top_k)).collect();
        rounds.sort_by(f64::total_cmp);
        println!("{name:12} {:6.2} us a layer", rounds[ROUNDS / 2]);
    }
}

/// Microseconds for a step of a layer whose experts are all resident.
fn layer_us(name: &str, layers: usize, experts: usize, top_k: usize) -> f64 {
    let extent = |expert: usize, part: u64| Extent {
        file: FileId(0),
        offset: expert as u64 * EXPERT_BYTES + part * EXPERT_BYTES / 4,
        len: EXPERT_BYTES / 4,
    };
    let of_layer = |layer: usize| LayerExperts {
        extents: (0..experts)
            .map(|e| (0..3).map(|part| extent(layer * experts + e, part)).collect())
            .collect(),
        top_k,
        arrange: None,
    };
    let file: Arc<[u8]> = vec![0; layers * experts * EXPERT_BYTES as usize].into();
    let disk = Disk::from_memory(vec![(PathBuf::from("weights"), file)]);
    let all: Vec<LayerExperts> = (0..layers).map(of_layer).collect();
    let whole = ExpertCache::whole_bytes(&all, &disk);
    let policy = policy::by_name(name).expect("a name of the list");
    let mut cache = ExpertCache::new(all, whole, policy, disk).expect("all of it fits");
    let mut leases = Vec::new();
    let mut step = |cache: &mut ExpertCache, layer: usize, union: &[u32]| {
        cache.begin(layer, union);
        while cache.ready(&mut leases).expect("memory does not fail") {
            leases.drain(..).for_each(|lease| cache.release(lease));
        }
    };
    let everything: Vec<u32> = (0..experts as u32).collect();
    (0..layers).for_each(|layer| step(&mut cache, layer, &everything));
    // Choices that repeat themselves as little as a generator's do.
    let mut random = 1u32;
    let mut choose = || {
        let mut union: Vec<u32> = (0..top_k)
            .map(|_| {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (random >> 8) % experts as u32
            })
            .collect();
        union.sort_unstable();
        union.dedup();
        union
    };
    let steps: Vec<Vec<u32>> = (0..TOKENS * layers).map(|_| choose()).collect();
    let begun = Instant::now();
    for (i, union) in steps.iter().enumerate() {
        step(&mut cache, i % layers, union);
    }
    begun.elapsed().as_secs_f64() * 1e6 / steps.len() as f64
}
