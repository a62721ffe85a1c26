//! How fast one thread multiplies a matrix with one activation row, per format, beside the memory bandwidth it could reach.
//!
//!     cargo run --release -p calypte-kernels --example matvec
//!     CALYPTE_ISA=scalar cargo run --release -p calypte-kernels --example matvec

use std::hint::black_box;
use std::time::Instant;

use calypte_kernels::{Activations, Isa, Precision, Team, matmul};
use calypte_quant::{DType, Matrix};

/// Larger than the second-level cache, small enough to be quick.
const ROWS: usize = 8192;
const COLS: usize = 2048;
/// Weight bytes that each measurement gets through.
const BYTES_MEASURED: usize = 1 << 30;

fn main() {
    println!("tier {}", Isa::get().name());
    println!("reading memory: {:.1} GB/s", read_gb_s());
    let team = Team::new(1);
    for dtype in DType::ALL {
        let bytes = vec![0x11u8; ROWS * dtype.row_bytes(COLS).expect("whole blocks")];
        let w = Matrix { dtype, rows: ROWS, cols: COLS, bytes: &bytes };
        let mut x = Activations::new();
        x.fill(1, COLS).iter_mut().enumerate().for_each(|(i, v)| *v = (i % 17) as f32 - 8.0);
        let mut out = vec![0f32; ROWS];
        matmul(&team, Precision::Int8, &w, &mut x, &mut out);
        let runs = BYTES_MEASURED / bytes.len();
        let start = Instant::now();
        (0..runs).for_each(|_| matmul(&team, Precision::Int8, &w, &mut x, &mut out));
        let seconds = start.elapsed().as_secs_f64() / runs as f64;
        println!(
            "{:7} {:6.2} ns per 32 weights, {:6.2} GB/s",
            dtype.name(),
            seconds * 1e9 / (ROWS * COLS / 32) as f64,
            bytes.len() as f64 / seconds / 1e9
        );
    }
}

/// One pass over half a gigabyte, the best of three.
fn read_gb_s() -> f64 {
    let memory = vec![1u64; 1 << 26];
    let once = |_| {
        let start = Instant::now();
        black_box(black_box(&memory).iter().fold(0u64, |sum, v| sum.wrapping_add(*v)));
        memory.len() as f64 * 8.0 / start.elapsed().as_secs_f64() / 1e9
    };
    (0..3).map(once).fold(0.0, f64::max)
}
