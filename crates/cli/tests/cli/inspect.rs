//! `inspect`, also of what cannot be run.

use std::path::Path;

use serde_json::{Value, json};

use crate::program::{Ran, copy_dir, fixture, run, words};

/// Runs `inspect` and expects exit code 3, words on stdout and words on stderr.
#[track_caller]
fn check(line: &str, model: &Path, stdout: &[&str], stderr: &[&str]) -> Ran {
    let ran = run(&words(line, &[("M", model)]));
    assert_eq!(ran.code, 3, "{line}\n{}", ran.stderr);
    for (parts, text) in [(stdout, &ran.stdout), (stderr, &ran.stderr)] {
        for part in parts {
            assert!(text.contains(part), "`{part}` for {line}\n{text}");
        }
    }
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
    assert_eq!(stdout.is_empty(), ran.stdout.is_empty(), "{}", ran.stdout);
    ran
}

fn headers_of(model: &Path) -> Value {
    check("inspect {M} --json --tensors", model, &["{"], &["calypte: "]).json()
}

/// Where the header of a fixture's GGUF file ends, at the latest.
fn first_tensor(model: &Path) -> usize {
    let got = run(&words("inspect {M} --json --tensors", &[("M", model)])).ok().json();
    let offsets = got["tensors"].as_array().expect("a list").iter();
    offsets.map(|t| t["offset"].as_u64().expect("an offset") as usize).min().expect("a tensor")
}

#[test]
fn files_that_are_damaged() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    let model = fixture("glm_moe_dsa-a/model.gguf");
    let whole = std::fs::read(&model).expect("read");
    let header = first_tensor(&model);
    std::fs::write(at("header.gguf"), &whole[..header / 2]).expect("written");
    std::fs::write(at("data.gguf"), &whole[..header + 5000]).expect("written");
    std::fs::write(at("text.gguf"), "It was a bright cold morning in April").expect("written");
    // Without a whole header there is nothing to tell.
    check("inspect {M}", &at("header.gguf"), &[], &["header.gguf", "at byte"]);
    check("inspect {M}", &at("text.gguf"), &[], &["text.gguf", "the magic `GGUF`"]);
    check("inspect {M}", &at("missing.gguf"), &[], &["missing.gguf", "cannot be read"]);
    let parts =
        ["cannot be run", "glm-dsa", "Files with a fault", "truncated", "routed experts, BF16", "Metadata"];
    check("inspect {M}", &at("data.gguf"), &parts, &["data.gguf", "truncated"]);
    let got = headers_of(&at("data.gguf"));
    let all = run(&words("inspect {M} --json --tensors", &[("M", &model)])).ok().json();
    let bytes = |v: &Value| -> u64 {
        v["dtypes"].as_object().expect("sums").values().map(|s| s["bytes"].as_u64().expect("bytes")).sum()
    };
    // The header tells of every byte that should be there, whether or not it is understood.
    assert_eq!(bytes(&got), bytes(&all));
    assert_eq!((&got["layers_seen"], &got["layers_seen_moe"]), (&json!(9), &json!(6)));
}

#[test]
fn models_that_are_unknown() {
    let dir = tempfile::tempdir().expect("a directory");
    copy_dir(&fixture("mixtral-a"), dir.path());
    let config = dir.path().join("config.json");
    let known: Value = serde_json::from_str(&std::fs::read_to_string(&config).expect("read")).expect("JSON");
    let mut unknown = known.clone();
    unknown["model_type"] = "unheard_of".into();
    unknown["architectures"] = json!(["UnheardOfForCausalLM"]);
    std::fs::write(&config, unknown.to_string()).expect("written");
    let parts = [
        "cannot be run",
        "unheard_of",
        "2 in the files that are there, 2 of them with routed experts",
        "hidden_size",
    ];
    check("inspect {M}", dir.path(), &parts, &["`unheard_of (UnheardOfForCausalLM)`", "supported are"]);
    check("inspect {M} --tensors", dir.path(), &["[32, 32]", "model.norm.weight"], &[]);
    let got = headers_of(dir.path());
    assert_eq!((&got["architecture"], &got["metadata"]["hidden_size"]), (&json!("unheard_of"), &json!("32")));
    assert!(got["problem"].as_str().expect("a problem").contains("unheard_of"));
    // With a file missing: the same model, by the index and without it.
    std::fs::write(&config, known.to_string()).expect("written");
    let (second, index) = ("model-00002-of-00002.safetensors", "model.safetensors.index.json");
    std::fs::remove_file(dir.path().join(second)).expect("removed");
    check("inspect {M}", dir.path(), &["Missing files", second, "tensors"], &[second, "tensors are in it"]);
    assert_eq!(headers_of(dir.path())["missing"][0]["name"], second);
    std::fs::remove_file(dir.path().join(index)).expect("removed");
    std::fs::remove_file(dir.path().join("expected.safetensors")).expect("removed");
    check("inspect {M}", dir.path(), &["Missing files", second, "tensors unknown"], &[second, "found 1"]);
    let first = dir.path().join("model-00001-of-00002.safetensors");
    check("inspect {M}", &first, &["Missing files", second], &["give the directory that holds config.json"]);
}

#[test]
fn the_first_of_several_files_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let whole = std::fs::read(fixture("qwen3_moe-a/model.gguf")).expect("read");
    // The same file, but it says that it is the first of three.
    let keys = u64::from_le_bytes(whole[16..24].try_into().expect("8 bytes"));
    let mut bytes = [&whole[..16], &(keys + 2).to_le_bytes()[..]].concat();
    for (key, value) in [("split.count", 3u16), ("split.no", 0)] {
        bytes.extend((key.len() as u64).to_le_bytes());
        bytes.extend(key.as_bytes());
        bytes.extend(2u32.to_le_bytes());
        bytes.extend(value.to_le_bytes());
    }
    // Data is aligned, so that what is added to the header must be a multiple of 32 bytes.
    let pad_key = "pad";
    let added = bytes.len() - 24 + 8 + pad_key.len() + 4 + 8;
    let pad = added.next_multiple_of(32) - added;
    bytes[16..24].copy_from_slice(&(keys + 3).to_le_bytes());
    bytes.extend((pad_key.len() as u64).to_le_bytes());
    bytes.extend(pad_key.as_bytes());
    bytes.extend(8u32.to_le_bytes());
    bytes.extend((pad as u64).to_le_bytes());
    bytes.extend(vec![b'x'; pad]);
    bytes.extend(&whole[24..]);
    let path = dir.path().join("m-00001-of-00003.gguf");
    std::fs::write(&path, bytes).expect("written");
    let names = ["m-00002-of-00003.gguf", "m-00003-of-00003.gguf"];
    let stdout = ["qwen3moe", "Missing files", names[0], names[1], "routed experts"];
    for model in [path.as_path(), dir.path()] {
        check("inspect {M}", model, &stdout, &["expected 3 files", "found 1", names[0], names[1]]);
        let got = headers_of(model);
        assert_eq!(got["missing"].as_array().expect("a list").len(), 2);
        assert_eq!(
            got["tensors"].as_array().expect("a list").len() as u64,
            u64::from_le_bytes(whole[8..16].try_into().expect("8"))
        );
    }
}

#[test]
fn types_by_part_and_files_beside() {
    let got = run(&words("inspect {M} --json", &[("M", &fixture("quant-mix/model.gguf"))])).ok().json();
    let sum = |list: &Value| -> u64 {
        list.as_array().expect("a list").iter().map(|r| r["bytes"].as_u64().expect("bytes")).sum()
    };
    let parts = got["parts"].as_object().expect("sums").values();
    assert_eq!(sum(&got["quantisation"]), parts.map(|p| p["bytes"].as_u64().expect("bytes")).sum::<u64>());
    let dtypes: Vec<&Value> =
        got["quantisation"].as_array().expect("a list").iter().map(|r| &r["dtype"]).collect();
    assert!(dtypes.contains(&&json!("Q4_K")) && dtypes.contains(&&json!("F32")), "{dtypes:?}");
    let model = fixture("mixtral-a");
    let got = run(&words("inspect {M} --json", &[("M", &model)])).ok().json();
    assert_eq!((&got["ignored"], &got["problem"]), (&json!(["expected.safetensors"]), &Value::Null));
    let text = run(&words("inspect {M}", &[("M", &model)])).ok().stdout;
    assert!(text.contains("expected.safetensors  not part of the model"), "{text}");
}
