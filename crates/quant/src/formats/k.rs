//! K-quants: 256 values under one or two f16 factors, with small integer scales for each 16 or 32 of them.

use super::{BLOCK, Factors, IntFormat, bits_at};
use crate::DType;

/// 32 two-bit integers: bits `2·run ..` of 32 bytes.
#[inline(always)]
fn two_bits(bytes: &[u8], run: usize) -> [i8; BLOCK] {
    let bytes: &[u8; BLOCK] = bytes.try_into().expect("32 bytes");
    let shift = run as u32 * 2;
    let mut q = [0i8; BLOCK];
    for j in 0..BLOCK {
        q[j] = ((bytes[j] >> shift) & 3) as i8;
    }
    q
}

/// The 6-bit scale and minimum of sub-block `sub` of Q4_K and Q5_K. Those of the first four sub-blocks are the low six bits
/// of bytes 0–3 and 4–7; of the last four, the nibbles of bytes 8–11 with the top two bits of bytes 0–3 and 4–7 above them.
#[inline(always)]
fn scale_and_min(bytes: &[u8], sub: usize) -> (i32, i32) {
    let s: &[u8; 12] = bytes.try_into().expect("12 bytes");
    let (sc, m) = if sub < 4 {
        (s[sub] & 63, s[sub + 4] & 63)
    } else {
        ((s[sub + 4] & 15) | (s[sub - 4] >> 6) << 4, (s[sub + 4] >> 4) | (s[sub] >> 6) << 4)
    };
    (sc as i32, m as i32)
}

/// `[16 bytes: a 4-bit scale (low) and minimum (high) for each 16 values][64 bytes][d: f16][dmin: f16]`.
///
/// Each half of 128 values has 32 bytes; its four runs of 32 values are bits 0–1, 2–3, 4–5, 6–7 of them. Value
/// `d·sc·n − dmin·m`.
pub struct Q2K;
impl IntFormat for Q2K {
    const DTYPE: DType = DType::Q2K;
    const HAS_MIN: bool = true;
    const HAS_HALVES: bool = true;
    const HAS_MIN_HALVES: bool = true;

    #[inline(always)]
    fn quants(row: &[u8], index: usize) -> [i8; BLOCK] {
        let start = index / 8 * 84 + 16 + index % 8 / 4 * 32;
        two_bits(&row[start..start + 32], index % 4)
    }

    #[inline(always)]
    fn factors(row: &[u8], index: usize) -> Factors {
        let at = index / 8 * 84 + 80;
        Factors { d: bits_at(row, at), m: bits_at(row, at + 2), scale_factor: 1, min_factor: 1 }
    }

    #[inline(always)]
    fn halves(row: &[u8], index: usize) -> [i32; 2] {
        let at = index / 8 * 84 + index % 8 * 2;
        [(row[at] & 15) as i32, (row[at + 1] & 15) as i32]
    }

    #[inline(always)]
    fn min_halves(row: &[u8], index: usize) -> [i32; 2] {
        let at = index / 8 * 84 + index % 8 * 2;
        [(row[at] >> 4) as i32, (row[at + 1] >> 4) as i32]
    }
}

/// `[hmask: 32 bytes][64 bytes][12 bytes: sixteen 6-bit scales][d: f16]`, value `d·(sc − 32)·(n − 4)`.
///
/// Two low bits as in [`Q2K`]; the third bit of run r is bit r of the 32 bytes of hmask. Scale i has its low four bits in
/// the nibbles of bytes 0–7 (low ones first), and its upper two in bits `2·(i / 4) ..` of byte `8 + i mod 4`.
pub struct Q3K;
impl IntFormat for Q3K {
    const DTYPE: DType = DType::Q3K;
    const HAS_MIN: bool = false;
    const HAS_HALVES: bool = true;

    #[inline(always)]
    fn quants(row: &[u8], index: usize) -> [i8; BLOCK] {
        let (start, run) = (index / 8 * 110, index % 8);
        let low = start + 32 + run / 4 * 32;
        let hmask: &[u8; BLOCK] = row[start..start + 32].try_into().expect("32 bytes");
        let mut q = two_bits(&row[low..low + 32], run % 4);
        for j in 0..BLOCK {
            q[j] += (((hmask[j] >> run) & 1) << 2) as i8 - 4;
        }
        q
    }

    #[inline(always)]
    fn factors(row: &[u8], index: usize) -> Factors {
        Factors { d: bits_at(row, index / 8 * 110 + 108), scale_factor: 1, ..Factors::default() }
    }

    #[inline(always)]
    fn halves(row: &[u8], index: usize) -> [i32; 2] {
        let start = index / 8 * 110 + 96;
        let s: &[u8; 12] = row[start..start + 12].try_into().expect("12 bytes");
        let mut halves = [0i32; 2];
        for half in 0..2 {
            let i = index % 8 * 2 + half;
            let low = (s[i % 8] >> (i / 8 * 4)) & 15;
            let high = (s[8 + i % 4] >> (i / 4 * 2)) & 3;
            halves[half] = (low | high << 4) as i32 - 32;
        }
        halves
    }
}

/// `[d: f16][dmin: f16][12 bytes: eight 6-bit scales and minima][128 bytes]`.
///
/// The nibbles come in four runs of 32 bytes; the low nibbles of run r are sub-block 2r, the high ones 2r + 1. Value
/// `d·sc·n − dmin·m`.
pub struct Q4K;
impl IntFormat for Q4K {
    const DTYPE: DType = DType::Q4K;
    const HAS_MIN: bool = true;
    const HAS_HALVES: bool = false;

    #[inline(always)]
    fn quants(row: &[u8], index: usize) -> [i8; BLOCK] {
        let start = index / 8 * 144 + 16 + index % 8 / 2 * 32;
        let bytes: &[u8; BLOCK] = row[start..start + 32].try_into().expect("32 bytes");
        let shift = (index % 2) as u32 * 4;
        let mut q = [0i8; BLOCK];
        for j in 0..BLOCK {
            q[j] = ((bytes[j] >> shift) & 15) as i8;
        }
        q
    }

    #[inline(always)]
    fn factors(row: &[u8], index: usize) -> Factors {
        let start = index / 8 * 144;
        let (sc, m) = scale_and_min(&row[start + 4..start + 16], index % 8);
        Factors { d: bits_at(row, start), m: bits_at(row, start + 2), scale_factor: sc, min_factor: m }
    }
}

/// `[d: f16][dmin: f16][12 bytes: eight 6-bit scales and minima][qh: 32 bytes][128 bytes]`.
///
/// As [`Q4K`], with a fifth bit: that of sub-block r is bit r of the 32 bytes of qh. Value `d·sc·n − dmin·m`.
pub struct Q5K;
impl IntFormat for Q5K {
    const DTYPE: DType = DType::Q5K;
    const HAS_MIN: bool = true;
    const HAS_HALVES: bool = false;

    #[inline(always)]
    fn quants(row: &[u8], index: usize) -> [i8; BLOCK] {
        let (start, sub) = (index / 8 * 176, index % 8);
        let low = start + 48 + sub / 2 * 32;
        let ql: &[u8; BLOCK] = row[low..low + 32].try_into().expect("32 bytes");
        let qh: &[u8; BLOCK] = row[start + 16..start + 48].try_into().expect("32 bytes");
        let shift = (sub % 2) as u32 * 4;
        let mut q = [0i8; BLOCK];
        for j in 0..BLOCK {
            q[j] = (((ql[j] >> shift) & 15) | (((qh[j] >> sub) & 1) << 4)) as i8;
        }
        q
    }

    #[inline(always)]
    fn factors(row: &[u8], index: usize) -> Factors {
        let start = index / 8 * 176;
        let (sc, m) = scale_and_min(&row[start + 4..start + 16], index % 8);
        Factors { d: bits_at(row, start), m: bits_at(row, start + 2), scale_factor: sc, min_factor: m }
    }
}

/// `[ql: 128 bytes][qh: 64 bytes][sc: i8 × 16][d: f16]`, value `d·sc·(n − 32)`.
///
/// Each half of 128 values has 64 bytes of ql and 32 of qh. Its four runs of 32 values take, in order: low nibbles of
/// the first and of the second 32 bytes of ql, then their high nibbles; and bits 0–1, 2–3, 4–5, 6–7 of qh above them.
pub struct Q6K;
impl IntFormat for Q6K {
    const DTYPE: DType = DType::Q6K;
    const HAS_MIN: bool = false;
    const HAS_HALVES: bool = true;

    #[inline(always)]
    fn quants(row: &[u8], index: usize) -> [i8; BLOCK] {
        let start = index / 8 * 210;
        let (half, run) = (index % 8 / 4, index % 4);
        let (low, high) = (start + half * 64 + run % 2 * 32, start + 128 + half * 32);
        let ql: &[u8; BLOCK] = row[low..low + 32].try_into().expect("32 bytes");
        let qh: &[u8; BLOCK] = row[high..high + 32].try_into().expect("32 bytes");
        let (low_shift, high_shift) = ((run / 2) as u32 * 4, run as u32 * 2);
        let mut q = [0i8; BLOCK];
        for j in 0..BLOCK {
            let n = ((ql[j] >> low_shift) & 15) | (((qh[j] >> high_shift) & 3) << 4);
            q[j] = n as i8 - 32;
        }
        q
    }

    #[inline(always)]
    fn factors(row: &[u8], index: usize) -> Factors {
        Factors { d: bits_at(row, index / 8 * 210 + 208), scale_factor: 1, ..Factors::default() }
    }

    #[inline(always)]
    fn halves(row: &[u8], index: usize) -> [i32; 2] {
        let at = index / 8 * 210 + 192 + index % 8 * 2;
        [(row[at] as i8) as i32, (row[at + 1] as i8) as i32]
    }
}
