//! How fast threads read memory, in several ways, since no single loop is the quickest on every machine: as compilers
//! make it, with widest loads and unrolled, as several streams side by side, and asking for memory ahead of time.

use std::hint::black_box;

use calypte_kernels::{Isa, Team};

/// Bytes that memory hands over at once.
const LINE_BYTES: usize = 64;
/// Lines that a stream reads in a turn of the loop.
const UNROLL: usize = 4;

type Line = [u64; LINE_BYTES / 8];

/// One way to read.
pub struct Way {
    /// What it does.
    pub name: String,
    read: fn(&[u64]),
}

impl Way {
    /// 10⁹ bytes a second of one pass over `memory`, of which every thread of the team reads an equal part.
    pub fn gb_s(&self, team: &Team, memory: &[u64]) -> f64 {
        let part = memory.len().div_ceil(team.threads()).next_multiple_of(LINE_BYTES / 8);
        let parts: Vec<&[u64]> = memory.chunks(part).collect();
        let seconds = super::seconds(|| team.run(parts.len(), |i| (self.read)(black_box(parts[i]))));
        size_of_val(memory) as f64 / seconds / 1e9
    }
}

/// All that this machine has instructions for.
pub fn ways() -> Vec<Way> {
    let mut ways = vec![Way { name: "a plain loop".to_string(), read: plain }];
    macro_rules! push {
        ($($streams:literal)*; $ahead_bytes:literal into level $level:literal) => {
            $(ways.push(Way {
                name: match $ahead_bytes {
                    0 => format!("{} at once", $streams),
                    bytes => format!("{} at once, {} KiB ahead, L{}", $streams, bytes >> 10, $level),
                },
                read: side_by_side::<$streams, $ahead_bytes, $level>,
            });)*
        };
    }
    push!(1 2 4 8; 0 into level 1);
    if cfg!(target_arch = "x86_64") {
        push!(1 2 4 8; 1024 into level 1);
        push!(1 2 4 8; 2048 into level 1);
        push!(1 2 4 8; 4096 into level 1);
        push!(1 2 4 8; 2048 into level 2);
        push!(1 2 4 8; 4096 into level 2);
        push!(1 2 4 8; 8192 into level 2);
        push!(1 2 4 8; 32768 into level 2);
    }
    ways
}

fn plain(memory: &[u64]) {
    black_box(memory.iter().fold(0u64, |sum, v| sum.wrapping_add(*v)));
}

/// `STREAMS` parts of memory in turns, each asked for `AHEAD_BYTES` ahead of what is added up, into the cache of that level; 0 bytes leave
/// that to the processor.
fn side_by_side<const STREAMS: usize, const AHEAD_BYTES: usize, const LEVEL: u8>(memory: &[u64]) {
    let (lines, _) = memory.as_chunks();
    #[cfg(target_arch = "x86_64")]
    if Isa::get() == Isa::Avx512 {
        #[target_feature(enable = "avx512f")]
        fn read<const STREAMS: usize, const AHEAD_BYTES: usize, const LEVEL: u8>(lines: &[Line]) {
            use std::arch::x86_64::__m512i;
            // SAFETY: the function has the instructions.
            unsafe { sum::<__m512i, STREAMS, AHEAD_BYTES, LEVEL>(lines) };
        }
        // SAFETY: this tier is only ever chosen where the processor has these instructions.
        return unsafe { read::<STREAMS, AHEAD_BYTES, LEVEL>(lines) };
    }
    // SAFETY: it needs no particular instructions.
    unsafe { sum::<Line, STREAMS, AHEAD_BYTES, LEVEL>(lines) };
}

/// What adds lines up.
trait Sum: Copy {
    /// # Safety
    /// The processor must have the instructions.
    unsafe fn zero() -> Self;
    /// # Safety
    /// As above.
    unsafe fn add(self, line: &Line) -> Self;
}

impl Sum for Line {
    #[inline(always)]
    unsafe fn zero() -> Self {
        [0; LINE_BYTES / 8]
    }

    #[inline(always)]
    unsafe fn add(self, line: &Line) -> Self {
        std::array::from_fn(|i| self[i].wrapping_add(line[i]))
    }
}

#[cfg(target_arch = "x86_64")]
impl Sum for std::arch::x86_64::__m512i {
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: promised by the caller.
        unsafe { std::arch::x86_64::_mm512_setzero_si512() }
    }

    #[inline(always)]
    unsafe fn add(self, line: &Line) -> Self {
        use std::arch::x86_64::{_mm512_add_epi64, _mm512_loadu_si512};
        // SAFETY: promised by the caller; a line is as long as a vector.
        unsafe { _mm512_add_epi64(self, _mm512_loadu_si512(line.as_ptr().cast())) }
    }
}

/// # Safety
/// The processor must have the instructions of `S`.
#[inline(always)]
unsafe fn sum<S: Sum, const STREAMS: usize, const AHEAD_BYTES: usize, const LEVEL: u8>(lines: &[Line]) {
    let part = lines.len() / (STREAMS * UNROLL) * UNROLL;
    // SAFETY: promised by the caller.
    let mut sums = unsafe { [S::zero(); UNROLL] };
    for at in (0..part).step_by(UNROLL) {
        for stream in 0..STREAMS {
            let first = stream * part + at;
            let turn: &[Line; UNROLL] = lines[first..first + UNROLL].try_into().expect("as many lines");
            for (sum, line) in sums.iter_mut().zip(turn) {
                if AHEAD_BYTES > 0 {
                    prefetch::<LEVEL>(line.as_ptr().wrapping_byte_add(AHEAD_BYTES));
                }
                // SAFETY: promised by the caller.
                *sum = unsafe { sum.add(line) };
            }
        }
    }
    black_box(sums);
}

/// Asks for the line at an address, which need not exist, into the cache of a level.
#[inline(always)]
fn prefetch<const LEVEL: u8>(at: *const u64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that could be seen.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        match LEVEL {
            1 => _mm_prefetch::<_MM_HINT_T0>(at.cast()),
            _ => _mm_prefetch::<_MM_HINT_T1>(at.cast()),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
