//! What handing work to the compute team costs, for teams smaller and larger than the machine, alone and beside a busy
//! neighbour.
//!
//!     cargo run --release -p calypte-kernels --example team
//!
//! A hand-off of empty tasks is what a job costs at least; the fixed work is about what a matrix of a small model takes.
//! Every figure is the median of `ROUNDS` bursts, with its ratio to that of one thread, and then the same of the quickest
//! burst, which says more on a machine that others use. All cases alternate, since the machine's speed drifts. The
//! neighbour is one spinning thread for each core.

mod common;

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use calypte_kernels::Team;
use common::{lowest, median};

/// Bursts of which the median counts.
const ROUNDS: usize = 31;
/// Length of a burst: several slices of the system's scheduler.
const BURST_MS: u64 = 25;
const TASKS: usize = 32;
/// Steps of one task: some microseconds.
const STEPS: u64 = 5_000;

/// What the tasks of a job do.
#[derive(Clone, Copy, PartialEq)]
enum Load {
    Empty,
    Fixed,
}

fn main() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut threads = vec![1, cores, 2 * cores, 8 * cores];
    threads.dedup();
    let teams: Vec<Team> = threads.iter().map(|&n| Team::new(n)).collect();
    println!("{cores} cores, jobs of {TASKS} tasks, medians of {ROUNDS} bursts of {BURST_MS} ms");
    for neighbour in [false, true] {
        for load in [Load::Empty, Load::Fixed] {
            let mut times_us: Vec<Vec<f64>> = teams.iter().map(|_| Vec::new()).collect();
            for _ in 0..ROUNDS {
                for (team, times_us) in teams.iter().zip(&mut times_us) {
                    times_us.push(if neighbour {
                        beside_neighbour(cores, || burst_us(team, load))
                    } else {
                        burst_us(team, load)
                    });
                }
            }
            let times_us: Vec<(f64, f64)> = times_us.iter().map(|t| (median(t), lowest(t))).collect();
            let what = if load == Load::Empty { "empty" } else { "fixed work" };
            print!("{what:10} {:16}", if neighbour { "beside neighbour" } else { "alone" });
            for (threads, (median, lowest)) in threads.iter().zip(&times_us) {
                let (median_1, lowest_1) = times_us[0];
                print!(
                    " │ {threads:3} threads {median:7.2} µs = {:6.2}, {lowest:7.2} = {:6.2}",
                    median / median_1,
                    lowest / lowest_1
                );
            }
            println!();
        }
    }
}

/// Microseconds a job takes, the mean of a burst of jobs one after another.
fn burst_us(team: &Team, load: Load) -> f64 {
    let steps = if load == Load::Empty { 0 } else { STEPS };
    let burst = Duration::from_millis(BURST_MS);
    let start = Instant::now();
    let mut jobs = 0;
    while start.elapsed() < burst {
        team.run(TASKS, |i| {
            black_box((0..steps).fold(i as u64 + 1, |x, _| black_box(x ^ (x << 13) ^ (x >> 7))));
        });
        jobs += 1;
    }
    start.elapsed().as_secs_f64() * 1e6 / f64::from(jobs)
}

/// Does `work` while one other thread for each core spins.
fn beside_neighbour<R>(cores: usize, work: impl FnOnce() -> R) -> R {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let result = work();
        done.store(true, Ordering::Relaxed);
        result
    })
}
