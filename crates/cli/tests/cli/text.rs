//! `tokenize` and `template`: what stands between a person's words and a model's ids.

use serde_json::{Value, json};

use crate::program::{expected, fixture, list, run, run_with_stdin, words};

/// Both formats of the fixture that has a tokenizer and a chat template.
fn models() -> [std::path::PathBuf; 2] {
    [fixture("glm_moe_dsa-a"), fixture("glm_moe_dsa-a/model.gguf")]
}

#[test]
fn messages_become_the_prompt_and_the_prompt_its_ids() {
    let chat = &expected("glm_moe_dsa-a")["chat"];
    let rendered = chat["rendered"].as_str().expect("a text");
    for model in models() {
        let paths = [("M", model.as_path())];
        let args = words("template {M} --messages -", &paths);
        let got = run_with_stdin(&args, chat["messages"].to_string().as_bytes()).ok();
        assert_eq!(got.stdout, rendered);
        let args = words("tokenize {M} --file - --json", &paths);
        let ids = run_with_stdin(&args, rendered.as_bytes()).ok().json();
        assert_eq!(ids["ids"], chat["prompt_ids"], "{}", model.display());
    }
}

#[test]
fn ids_become_the_text_they_came_from() {
    let text = "Naïve café: 雪 \u{1f3f3}\u{fe0f}\u{200d}\u{1f308}\n\ttabs  and   spaces <|user|>";
    for model in models() {
        let paths = [("M", model.as_path())];
        let mut args = words("tokenize {M} --ids --no-special", &paths);
        args.push(text.to_string());
        let ids = run(&args).ok().stdout;
        let mut args = words("tokenize {M} --decode", &paths);
        args.push(ids.trim().to_string());
        assert_eq!(run(&args).ok().stdout, format!("{text}\n"));
    }
}

#[test]
fn many_texts_at_once() {
    let texts = [json!("a\u{0}b"), json!(""), json!("<|user|>")];
    let lines: String = texts.iter().map(|t| format!("{t}\n")).collect();
    let args = words("tokenize {M} --batch -", &[("M", &models()[0])]);
    let ids = run_with_stdin(&args, lines.as_bytes()).ok().stdout;
    let rows: Vec<Value> = ids.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    assert_eq!(rows.len(), texts.len());
    assert_eq!(rows[1], json!([]));
    assert_eq!(rows[2].as_array().map(Vec::len), Some(1), "a special token is one id: {}", list(&rows[2]));
}

#[test]
fn what_cannot_be_rendered_is_named() {
    #[track_caller]
    fn check(template: &str, code: i32, says: &[&str]) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("t.jinja");
        std::fs::write(&path, template).expect("written");
        let args = words("template {T} --messages -", &[("T", &path)]);
        let got = run_with_stdin(&args, b"[{\"role\":\"user\",\"content\":\"hi\"}]");
        assert_eq!(got.code, code, "{}", got.stderr);
        says.iter().for_each(|s| assert!(got.stderr.contains(s), "no `{s}` in: {}", got.stderr));
        assert!(got.stdout.is_empty(), "nothing is rendered in part: {}", got.stdout);
    }
    check("{{ raise_exception('no system role') }}", 3, &["no system role"]);
    check("a\nb {{ messages | nonesuch }}", 3, &["nonesuch", "2"]);
    check("{% for m in messages %}", 3, &["line 1", "end of block"]);
}
