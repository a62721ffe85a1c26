//! What is remembered from run to run: by commands that answer, unless told not to; never by those that measure.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use crate::program::{command, expected, fixture, list, words};

/// Runs `line` with `state` as the state directory and `stdin`; returns stdout. `{M}` is a model, `{I}` a file of ids for it, `{D}`
/// a directory for whatever is written.
fn run(line: &str, state: &Path, dir: &Path, stdin: &str) -> String {
    let model = fixture("glm_moe_dsa-a").join("model.gguf");
    let ids = dir.join("ids");
    std::fs::write(&ids, list(&expected("glm_moe_dsa-a")["prompt_ids"])).expect("written");
    let args = words(line, &[("M", &model), ("I", &ids), ("D", dir)]);
    let mut command = command(&args);
    let mut child = command.env("XDG_STATE_HOME", state).stdin(Stdio::piped()).spawn().expect("it starts");
    child.stdin.take().expect("stdin").write_all(stdin.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Names and contents of what is remembered.
fn remembered(state: &Path) -> Vec<(String, Vec<u8>)> {
    let Ok(entries) = std::fs::read_dir(state.join("calypte/usage")) else { return Vec::new() };
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let of = |path: std::path::PathBuf| (path.display().to_string(), std::fs::read(&path).expect("readable"));
    paths.map(of).collect()
}

/// Commands that answer, and those that measure, with what they are given on stdin.
const ANSWER: [&str; 2] =
    ["run {M} --ids-file {I} -n 8 --temp 0 --json --expert-cache min", "score {M} --ids-file {I} --json"];
const MEASURE: [&str; 5] = [
    "bench {M} -p 8 -n 8 -r 1",
    "trace {M} --ids-file {I} -n 8 -o {D}/trace",
    "replay {D}/trace --slots 2k",
    "plan {M} --no-probe",
    "inspect {M}",
];

#[test]
fn commands_that_answer_remember() {
    let dir = tempfile::tempdir().expect("a directory");
    for line in ANSWER {
        let state = tempfile::tempdir().expect("a directory");
        run(&format!("{line} --no-learning"), state.path(), dir.path(), "");
        assert!(!state.path().join("calypte").exists(), "{line}: no trace");
        run(line, state.path(), dir.path(), "");
        let first = remembered(state.path());
        assert_eq!(first.len(), 1, "{line}");
        run(&format!("{line} --no-learning"), state.path(), dir.path(), "");
        assert_eq!(remembered(state.path()), first, "{line}: left alone");
        run(line, state.path(), dir.path(), "");
        assert_ne!(remembered(state.path()), first, "{line}: more is known");
    }
}

#[test]
fn a_conversation_is_remembered() {
    let dir = tempfile::tempdir().expect("a directory");
    let model = fixture("../models/anna/anna-q8_0.gguf");
    let line = format!("chat {} -n 4 --temp 0", model.display());
    let said = "Once upon a time\n";
    run(&format!("{line} --no-learning"), dir.path(), dir.path(), said);
    assert!(remembered(dir.path()).is_empty());
    run(&line, dir.path(), dir.path(), said);
    assert_eq!(remembered(dir.path()).len(), 1);
}

#[test]
fn what_measures_neither_reads_nor_writes_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let (empty, state) =
        (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    run(ANSWER[0], state.path(), dir.path(), "");
    let before = remembered(state.path());
    assert_eq!(before.len(), 1);
    for line in MEASURE {
        let [without, with] = [empty.path(), state.path()].map(|state| run(line, state, dir.path(), ""));
        assert!(!empty.path().join("calypte").exists(), "{line}: no trace");
        assert_eq!(remembered(state.path()), before, "{line}: left alone");
        // These two print times.
        if !line.starts_with("bench") && !line.starts_with("plan") {
            assert_eq!(without, with, "{line}");
        }
    }
    // What a run did with its cache tells whether anything was known.
    let counts = |state: &Path| {
        let line =
            "trace {M} --ids-file {I} -n 8 --temp 0 -o {D}/again --json --expert-cache 60% --predictor none";
        run(line, state, dir.path(), "")
    };
    assert_eq!(counts(state.path()), counts(empty.path()));
}
