//! What is refused, with which exit code, and in which words.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde_json::Value;

use crate::program::{command, copy_dir, expected, fixture, list, run, words};

/// Runs `line` and expects an exit code, words on stderr, and nothing on stdout.
#[track_caller]
fn check(line: &str, paths: &[(&str, &Path)], code: i32, parts: &[&str]) {
    let ran = run(&words(line, paths));
    assert_eq!(ran.code, code, "{line}\n{}", ran.stderr);
    for part in parts {
        assert!(ran.stderr.contains(part), "`{part}` for {line}\n{}", ran.stderr);
    }
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
    assert_eq!(ran.stdout, "", "{line}");
}

#[test]
fn bad_usage() {
    let dir = tempfile::tempdir().expect("a directory");
    let (latin, words_file, empty) =
        (dir.path().join("latin"), dir.path().join("words"), dir.path().join("empty"));
    std::fs::write(&latin, b"caf\xe9").expect("written");
    std::fs::write(&words_file, "1,two").expect("written");
    std::fs::write(&empty, "").expect("written");
    let (glm, qwen) = (fixture("glm_moe_dsa-a"), fixture("qwen3_moe-a"));
    let ids = dir.path().join("ids");
    std::fs::write(&ids, "1,2,3").expect("written");
    let paths: [(&str, &Path); 6] = [
        ("M", &glm),
        ("Q", &qwen),
        ("LATIN", &latin),
        ("WORDS", &words_file),
        ("EMPTY", &empty),
        ("IDS", &ids),
    ];
    let cases: [(&str, &[&str]); 31] = [
        ("", &["Usage:", "Examples:"]),
        ("fly", &["fly", "Usage"]),
        ("run {M}", &["there is no prompt", "was taken for the model", "--prompt-file"]),
        ("run", &["there is no prompt"]),
        ("run {M} Once -p Twice", &["two prompts"]),
        ("run {M} -p Once --prompt-ids 1", &["cannot be used with"]),
        ("run {M} --prompt-ids 1,x", &["`x` is no token id"]),
        ("run {M} --prompt-ids ,", &["there is no token id"]),
        ("run {M} --prompt-ids 1,320", &["token id 320 is out of range", "0 to 319"]),
        ("run {M} --prompt-file {EMPTY}", &["the prompt is empty"]),
        ("run {M} --prompt-file {LATIN}", &["latin: at byte 3", "UTF-8", "0xe9"]),
        ("run {M} --prompt-file /nowhere/at/all", &["/nowhere/at/all: cannot be read"]),
        ("run {M} --ids-file {WORDS}", &["words: `two` is no token id"]),
        ("run {M} Once --temp -1", &["--temp"]),
        ("run {M} Once --top-p 2", &["from 0 to 1"]),
        ("run {M} Once --threads 0", &["from 1 to 1024"]),
        ("run {M} Once --threads 99999", &["from 1 to 1024"]),
        ("run {M} Once -n 999999999999", &["whole number from 0"]),
        ("run {M} Once --ram lots", &["`lots` is no size"]),
        ("run {M} Once --io mmap", &["unknown I/O mode", "pread-buffered"]),
        ("run {M} --prompt-ids 1,2,3 --ctx 2", &["3 tokens", "room for 2", "--ctx"]),
        ("run {Q} Once", &["no tokenizer", "token ids"]),
        ("score {M}", &["--ids-file", "--text-file"]),
        ("score {M} --ids-file {WORDS} --text-file {LATIN}", &["cannot be used with"]),
        ("score {M} --text-file {LATIN} --chunk 2", &["--chunk", "from 3 to"]),
        ("score {M} --text-file {LATIN} --chunks 2", &["--chunk <N>"]),
        ("bench {M} -p 0 -n 0", &["nothing to measure", "-p or -n"]),
        ("bench {M} -p 8 -n 0 --depth 2 --ctx 9", &["10 tokens", "room for 9", "--ctx"]),
        ("bench {M} -p many", &["--prompt", "whole number from 0"]),
        ("chat {Q}", &["no tokenizer"]),
        ("score {Q} --ids-file {IDS} --chunk 4", &["3 tokens, less than one chunk of 4"]),
    ];
    for (line, parts) in cases {
        check(line, &paths, 2, parts);
    }
    std::fs::write(&words_file, "7").expect("written");
    check("score {M} --ids-file {WORDS}", &paths, 2, &["1 tokens to score", "at least two"]);
    let nowhere = "score {M} --text-file {LATIN} --logits /nowhere/x.safetensors";
    std::fs::write(&latin, "Call me").expect("written");
    check(nowhere, &paths, 2, &["/nowhere/x.safetensors: cannot be created"]);
}

#[test]
fn models_that_cannot_be_opened() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    let whole = std::fs::read(fixture("glm_moe_dsa-a/model.gguf")).expect("read");
    let write = |name: &str, bytes: &[u8]| std::fs::write(at(name), bytes).expect("written");
    write("empty.gguf", b"");
    write("short.gguf", &whole[..37]);
    write("header.gguf", &whole[..3000]);
    write("data.gguf", &whole[..whole.len() / 2]);
    write("text.gguf", b"It was a bright cold morning in April, and the clocks were striking thirteen.");
    let cases: [(&str, &[&str]); 6] = [
        ("missing.gguf", &["missing.gguf", "cannot be read"]),
        ("empty.gguf", &["empty.gguf", "found"]),
        ("short.gguf", &["short.gguf", "found"]),
        ("header.gguf", &["header.gguf", "at byte", "found"]),
        ("data.gguf", &["data.gguf", "tensor", "truncated"]),
        ("text.gguf", &["text.gguf", "found"]),
    ];
    for (name, parts) in cases {
        for line in ["run {M} --prompt-ids 1", "plan {M} --no-probe", "chat {M}"] {
            check(line, &[("M", &at(name))], 3, parts);
        }
    }
    // A directory of several files names them all; one without any says what it should hold.
    check("run {M} --prompt-ids 1", &[("M", dir.path())], 3, &["data.gguf", "empty.gguf (damaged)"]);
    let empty = tempfile::tempdir().expect("a directory");
    check("run {M} --prompt-ids 1", &[("M", empty.path())], 3, &["config.json"]);
}

#[test]
fn configurations_that_do_not_fit() {
    let cases: [(&str, Value, &[&str]); 3] = [
        ("model_type", "mamba".into(), &["mamba", "supported are", "glm_moe_dsa", "qwen3_moe", "llama"]),
        ("intermediate_size", 128.into(), &["config and weights disagree", "128", "64"]),
        ("hidden_size", "wide".into(), &["config.json", "hidden_size"]),
    ];
    for (key, value, parts) in cases {
        let dir = tempfile::tempdir().expect("a directory");
        copy_dir(&fixture("glm_moe_dsa-a"), dir.path());
        let config = dir.path().join("config.json");
        let mut json: Value =
            serde_json::from_str(&std::fs::read_to_string(&config).expect("read")).expect("JSON");
        json[key] = value;
        if key == "model_type" {
            json["architectures"] = serde_json::json!(["MambaForCausalLM"]);
        }
        std::fs::write(&config, json.to_string()).expect("written");
        check("run {M} --prompt-ids 1", &[("M", dir.path())], 3, parts);
    }
}

#[test]
fn a_router_that_is_not_a_number() {
    let dir = tempfile::tempdir().expect("a directory");
    copy_dir(&fixture("glm_moe_dsa-a"), dir.path());
    let file = dir.path().join("model.safetensors");
    let mut bytes = std::fs::read(&file).expect("read");
    let header_bytes = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + header_bytes]).expect("a header");
    let router = "model.layers.4.mlp.gate.weight";
    assert_eq!(header[router]["dtype"], "BF16");
    let start = 8 + header_bytes + header[router]["data_offsets"][0].as_u64().expect("an offset") as usize;
    bytes[start + 2..start + 4].copy_from_slice(&0x7fc0u16.to_le_bytes());
    std::fs::write(&file, bytes).expect("written");
    let offset = start.to_string();
    let parts = ["model.safetensors", router, &offset, "value 1 is NaN"];
    check("run {M} --prompt-ids 1", &[("M", dir.path())], 3, &parts);
}

#[test]
fn budgets_that_cannot_work() {
    let model = fixture("glm_moe_dsa-a").join("model.gguf");
    let paths = [("M", model.as_path())];
    let plan = run(&words("plan {M} --no-probe --json", &paths)).ok().json();
    let floor = plan["budget"]["expert_cache_bytes_floor"].as_u64().expect("the floor");
    let named = format!("({floor} bytes");
    let below = format!("run {{M}} --prompt-ids 1 --expert-cache {}", floor - 1);
    check(&below, &paths, 4, &["below the floor", &named, "--expert-cache"]);
    check("run {M} --prompt-ids 1 --ram 1MiB", &paths, 4, &["needs at least", "resident weights", "--ram"]);
    check("chat {M} --expert-cache 1%", &paths, 4, &["below the floor"]);
    let at_floor = format!("run {{M}} --prompt-ids 1 -n 1 --json --expert-cache {floor}");
    run(&words(&at_floor, &paths)).ok();
    // The plan is still shown: it says what would work.
    let refused = run(&words("plan {M} --no-probe --ram 1MiB", &paths));
    assert_eq!(refused.code, 4, "{}", refused.stderr);
    assert!(refused.stdout.contains("The least memory that works"), "{}", refused.stdout);
    assert!(refused.stderr.contains("needs at least"), "{}", refused.stderr);
}

#[test]
fn no_bundled_model() {
    check(
        "run Once",
        &[],
        3,
        &["the bundled model was not found", "no-models/anna/anna-q8_0.gguf", "CALYPTE_MODELS"],
    );
    check("plan", &[], 3, &["the bundled model was not found"]);
}

#[test]
fn an_instruction_set_that_is_not_there() {
    let model = fixture("glm_moe_dsa-a").join("model.gguf");
    // The second exists elsewhere: no native machine has it.
    for isa in ["avx513", "simd128"] {
        for line in ["run {M} --prompt-ids 1", "plan {M} --no-probe", "bench {M} -p 1 -n 0", "chat {M}"] {
            let args = words(line, &[("M", &model)]);
            let output = command(&args).env("CALYPTE_ISA", isa).output().expect("the program starts");
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{line}: {stderr}");
            for part in ["CALYPTE_ISA", isa, "this machine, which has scalar", "unset"] {
                assert!(stderr.contains(part), "`{part}` for {line}: {stderr}");
            }
            assert!(output.stdout.is_empty() && !stderr.contains("panicked"), "{line}: {stderr}");
        }
    }
}

/// A long run from a copy of a fixture that can be cut while it is read.
fn long_run(dir: &Path, more: &str) -> (std::path::PathBuf, Vec<String>) {
    let model = dir.join("model.gguf");
    std::fs::copy(fixture("glm_moe_dsa-a/model.gguf"), &model).expect("copied");
    let line = format!(
        "run {{M}} -n 100000 --ignore-eos --temp 0 --expert-cache min --io pread-buffered {more} --prompt-ids"
    );
    let mut args = words(&line, &[("M", &model)]);
    args.push(list(&expected("glm_moe_dsa-a")["prompt_ids"]));
    (model, args)
}

fn cut(model: &Path) {
    let file = std::fs::OpenOptions::new().write(true).open(model).expect("opened");
    file.set_len(4096).expect("cut");
}

#[test]
fn a_file_cut_while_running() {
    let dir = tempfile::tempdir().expect("a directory");
    let (model, args) = long_run(dir.path(), "");
    let mut child = command(&args).spawn().expect("the program starts");
    // The prompt comes out together with the first token.
    let mut first = [0u8];
    child.stdout.as_mut().expect("stdout").read_exact(&mut first).expect("output");
    cut(&model);
    let output = child.wait_with_output().expect("the program ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{stderr}");
    for part in ["calypte: ", "model.gguf", "at offset", "truncated"] {
        assert!(stderr.contains(part), "{part} in {stderr}");
    }
    // A run that comes to its end says so on both; one that fails prints not even the end of the line.
    assert!(!stderr.contains("tok/s"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn a_file_cut_while_running_leaves_no_json() {
    let dir = tempfile::tempdir().expect("a directory");
    let (model, args) = long_run(dir.path(), "--json");
    let mut child = command(&args).env("CALYPTE_LOG", "calypte=info").spawn().expect("the program starts");
    let mut stderr = BufReader::new(child.stderr.take().expect("stderr"));
    let mut log = String::new();
    while !log.contains("model open") {
        assert_ne!(stderr.read_line(&mut log).expect("stderr"), 0, "{log}");
    }
    cut(&model);
    stderr.read_to_string(&mut log).expect("stderr");
    let output = child.wait_with_output().expect("the program ends");
    assert_eq!(output.status.code(), Some(5), "{log}");
    assert!(log.contains("calypte: ") && log.contains("model.gguf"), "{log}");
    assert!(output.stdout.is_empty());
}
