//! Starting the program, and what came of it.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A committed fixture, or a file in one.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

/// What the reference computed for a fixture.
pub fn expected(name: &str) -> Value {
    let text = std::fs::read_to_string(fixture(name).join("expected.json")).expect("expected.json");
    serde_json::from_str(&text).expect("JSON")
}

/// A list of ids as the command line takes it.
pub fn list(ids: &Value) -> String {
    let ids = ids.as_array().expect("a list");
    ids.iter().map(Value::to_string).collect::<Vec<_>>().join(",")
}

/// The program with arguments and an environment that does not depend on who runs the test.
pub fn command<S: AsRef<OsStr>>(args: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_calypte"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for name in ["CALYPTE_LOG", "CALYPTE_ISA", "COLUMNS"] {
        command.env_remove(name);
    }
    // No test may depend on what this machine's disk was measured to be, or leave that behind. Not absolute: ignored.
    command.env("XDG_CACHE_HOME", "").env("HOME", "").env("USERPROFILE", "");
    // No test may depend on a model that is not a fixture.
    command.env("CALYPTE_MODELS", fixture("no-models"));
    // Nor on what was done before, and none may leave a trace: there is no directory below a file.
    command.env("XDG_STATE_HOME", env!("CARGO_BIN_EXE_calypte"));
    command
}

/// What came of a run.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    fn of(output: Output) -> Ran {
        Ran {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Fails the test unless the exit code is 0.
    #[track_caller]
    pub fn ok(self) -> Ran {
        assert_eq!(self.code, 0, "{}", self.stderr);
        self
    }

    /// Stdout as one JSON object on one line.
    #[track_caller]
    pub fn json(&self) -> Value {
        assert_eq!(self.stdout.matches('\n').count(), 1, "{}", self.stdout);
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}", self.stdout))
    }
}

/// Runs the program to its end.
pub fn run<S: AsRef<OsStr>>(args: &[S]) -> Ran {
    Ran::of(command(args).output().expect("the program starts"))
}

/// Runs the program to its end with something in its environment.
pub fn run_with<S: AsRef<OsStr>>(args: &[S], environment: &[(&str, &Path)]) -> Ran {
    Ran::of(command(args).envs(environment.iter().copied()).output().expect("the program starts"))
}

/// Runs the program to its end with something on stdin.
pub fn run_with_stdin<S: AsRef<OsStr>>(args: &[S], stdin: &[u8]) -> Ran {
    let mut child = command(args).stdin(Stdio::piped()).spawn().expect("the program starts");
    // The program may end without reading all of it.
    let _ = child.stdin.take().expect("stdin").write_all(stdin);
    Ran::of(child.wait_with_output().expect("the program ends"))
}

/// Arguments: words of `line`, in which `{NAME}` stands for a path.
pub fn words(line: &str, paths: &[(&str, &Path)]) -> Vec<String> {
    let fill = |word: &str| {
        paths.iter().fold(word.to_string(), |word, (name, path)| {
            word.replace(&format!("{{{name}}}"), &path.display().to_string())
        })
    };
    line.split_whitespace().map(fill).collect()
}

/// Copies the files of a directory.
pub fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
    }
}
