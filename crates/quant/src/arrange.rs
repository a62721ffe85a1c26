//! From how Hugging Face checkpoints store weights to the rows that kernels read.
//!
//! Nothing here changes a value: bytes are moved, nibbles regrouped, scales brought to where they are needed. Lengths are
//! checked against each other; what does not fit is a [`Misfit`], never a panic. Rows are chosen as `first`,
//! `first + step`, …, because fused tensors interleave what belongs to two matrices (gpt-oss: gate in the even rows, up in
//! the odd ones).

use std::fmt;

use crate::DType;
use crate::formats::{BLOCK, E4M3_GROUP};

/// Why weights cannot be arranged: the parts do not fit each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// A part has the wrong length.
    Length {
        /// Which part.
        what: &'static str,
        /// What the others ask for.
        expected: usize,
        /// What there is.
        found: usize,
    },
    /// A number must be a multiple, not zero, of another.
    Multiple {
        /// Which number.
        what: &'static str,
        /// What it must be a multiple of.
        of: usize,
        /// What it is.
        found: usize,
    },
    /// A value has neither 1, 2 nor 4 bytes.
    ValueBytes(usize),
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misfit::Length { what, expected, found } => {
                write!(f, "{what}: expected {expected}, found {found}")
            }
            Misfit::Multiple { what, of, found } => {
                write!(f, "{what}: expected a multiple of {of}, found {found}")
            }
            Misfit::ValueBytes(found) => write!(f, "bytes of a value: expected 1, 2 or 4, found {found}"),
        }
    }
}

impl std::error::Error for Misfit {}

fn length(what: &'static str, expected: usize, found: usize) -> Result<(), Misfit> {
    if expected == found { Ok(()) } else { Err(Misfit::Length { what, expected, found }) }
}

fn multiple(what: &'static str, of: usize, found: usize) -> Result<(), Misfit> {
    if found != 0 && of != 0 && found.is_multiple_of(of) {
        Ok(())
    } else {
        Err(Misfit::Multiple { what, of, found })
    }
}

/// A product that no length equals when it overflows: slices are never longer than `isize::MAX`.
fn product(factors: &[usize]) -> usize {
    factors.iter().fold(1, |n, f| n.saturating_mul(*f))
}

/// How many of `rows` rows are chosen by `first`, `first + step`, ….
fn chosen(rows: usize, first: usize, step: usize) -> Result<usize, Misfit> {
    multiple("step between rows", 1, step)?;
    Ok(rows.saturating_sub(first).div_ceil(step))
}

/// Chooses rows of `row_bytes` bytes: `[rows, row_bytes]` → `[chosen, row_bytes]`.
///
/// # Errors
/// When `values` is not whole rows or `out` not exactly the chosen ones.
pub fn rows(
    values: &[u8],
    row_bytes: usize,
    first: usize,
    step: usize,
    out: &mut [u8],
) -> Result<(), Misfit> {
    multiple("bytes of the stored rows", row_bytes, values.len())?;
    let n = chosen(values.len() / row_bytes, first, step)?;
    length("bytes of the arranged rows", product(&[n, row_bytes]), out.len())?;
    let from = values.chunks_exact(row_bytes).skip(first).step_by(step);
    for (to, from) in out.chunks_exact_mut(row_bytes).zip(from) {
        to.copy_from_slice(from);
    }
    Ok(())
}

/// Bytes of the nibbles of one block.
const NIBBLES: usize = BLOCK / 2;

/// MXFP4 blocks and scales to [`DType::Mxfp4`] rows.
///
/// `blocks` is `[rows, cols / 32, 16]`, byte j of a block holding values 2j (low) and 2j + 1 (high); `scales` is
/// `[rows, cols / 32]` E8M0 exponents. `out` takes the chosen rows, each a run of `[exponent][16 bytes]` with values j and
/// j + 16 in byte j.
///
/// # Errors
/// When `cols` is not a multiple of 32 or a length does not fit the others.
pub fn mxfp4(
    blocks: &[u8],
    scales: &[u8],
    cols: usize,
    first: usize,
    step: usize,
    out: &mut [u8],
) -> Result<(), Misfit> {
    const WHAT: [&str; 2] = ["MXFP4 scales", "bytes of the MXFP4 blocks"];
    blocks_of_nibbles::<1>(WHAT, blocks, scales, cols, [first, step], out)
}

/// INT4 words and scales, as compressed-tensors packs them, to [`DType::Int4`] rows.
///
/// `packed` is `[rows, cols / 8]` little-endian words, value i of a word in bits 4i to 4i + 3 with 8 added: so byte j of 32
/// values holds values 2j (low) and 2j + 1 (high). `scales` is `[rows, cols / 32]` little-endian bf16. `out` takes the rows,
/// each a run of `[scale][16 bytes]` with values j and j + 16 in byte j.
///
/// # Errors
/// When `cols` is not a multiple of 32 or a length does not fit the others.
pub fn int4(packed: &[u8], scales: &[u8], cols: usize, out: &mut [u8]) -> Result<(), Misfit> {
    const WHAT: [&str; 2] = ["bytes of the INT4 scales", "bytes of the INT4 words"];
    blocks_of_nibbles::<2>(WHAT, packed, scales, cols, [0, 1], out)
}

/// Nibbles in pairs of neighbours, with one scale of `SCALE` bytes for 32 of them elsewhere, to rows of
/// `[scale][nibbles in pairs 16 apart]`. `what` names the scales and the nibbles.
fn blocks_of_nibbles<const SCALE: usize>(
    what: [&'static str; 2],
    nibbles: &[u8],
    scales: &[u8],
    cols: usize,
    [first, step]: [usize; 2],
    out: &mut [u8],
) -> Result<(), Misfit> {
    multiple("columns", BLOCK, cols)?;
    let per_row = cols / BLOCK;
    multiple(what[0], product(&[per_row, SCALE]), scales.len())?;
    let blocks = scales.len() / SCALE;
    length(what[1], product(&[blocks, NIBBLES]), nibbles.len())?;
    let n = chosen(blocks / per_row, first, step)?;
    length("bytes of the arranged rows", product(&[n, per_row, SCALE + NIBBLES]), out.len())?;
    let scales = scales.chunks_exact(per_row * SCALE).skip(first).step_by(step);
    let nibbles = nibbles.chunks_exact(per_row * NIBBLES).skip(first).step_by(step);
    for ((to, scales), nibbles) in out.chunks_exact_mut(per_row * (SCALE + NIBBLES)).zip(scales).zip(nibbles)
    {
        let from = scales.as_chunks::<SCALE>().0.iter().zip(nibbles.as_chunks().0);
        for (to, (scale, pairs)) in to.chunks_exact_mut(SCALE + NIBBLES).zip(from) {
            to[..SCALE].copy_from_slice(scale);
            to[SCALE..].copy_from_slice(&halves_apart(pairs));
        }
    }
    Ok(())
}

/// Nibbles in pairs of neighbours to nibbles in pairs 16 apart.
#[inline(always)]
fn halves_apart(pairs: &[u8; NIBBLES]) -> [u8; NIBBLES] {
    let mut out = [0u8; NIBBLES];
    for k in 0..NIBBLES / 2 {
        let (low, high) = (pairs[k], pairs[k + NIBBLES / 2]);
        out[2 * k] = (low & 15) | (high << 4);
        out[2 * k + 1] = (low >> 4) | (high & 0xf0);
    }
    out
}

/// E4M3 values and the scales they are multiplied with to [`DType::F8E4M3`] rows.
///
/// `values` is `[rows, cols]`; `scales` is `[⌈rows / block[0]⌉, ⌈cols / block[1]⌉]`, one for each block of
/// `block[0] × block[1]` weights (DeepSeek's `weight_scale_inv`: 128 × 128; per channel: 1 × cols; per tensor: rows × cols).
///
/// # Errors
/// When a length does not fit the others, or when a block is neither as wide as the matrix nor a multiple of 128 wide: a
/// group of 128 would then need two scales.
pub fn e4m3(
    values: &[u8],
    scales: &[f32],
    [rows, cols]: [usize; 2],
    block: [usize; 2],
    out: &mut [u8],
) -> Result<(), Misfit> {
    multiple("rows of a scale's block", 1, block[0])?;
    multiple("columns of a scale's block", if block[1] < cols { E4M3_GROUP } else { 1 }, block[1])?;
    multiple("columns", 1, cols)?;
    let (scale_rows, scale_cols) = (rows.div_ceil(block[0]), cols.div_ceil(block[1]));
    length("bytes of the E4M3 values", product(&[rows, cols]), values.len())?;
    length("E4M3 scales", product(&[scale_rows, scale_cols]), scales.len())?;
    let row_bytes = DType::F8E4M3.row_bytes(cols).unwrap_or(usize::MAX);
    length("bytes of the arranged rows", product(&[rows, row_bytes]), out.len())?;
    for (r, (to, from)) in out.chunks_exact_mut(row_bytes).zip(values.chunks_exact(cols)).enumerate() {
        let (codes, groups) = to.split_at_mut(cols);
        codes.copy_from_slice(from);
        let scales = &scales[r / block[0] * scale_cols..][..scale_cols];
        for (g, to) in groups.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *to = scales[g * E4M3_GROUP / block[1]].to_le_bytes();
        }
    }
    Ok(())
}

/// Inputs that are transposed together: as many lines of the source as stay in the first-level cache while the outputs pass.
const TRANSPOSE_TILE: usize = 32;

/// A matrix of plain floats stored `[inputs, outputs]` to the chosen outputs as rows `[chosen, inputs]`. A value has
/// `value_bytes` bytes: 1, 2 or 4.
///
/// # Errors
/// When a length does not fit the others, or for any other `value_bytes`.
pub fn transposed(
    values: &[u8],
    value_bytes: usize,
    [inputs, outputs]: [usize; 2],
    first: usize,
    step: usize,
    out: &mut [u8],
) -> Result<(), Misfit> {
    length("bytes of the stored matrix", product(&[inputs, outputs, value_bytes]), values.len())?;
    let n = chosen(outputs, first, step)?;
    length("bytes of the arranged rows", product(&[n, inputs, value_bytes]), out.len())?;
    match value_bytes {
        1 => transpose::<1>(values, [inputs, outputs], first, step, out),
        2 => transpose::<2>(values, [inputs, outputs], first, step, out),
        4 => transpose::<4>(values, [inputs, outputs], first, step, out),
        found => return Err(Misfit::ValueBytes(found)),
    }
    Ok(())
}

/// [`transposed`] once the lengths are known to fit.
fn transpose<const N: usize>(
    values: &[u8],
    [inputs, outputs]: [usize; 2],
    first: usize,
    step: usize,
    out: &mut [u8],
) {
    let (from, to) = (values.as_chunks::<N>().0, out.as_chunks_mut::<N>().0);
    for start in (0..inputs).step_by(TRANSPOSE_TILE) {
        let tile = start..(start + TRANSPOSE_TILE).min(inputs);
        for (row, output) in (first..outputs).step_by(step).enumerate() {
            for input in tile.clone() {
                to[row * inputs + input] = from[input * outputs + output];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::e4m3_to_f32;
    use crate::unpack_row;

    /// Bytes in which no two near each other are equal.
    fn noise(n: usize) -> Vec<u8> {
        (0..n).map(|i| (i * 167 + i / 256 * 59 + 11) as u8).collect()
    }

    /// Choices of rows: all, the first or second of pairs, one in three, and none.
    const CHOICES: [(usize, usize); 5] = [(0, 1), (0, 2), (1, 2), (2, 3), (99, 1)];

    fn picked(rows: usize, first: usize, step: usize) -> Vec<usize> {
        (0..rows).filter(|r| *r >= first && (r - first).is_multiple_of(step)).collect()
    }

    /// Unpacks rows of `cols` values.
    fn unpacked(dtype: DType, cols: usize, bytes: &[u8]) -> Vec<f32> {
        let mut out = Vec::new();
        for row in bytes.chunks(dtype.row_bytes(cols).expect("whole blocks")) {
            let start = out.len();
            out.resize(start + cols, 0.0);
            unpack_row(dtype, row, &mut out[start..]);
        }
        out
    }

    #[track_caller]
    fn check_mxfp4(rows: usize, cols: usize) {
        const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        let (blocks, scales) = (noise(rows * cols / 2), noise(rows * cols / 32));
        let scales: Vec<u8> = scales.iter().map(|s| 100 + s % 50).collect();
        let value = |r: usize, c: usize| {
            let byte = blocks[(r * cols + c) / 2];
            let code = if c.is_multiple_of(2) { byte & 15 } else { byte >> 4 };
            let sign = if code < 8 { 1.0 } else { -1.0 };
            sign * E2M1[code as usize % 8] * 2f32.powi(scales[r * (cols / 32) + c / 32] as i32 - 127)
        };
        for (first, step) in CHOICES {
            let picked = picked(rows, first, step);
            let mut out = vec![0; picked.len() * cols / 32 * 17];
            mxfp4(&blocks, &scales, cols, first, step, &mut out).expect("the parts fit");
            let want: Vec<f32> = picked.iter().flat_map(|&r| (0..cols).map(move |c| value(r, c))).collect();
            assert_eq!(unpacked(DType::Mxfp4, cols, &out), want, "{rows}×{cols} from {first} by {step}");
        }
    }

    #[test]
    fn mxfp4_blocks_keep_their_values() {
        check_mxfp4(4, 32);
        check_mxfp4(7, 96);
    }

    #[track_caller]
    fn check_int4(rows: usize, cols: usize) {
        let packed = noise(rows * cols / 2);
        let words: Vec<u32> = packed.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        // An upper half of 0x3d to 0x40 is an f32 of about one.
        let scales: Vec<u8> = noise(rows * cols / 16)
            .as_chunks()
            .0
            .iter()
            .flat_map(|[low, high]| [*low, 0x3d + high % 4])
            .collect();
        let value = |r: usize, c: usize| {
            let code = words[(r * cols + c) / 8] >> (4 * (c % 8)) & 15;
            let at = 2 * (r * (cols / 32) + c / 32);
            f32::from_le_bytes([0, 0, scales[at], scales[at + 1]]) * (code as f32 - 8.0)
        };
        let mut out = vec![0; rows * cols / 32 * 18];
        int4(&packed, &scales, cols, &mut out).expect("the parts fit");
        let want: Vec<f32> = (0..rows * cols).map(|i| value(i / cols, i % cols)).collect();
        assert_eq!(unpacked(DType::Int4, cols, &out), want, "{rows}×{cols}");
    }

    #[test]
    fn int4_words_keep_their_values() {
        check_int4(4, 32);
        check_int4(7, 96);
    }

    #[track_caller]
    fn check_e4m3([rows, cols]: [usize; 2], block: [usize; 2]) {
        let values: Vec<u8> = noise(rows * cols).iter().map(|b| b & 0xbf).collect(); // no NaN
        let across = cols.div_ceil(block[1]);
        let scales: Vec<f32> =
            (0..rows.div_ceil(block[0]) * across).map(|i| 0.37 * (i as f32 + 1.0)).collect();
        let mut out = vec![0; rows * DType::F8E4M3.row_bytes(cols).expect("a size")];
        e4m3(&values, &scales, [rows, cols], block, &mut out).expect("the parts fit");
        let value = |r: usize, c: usize| {
            e4m3_to_f32(values[r * cols + c]) * scales[r / block[0] * across + c / block[1]]
        };
        let want: Vec<f32> = (0..rows * cols).map(|i| value(i / cols, i % cols)).collect();
        assert_eq!(unpacked(DType::F8E4M3, cols, &out), want, "{rows}×{cols} in blocks of {block:?}");
    }

    #[test]
    fn e4m3_values_meet_the_scale_of_their_block() {
        for (shape, block) in [
            ([5, 300], [128, 128]),
            ([260, 64], [128, 128]),
            ([7, 512], [3, 256]),
            ([4, 130], [1, 130]),
            ([6, 200], [6, 200]),
            ([3, 48], [2, 48]),
        ] {
            check_e4m3(shape, block);
        }
    }

    #[test]
    fn transposed_values_are_where_their_output_is() {
        for value_bytes in [1, 2, 4] {
            for [inputs, outputs] in [[1, 1], [3, 8], [70, 9], [64, 33]] {
                let values = noise(inputs * outputs * value_bytes);
                for (first, step) in CHOICES {
                    let mut want = Vec::new();
                    for o in picked(outputs, first, step) {
                        for i in 0..inputs {
                            want.extend_from_slice(&values[(i * outputs + o) * value_bytes..][..value_bytes]);
                        }
                    }
                    let mut out = vec![0; want.len()];
                    transposed(&values, value_bytes, [inputs, outputs], first, step, &mut out)
                        .expect("the parts fit");
                    assert_eq!(out, want, "{inputs}×{outputs} of {value_bytes} bytes from {first} by {step}");
                }
            }
        }
    }

    #[test]
    fn rows_are_chosen_in_order() {
        let values = noise(7 * 5);
        for (first, step) in CHOICES {
            let want: Vec<u8> =
                picked(7, first, step).iter().flat_map(|r| &values[r * 5..r * 5 + 5]).copied().collect();
            let mut out = vec![0; want.len()];
            rows(&values, 5, first, step, &mut out).expect("the parts fit");
            assert_eq!(out, want, "from {first} by {step}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let (b, huge) = ([0u8; 64], usize::MAX / 2);
        let out = &mut [0u8; 34];
        let refused = [
            ("columns", mxfp4(&b[..32], &b[..2], 40, 0, 1, out)),
            ("no columns", mxfp4(&b[..32], &b[..2], 0, 0, 1, out)),
            ("blocks", mxfp4(&b[..31], &b[..2], 32, 0, 1, out)),
            ("scales", mxfp4(&b[..48], &b[..3], 64, 0, 1, out)),
            ("output", mxfp4(&b[..32], &b[..2], 32, 1, 1, out)),
            ("no step", mxfp4(&b[..32], &b[..2], 32, 0, 0, out)),
            ("INT4 columns", int4(&b[..20], &b[..4], 40, out)),
            ("INT4 words", int4(&b[..15], &b[..2], 32, &mut out[..18])),
            ("INT4 scales", int4(&b[..16], &b[..3], 32, &mut out[..18])),
            ("INT4 output", int4(&b[..16], &b[..2], 32, out)),
            ("narrow blocks", e4m3(&[0; 256], &[1.0; 4], [1, 256], [1, 64], &mut [0; 264])),
            ("odd blocks", e4m3(&[0; 256], &[1.0; 2], [1, 256], [1, 192], &mut [0; 264])),
            ("no block", e4m3(&b[..30], &[1.0], [1, 30], [0, 30], out)),
            ("no block width", e4m3(&b[..30], &[1.0], [1, 30], [1, 0], out)),
            ("scales", e4m3(&b[..30], &[1.0, 2.0], [1, 30], [1, 30], out)),
            ("values", e4m3(&b[..31], &[1.0], [1, 30], [1, 30], out)),
            ("output", e4m3(&b[..31], &[1.0], [1, 31], [1, 31], out)),
            ("overflow", e4m3(&b, &[1.0], [huge, huge], [huge, huge], out)),
            ("values", transposed(&b[..33], 2, [1, 17], 0, 1, out)),
            ("output", transposed(&b[..34], 2, [1, 17], 0, 2, out)),
            ("value size", transposed(&b[..34], 17, [1, 2], 0, 1, out)),
            ("overflow", transposed(&b, 2, [huge, huge], 0, 1, out)),
            ("no row", rows(&b[..34], 0, 0, 1, out)),
            ("whole rows", rows(&b[..35], 17, 0, 1, out)),
            ("output", rows(&b[..34], 17, 1, 1, out)),
            ("no step", rows(&b[..34], 17, 0, 0, out)),
        ];
        for (case, result) in refused {
            assert!(result.is_err(), "{case} was accepted");
        }
    }
}
