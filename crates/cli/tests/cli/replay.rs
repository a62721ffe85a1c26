//! `calypte trace` and `calypte replay`: what was recorded, and what is made of it.

use std::path::Path;

use serde_json::Value;

use crate::program::{fixture, run, words};

/// Records the fixture's run into `to`; what the program says about it.
fn record(to: &Path, more: &str) -> Value {
    let model = fixture("qwen3_moe-a").join("model.gguf");
    let line = format!(
        "trace {{M}} --prompt-ids 1,2,3,4,5,6,7,8 -n 40 --temp 1 --seed 5 --expert-cache 60% --json -o {{T}} {more}"
    );
    run(&words(&line, &[("M", &model), ("T", to)])).ok().json()
}

/// One object a line.
fn replayed(trace: &Path, more: &str) -> Vec<Value> {
    let ran = run(&words(&format!("replay {{T}} --json {more}"), &[("T", trace)])).ok();
    ran.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn a_replay_of_a_run_has_its_hits() {
    let dir = tempfile::tempdir().expect("a directory");
    let trace = dir.path().join("run.trace");
    for (predictor, more, predictor_again) in [
        ("none", "--prefill-chunk 1", "none"),
        ("none", "--prefill-chunk 3", "none"),
        ("none", "", "none"),
        // What is read on guesses depends on how fast the disk is.
        ("learned", "--no-prefetch", "learned"),
        ("gate_ahead:2", "--no-prefetch", "recorded"),
    ] {
        let ran = record(&trace, &format!("--predictor {predictor} {more}"));
        // The last token generated is never computed.
        assert_eq!(ran["tokens"], 47, "{ran}");
        assert!(ran["expert_hits"].as_u64() > Some(0) && ran["evictions"].as_u64() > Some(0), "{ran}");
        let line = format!("--slots recorded --policy forecast --predictor {predictor_again}");
        let again = &replayed(&trace, &line)[0];
        assert_eq!(again["recall"].is_number(), predictor != "none", "{again}");
        for (a, b) in [("expert_hits", "hits"), ("expert_misses", "misses"), ("evictions", "evictions")] {
            assert_eq!(ran[a], again[b], "{more}: {a}");
        }
    }
}

#[test]
fn a_grid_has_a_line_for_each_setting() {
    let dir = tempfile::tempdir().expect("a directory");
    let trace = dir.path().join("run.trace");
    record(&trace, "--prefill-chunk 1");
    let all = replayed(
        &trace,
        "--slots 1k,3 --policy lru,belady,elb --predictor none,prev_token,draft_tokens:2:80:90 --prefetch",
    );
    assert_eq!(all.len(), 2 * 3 * 3);
    for line in &all {
        for key in [
            "hit_rate",
            "lru_hit_rate",
            "belady_hit_rate",
            "demand_bytes_per_token",
            "wasted_bytes_per_token",
        ] {
            assert!(line[key].is_number(), "{key}: {line}");
        }
        let guessing = line["predictor"] != "none";
        for key in ["recall", "precision", "timely_recall"] {
            assert_eq!(line[key].is_number(), guessing, "{key}: {line}");
        }
        let own = match line["policy"].as_str() {
            Some("lru") if !guessing => "lru_hit_rate",
            Some("belady") if !guessing => "belady_hit_rate",
            _ => continue,
        };
        assert_eq!(line["hit_rate"], line[own]);
    }
    let text = run(&words("replay {T}", &[("T", &trace)])).ok().stdout;
    assert!(text.contains("slots a layer") && text.contains("forecast"), "{text}");
}

#[test]
fn what_cannot_be_replayed_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let (trace, cut, dense) = (dir.path().join("run.trace"), dir.path().join("cut"), fixture("llama-a"));
    let silent = dir.path().join("silent.trace");
    record(&silent, "--predictor none");
    record(&trace, "");
    let bytes = std::fs::read(&trace).expect("the trace");
    std::fs::write(&cut, &bytes[..bytes.len() - 9]).expect("written");
    let cases = [
        (
            "replay {T} --policy mru",
            2,
            "no policy is called \"mru\", or its parameters are wrong; there are lru",
        ),
        (
            "replay {T} --policy lru,forecast:6",
            2,
            "no policy is called \"forecast:6\", or its parameters are wrong",
        ),
        ("replay {T} --predictor guess", 2, "no predictor is called \"guess\""),
        ("replay {T} --predictor gate_ahead", 2, "gate_ahead needs a running model; record a trace with"),
        ("replay {N} --predictor learned", 2, "this trace has the guesses of nobody"),
        ("replay {N} --predictor recorded", 2, "the trace has no guesses"),
        ("replay {T} --slots 4k,1", 4, "1 slots are less than the"),
        ("replay {C}", 3, "found 3 bytes until the end of the file"),
        ("replay {C}.none", 3, "No such file"),
        ("trace {D}/model.gguf --prompt-ids 1 -o {C}", 2, "has no experts"),
        ("trace {D}/model.gguf -o {C}", 2, "required"),
        // Before the model is read, not after the run.
        ("trace nothing.gguf --prompt-ids 1 -o {C}/none", 5, "cannot be written"),
    ];
    for (line, code, part) in cases {
        let ran = run(&words(line, &[("T", &trace), ("N", &silent), ("C", &cut), ("D", &dense)]));
        assert_eq!(ran.code, code, "{line}: {}", ran.stderr);
        assert!(ran.stderr.contains(part), "{line}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{line}: no half of a table");
    }
}

/// The help is written by hand; the refusals list what there is.
#[test]
fn the_help_names_everything_there_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let trace = dir.path().join("run.trace");
    record(&trace, "");
    let help = run(&["replay", "--help"]).ok().stdout;
    for option in ["--policy", "--predictor"] {
        let refusal = run(&words(&format!("replay {{T}} {option} unknown"), &[("T", &trace)])).stderr;
        let list = refusal.split_once("there are ").expect("a list").1;
        let names: Vec<&str> =
            list.split([',', '\n']).map(str::trim).take_while(|n| !n.contains(' ')).collect();
        assert!(names.len() >= 4, "{refusal}");
        for name in names.into_iter().filter(|name| !name.is_empty()) {
            assert!(help.contains(name), "{name} is not in the help");
        }
    }
}
