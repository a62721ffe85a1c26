//! Ids, texts and prompts against those that the reference Python libraries gave (`fixtures/text`, see its generator in
//! `tools/oracle`).

mod gguf_metadata;

use std::path::PathBuf;
use std::sync::LazyLock;

use calypte_checkpoint::{GgufTokenizer, TokenizerSource};
use calypte_text::{ChatTemplate, Message, Specials, TextError, Tokenizer, Utf8Stream};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::Value;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/text").join(name)
}

fn json<T: serde::de::DeserializeOwned>(name: &str) -> T {
    serde_json::from_slice(&std::fs::read(fixture(name)).unwrap()).unwrap()
}

fn from_json() -> Tokenizer {
    let source =
        TokenizerSource::HuggingFace { tokenizer_json: fixture("tokenizer.json"), chat_template: None };
    Tokenizer::from_source(&source).unwrap()
}

fn metadata() -> GgufTokenizer {
    gguf_metadata::read(&std::fs::read(fixture("tokenizer.gguf")).unwrap())
}

fn from_gguf() -> Tokenizer {
    Tokenizer::from_source(&TokenizerSource::Gguf(Box::new(metadata()))).unwrap()
}

#[derive(Deserialize)]
struct Encoded {
    text: String,
    ids: Vec<u32>,
    plain_ids: Option<Vec<u32>>,
}

fn check(tokenizer: &Tokenizer, text: &str, specials: Specials, expected: &[u32]) {
    assert_eq!(tokenizer.encode(text, specials).unwrap(), expected, "{specials:?} {text:?}");
    assert_eq!(tokenizer.decode(expected), text);
}

#[test]
fn encodes_as_the_reference_does() {
    for tokenizer in [from_json(), from_gguf()] {
        for case in json::<Vec<Encoded>>("encode.json") {
            check(&tokenizer, &case.text, Specials::Parse, &case.ids);
            check(&tokenizer, &case.text, Specials::Plain, case.plain_ids.as_ref().unwrap_or(&case.ids));
        }
        assert_eq!((tokenizer.vocab_size(), tokenizer.add_bos(), tokenizer.bos()), (500, false, None));
        let ids = ["<|im_end|>", "<think>", "a"].map(|t| tokenizer.id_of(t).unwrap());
        assert_eq!(ids.map(|id| tokenizer.is_special(id)), [true, false, false]);
        assert!(matches!(tokenizer.token_bytes(500), Err(TextError::UnknownId { id: 500, vocab_size: 500 })));
    }
    assert_eq!(
        from_gguf().end_ids(),
        [from_gguf().id_of("<|endoftext|>").unwrap(), from_gguf().eos().unwrap()]
    );
}

#[test]
fn every_splitting_rule_encodes_as_the_reference_does() {
    let texts: Vec<Encoded> = json("encode.json");
    for (name, rule) in json::<serde_json::Map<String, Value>>("encode_pre.json") {
        let mut spec: Value = json("tokenizer.json");
        spec["pre_tokenizer"] = rule["pre_tokenizer"].clone();
        spec["normalizer"] = rule["normalizer"].clone();
        let meta = GgufTokenizer { pre: Some(name.clone()), ..metadata() };
        let both = [Tokenizer::from_json(&spec.to_string(), None, None, None), Tokenizer::from_gguf(&meta)];
        for (tokenizer, kind) in both.into_iter().zip(["json", "gguf"]) {
            let tokenizer = tokenizer.unwrap();
            for (case, ids) in texts.iter().zip(rule["ids"].as_array().unwrap()) {
                let expected: Vec<u32> = serde_json::from_value(ids.clone()).unwrap();
                assert_eq!(
                    tokenizer.encode(&case.text, Specials::Parse).unwrap(),
                    expected,
                    "{name} {kind} {:?}",
                    case.text
                );
            }
        }
    }
}

#[derive(Deserialize)]
struct Decoded {
    ids: Vec<u32>,
    text: String,
    text_skipping_specials: String,
}

#[test]
fn decodes_as_the_reference_does() {
    let tokenizer = from_gguf();
    for case in json::<Vec<Decoded>>("decode.json") {
        assert_eq!(tokenizer.decode(&case.ids), case.text);
        let mut stream = Utf8Stream::new();
        let shown = case.ids.iter().filter(|&&id| !tokenizer.is_special(id));
        let mut text: String = shown.map(|&id| stream.push(tokenizer.token_bytes(id).unwrap())).collect();
        text += &stream.finish();
        assert_eq!(text, case.text_skipping_specials, "{:?}", case.ids);
    }
}

#[derive(Deserialize)]
struct Templates {
    now: String,
    templates: std::collections::BTreeMap<String, String>,
    cases: Vec<Rendering>,
}

#[derive(Deserialize)]
struct Rendering {
    template: String,
    messages: Vec<Message>,
    add_generation_prompt: bool,
    extra: serde_json::Map<String, Value>,
    rendered: Option<String>,
    error: Option<String>,
}

#[test]
fn renders_as_the_reference_does() {
    let file: Templates = json("templates.json");
    assert_eq!(file.now, "2026-11-29T09:05:07");
    let now_seconds = 1_795_943_107;
    for (i, case) in file.cases.iter().enumerate() {
        let template =
            ChatTemplate::new(&file.templates[&case.template], "", "").unwrap().with_time(now_seconds);
        let got = template.render(&case.messages, None, case.add_generation_prompt, &case.extra);
        match (&case.rendered, &case.error) {
            (Some(expected), None) => {
                assert_eq!(&got.unwrap(), expected, "case {i}, {}", case.template)
            }
            (None, Some(expected)) => match got {
                Err(TextError::TemplateRaised { message }) => {
                    assert_eq!(&message, expected, "case {i}")
                }
                other => panic!("case {i}: {other:?}"),
            },
            _ => panic!("case {i} expects nothing"),
        }
    }
}

#[test]
fn template_of_a_gguf_file() {
    let template = from_gguf().chat_template().unwrap().unwrap();
    let prompt = template.render(&[Message::new("user", "Hi")], None, true, &serde_json::Map::new()).unwrap();
    assert_eq!(prompt, "<|im_start|>user\nHi<|im_end|>\n");
    assert!(from_json().chat_template().unwrap().is_none());
}

/// What is wrong is said by name.
fn check_refused(change: impl FnOnce(&mut GgufTokenizer), expected: &str) {
    let mut meta = metadata();
    change(&mut meta);
    let error = Tokenizer::from_gguf(&meta).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(error.contains(expected), "expected {expected:?}, got {error:?}");
}

#[test]
fn refuses_bad_metadata() {
    check_refused(|m| m.pre = Some("nonesuch".into()), "'nonesuch'");
    check_refused(|m| m.model = "bert".into(), "'bert' is not supported");
    check_refused(|m| m.model = "llama".into(), "tokenizer.ggml.scores");
    check_refused(|m| m.tokens.clear(), "tokenizer.ggml.tokens");
    check_refused(|m| m.token_types.truncate(9), "tokenizer.ggml.token_type");
    check_refused(|m| m.merges.push("a nonesuch".into()), "tokenizer.ggml.merges");
    check_refused(|m| m.merges.push(String::new()), "tokenizer.ggml.merges");
    check_refused(|m| m.merges[0] = "zzzzzzzzzzzzzzzzzzzz zzzzzzzzzzzzzzzzzzzzzzzzzz".into(), "entry 0");
    check_refused(|m| m.tokens[0] = "gone".into(), "0x21");
    assert!(matches!(Tokenizer::from_source(&TokenizerSource::Missing), Err(TextError::NoTokenizer)));
}

#[test]
fn refuses_bad_files() {
    let check = |change: &dyn Fn(&mut Value), expected: &str| {
        let mut spec: Value = json("tokenizer.json");
        change(&mut spec);
        let error = Tokenizer::from_json(&spec.to_string(), None, None, None).err().map(|e| e.to_string());
        assert!(error.as_ref().is_some_and(|e| e.contains(expected)), "expected {expected:?}, got {error:?}");
    };
    check(&|s| s["model"]["merges"][0] = "x".into(), "merge 0");
    check(&|s| s["model"]["merges"] = serde_json::json!([["a".repeat(99), "b"]]), "merge 0");
    check(&|s| s["model"]["vocab"]["huge"] = 4_000_000_000u32.into(), "expected below");
    check(&|s| s["decoder"] = Value::Null, "decoder null");
    check(
        &|s| {
            s["model"]["merges"] = serde_json::json!([]);
            s["model"]["vocab"].as_object_mut().unwrap().remove("!");
        },
        "0x21",
    );
    check(&|s| s["pre_tokenizer"] = serde_json::json!({"type": "nonesuch"}), "tokenizer.json");
    assert!(matches!(Tokenizer::from_json("{", None, None, None), Err(TextError::Json { .. })));
    let missing =
        TokenizerSource::HuggingFace { tokenizer_json: fixture("nonesuch.json"), chat_template: None };
    assert!(matches!(Tokenizer::from_source(&missing), Err(TextError::Read { .. })));
}

#[test]
fn repeated_tokens_and_padding() {
    let mut meta = metadata();
    for (token, kind) in [("a", 1), ("a", 1), ("<|im_end|>", 3), ("", 5)] {
        meta.tokens.push(token.into());
        meta.token_types.push(kind);
    }
    let tokenizer = Tokenizer::from_gguf(&meta).unwrap();
    let first = from_gguf();
    check(&tokenizer, "a<|im_end|>", Specials::Parse, &first.encode("a<|im_end|>", Specials::Parse).unwrap());
    assert_eq!(tokenizer.token_bytes(500).unwrap(), b"a");
    assert_eq!(tokenizer.token_bytes(503).unwrap(), b"");
}

/// Published vocabularies lack some control bytes; the reference drops those, too.
#[test]
fn control_bytes_without_a_token_are_dropped() {
    let mut meta = metadata();
    let missing = from_gguf().encode("\u{4}", Specials::Plain).unwrap()[0] as usize;
    meta.tokens[missing] = "unused".into();
    let tokenizer = Tokenizer::from_gguf(&meta).unwrap();
    let expected = from_gguf().encode("a", Specials::Plain).unwrap();
    assert_eq!(tokenizer.encode("a\u{4}", Specials::Plain).unwrap(), expected);
}

/// With `ignore_merges` a word that is a token becomes it, even a special one, unless this is prevented.
#[test]
fn look_alikes_stay_plain_text() {
    let mut meta = GgufTokenizer { pre: Some("llama-bpe".into()), ..metadata() };
    meta.tokens.push("secret".into());
    meta.token_types.push(3);
    let tokenizer = Tokenizer::from_gguf(&meta).unwrap();
    assert_eq!(tokenizer.encode("secret", Specials::Parse).unwrap(), [500]);
    let plain = tokenizer.encode("secret", Specials::Plain).unwrap();
    assert!(!plain.contains(&500) && tokenizer.decode(&plain) == "secret", "{plain:?}");
}

#[test]
fn configuration_beside_the_file() {
    let spec = std::fs::read_to_string(fixture("tokenizer.json")).unwrap();
    let config =
        r#"{"bos_token": {"content": "<|im_start|>"}, "eos_token": "<|im_end|>", "add_bos_token": true}"#;
    let tokenizer =
        Tokenizer::from_json(&spec, Some(config), Some(r#"{"eos_token_id": [497, 495, 9999]}"#), None)
            .unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.add_bos()), (Some(496), Some(497), true));
    assert_eq!(tokenizer.end_ids(), [495, 497]);
    let with_post = spec.replace(
        r#""post_processor":null"#,
        r#""post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<|endoftext|>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"pair":[{"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"B","type_id":1}}],"special_tokens":{"<|endoftext|>":{"id":"<|endoftext|>","ids":[495],"tokens":["<|endoftext|>"]}}}"#,
    );
    let tokenizer = Tokenizer::from_json(&with_post, None, None, None).unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.add_bos()), (Some(495), true));
    check(&tokenizer, "a", Specials::Parse, &[64]); // never added by `encode`
}

#[test]
fn endless_words_are_refused() {
    let tokenizer = from_gguf();
    for letter in ["a", " ", "学"] {
        let text = letter.repeat(2_000_000);
        assert!(
            matches!(tokenizer.encode(&text, Specials::Plain), Err(TextError::Encode { .. })),
            "{letter}"
        );
    }
    let text = "word ".repeat(100_000) + &" ".repeat(150_000);
    assert_eq!(tokenizer.decode(&tokenizer.encode(&text, Specials::Plain).unwrap()), text);
}

/// The same vocabulary behind every kind of splitting rule that does not normalise.
static RULES: LazyLock<Vec<(&str, Tokenizer)>> = LazyLock::new(|| {
    let names = ["gpt-2", "smollm", "llama-bpe", "glm4", "gpt-4o", "deepseek-v3", "deepseek-llm"];
    let tokenizer = |pre: &str| Tokenizer::from_gguf(&GgufTokenizer { pre: Some(pre.into()), ..metadata() });
    names.map(|pre| (pre, tokenizer(pre).unwrap())).into()
});

proptest! {

    #[test]
    fn encoding_keeps_every_byte(text in "(\\PC|[a-z '\\r\\n\\t0-9]|<\\|im_end\\|>|<think>){0,40}", parse in any::<bool>()) {
        let specials = if parse { Specials::Parse } else { Specials::Plain };
        for (pre, tokenizer) in RULES.iter() {
            let ids = tokenizer.encode(&text, specials).unwrap();
            let bytes: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.token_bytes(id).unwrap()).copied().collect();
            prop_assert_eq!(bytes, text.as_bytes(), "{}", pre);
            prop_assert!(parse || !ids.iter().any(|&id| tokenizer.is_special(id)));
        }
    }
}
