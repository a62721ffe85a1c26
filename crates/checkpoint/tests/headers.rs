//! What headers tell of files that cannot be run, and of files far larger than any memory.

use std::fs;
use std::path::Path;

use calypte_checkpoint::{Headers, headers, open};
use calypte_testkit::gguf_writer::{GgufValue, GgufWriter};
use calypte_testkit::safetensors_writer::SafetensorsWriter;

/// Files to write, and what the headers of the directory or of the file `target` say.
fn look(files: &[(&str, Vec<u8>)], target: &str) -> (Headers, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    let found = headers(&dir.path().join(target)).unwrap();
    (found, dir)
}

fn meta<'a>(found: &'a Headers, key: &str) -> &'a str {
    found.metadata.iter().find(|(k, _)| k == key).map_or("", |(_, v)| v)
}

#[test]
fn every_kind_of_value_is_read() {
    use GgufValue::{Array, Bool, F32, F64, I8, I16, I32, I64, Text, U8, U16, U32, U64};
    let scalars = [
        (U8(200), "200"),
        (I8(-100), "-100"),
        (U16(60_000), "60000"),
        (I16(-30_000), "-30000"),
        (U32(4_000_000_000), "4000000000"),
        (I32(-2_000_000_000), "-2000000000"),
        (F32(0.5), "0.5"),
        (Bool(true), "true"),
        (Text("wort".to_owned()), "`wort`"),
        (U64(u64::MAX), "18446744073709551615"),
        (I64(i64::MIN), "-9223372036854775808"),
        (F64(-0.25), "-0.25"),
    ];
    let order = [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12];
    let mut w = GgufWriter::new().key("general.architecture", "unheard-of");
    for ((value, _), kind) in scalars.iter().zip(order) {
        w = w.key(&format!("one.{kind}"), value.clone());
        w = w.key(&format!("many.{kind}"), Array(kind, vec![value.clone(); 3]));
        w = w.key(&format!("none.{kind}"), Array(kind, vec![]));
        let inner = Array(kind, vec![value.clone(); 2]);
        w = w.key(&format!("nested.{kind}"), Array(9, vec![inner.clone(), Array(9, vec![inner])]));
    }
    w = w.key("tokens", GgufValue::Texts(vec!["same".to_owned(); 4]));
    let (found, _dir) = look(&[("m.gguf", w.zeros("t", &[4]).build())], "m.gguf");
    assert_eq!(found.architecture.as_deref(), Some("unheard-of"));
    for ((_, words), kind) in scalars.iter().zip(order) {
        assert_eq!(meta(&found, &format!("one.{kind}")), *words);
        assert_eq!(meta(&found, &format!("many.{kind}")), "an array of 3");
        assert_eq!(meta(&found, &format!("none.{kind}")), "an array of 0");
        assert_eq!(meta(&found, &format!("nested.{kind}")), "an array of 2");
    }
    assert_eq!(meta(&found, "tokens"), "an array of 4");
    assert_eq!((found.tensors.len(), found.problems.len(), found.missing.len()), (1, 0, 0));
}

#[test]
fn types_that_cannot_be_run_are_listed() {
    let w = GgufWriter::new()
        .key("general.architecture", "llama")
        .tensor("blk.0.ffn_up_exps.weight", &[2, 256], 16, vec![0; 132])
        .tensor("blk.0.new", &[2, 2], 77, vec![0; 64])
        .zeros("output.weight", &[8]);
    let (found, dir) = look(&[("m.gguf", w.build())], "m.gguf");
    let listed: Vec<(&str, u64, &str)> =
        found.tensors.iter().map(|t| (t.dtype.as_str(), t.extent.len, t.part())).collect();
    assert_eq!(
        listed,
        [
            ("IQ2_XXS", 132, "routed experts"),
            ("unknown (ggml type 77)", 64, "other"),
            ("F32", 32, "embedding and output")
        ]
    );
    assert!(found.problems.is_empty());
    assert!(open(&dir.path().join("m.gguf")).is_err());
}

#[test]
fn a_part_alone_tells_what_is_missing() {
    let model = GgufWriter::new()
        .key("general.architecture", "llama")
        .zeros("a", &[4])
        .zeros("b", &[4])
        .zeros("c", &[4]);
    let parts: Vec<Vec<u8>> = model.split(&[1, 1, 1]).iter().map(GgufWriter::build).collect();
    let missing = |found: &Headers| found.missing.iter().map(|m| m.name.clone()).collect::<Vec<_>>();
    let tensors = |found: &Headers| found.tensors.iter().map(|t| t.name.clone()).collect::<Vec<_>>();
    let (found, _dir) = look(&[("m-00001-of-00003.gguf", parts[0].clone())], "");
    assert_eq!(missing(&found), ["m-00002-of-00003.gguf", "m-00003-of-00003.gguf"]);
    assert_eq!((tensors(&found), found.architecture.as_deref()), (vec!["a".to_owned()], Some("llama")));
    let files = [("m-00002-of-00003.gguf", parts[1].clone()), ("m-00003-of-00003.gguf", parts[2].clone())];
    let (found, _dir) = look(&files, "m-00003-of-00003.gguf");
    assert_eq!(
        (missing(&found), tensors(&found)),
        (vec!["m-00001-of-00003.gguf".to_owned()], vec!["b".to_owned(), "c".to_owned()])
    );
    assert_eq!(found.tensors.iter().map(|t| t.extent.file.0).collect::<Vec<_>>(), [0, 1]);
    assert_eq!((meta(&found, "split.no"), found.architecture.as_deref()), ("1", None));
    // A damaged part is told, and the others are listed.
    let files = [
        ("m-00001-of-00003.gguf", parts[0].clone()),
        ("m-00002-of-00003.gguf", parts[1][..40].to_vec()),
        ("m-00003-of-00003.gguf", parts[2].clone()),
    ];
    let (found, _dir) = look(&files, "");
    assert_eq!(
        (tensors(&found), found.problems.len(), found.missing.len()),
        (vec!["a".to_owned(), "c".to_owned()], 1, 0)
    );
    assert_eq!(found.files.len(), 2);
    assert!(found.problems[0].to_string().contains("m-00002-of-00003.gguf"), "{}", found.problems[0]);
}

#[test]
fn safetensors_without_their_whole() {
    let weights = |name: &str| SafetensorsWriter::new().tensor(name, "F8_E4M3", &[2, 2], vec![0; 4]).build();
    let index = r#"{"weight_map":{"a":"model-00001-of-00003.safetensors","b":"model-00002-of-00003.safetensors",
"c":"model-00003-of-00003.safetensors","d":"model-00003-of-00003.safetensors"}}"#;
    let config = r#"{"model_type":"mamba","n":[1,2]}"#;
    let files = [
        ("config.json", config.as_bytes().to_vec()),
        ("model.safetensors.index.json", index.as_bytes().to_vec()),
        ("model-00001-of-00003.safetensors", weights("a")),
        ("consolidated.safetensors", weights("x")),
    ];
    for target in ["", "model-00001-of-00003.safetensors"] {
        let (found, _dir) = look(&files, target);
        let missing: Vec<(&str, Option<usize>)> =
            found.missing.iter().map(|m| (m.name.as_str(), m.tensors)).collect();
        assert_eq!(
            missing,
            [("model-00002-of-00003.safetensors", Some(1)), ("model-00003-of-00003.safetensors", Some(2))]
        );
        assert_eq!((found.tensors.len(), found.tensors[0].dtype.as_str()), (1, "F8_E4M3"));
        if target.is_empty() {
            assert_eq!((found.architecture.as_deref(), meta(&found, "n")), (Some("mamba"), "[1,2]"));
            assert_eq!(found.ignored, ["consolidated.safetensors"]);
        }
    }
    // A directory without config.json, and a file that is cut short.
    let whole = weights("a");
    let (found, _dir) = look(&[("model.safetensors", whole[..whole.len() - 1].to_vec())], "");
    assert_eq!((found.tensors.len(), found.problems.len(), found.architecture), (1, 1, None));
    assert!(found.problems[0].to_string().contains("truncated"));
    assert!(headers(Path::new("/nowhere/at/all")).is_err());
}

/// Larger than the memory of any machine, and than what an `i32` or `u32` of blocks can count.
const HUGE_BYTES: u64 = 3 << 40;

#[test]
fn files_far_larger_than_memory() {
    let dir = tempfile::tempdir().unwrap();
    let (rows, cols) = (HUGE_BYTES / 2 / (1 << 20), 1 << 20);
    let gguf = GgufWriter::new()
        .key("general.architecture", "llama")
        .zeros("small", &[32])
        .hole("blk.0.ffn_up_exps.weight", &[rows, cols], 1, HUGE_BYTES)
        .zeros("last", &[32]);
    gguf.write_sparse(&dir.path().join("m.gguf")).unwrap();
    let found = headers(&dir.path().join("m.gguf")).unwrap();
    let huge = &found.tensors[1].extent;
    assert_eq!((huge.len, found.tensors[2].extent.offset), (HUGE_BYTES, huge.offset + HUGE_BYTES));
    assert!(found.problems.is_empty() && found.files[0].size_bytes > HUGE_BYTES);
    let weights = SafetensorsWriter::new().hole("h", "BF16", &[rows, cols], HUGE_BYTES).zeros("last", &[32]);
    weights.write_sparse(&dir.path().join("model.safetensors")).unwrap();
    let found = headers(&dir.path().join("model.safetensors")).unwrap();
    assert_eq!((found.tensors[0].extent.len, found.tensors.len()), (HUGE_BYTES, 2));
    assert!(found.problems.is_empty());
}
