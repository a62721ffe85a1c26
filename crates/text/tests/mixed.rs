//! 12,000 lines of mixed scripts, emoji, control characters, code and look-alikes of special tokens: the ids of every kind
//! of tokenizer against those of the reference libraries (`tools/oracle/make_mixed.py`), and streaming decoding.

mod mixed_text;

use std::sync::LazyLock;

use calypte_checkpoint::GgufTokenizer;
use calypte_text::{Specials, TextError, Tokenizer, Utf8Stream};
use mixed_text::{fnv, json, lines};
use proptest::prelude::*;
use serde_json::Value;

/// Lines under one hash.
const BLOCK: usize = 100;

/// Lines that must do where the others would tell nothing new.
const PART: usize = 2_000;

/// Token types of GGUF metadata.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const BYTE: i32 = 6;

static EXPECTED: LazyLock<Value> = LazyLock::new(|| json("mixed_expected.json"));
static LINES: LazyLock<Vec<String>> = LazyLock::new(lines);

fn hash(rows: &[Vec<u32>]) -> String {
    let ids = rows.iter().flat_map(|row| row.iter().copied().chain([u32::MAX]));
    format!("{:016x}", fnv(ids.flat_map(u32::to_le_bytes)))
}

/// All lines give the expected ids.
fn check(
    what: &str,
    expected: &Value,
    texts: &[String],
    encode: impl Fn(&str) -> Result<Vec<u32>, TextError>,
) {
    let ids: Vec<Vec<u32>> = texts.iter().map(|t| encode(t).unwrap()).collect();
    let head: Vec<Vec<u32>> = serde_json::from_value(expected["head"].clone()).unwrap();
    for (i, want) in head.iter().enumerate() {
        assert_eq!(&ids[i], want, "{what}, line {i}: {:?}", texts[i]);
    }
    let blocks: Vec<&str> = expected["blocks"].as_str().unwrap().split(' ').collect();
    assert_eq!(blocks.len(), texts.len().div_ceil(BLOCK), "{what}");
    for (i, (want, got)) in blocks.iter().zip(ids.chunks(BLOCK)).enumerate() {
        assert_eq!(&hash(got), want, "{what}: ids of lines {}…", i * BLOCK);
    }
    if let Some(want) = expected["whole"].as_str() {
        assert_eq!(hash(&[encode(&texts.join("\n")).unwrap()]), want, "{what}: all lines as one text");
    }
}

/// The tokenizer of a `tokenizer.json`, as the metadata of a GGUF file has it.
fn metadata(spec: &Value, model: &str) -> GgufTokenizer {
    let mut meta = GgufTokenizer { model: model.to_owned(), ..GgufTokenizer::default() };
    let mut put = |id: usize, token: &str, kind: i32, score: f32| {
        let len = meta.tokens.len().max(id + 1);
        meta.tokens.resize(len, String::new());
        meta.token_types.resize(len, NORMAL);
        meta.scores.resize(len, 0.0);
        (meta.tokens[id], meta.token_types[id], meta.scores[id]) = (token.to_owned(), kind, score);
    };
    let byte_kind = |token: &str| if token.starts_with("<0x") && token.len() == 6 { BYTE } else { NORMAL };
    match &spec["model"]["vocab"] {
        Value::Object(vocab) => {
            for (token, id) in vocab {
                let kind = if model == "llama" { byte_kind(token) } else { NORMAL };
                put(id.as_u64().unwrap() as usize, token, kind, f32::MIN);
            }
        }
        vocab => {
            for (id, pair) in vocab.as_array().unwrap().iter().enumerate() {
                let token = pair[0].as_str().unwrap();
                put(id, token, byte_kind(token), pair[1].as_f64().unwrap() as f32);
            }
        }
    }
    for added in spec["added_tokens"].as_array().unwrap() {
        let (id, token) = (added["id"].as_u64().unwrap() as usize, added["content"].as_str().unwrap());
        let kind = match (token, added["special"].as_bool().unwrap()) {
            ("<unk>", _) => UNKNOWN,
            (_, true) => CONTROL,
            _ => USER_DEFINED,
        };
        put(id, token, kind, 0.0);
    }
    for (rank, pair) in spec["model"]["merges"].as_array().into_iter().flatten().enumerate() {
        let (left, right) = (pair[0].as_str().unwrap(), pair[1].as_str().unwrap());
        meta.merges.push(format!("{left} {right}"));
        let id = meta.tokens.iter().position(|t| *t == format!("{left}{right}")).unwrap();
        meta.scores[id] = meta.scores[id].max(-(rank as f32));
    }
    meta
}

#[test]
fn the_text_is_the_same_on_both_sides() {
    assert_eq!(LINES.len(), 12_000);
    assert_eq!(
        format!("{:016x}", fnv(LINES.join("\0").into_bytes())),
        EXPECTED["text_hash"].as_str().unwrap()
    );
}

/// From `tokenizer.json` and from GGUF metadata, which only names the rule.
#[test]
fn every_splitting_rule() {
    let base = json("mixed_bpe.json");
    let rules = EXPECTED["rules"].as_object().unwrap();
    assert!(rules.len() > 20);
    let meta = metadata(&base, "gpt2");
    for (name, expected) in rules {
        let mut spec = base.clone();
        spec["pre_tokenizer"] = expected["pre_tokenizer"].clone();
        spec["normalizer"] = expected["normalizer"].clone();
        spec["model"]["ignore_merges"] = expected["ignore_merges"].clone();
        let from_json = Tokenizer::from_json(&spec.to_string(), None, None, None).unwrap();
        // The pipeline is the same for both, so that a part of the lines tells whether it was put together right.
        let ids: Vec<_> =
            LINES[..PART].iter().map(|t| from_json.encode(t, Specials::Parse).unwrap()).collect();
        let hashes: Vec<String> = ids.chunks(BLOCK).map(hash).collect();
        assert!(expected["blocks"].as_str().unwrap().starts_with(&hashes.join(" ")), "{name} json");
        let from_gguf =
            Tokenizer::from_gguf(&GgufTokenizer { pre: Some(name.clone()), ..meta.clone() }).unwrap();
        check(&format!("{name} gguf"), expected, &LINES, |t| from_gguf.encode(t, Specials::Parse));
    }
}

/// SentencePiece knows no special tokens in texts.
fn without_specials() -> Vec<String> {
    let replace = |t: &String| t.replace("<s>", "(s)").replace("</s>", "(/s)").replace("<unk>", "(unk)");
    LINES.iter().map(replace).collect()
}

#[test]
fn sentencepiece_bpe() {
    let spec = json("mixed_spm.json");
    let texts = without_specials();
    let from_json = Tokenizer::from_json(&spec.to_string(), None, None, None).unwrap();
    check("spm json", &EXPECTED["spm"]["json"], &texts, |t| from_json.encode(t, Specials::Plain));
    let from_gguf = Tokenizer::from_gguf(&metadata(&spec, "llama")).unwrap();
    check("spm gguf", &EXPECTED["spm"]["sentencepiece"], &texts, |t| from_gguf.encode(t, Specials::Parse));
}

fn unigram() -> (Value, Tokenizer) {
    let mut spec = json("mixed_unigram.json");
    let hex = spec.as_object_mut().unwrap().remove("charsmap").unwrap();
    let hex = hex.as_str().unwrap();
    let byte = |i: usize| u8::from_str_radix(&hex[i..i + 2], 16).unwrap();
    let charsmap = (0..hex.len()).step_by(2).map(byte).collect();
    let meta = GgufTokenizer {
        precompiled_charsmap: charsmap,
        remove_extra_whitespaces: Some(true),
        ..metadata(&spec, "t5")
    };
    let tokenizer = Tokenizer::from_gguf(&meta).unwrap();
    (spec, tokenizer)
}

#[test]
fn sentencepiece_unigram() {
    let (spec, from_gguf) = unigram();
    let texts = without_specials();
    let from_json = Tokenizer::from_json(&spec.to_string(), None, None, None).unwrap();
    check("unigram json", &EXPECTED["unigram"]["json"], &texts, |t| from_json.encode(t, Specials::Plain));
    check("unigram gguf", &EXPECTED["unigram"]["sentencepiece"], &texts, |t| {
        from_gguf.encode(t, Specials::Parse)
    });
}

/// One tokenizer of each kind, with repeated and empty tokens at the end.
static KINDS: LazyLock<Vec<(&str, Tokenizer)>> = LazyLock::new(|| {
    let twice = |mut meta: GgufTokenizer| {
        for (token, kind) in [("a", NORMAL), ("a", NORMAL), ("<s>", CONTROL), ("", NORMAL)] {
            meta.tokens.push(token.to_owned());
            meta.token_types.push(kind);
            meta.scores.push(0.0);
        }
        meta
    };
    let spm = json("mixed_spm.json");
    vec![
        ("byte level", Tokenizer::from_gguf(&twice(metadata(&json("mixed_bpe.json"), "gpt2"))).unwrap()),
        ("spm gguf", Tokenizer::from_gguf(&twice(metadata(&spm, "llama"))).unwrap()),
        ("spm json", Tokenizer::from_json(&spm.to_string(), None, None, None).unwrap()),
        ("unigram", unigram().1),
    ]
});

fn bytes(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<u8> {
    ids.iter().flat_map(|&id| tokenizer.token_bytes(id).unwrap()).copied().collect()
}

/// Texts come back whole, except for what unigram replaces.
#[test]
fn lines_survive() {
    for (name, tokenizer) in KINDS.iter().filter(|(name, _)| *name != "unigram") {
        for line in LINES.iter().step_by(7) {
            let ids = tokenizer.encode(line, Specials::Plain).unwrap();
            // SentencePiece writes `▁` for a space and cannot tell them apart afterwards.
            let expected = if *name == "byte level" { line.clone() } else { line.replace('▁', " ") };
            assert_eq!(tokenizer.decode(&ids), expected, "{name}");
        }
    }
}

proptest! {
    /// A stream of tokens gives, bit by bit, exactly what all of them together do, however they are cut into portions;
    /// never a half character, and nothing is left behind at the end.
    #[test]
    fn streams_lose_nothing(
        start in 0usize..12_000,
        ids in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        cuts in prop::collection::vec(any::<bool>(), 0..400),
    ) {
        for (name, tokenizer) in KINDS.iter() {
            let mut ids: Vec<u32> = ids.iter().map(|i| i.index(tokenizer.vocab_size()) as u32).collect();
            ids.extend(tokenizer.encode(&LINES[start], Specials::Parse).unwrap());
            let whole = bytes(tokenizer, &ids);
            let (mut stream, mut got, mut portion) = (Utf8Stream::new(), String::new(), Vec::new());
            let mut cuts = cuts.iter().copied().chain(std::iter::repeat(true));
            for &id in &ids {
                portion.extend_from_slice(tokenizer.token_bytes(id).unwrap());
                if cuts.next() == Some(true) {
                    got += &stream.push(&std::mem::take(&mut portion));
                    // What was given out so far is final: it is a prefix of the whole.
                    prop_assert!(String::from_utf8_lossy(&whole).starts_with(&got), "{}", name);
                }
            }
            got += &stream.push(&portion);
            got += &stream.finish();
            prop_assert_eq!(got, String::from_utf8_lossy(&whole), "{}", name);
            prop_assert!(!stream.is_pending());
        }
    }
}
