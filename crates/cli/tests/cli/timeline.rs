//! `--trace-out`: the file is whole, and it says what the program says.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::program::{fixture, run, run_with_stdin, words};

/// The events of a file, by their phase.
fn events(path: &Path) -> BTreeMap<String, Vec<Value>> {
    let text = std::fs::read_to_string(path).expect("the file");
    let document: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}"));
    let mut by_phase: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for event in document["traceEvents"].as_array().expect("a list") {
        let phase = event["ph"].as_str().expect("a phase").to_owned();
        by_phase.entry(phase).or_default().push(event.clone());
    }
    let spans = by_phase.get("X").map_or(0, Vec::len);
    assert_eq!(document["otherData"]["spans"], spans);
    assert_eq!(document["otherData"]["spans_dropped"], 0);
    by_phase
}

fn ns(event: &Value, key: &str) -> u64 {
    (event[key].as_f64().unwrap_or_else(|| panic!("{key}: {event}")) * 1000.0).round() as u64
}

/// Spans as (name, begin, end, event), by the name of their lane, sorted.
fn lanes(events: &BTreeMap<String, Vec<Value>>) -> BTreeMap<String, Vec<(String, u64, u64, Value)>> {
    let named = events["M"].iter().filter(|event| event["name"] == "thread_name");
    let names: BTreeMap<u64, &str> = named
        .map(|e| (e["tid"].as_u64().expect("a number"), e["args"]["name"].as_str().expect("a name")))
        .collect();
    let mut lanes: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for span in &events["X"] {
        let lane = names[&span["tid"].as_u64().expect("a number")];
        let name = span["name"].as_str().expect("a name").to_owned();
        let (begin, length) = (ns(span, "ts"), ns(span, "dur"));
        lanes.entry(lane.to_owned()).or_default().push((name, begin, begin + length, span.clone()));
    }
    lanes.values_mut().for_each(|spans| spans.sort_by_key(|span| (span.1, span.2)));
    lanes
}

#[test]
fn a_run_is_drawn_as_it_was() {
    let dir = tempfile::tempdir().expect("a directory");
    let (model, file) = (fixture("glm_moe_dsa-a/model.gguf"), dir.path().join("run.json"));
    let paths: [(&str, &Path); 2] = [("M", &model), ("OUT", &file)];
    let line = "run {M} --prompt-ids 1,2,3,4,5 -n 20 --temp 0 --ignore-eos --expert-cache min --predictor none --json";
    let plain = run(&words(line, &paths)).ok().json();
    let drawn = run(&words(&format!("{line} --trace-out {{OUT}}"), &paths)).ok().json();
    assert_eq!(drawn["ids"], plain["ids"]);
    assert_eq!(std::fs::read_dir(dir.path()).expect("a directory").count(), 1, "nothing else is left");

    let events = events(&file);
    let lanes = lanes(&events);
    for (lane, spans) in &lanes {
        for pair in spans.windows(2) {
            assert!(pair[0].2 <= pair[1].1, "{lane}: {pair:?} overlap");
        }
    }
    let sum = |name: &str, lanes: &[&(String, u64, u64, Value)]| -> u64 {
        lanes.iter().map(|span| span.3["args"][name].as_u64().expect("a number")).sum()
    };
    let reads: Vec<_> =
        lanes.iter().filter(|(lane, _)| lane.starts_with("disk ")).flat_map(|(_, s)| s).collect();
    let steps: Vec<_> = lanes["step"].iter().collect();
    let stats = &drawn["stats"];
    assert_eq!(sum("bytes", &reads), stats["bytes_read"]);
    assert_eq!(reads.len() as u64, stats["expert_misses"]);
    assert_eq!(sum("hits", &steps), stats["expert_hits"]);
    assert_eq!(sum("misses", &steps), stats["expert_misses"]);
    assert_eq!(
        steps.iter().map(|step| step.0.as_str()).collect::<Vec<_>>(),
        [&["tokens"][..], &["token"; 19]].concat()
    );
    for lane in ["compute", "stall"] {
        for span in &lanes[lane] {
            assert!(steps.iter().any(|step| step.1 <= span.1 && span.2 <= step.2), "in no step: {span:?}");
        }
    }
    let stalled_ns: u64 = lanes["stall"].iter().map(|stall| stall.2 - stall.1).sum();
    let of_steps: f64 = steps.iter().map(|step| step.3["args"]["stall_ms"].as_f64().expect("a number")).sum();
    assert_eq!((of_steps * 1e6).round() as u64, stalled_ns);

    // Whatever begins ends: in the end no read is in flight, and there never were more than rows for them.
    let flights: Vec<&Value> = events["C"].iter().filter(|e| e["name"] == "reads in flight").collect();
    let at = |event: &Value| {
        let count = |key: &str| event["args"][key].as_u64().expect("a number");
        count("in line") + count("at the drive")
    };
    let rows = lanes.keys().filter(|lane| lane.starts_with("disk ")).count() as u64;
    assert_eq!(flights.last().map(|event| at(event)), Some(0));
    assert_eq!(flights.iter().map(|event| at(event)).max(), Some(rows));
    for name in ["experts", "memory for experts"] {
        let counted = events["C"].iter().filter(|e| e["name"] == name).count();
        assert_eq!(counted, steps.len(), "{name}");
    }
}

#[test]
fn every_command_that_computes_draws() {
    let dir = tempfile::tempdir().expect("a directory");
    let (model, file, ids) = (fixture("glm_moe_dsa-a"), dir.path().join("out.json"), dir.path().join("ids"));
    std::fs::write(&ids, "1,2,3,4,5").expect("written");
    for (line, steps) in [
        ("chat {M} -n 3 --temp 0 --trace-out {OUT}", 1..usize::MAX),
        ("score {M} --ids-file {IDS} --trace-out {OUT}", 1..2),
        ("score {M} --ids-file {IDS} --prefill-chunk 2 --trace-out {OUT}", 3..4),
        ("bench {M} -p 4 -n 2 -r 1 --trace-out {OUT}", 6..7),
    ] {
        run_with_stdin(&words(line, &[("M", &model), ("OUT", &file), ("IDS", &ids)]), b"Call me\n").ok();
        let lanes = lanes(&events(&file));
        assert!(steps.contains(&lanes["step"].len()), "{line}: {}", lanes["step"].len());
        assert!(lanes["compute"].iter().any(|span| span.0 == "output head"), "{line}");
        std::fs::remove_file(&file).expect("removed");
    }
}

/// It may be what one wants to look at most: how it came to the failure.
#[test]
fn a_run_that_fails_is_drawn_as_far_as_it_got() {
    let dir = tempfile::tempdir().expect("a directory");
    let (model, file) = (fixture("glm_moe_dsa-a"), dir.path().join("out.json"));
    let line = "run {M} --prompt-ids 1,320 --trace-out {OUT}";
    assert_eq!(run(&words(line, &[("M", &model), ("OUT", &file)])).code, 2);
    assert!(!events(&file).contains_key("X"));
}

#[cfg(unix)]
#[test]
fn ctrl_c_leaves_a_whole_file() {
    use std::io::Read;
    let dir = tempfile::tempdir().expect("a directory");
    let (model, file) = (fixture("glm_moe_dsa-a"), dir.path().join("out.json"));
    let line = "run {M} --prompt-ids 1,2 -n 1000000 --ctx 20000 --ignore-eos --temp 0 --trace-out {OUT}";
    let mut child = crate::program::command(&words(line, &[("M", &model), ("OUT", &file)]))
        .spawn()
        .expect("the program starts");
    let mut first = [0u8];
    child.stdout.as_mut().expect("stdout").read_exact(&mut first).expect("output");
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().expect("kill").success());
    assert_eq!(child.wait_with_output().expect("the program ends").status.code(), Some(130));
    assert!(!lanes(&events(&file))["step"].is_empty());
}

#[test]
fn a_file_that_cannot_be_written_is_refused_before_the_model_is_opened() {
    #[track_caller]
    fn check(out: &Path, reason: &str) {
        let line = "run /no/such/model.gguf --prompt-ids 1 --trace-out {OUT}";
        let ran = run(&words(line, &[("OUT", out)]));
        assert_eq!(ran.code, 2, "{}", ran.stderr);
        let path = out.display().to_string();
        for part in [path.as_str(), "cannot be written", reason] {
            assert!(ran.stderr.contains(part), "no `{part}` in: {}", ran.stderr);
        }
        assert!(!ran.stderr.contains("model.gguf"), "{}", ran.stderr);
    }
    let dir = tempfile::tempdir().expect("a directory");
    check(&dir.path().join("nowhere/run.json"), "o such file or directory");
    if cfg!(unix) {
        check(dir.path(), "s a directory");
    }
}

#[cfg(unix)]
#[test]
fn a_pipe_is_written_to_and_not_replaced() {
    let model = fixture("glm_moe_dsa-a");
    let line = "run {M} --prompt-ids 1,2 -n 2 --temp 0 --json --trace-out /dev/stderr";
    let ran = run(&words(line, &[("M", &model)])).ok();
    let document: Value = serde_json::from_str(&ran.stderr).unwrap_or_else(|e| panic!("{e}: {}", ran.stderr));
    assert!(document["otherData"]["spans"].as_u64().is_some_and(|spans| spans > 0));
}
