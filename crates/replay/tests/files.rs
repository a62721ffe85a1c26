//! Trace files: what is written is read, and what is damaged is refused with its place.

use std::path::Path;

use calypte_replay::{Expected, Recorder, Step, Trace, TraceLayer};
use calypte_residency::predict::Guess;

fn layer(number: u32, experts: u32, top_k: u32) -> TraceLayer {
    TraceLayer { number, experts, top_k, slot_bytes: 1000 }
}

/// Two steps over a layer with ids of one byte and one with ids of two.
fn small() -> Trace {
    let mut trace = Trace::new(vec![layer(1, 4, 2), layer(3, 300, 1)]);
    trace.fingerprint = [9; 32];
    trace.budget_bytes = 77;
    assert!(trace.push(Step { rows: 2, begins_sequence: true }, &[vec![0, 1, 2, 3], vec![299, 7]]));
    assert!(trace.push(Step { rows: 1, begins_sequence: false }, &[vec![3, 0], vec![256]]));
    trace
}

fn guess(expert: u32, probability: f32) -> Guess {
    Guess { expert, tokens_ahead: 0, probability }
}

/// As [`small`], with what somebody guessed of the second layer.
fn guessed() -> Trace {
    let mut trace = small();
    trace.predictor = "learned:2".to_owned();
    assert!(trace.expect(vec![Expected {
        after: 0,
        layer: 1,
        guesses: vec![guess(256, 0.5), guess(1, 0.25)]
    }]));
    trace
}

/// Every file that ends too early is refused with a place.
fn check_cuts(good: &[u8]) {
    for cut in 0..good.len() {
        let message = refusal(&good[..cut]);
        assert!(message.starts_with("t, offset "), "{cut}: {message}");
    }
}

/// What is wrong with `good` once its byte `at` is `value`.
fn refusal_changed(good: &[u8], at: usize, value: u8) -> String {
    let mut bytes = good.to_vec();
    bytes[at] = value;
    refusal(&bytes)
}

/// What is wrong with `bytes`, without the file's name.
fn refusal(bytes: &[u8]) -> String {
    let outcome = Trace::from_bytes(Path::new("t"), bytes);
    outcome.expect_err("refused").to_string()
}

#[test]
fn what_is_written_is_read() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("run.trace");
    for trace in [small(), guessed()] {
        std::fs::write(&path, trace.to_bytes()).expect("written");
        assert_eq!(Trace::read(&path, None).expect("read"), trace);
    }
    assert_eq!(std::fs::read_dir(dir.path()).expect("a directory").count(), 1, "nothing else is left");
    assert!(Trace::read(&dir.path().join("none"), None).is_err());
}

#[test]
fn the_layout_is_the_documented_one() {
    let bytes = small().to_bytes();
    assert_eq!(&bytes[..16], b"CALYROUT\x01\0\0\0\x02\0\0\0");
    assert_eq!(&bytes[48..56], &77u64.to_le_bytes());
    assert_eq!(&bytes[56..80], b"\x01\0\0\0\x04\0\0\0\x02\0\0\0\0\0\0\0\xE8\x03\0\0\0\0\0\0");
    let steps =
        b"\x02\0\0\x80\x00\x01\x02\x03\x2B\x01\x07\x00\x01\0\0\0\x03\x00\x00\x01\0\0\0\0\x02\0\0\0\0\0\0\0";
    assert_eq!(&bytes[104..], steps);

    let bytes = guessed().to_bytes();
    assert_eq!(&bytes[..16], b"CALYROUT\x02\0\0\0\x02\0\0\0");
    assert_eq!(&bytes[56..88], b"learned:2\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    let steps = [
        b"\x02\0\0\x80\x00\x01\x02\x03\x2B\x01\x07\x00\x01\0\0\0\x03\x00\x00\x01".as_slice(),
        b"\x01\0\0\0\0\0\x01\0\x02\0\x00\x01\0\0\0\x3F\x01\0\0\0\x80\x3E",
        b"\0\0\0\0\x02\0\0\0\0\0\0\0",
    ];
    assert_eq!(bytes[136..], steps.concat());
}

#[test]
fn guesses_that_cannot_be_are_refused() {
    let good = guessed().to_bytes();
    check_cuts(&good);
    let changed = |at: usize, value: u8| refusal_changed(&good, at, value);
    assert!(changed(56, 0).contains("offset 56: expected the name of a predictor, found \"\""));
    assert!(changed(57, b' ').contains("found \"l arned:2\""));
    assert!(changed(157, 9).contains("offset 156: expected at most 4, found 2305"));
    for (at, value, what) in
        [(160, 1, "its own layer"), (162, 2, "no layer"), (167, 2, "no expert"), (171, 0xBF, "below 0")]
    {
        assert!(changed(at, value).contains("expected guesses of later layers"), "{what}");
    }

    let mut trace = small();
    let of = |after, layer, guesses: &[Guess]| Expected { after, layer, guesses: guesses.to_vec() };
    for wrong in [of(0, 2, &[]), of(1, 1, &[]), of(0, 1, &[guess(300, 0.5)]), of(0, 1, &[guess(1, f32::NAN)])]
    {
        assert!(!trace.expect(vec![of(0, 1, &[guess(1, 1.0)]), wrong.clone()]), "{wrong:?}");
    }
    assert!(trace.expected(1).is_empty() && trace.expected(7).is_empty());
    assert!(trace.expect(vec![of(0, 1, &[guess(1, 1.0)])]));
    assert!(!trace.expect(vec![of(0, 1, &[])]), "once a step");
    assert!(trace.push(Step { rows: 2, begins_sequence: false }, &[vec![0, 1, 2, 3], vec![299, 7]]));
    assert!(!trace.expect(vec![of(0, 1, &[])]), "of one token");
}

#[test]
fn damage_is_refused_with_its_place() {
    let good = small().to_bytes();
    check_cuts(&good);
    let changed = |at: usize, value: u8| refusal_changed(&good, at, value);
    assert!(changed(0, b'X').contains("expected the letters CALYROUT, found \"XALYROUT\""));
    assert!(changed(8, 3).contains("expected version 1 or 2, found 3"));
    assert!(changed(12, 0).contains("layers, found 0"));
    assert!(changed(13, 5).contains("expected 1 to 1024 layers, found 1282"));
    assert!(changed(62, 1).contains("expected 1 to 16384 experts"), "more than are held");
    assert!(changed(64, 5).contains("offset 60"), "more experts per token than experts");
    assert!(changed(110, 4).contains("offset 110: expected an expert below 4, found 4"));
    assert!(changed(good.len() - 8, 3).contains("expected the number of steps, 2, found 3"));
    assert!(refusal(&[&good[..], b"x"].concat()).contains("found 1 more bytes"));
    // A step of more rows than any file has.
    assert!(changed(107, 0xFF).contains("the experts of a step"));
}

#[test]
fn a_recorder_makes_steps_of_what_a_model_reports() {
    let mut recorder = Recorder::new(vec![layer(1, 4, 2), layer(3, 300, 1)]);
    let mut step = |position, rows: &[(usize, &[u32])]| {
        recorder.step_begins(position);
        rows.iter().for_each(|(layer, experts)| recorder.routed(*layer, experts));
    };
    step(0, &[(1, &[0, 1]), (1, &[2, 3]), (2, &[5]), (3, &[299]), (3, &[7])]);
    // Cancelled in its second layer, and done again.
    step(2, &[(1, &[1, 2])]);
    step(2, &[(1, &[3, 0]), (3, &[256])]);
    step(3, &[(1, &[3, 0])]);
    let trace = recorder.finish();
    assert_eq!(trace.steps(), small().steps());
    for step in 0..2 {
        for layer in 0..2 {
            assert_eq!(trace.routed(step, layer), small().routed(step, layer));
        }
    }
}

/// With one layer, nothing but the step's own word tells it from the next.
#[test]
fn a_recorder_tells_steps_of_a_single_layer_apart() {
    let mut recorder = Recorder::new(vec![layer(0, 4, 1)]);
    for position in [0, 1, 2] {
        recorder.step_begins(position);
        recorder.routed(0, &[position as u32]);
    }
    assert_eq!(recorder.finish().steps().iter().map(|step| step.rows).collect::<Vec<_>>(), [1, 1, 1]);
}

/// A NumPy archive of one array, as `numpy.savez` writes it, or with `deflated` content.
fn npz(name: &str, npy: &[u8], deflated: Option<&[u8]>, crc: u32) -> Vec<u8> {
    let packed = deflated.unwrap_or(npy);
    let method: u16 = if deflated.is_some() { 8 } else { 0 };
    let mut common = Vec::new();
    common.extend(20u16.to_le_bytes());
    common.extend([0; 2]);
    common.extend(method.to_le_bytes());
    common.extend([0; 4]);
    common.extend(crc.to_le_bytes());
    common.extend((packed.len() as u32).to_le_bytes());
    common.extend((npy.len() as u32).to_le_bytes());
    common.extend((name.len() as u16).to_le_bytes());
    common.extend([0; 2]);
    let mut out = [b"PK\x03\x04", &common[..], name.as_bytes(), packed].concat();
    let directory = out.len() as u32;
    out.extend([b"PK\x01\x02\x14\0", &common[..], &[0; 14], name.as_bytes()].concat());
    let size = out.len() as u32 - directory;
    out.extend(b"PK\x05\x06\0\0\0\0\x01\0\x01\0");
    out.extend(size.to_le_bytes());
    out.extend(directory.to_le_bytes());
    out.extend([0; 2]);
    out
}

fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let head = [b"\x93NUMPY\x01\0", &(text.len() as u16).to_le_bytes()[..]].concat();
    [&head, text.as_bytes(), data].concat()
}

/// CRC-32, the slow way.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(
            crc ^ u32::from(*byte),
            |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 },
        )
    })
}

#[test]
fn npz_archives_are_imported() {
    let data: Vec<u8> = [5u16, 1, 0, 2, 3, 1, 4, 0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let array = npy("<i2", "(2, 2, 2)", &data);
    // One stored block of DEFLATE.
    let length = array.len() as u16;
    let deflated = [&[1][..], &length.to_le_bytes(), &(!length).to_le_bytes(), &array].concat();
    for packed in [None, Some(&deflated[..])] {
        let bytes = npz("experts.npy", &array, packed, crc(&array));
        let trace = Trace::from_npz(Path::new("t"), &bytes, Some(1)).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((trace.tokens(), trace.layers().len()), (2, 2));
        assert_eq!(trace.layers()[0], TraceLayer { number: 0, experts: 6, top_k: 2, slot_bytes: 0 });
        assert_eq!(
            (trace.routed(0, 0), trace.routed(1, 0), trace.routed(1, 1)),
            (&[5, 1][..], &[0, 2][..], &[4, 0][..])
        );
        assert!(trace.steps().iter().all(|step| step.begins_sequence && step.rows == 1));
    }
}

#[test]
fn other_archives_are_refused() {
    let refusal = |name: &str, array: &[u8], crc: u32| {
        let bytes = npz(name, array, None, crc);
        Trace::from_npz(Path::new("t"), &bytes, None).expect_err("refused").to_string()
    };
    let good = npy("<i2", "(1, 2, 1)", &[0, 0, 1, 0]);
    assert!(refusal("other.npy", &good, crc(&good)).contains("expected an entry experts.npy"));
    assert!(refusal("experts.npy", &good, 0).contains("with CRC 00000000"));
    for (array, expected) in [
        (npy("<f4", "(1, 2, 1)", &[0; 8]), "little-endian integers, found \"<f4\""),
        (npy("<i2", "(2, 1)", &[0; 4]), "three dimensions"),
        (npy("<i2", "(1, 3, 1)", &[0; 4]), "4 bytes until the end"),
        (npy("<i4", "(1, 1, 1)", &[0, 0, 1, 0]), "an expert below 16384, found 65536"),
        (npy("<i2", "(1, 1, 1)", &[0xFF; 2]), "an expert below 16384, found 65535"),
        (npy("<i2", "(1, 1, 4)", &[0; 8]), "no more choices than experts"),
        (npy("<i2", "(4000000000, 0, 1)", &[]), "found [4000000000, 0, 1]"),
        (npy("<i2", "(1, 0, 1)", &[]), "found [1, 0, 1]"),
        (npy("|u1", "(2000, 1, 1)", &[0; 2000]), "1 to 1024 layers"),
    ] {
        let message = refusal("experts.npy", &array, crc(&array));
        assert!(message.contains(expected), "{message}");
    }
    let whole = npz("experts.npy", &good, None, crc(&good));
    for cut in 0..whole.len() {
        assert!(Trace::from_npz(Path::new("t"), &whole[..cut], None).is_err(), "{cut}");
    }
}
