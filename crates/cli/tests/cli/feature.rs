//! What works.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use safetensors::SafeTensors;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::program::{Ran, copy_dir, expected, fixture, list, run, run_with, run_with_stdin, words};

const GREEDY: &str = "--temp 0 --ignore-eos --json -n 32";

/// Both formats of a fixture.
fn both(name: &str) -> [std::path::PathBuf; 2] {
    [fixture(name), fixture(name).join("model.gguf")]
}

fn greedy(model: &Path, prompt: &Value, more: &str) -> Value {
    let mut args = words(&format!("run {{M}} {GREEDY} {more}"), &[("M", model)]);
    args.extend(["--prompt-ids".to_string(), list(prompt)]);
    run(&args).ok().json()
}

#[test]
fn greedy_ids_are_the_reference_s() {
    for name in ["glm_moe_dsa-a", "qwen3_moe-a", "llama-a"] {
        let want = expected(name);
        for model in both(name) {
            let got = greedy(&model, &want["prompt_ids"], "");
            assert_eq!(got["ids"], want["greedy_ids"], "{}", model.display());
            assert_eq!(got["prompt_ids"], want["prompt_ids"]);
            assert_eq!(got["stop"], "length");
        }
    }
}

#[test]
fn the_machine_interface_has_its_fields() {
    let got =
        greedy(&fixture("glm_moe_dsa-a"), &json!([1, 2, 3]), "--io pread-buffered --threads 2 --seed 5");
    type IsKind = fn(&Value) -> bool;
    let kinds: [(&str, IsKind); 14] = [
        ("/prompt_ids", Value::is_array),
        ("/ids", Value::is_array),
        ("/text", Value::is_string),
        ("/stop", Value::is_string),
        ("/stats/prefill_tok_s", Value::is_f64),
        ("/stats/decode_tok_s", Value::is_f64),
        ("/stats/ttft_ms", Value::is_f64),
        ("/stats/expert_hits", Value::is_u64),
        ("/stats/expert_misses", Value::is_u64),
        ("/stats/bytes_read", Value::is_u64),
        ("/stats/io", Value::is_string),
        ("/stats/peak_rss_bytes", Value::is_u64),
        ("/stats/isa", Value::is_string),
        ("/stats/seed", Value::is_u64),
    ];
    for (path, is_kind) in kinds {
        assert!(got.pointer(path).is_some_and(is_kind), "{path} in {got}");
    }
    assert_eq!(got["stats"]["io"], "pread-buffered");
    assert_eq!(got["ids"].as_array().map(Vec::len), Some(32));
}

#[test]
fn text_is_prompt_and_continuation() {
    let model = fixture("glm_moe_dsa-a");
    let args = ["run", &model.display().to_string(), "Call me", "--temp", "0", "-n", "12"];
    let plain = run(&args).ok();
    let json = run(&[&args[..], &["--json"]].concat()).ok().json();
    let text = json["text"].as_str().expect("text");
    assert_eq!(plain.stdout.trim_end_matches('\n'), format!("Call me{text}").trim_end_matches('\n'));
    for part in ["tok/s", "first token after", "hits", "misses", "read by", "peak memory"] {
        assert!(plain.stderr.contains(part), "{part} in {}", plain.stderr);
    }
    assert!(!plain.stderr.contains("seed"), "nothing is random at temperature 0: {}", plain.stderr);
}

#[test]
fn prompts_come_from_everywhere() {
    let dir = tempfile::tempdir().expect("a directory");
    let (text, ids) = (dir.path().join("text"), dir.path().join("ids"));
    std::fs::write(&text, "Call me\n").expect("written");
    std::fs::write(&ids, "34 64\n75,75").expect("written");
    let model = fixture("glm_moe_dsa-a");
    let paths = [("M", model.as_path()), ("T", &text), ("I", &ids)];
    let ids_of = |line: &str, stdin: &str| {
        let args = words(&format!("run {line} --json -n 1 --temp 0"), &paths);
        run_with_stdin(&args, stdin.as_bytes()).ok().json()["prompt_ids"].clone()
    };
    let whole = ids_of("{M} --prompt-file {T}", "");
    assert_eq!(ids_of("{M} --prompt-file -", "Call me\n"), whole);
    assert_eq!(ids_of("{M} -p Call", ""), ids_of("{M} Call", ""));
    assert_eq!(ids_of("-p Call {M}", ""), ids_of("{M} Call", ""));
    assert_eq!(ids_of("{M} --ids-file {I}", ""), json!([34, 64, 75, 75]));
    assert_eq!(ids_of("{M} --prompt-ids 34,64", ""), json!([34, 64]));
    // Special tokens that are written out count as such.
    let chat = &expected("glm_moe_dsa-a")["chat"];
    let rendered = chat["rendered"].as_str().expect("text");
    let got =
        run(&["run", &model.display().to_string(), "-p", rendered, "--json", "-n", "16", "--temp", "0"]);
    let got = got.ok().json();
    assert_eq!(got["prompt_ids"], chat["prompt_ids"]);
    assert_eq!(got["ids"], chat["greedy_ids"]);
    assert_eq!(got["text"], chat["text"]);
}

#[test]
fn weights_alone_are_enough_for_ids() {
    let dir = tempfile::tempdir().expect("a directory");
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture("glm_moe_dsa-a").join(file), dir.path().join(file)).expect("copied");
    }
    let want = expected("glm_moe_dsa-a");
    let got = greedy(dir.path(), &want["prompt_ids"], "");
    assert_eq!(got["ids"], want["greedy_ids"]);
    assert_eq!(got["text"], "");
    // Without --json the ids themselves are what can be shown.
    let args = words("run {M} --prompt-ids 1,2 -n 2 --temp 0", &[("M", dir.path())]);
    let plain = run(&args).ok().stdout;
    let numbers: Vec<u32> = plain.split_whitespace().map(|w| w.parse().expect("an id")).collect();
    assert_eq!((&numbers[..2], numbers.len()), (&[1, 2][..], 4));
}

#[test]
fn the_cache_changes_reads_and_nothing_else() {
    let model = fixture("glm_moe_dsa-a").join("model.gguf");
    let prompt = expected("glm_moe_dsa-a")["prompt_ids"].clone();
    let least = greedy(&model, &prompt, "--expert-cache min");
    let all = greedy(&model, &prompt, "--expert-cache all");
    let ram = greedy(&model, &prompt, "--ram min");
    for field in ["ids", "text", "stop"] {
        assert_eq!(least[field], all[field]);
        assert_eq!(least[field], ram[field]);
    }
    let number = |run: &Value, field: &str| run["stats"][field].as_u64().expect("a number");
    // 5 mixture layers of 8 experts: with room for all of them each is read at most once.
    assert!(number(&all, "expert_misses") <= 5 * 8);
    assert!(number(&least, "expert_misses") > 5 * 8);
    assert!(number(&least, "bytes_read") > number(&all, "bytes_read"));
    assert_eq!(number(&least, "expert_cache_bytes"), number(&ram, "expert_cache_bytes"));
}

#[test]
fn generation_stops_where_it_is_told_to() {
    let model = fixture("glm_moe_dsa-a");
    let chat = &expected("glm_moe_dsa-a")["chat"];
    let text = chat["text"].as_str().expect("text");
    let stop = |stops: &[&str]| {
        let mut args = words("run {M} --json -n 16 --temp 0 --prompt-ids", &[("M", &model)]);
        args.push(list(&chat["prompt_ids"]));
        args.extend(stops.iter().map(|s| format!("--stop={s}")));
        run(&args).ok().json()
    };
    assert_eq!(stop(&[])["text"], text);
    let cut = stop(&["never said", "`'"]);
    assert_eq!(cut["stop"], "stop");
    assert_eq!(cut["text"].as_str(), text.split("`'").next());
    let none = run(&words("run {M} --json -n 0 --prompt-ids 1,2", &[("M", &model)])).ok().json();
    assert_eq!((&none["ids"], &none["stop"]), (&json!([]), &json!("length")));
}

#[test]
fn the_end_token_ends_unless_ignored() {
    // The second greedy token, made the end token.
    let dir = tempfile::tempdir().expect("a directory");
    copy_dir(&fixture("qwen3_moe-a"), dir.path());
    let want = expected("qwen3_moe-a");
    let end = &want["greedy_ids"][1];
    let config = dir.path().join("config.json");
    let mut json: Value =
        serde_json::from_str(&std::fs::read_to_string(&config).expect("read")).expect("JSON");
    json["eos_token_id"] = end.clone();
    std::fs::write(&config, json.to_string()).expect("written");
    let mut args = words("run {M} --json -n 32 --temp 0 --prompt-ids", &[("M", dir.path())]);
    args.push(list(&want["prompt_ids"]));
    let ended = run(&args).ok().json();
    assert_eq!((&ended["stop"], &ended["ids"]), (&json!("eos"), &json!([want["greedy_ids"][0], end])));
    args.push("--ignore-eos".to_string());
    assert_eq!(run(&args).ok().json()["ids"], want["greedy_ids"]);
}

#[test]
fn the_seed_repeats_an_answer() {
    let model = fixture("glm_moe_dsa-a");
    let sample = |more: &str| {
        let line = format!("run {{M}} --json -n 16 --temp 1 --top-p 1 --prompt-ids 1,2,3 {more}");
        run(&words(&line, &[("M", &model)])).ok().json()
    };
    let first = sample("");
    let seed = first["stats"]["seed"].as_u64().expect("a seed");
    assert_eq!(sample(&format!("--seed {seed} --threads 3 --prefill-chunk 1"))["ids"], first["ids"]);
    assert_ne!(sample("--seed 1")["ids"], sample("--seed 2")["ids"]);
}

#[test]
fn scores_are_the_reference_s_and_logits_are_written() {
    let dir = tempfile::tempdir().expect("a directory");
    let (ids, out) = (dir.path().join("ids"), dir.path().join("out.safetensors"));
    let want = expected("glm_moe_dsa-a");
    std::fs::write(&ids, list(&want["prompt_ids"])).expect("written");
    let model = fixture("glm_moe_dsa-a");
    let args =
        words("score {M} --ids-file {I} --logits {O} --json", &[("M", &model), ("I", &ids), ("O", &out)]);
    let got = run(&args).ok().json();
    let file = std::fs::read(&out).expect("the logits");
    let file = SafeTensors::deserialize(&file).expect("safetensors");
    let logits = file.tensor("logits").expect("logits");
    assert_eq!((logits.dtype(), logits.shape()), (safetensors::Dtype::F32, &[48, 320][..]));
    let digest: String = Sha256::digest(logits.data()).iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(got["logits_sha256"], digest);
    assert_eq!(got["tokens"], 48);
    let argmax = got["argmax"].as_array().expect("argmax");
    assert_eq!((argmax.len(), argmax.last()), (48, Some(&want["greedy_ids"][0])));
    let (nll, ppl) = (got["nll"].as_f64().expect("nll"), got["ppl"].as_f64().expect("ppl"));
    assert!((nll.exp() / ppl - 1.0).abs() < 1e-9);
    assert!((nll - reference_nll(&want["prompt_ids"])).abs() < 1e-4, "{nll}");
    let left: Vec<_> = std::fs::read_dir(dir.path()).expect("a directory").collect();
    assert_eq!(left.len(), 2, "nothing but the two files is left");
}

/// Mean negative log-likelihood by the reference's logits.
fn reference_nll(ids: &Value) -> f64 {
    let file = std::fs::read(fixture("glm_moe_dsa-a/expected.safetensors")).expect("read");
    let file = SafeTensors::deserialize(&file).expect("safetensors");
    let logits = file.tensor("prompt_logits").expect("prompt_logits");
    let ids = ids.as_array().expect("ids");
    let rows = rows(logits.data(), ids.len());
    rows.iter().zip(&ids[1..]).map(|(row, next)| nll(row, next)).sum::<f64>() / (ids.len() - 1) as f64
}

#[test]
fn chunks_are_scored_apart_and_their_second_halves_counted() {
    let dir = tempfile::tempdir().expect("a directory");
    let (ids, out) = (dir.path().join("ids"), dir.path().join("out.safetensors"));
    let prompt = &expected("qwen3_moe-a")["prompt_ids"];
    let prompt = prompt.as_array().expect("ids");
    let model = fixture("qwen3_moe-a");
    let score = |tokens: &[Value], more: &str| {
        std::fs::write(&ids, list(&json!(tokens))).expect("written");
        let line = format!("score {{M}} --ids-file {{I}} --json {more}");
        run(&words(&line, &[("M", &model), ("I", &ids), ("O", &out)])).ok().json()
    };
    let parts: Vec<Value> = prompt.chunks_exact(15).map(|part| score(part, "")).collect();
    assert_eq!(score(prompt, "--chunk 15 --chunks 1")["argmax"], parts[0]["argmax"]);
    let got = score(prompt, "--chunk 15 --logits {O} --prefill-chunk 4");
    assert_eq!((&got["tokens"], &got["counted"]), (&json!(45), &json!(3 * 7)));
    let argmax = parts.iter().flat_map(|p| p["argmax"].as_array().expect("argmax").clone());
    assert_eq!(got["argmax"], Value::from_iter(argmax));
    let file = std::fs::read(&out).expect("the logits");
    let file = SafeTensors::deserialize(&file).expect("safetensors");
    let logits = file.tensor("logits").expect("logits");
    assert_eq!(logits.shape()[0], 45);
    let rows = rows(logits.data(), 45);
    let mut sum = 0.0;
    for (i, (part, chunk)) in parts.iter().zip(got["chunks"].as_array().expect("chunks")).enumerate() {
        assert_eq!(chunk["logits_sha256"], part["logits_sha256"], "chunk {i}");
        // Rows 7 to 13 of 15 predict tokens 8 to 14.
        let nll: f64 = (7..14).map(|j| nll(&rows[i * 15 + j], &prompt[i * 15 + j + 1])).sum();
        assert!((chunk["nll"].as_f64().expect("nll") - nll / 7.0).abs() < 1e-6, "chunk {i}");
        sum += nll;
    }
    let (got, ppl) = (got["nll"].as_f64().expect("nll"), got["ppl"].as_f64().expect("ppl"));
    assert!((got - sum / 21.0).abs() < 1e-6 && (got.exp() / ppl - 1.0).abs() < 1e-9, "{got} {ppl}");
    let people =
        run(&words("score {M} --ids-file {I} --chunk 15", &[("M", &model), ("I", &ids)])).ok().stdout;
    assert!(people.contains("45, 21 of them counted"), "{people}");
}

/// Little-endian f32 as rows.
fn rows(data: &[u8], count: usize) -> Vec<Vec<f64>> {
    let values: Vec<f64> =
        data.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]]).into()).collect();
    values.chunks_exact(values.len() / count).map(<[f64]>::to_vec).collect()
}

/// Negative log-likelihood of a token after a row of logits.
fn nll(row: &[f64], next: &Value) -> f64 {
    row.iter().map(|v| v.exp()).sum::<f64>().ln() - row[next.as_u64().expect("id") as usize]
}

#[test]
fn scoring_speaks_to_people_too() {
    let model = fixture("glm_moe_dsa-a");
    let args = words("score {M} --text-file -", &[("M", &model)]);
    let got = run_with_stdin(&args, b"Call me Ishmael.").ok();
    for part in ["tokens", "nll", "perplexity", "sha256"] {
        assert!(got.stdout.contains(part), "{part} in {}", got.stdout);
    }
    assert_eq!(got.stderr, "");
}

#[test]
fn plans_say_everything_before_a_weight_is_read() {
    let model = fixture("glm_moe_dsa-a").join("model.gguf");
    let text = run(&words("plan {M} --no-probe --expert-cache 50%", &[("M", &model)])).ok().stdout;
    let parts = [
        "architecture",
        "glm_moe_dsa",
        "parameters",
        "active per token",
        "resident weights",
        "bytes per expert",
        "8 in each of 5 layers, 3 per token",
        "keys and values",
        "cold read per token",
        "expert cache",
        "layers 3 to 7",
        "disk",
        "cold",
        "warm",
    ];
    for part in parts {
        assert!(text.contains(part), "{part} in {text}");
    }
    let got = run(&words("plan {M} --json --no-probe --ctx 100", &[("M", &model)])).ok().json();
    let number =
        |path: &str| got.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("{path} in {got}"));
    // 3 matrices of 32 × 32 BF16 values; 5 layers × 3 experts of them for a token.
    assert_eq!(number("/expert_bytes_min"), 3 * 32 * 32 * 2);
    assert_eq!(number("/cold_read_bytes_per_token"), 5 * 3 * 3 * 32 * 32 * 2);
    // f32: the latent of 32 and the rotated key of 8 in 8 layers, the indexer's key of 64 in 4.
    assert_eq!(number("/kv_bytes_per_token"), (8 * (32 + 8) + 4 * 64) * 4);
    // In blocks of 64 positions.
    assert_eq!(number("/budget/kv_bytes"), 128 * number("/kv_bytes_per_token"));
    let half = run(&words("plan {M} --json --no-probe --kv f16", &[("M", &model)])).ok().json();
    assert_eq!(half["kv_bytes_per_token"].as_u64(), Some(number("/kv_bytes_per_token") / 2));
    assert_eq!(got["layers"].as_array().map(Vec::len), Some(5));
    let parts = ["resident", "kv", "working", "program", "expert_cache"];
    let sum: u64 = parts.iter().map(|p| number(&format!("/budget/{p}_bytes"))).sum();
    assert_eq!(number("/budget/total_bytes"), sum);
    assert_eq!((&got["disk"], &got["cold"], &got["refusal"]), (&Value::Null, &Value::Null, &Value::Null));
}

#[test]
fn plans_measure_the_disk() {
    let model = fixture("qwen3_moe-a");
    let got =
        run(&words("plan {M} --json --io pread-buffered --expert-cache min", &[("M", &model)])).ok().json();
    assert_eq!(got["disk"]["io"], "pread-buffered");
    for path in ["/disk/bytes_per_s", "/cold/tok_s", "/warm/tok_s", "/compute_bytes_per_s"] {
        assert!(got.pointer(path).and_then(Value::as_f64).is_some_and(|v| v > 0.0), "{path} in {got}");
    }
    let binds = got["cold"]["binds"].as_str().expect("a term");
    assert!(["disk", "compute"].contains(&binds), "{binds}");
    assert!(got["disk"]["depth"].as_u64().is_some_and(|n| n > 0), "{got}");
    assert_eq!(got["disk"]["remembered_unix_s"], Value::Null);
}

#[test]
fn plans_remember_the_disk() {
    let cache = tempfile::tempdir().expect("temporary directory");
    let model = fixture("qwen3_moe-a");
    let plan = |flags: &str| -> Ran {
        let line = format!("plan {{M}} --io pread-buffered --expert-cache min {flags}");
        run_with(&words(&line, &[("M", &model)]), &[("XDG_CACHE_HOME", cache.path())])
    };
    let remembered = |ran: Ran| ran.ok().json()["disk"]["remembered_unix_s"].as_u64();
    // Nothing yet, measured, remembered, measured anew.
    assert_eq!(plan("--json --no-probe").ok().json()["disk"], Value::Null);
    assert_eq!(remembered(plan("--json")), None);
    let first = plan("--json").ok().json();
    assert!(first["disk"]["remembered_unix_s"].as_u64().is_some(), "{first}");
    assert_eq!(plan("--json --no-probe").ok().json()["disk"], first["disk"]);
    assert_eq!(remembered(plan("--json --probe")), None);
    let text = plan("").ok().stdout;
    assert!(text.contains("disk queue") && text.contains("remembered from just now"), "{text}");
    // What is remembered is used, and damage to it is not even told.
    let file = cache.path().join("calypte/disk.txt");
    let answer = |io: &str| {
        let line = format!("run {{M}} --prompt-ids 1,2,3 -n 8 --temp 0 --json --io {io}");
        run_with(&words(&line, &[("M", &model)]), &[("XDG_CACHE_HOME", cache.path())]).ok()
    };
    let ids = |ran: Ran| ran.json()["ids"].clone();
    let known = std::fs::read_to_string(&file).expect("remembered");
    std::fs::write(&file, known.replace(" depth=", " depth=1")).expect("written");
    let expected = ids(answer("memory"));
    assert_eq!(ids(answer("pread-buffered")), expected);
    std::fs::write(&file, "nonsense").expect("written");
    let ran = answer("pread-buffered");
    assert!(!ran.stderr.contains("disk.txt"), "{}", ran.stderr);
    assert_eq!(ids(ran), expected);
}

#[test]
fn inspection_counts_every_byte() {
    for model in both("glm_moe_dsa-a") {
        let got = run(&words("inspect {M} --json --tensors", &[("M", &model)])).ok().json();
        assert_eq!(
            (&got["layers_dense"], &got["layers_moe"], &got["layers_mtp"]),
            (&json!(3), &json!(5), &json!(1))
        );
        assert_eq!(got["chat_template"], true, "{}", model.display());
        let total = |field: &str| -> u64 {
            let sums = got[field].as_object().expect("an object").values();
            sums.map(|v| v["bytes"].as_u64().expect("bytes")).sum()
        };
        let tensors = got["tensors"].as_array().expect("a list");
        let listed: u64 = tensors.iter().map(|t| t["bytes"].as_u64().expect("bytes")).sum();
        assert_eq!((total("dtypes"), total("parts")), (listed, listed));
        let file = got["files"][0]["bytes"].as_u64().expect("bytes");
        assert!(listed < file && listed > file * 9 / 10, "{listed} of {file}");
        let text = run(&words("inspect {M} --tensors", &[("M", &model)])).ok().stdout;
        for part in [
            "3 dense, 5 mixture, 1 multi-token",
            "routed experts",
            "multi-head latent",
            "fingerprint",
            "expert 7 down",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}

fn chat(model: &Path, more: &str, stdin: &str) -> crate::program::Ran {
    let args = words(&format!("chat {{M}} --temp 0 {more}"), &[("M", model)]);
    run_with_stdin(&args, stdin.as_bytes())
}

#[test]
fn chat_answers_and_remembers() {
    let model = fixture("glm_moe_dsa-a");
    let reference = expected("glm_moe_dsa-a")["chat"].clone();
    let said = reference["messages"][0]["content"].as_str().expect("text").to_string();
    let answer = format!("{}\n", reference["text"].as_str().expect("text"));
    let one = chat(&model, "-n 16", &format!("{said}\n")).ok();
    assert_eq!(one.stdout, answer);
    // The same question again has another answer unless the conversation was forgotten.
    let twice = chat(&model, "-n 16", &format!("{said}\n{said}\n")).ok();
    let (first, second) = twice.stdout.split_at(answer.len());
    assert_eq!(first, answer);
    assert_ne!(second, answer);
    let anew = chat(&model, "-n 16", &format!("{said}\n/reset\n{said}\n")).ok();
    assert_eq!(anew.stdout, answer.repeat(2));
    let told = chat(&model, "-n 16", &format!("/system Be brief.\n{said}\n/system\n/reset\n{said}\n")).ok();
    assert!(told.stdout.ends_with(&answer) && !told.stdout.starts_with(&answer), "{}", told.stdout);
}

#[test]
fn chat_computes_only_what_is_new() {
    let model = fixture("glm_moe_dsa-a");
    let stats = |stdin: &str| chat(&model, "-n 4", stdin).ok().stderr;
    let tokens = |stats: &str| -> usize {
        let line = stats.lines().find(|l| l.starts_with("[prompt")).expect("statistics");
        line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
    };
    let first = tokens(&stats("Call me Ishmael.\n/stats\n"));
    let second = tokens(&stats("Call me Ishmael.\nCall me Ishmael.\n/stats\n"));
    // The second prompt holds the first, the answer and the second message; without reuse it would be twice as long.
    assert_eq!(first, 20);
    assert!(second < 2 * first, "{second} new tokens");
}

#[test]
fn chat_has_commands_and_long_messages() {
    let model = fixture("glm_moe_dsa-a");
    let got = chat(&model, "-n 2", "/help\n/stats\n/dance\n\n/quit\nnever read\n").ok();
    assert_eq!(got.stdout, "");
    for part in ["/system TEXT", "There was no answer yet.", "no command /dance"] {
        assert!(got.stderr.contains(part), "{part} in {}", got.stderr);
    }
    let long = chat(&model, "-n 8", "one\\\ntwo\n").ok();
    assert_ne!(long.stdout, chat(&model, "-n 8", "one\n").ok().stdout);
    let full = chat(&model, "--ctx 16", "Call me Ishmael, for that is what I am called.\n").ok();
    assert!(full.stderr.contains("there is room for 16; /reset"), "{}", full.stderr);
}

#[test]
fn chat_without_a_template_goes_on_with_the_text() {
    let dir = tempfile::tempdir().expect("a directory");
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(fixture("glm_moe_dsa-a").join(file), dir.path().join(file)).expect("copied");
    }
    let got = chat(dir.path(), "-n 5", "Call\n").ok();
    assert!(got.stderr.contains("no chat template"), "{}", got.stderr);
    let args = words("run {M} Call -n 5 --temp 0 --json", &[("M", dir.path())]);
    let alone = run(&args).ok().json();
    assert_eq!(got.stdout, format!("{}\n", alone["text"].as_str().expect("text")));
}

#[test]
fn a_listener_that_leaves_is_no_failure() {
    let model = fixture("glm_moe_dsa-a");
    let args = words("run {M} --prompt-ids 1,2 -n 4000 --ignore-eos --temp 0", &[("M", &model)]);
    let mut child = crate::program::command(&args).spawn().expect("the program starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("the program ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert_eq!(stderr, "");
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_a_run_with_its_statistics() {
    let model = fixture("glm_moe_dsa-a");
    let args =
        words("run {M} --prompt-ids 1,2 -n 1000000 --ctx 20000 --ignore-eos --temp 0", &[("M", &model)]);
    let mut child = crate::program::command(&args).spawn().expect("the program starts");
    let mut first = [0u8];
    child.stdout.as_mut().expect("stdout").read_exact(&mut first).expect("output");
    let pid = child.id().to_string();
    let sent = std::process::Command::new("kill").args(["-INT", &pid]).status().expect("kill");
    assert!(sent.success());
    let output = child.wait_with_output().expect("the program ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("(cancelled)"), "{stderr}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_an_answer_and_not_the_conversation() {
    use std::io::Write;
    let dir = tempfile::tempdir().expect("a directory");
    copy_dir(&fixture("glm_moe_dsa-a"), dir.path());
    // The answer must not end by itself: an end token that greedy decoding never comes to.
    let config = dir.path().join("config.json");
    let mut json: Value =
        serde_json::from_str(&std::fs::read_to_string(&config).expect("read")).expect("JSON");
    json["eos_token_id"] = json!(319);
    std::fs::write(&config, json.to_string()).expect("written");
    let args = words("chat {M} --ctx 20000 --temp 0", &[("M", dir.path())]);
    let mut command = crate::program::command(&args);
    let mut child = command.stdin(std::process::Stdio::piped()).spawn().expect("the program starts");
    let mut stdin = child.stdin.take().expect("stdin");
    stdin.write_all(b"Call me Ishmael.\n/stats\n").expect("written");
    let mut first = [0u8];
    child.stdout.as_mut().expect("stdout").read_exact(&mut first).expect("output");
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().expect("kill").success());
    stdin.write_all(b"/quit\n").expect("written");
    let output = child.wait_with_output().expect("the program ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("[stopped]") && stderr.contains("(cancelled)"), "{stderr}");
}

#[test]
fn the_bundled_model_is_found_where_the_environment_says() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(dir.path().join("anna")).expect("a directory");
    let to = dir.path().join("anna/anna-q8_0.gguf");
    std::fs::copy(fixture("glm_moe_dsa-a/model.gguf"), &to).expect("copied");
    let mut command = crate::program::command(&["run", "Call me", "-n", "1", "--temp", "0"]);
    let output = command.env("CALYPTE_MODELS", dir.path()).output().expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout.starts_with(b"Call me"));
}

#[test]
fn bench_measures_what_was_asked() {
    let model = fixture("llama-a");
    let args = words("bench {M} -p 8,16 -n 4,0 --depth 0,5 -r 3 --threads 1 --json", &[("M", &model)]);
    let got = run(&args).ok().json();
    let tests = got["tests"].as_array().expect("a list");
    let names: Vec<_> = tests.iter().map(|t| t["test"].as_str().expect("a name")).collect();
    assert_eq!(names, ["pp8", "pp16", "tg4", "pp8 @5", "pp16 @5", "tg4 @5"]);
    for test in tests {
        let runs: Vec<f64> = serde_json::from_value(test["runs_tok_s"].clone()).expect("numbers");
        assert!(runs.len() == 3 && runs.is_sorted() && runs[0] > 0.0, "{test}");
        assert_eq!(test["tok_s"], runs[1], "the median");
    }
    let text = run(&words("bench {M} -p 8 -n 0 -r 1 --depth 100,7", &[("M", &model)])).ok().stdout;
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() == 2 && lines.iter().all(|line| line.contains("tok/s (")), "{text}");
    assert!(lines[0].starts_with("  pp8 @100  ") && lines[1].starts_with("  pp8 @7    "), "{text}");
}

#[cfg(unix)]
#[test]
fn bench_prints_what_it_has_before_it_ends() {
    let args = words("bench {M} -p 1,30000 -n 0 -r 9", &[("M", &fixture("llama-a"))]);
    let mut child = crate::program::command(&args).spawn().expect("the program starts");
    let mut stdout = BufReader::new(child.stdout.take().expect("stdout"));
    let mut text = String::new();
    stdout.read_line(&mut text).expect("a line");
    assert!(text.starts_with("  pp1      "), "{text}");
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().expect("kill").success());
    stdout.read_to_string(&mut text).expect("text");
    assert_eq!(child.wait().expect("the program ends").code(), Some(130));
    assert_eq!(text.lines().count(), 1, "{text}");
}
