//! The formats' own definition, `gguf-py`'s dequantisation of random blocks with all kinds of scales (negative, subnormal,
//! zero, largest): unpacking equals it value by value and bit for bit, and the canonical dot product means it.

use std::path::Path;

use calypte_quant::q8::{Q8RowMut, quantize_row};
use calypte_quant::reference::{Q8Row, dot, dot_q8};
use calypte_quant::{DType, Matrix, unpack_row};
use safetensors::SafeTensors;

/// Rows of a format and what they are by definition.
struct Vectors {
    rows: usize,
    cols: usize,
    raw: Vec<u8>,
    values: Vec<f32>,
}

impl Vectors {
    fn read(dtype: DType) -> Vectors {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../fixtures/quants/{dtype}.safetensors"));
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let file = SafeTensors::deserialize(&bytes).expect("safetensors");
        let (raw, values) = (file.tensor("raw").expect("raw"), file.tensor("values").expect("values"));
        let (rows, cols) = (values.shape()[0], values.shape()[1]);
        let values = values.data().chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]]));
        Vectors { rows, cols, raw: raw.data().to_vec(), values: values.collect() }
    }

    fn matrix(&self, dtype: DType) -> Matrix<'_> {
        Matrix::new(dtype, self.rows, self.cols, &self.raw).expect("whole blocks")
    }
}

fn integer_formats() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|d| d.is_integer())
}

#[track_caller]
fn check(dtype: DType) {
    let vectors = Vectors::read(dtype);
    let matrix = vectors.matrix(dtype);
    let mut got = vec![0f32; vectors.cols];
    for (row, want) in vectors.values.chunks(vectors.cols).enumerate() {
        unpack_row(dtype, matrix.row(row), &mut got);
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            // −0 and 0 are the same number.
            let same = got.to_bits() == want.to_bits() || (*got == 0.0 && *want == 0.0);
            assert!(same, "{dtype} row {row} value {i}: {got:e} is not {want:e}");
        }
    }
}

#[test]
fn every_integer_format_unpacks_as_defined() {
    integer_formats().for_each(check);
}

/// `got` against the sum of the products in double precision, relative to the sum of their magnitudes.
#[track_caller]
fn check_dot(what: &str, got: f32, values: &[f32], x: impl Iterator<Item = f64> + Clone) {
    let products = values.iter().zip(x).map(|(w, x)| *w as f64 * x);
    let (want, size) = (products.clone().sum::<f64>(), products.map(f64::abs).sum::<f64>());
    assert!((got as f64 - want).abs() <= 2e-6 * size, "{what}: {got:e} is not {want:e}");
}

#[test]
fn the_canonical_dot_product_is_that_of_the_values() {
    for dtype in integer_formats() {
        let vectors = Vectors::read(dtype);
        let (cols, matrix) = (vectors.cols, vectors.matrix(dtype));
        // Far from zero on average, so that a minimum counts.
        let x: Vec<f32> = (0..cols).map(|i| ((i * 7919) % 2003) as f32 / 1001.5 - 0.6).collect();
        let (mut q, mut scale, mut sum) = (vec![0i8; cols], vec![0f32; cols / 32], vec![0f32; cols / 32]);
        let (mut total, mut halves) = (vec![0; cols / 32], vec![[0; 2]; cols / 32]);
        let mut out =
            Q8RowMut { q: &mut q, scale: &mut scale, sum: &mut sum, total: &mut total, halves: &mut halves };
        quantize_row(&x, &mut out);
        let rounded = (0..cols).map(|i| q[i] as f64 * scale[i / 32] as f64);
        for (row, values) in vectors.values.chunks(cols).enumerate() {
            let what = format!("{dtype} row {row}");
            let q8 = Q8Row { q: &q, scale: &scale, sum: &sum, total: &total, halves: &halves };
            check_dot(&what, dot_q8(&matrix, row, q8), values, rounded.clone());
            check_dot(&what, dot(&matrix, row, &x), values, x.iter().map(|x| *x as f64));
        }
    }
}
