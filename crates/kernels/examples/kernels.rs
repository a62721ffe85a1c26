//! How fast one thread (or several) multiplies, per format, beside what as many threads could do: matrix-vector products
//! against the speed at which memory is read, products with many rows against the peak of the integer dot instruction.
//!
//!     cargo run --release -p calypte-kernels --example kernels [--threads N] [FORMAT …]
//!     CALYPTE_ISA=avx2 cargo run --release -p calypte-kernels --example kernels Q4_K
//!
//! Every figure is the best and the median of `RUNS` runs; ceilings and products alternate, since the machine's speed drifts.
//! The ceiling of reading is that of the way which was fastest, by the median, when all ways were tried at the start
//! (`common/read.rs`); the best of it is the best pass of any way so far.

mod common;

use calypte_kernels::{Activations, Isa, Precision, Team, matmul};
use calypte_quant::{DType, Matrix};
use common::peak::dot_peak_gmac_s;
use common::read::{Way, ways};
use common::{highest, median, percent, seconds, whole};

/// Runs of which best and median count.
const RUNS: usize = 7;
/// Passes over memory in each of the ways to read it.
const READ_PASSES: usize = 11;
/// Weights of the matrix-vector product, several times a last-level cache unless that is enormous.
const VECTOR_WEIGHT_BYTES: usize = 1 << 29;
const COLS: usize = 2048;
/// The product with many rows: weights that fit the second-level cache.
const TILE_ROWS: usize = 768;
const BATCHES: [usize; 3] = [8, 64, 512];

fn main() {
    let mut asked: Vec<String> = std::env::args().skip(1).collect();
    let threads = match asked.iter().position(|a| a == "--threads") {
        None => 1,
        Some(at) => {
            let value = asked.drain(at..asked.len().min(at + 2)).nth(1).unwrap_or_default();
            value.parse().ok().filter(|n| *n > 0).unwrap_or_else(|| {
                eprintln!("--threads takes a number of threads, 1 or more; there is `{value}`");
                std::process::exit(2);
            })
        }
    };
    if let Some(name) = asked.iter().find(|name| DType::ALL.iter().all(|d| d.name() != name.as_str())) {
        eprintln!("`{name}` is no format; there are {}", DType::ALL.map(DType::name).join(", "));
        std::process::exit(2);
    }
    let formats: Vec<DType> =
        DType::ALL.into_iter().filter(|d| asked.is_empty() || asked.iter().any(|a| a == d.name())).collect();
    let tier = Isa::get().name();
    println!(
        "tier {tier}, {threads} thread(s), best and median of {RUNS}, memory holding {} MiB",
        VECTOR_WEIGHT_BYTES >> 20
    );
    let team = Team::new(threads);
    let memory = vec![1u64; VECTOR_WEIGHT_BYTES / 8];
    let (way, mut read_best) = quickest_way(&team, &memory);
    for dtype in formats {
        let vector = Case::new(dtype, VECTOR_WEIGHT_BYTES / dtype.row_bytes(COLS).expect("whole blocks"));
        let tile = Case::new(dtype, TILE_ROWS);
        let (mut read, mut vector_gb_s, mut peak) = (Vec::new(), Vec::new(), Vec::new());
        let mut tile_gmac_s = BATCHES.map(|_| Vec::new());
        for _ in 0..RUNS {
            read.push(way.gb_s(&team, &memory));
            vector_gb_s.push(vector.bytes.len() as f64 / vector.seconds(&team, 1) / 1e9);
            peak.push(dot_peak_gmac_s(&team));
            for (batch, gmac_s) in BATCHES.iter().zip(&mut tile_gmac_s) {
                gmac_s.push((TILE_ROWS * COLS * batch) as f64 / tile.seconds(&team, *batch) / 1e9);
            }
        }
        read_best = read_best.max(highest(&read));
        println!("{}", dtype.name());
        let (best, mid) = (highest(&vector_gb_s), median(&vector_gb_s));
        print!("  ×1   best {best:5.1} of {read_best:4.1} GB/s = {}", percent(best, read_best));
        println!(", median {mid:5.1} of {:4.1} = {}", median(&read), percent(mid, median(&read)));
        let (peak_best, peak_mid) = (highest(&peak), median(&peak));
        for (batch, gmac_s) in BATCHES.iter().zip(tile_gmac_s) {
            let (best, mid) = (highest(&gmac_s), median(&gmac_s));
            print!(
                "  ×{batch:<3} best {best:5.0} of {} GMAC/s = {}",
                whole(peak_best, 4),
                percent(best, peak_best)
            );
            println!(", median {mid:5.0} of {} = {}", whole(peak_mid, 4), percent(mid, peak_mid));
        }
    }
}

/// The way in which memory is read fastest, and how fast in 10⁹ bytes a second at best. All ways alternate and are told.
fn quickest_way(team: &Team, memory: &[u64]) -> (Way, f64) {
    let mut tried: Vec<(Way, Vec<f64>)> = ways().into_iter().map(|way| (way, Vec::new())).collect();
    let other = memory.to_vec();
    for _ in 0..READ_PASSES {
        for (way, gb_s) in &mut tried {
            // Out of a large last-level cache, as a product's weights drive it out below.
            way.gb_s(team, &other);
            gb_s.push(way.gb_s(team, memory));
        }
    }
    println!("memory read in these ways, GB/s, best and median of {READ_PASSES} passes");
    for (way, gb_s) in &tried {
        println!("  {:27} {:5.1} {:5.1}", way.name, highest(gb_s), median(gb_s));
    }
    let best = tried.iter().map(|(_, gb_s)| highest(gb_s)).fold(f64::NAN, f64::max);
    let (way, _) =
        tried.into_iter().max_by(|(_, a), (_, b)| median(a).total_cmp(&median(b))).expect("a way to read");
    (way, best)
}

/// A matrix whose bytes are noise, but whose scales are harmless.
struct Case {
    dtype: DType,
    rows: usize,
    bytes: Vec<u8>,
}

impl Case {
    fn new(dtype: DType, rows: usize) -> Case {
        Case { dtype, rows, bytes: vec![0x11; rows * dtype.row_bytes(COLS).expect("whole blocks")] }
    }

    /// Time of one product with `batch` rows of activations, their rounding not included.
    fn seconds(&self, team: &Team, batch: usize) -> f64 {
        let w = Matrix { dtype: self.dtype, rows: self.rows, cols: COLS, bytes: &self.bytes };
        let mut x = Activations::new();
        x.fill(batch, COLS).iter_mut().enumerate().for_each(|(i, v)| *v = (i % 17) as f32 - 8.0);
        x.quantize(team);
        let mut out = vec![0f32; self.rows * batch];
        if batch > 1 {
            matmul(team, Precision::Int8, &w, &mut x, &mut out); // touches all memory
        }
        seconds(|| matmul(team, Precision::Int8, &w, &mut x, &mut out))
    }
}
