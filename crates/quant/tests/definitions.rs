//! Unpacking against the formats' own definition: `gguf-py`'s dequantisation of random blocks with all kinds of scales
//! (negative, subnormal, zero, largest), value by value and bit for bit.

use std::path::Path;

use calypte_quant::{DType, unpack_row};
use safetensors::SafeTensors;

#[track_caller]
fn check(dtype: DType) {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../fixtures/quants/{dtype}.safetensors"));
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let (raw, values) = (file.tensor("raw").expect("raw"), file.tensor("values").expect("values"));
    let (rows, cols) = (values.shape()[0], values.shape()[1]);
    let row_bytes = dtype.row_bytes(cols).expect("whole blocks");
    assert_eq!(raw.data().len(), rows * row_bytes);
    let want: Vec<f32> =
        values.data().chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect();
    let mut got = vec![0f32; cols];
    for row in 0..rows {
        unpack_row(dtype, &raw.data()[row * row_bytes..(row + 1) * row_bytes], &mut got);
        for (i, (got, want)) in got.iter().zip(&want[row * cols..]).enumerate() {
            // −0 and 0 are the same number.
            let same = got.to_bits() == want.to_bits() || (*got == 0.0 && *want == 0.0);
            assert!(same, "{dtype} row {row} value {i}: {got:e} is not {want:e}");
        }
    }
}

#[test]
fn every_integer_format_unpacks_as_defined() {
    for dtype in DType::ALL.into_iter().filter(|d| d.is_integer()) {
        check(dtype);
    }
}
