//! What `--help` says, kept word for word.

use crate::program::run;

#[test]
fn help() {
    for command in
        ["", "run", "chat", "plan", "score", "bench", "inspect", "tokenize", "template", "trace", "replay"]
    {
        let args: Vec<&str> = [command, "--help"].into_iter().filter(|a| !a.is_empty()).collect();
        let name = format!("help-{}", if command.is_empty() { "calypte" } else { command });
        insta::assert_snapshot!(name, run(&args).ok().stdout);
    }
}

#[test]
fn version() {
    let version = format!("calypte {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(run(&["--version"]).ok().stdout, version);
}
