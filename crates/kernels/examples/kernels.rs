//! How fast one thread multiplies, per format, beside what the machine could do: matrix-vector products against the speed
//! at which memory is read, products with many rows against the peak of the integer dot instruction.
//!
//!     cargo run --release -p calypte-kernels --example kernels [FORMAT …]
//!     CALYPTE_ISA=avx2 cargo run --release -p calypte-kernels --example kernels Q4_K
//!
//! Every figure is the median of `RUNS` runs; ceilings and products alternate, since the machine's speed drifts.

use std::hint::black_box;
use std::time::Instant;

use calypte_kernels::{Activations, Isa, Precision, Team, matmul};
use calypte_quant::{DType, Matrix};

/// Runs of which the median counts.
const RUNS: usize = 7;
/// Weights of the matrix-vector product, several times a last-level cache unless that is enormous.
const VECTOR_WEIGHT_BYTES: usize = 1 << 29;
const COLS: usize = 2048;
/// The product with many rows: weights that fit the second-level cache.
const TILE_ROWS: usize = 768;
const BATCHES: [usize; 3] = [8, 64, 512];

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let formats: Vec<DType> =
        DType::ALL.into_iter().filter(|d| asked.is_empty() || asked.iter().any(|a| a == d.name())).collect();
    println!(
        "tier {}, one thread, medians of {RUNS}, memory holding {} MiB",
        Isa::get().name(),
        VECTOR_WEIGHT_BYTES >> 20
    );
    let team = Team::new(1);
    let memory = vec![1u64; VECTOR_WEIGHT_BYTES / 8];
    for dtype in formats {
        let vector = Case::new(dtype, VECTOR_WEIGHT_BYTES / dtype.row_bytes(COLS).expect("whole blocks"));
        let mut read = Vec::new();
        let mut vector_seconds = Vec::new();
        let mut tile_seconds = BATCHES.map(|_| Vec::new());
        let mut peak = Vec::new();
        let tile = Case::new(dtype, TILE_ROWS);
        for _ in 0..RUNS {
            read.push(memory.len() as f64 * 8.0 / seconds(|| read_all(&memory)) / 1e9);
            vector_seconds.push(vector.seconds(&team, 1));
            peak.push(dot_peak_gmac_s());
            for (batch, seconds) in BATCHES.iter().zip(&mut tile_seconds) {
                seconds.push(tile.seconds(&team, *batch));
            }
        }
        let (read, peak, vector_seconds) = (median(read), median(peak), median(vector_seconds));
        let gb_s = vector.bytes.len() as f64 / vector_seconds / 1e9;
        print!("{:7} ×1 {gb_s:5.1} of {read:4.1} GB/s = {:3.0} %", dtype.name(), 100.0 * gb_s / read);
        for (batch, seconds) in BATCHES.iter().zip(tile_seconds) {
            let gmac_s = (TILE_ROWS * COLS * batch) as f64 / median(seconds) / 1e9;
            print!(" │ ×{batch} {gmac_s:4.0} GMAC/s = {:3.0} %", 100.0 * gmac_s / peak);
        }
        println!(" of {peak:.0}");
    }
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

fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// One pass over all of it.
fn read_all(memory: &[u64]) {
    black_box(black_box(memory).iter().fold(0u64, |sum, v| sum.wrapping_add(*v)));
}

/// Multiply-accumulates a second, in 10⁹, of the widest integer dot instruction in a loop of nothing else; 0 where
/// there is none.
fn dot_peak_gmac_s() -> f64 {
    #[cfg(target_arch = "x86_64")]
    if Isa::get() == Isa::Avx512 {
        use std::arch::x86_64::*;
        const TURNS: usize = 2_000_000;
        /// Enough independent sums to hide the latency.
        const CHAINS: usize = 16;
        #[target_feature(enable = "avx512f,avx512vnni")]
        fn dots() -> i32 {
            let (a, b) = (_mm512_set1_epi8(black_box(3)), _mm512_set1_epi8(black_box(5)));
            let mut sums = [_mm512_setzero_si512(); CHAINS];
            for _ in 0..TURNS {
                for s in &mut sums {
                    *s = _mm512_dpbusd_epi32(*s, a, b);
                }
            }
            let mut total = 0;
            for s in sums {
                total ^= _mm512_reduce_add_epi32(s);
            }
            total
        }
        let seconds = seconds(|| {
            // SAFETY: this tier is only ever chosen where the processor has these instructions.
            black_box(unsafe { dots() });
        });
        return (TURNS * CHAINS * 64) as f64 / seconds / 1e9;
    }
    0.0
}
