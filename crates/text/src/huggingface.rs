//! Tokenizers from `tokenizer.json` and the files beside it.

use std::path::Path;

use serde_json::Value;

use crate::alphabet::{SPACE_SYMBOL, Spelling, check_alphabet};
use crate::error::TextError;
use crate::gguf::whole_bytes;
use crate::parts::{Encoder, Parts};
use crate::pieces::Pieces;
use crate::vocabulary::{Entry, VOCAB_SIZE_MAX, Vocabulary};

/// The pieces of a Hugging Face tokenizer, as text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Files<'a> {
    /// Name of the first file, for messages.
    pub(crate) name: &'a str,
    /// `tokenizer.json`
    pub(crate) tokenizer: &'a str,
    /// `tokenizer_config.json`
    pub(crate) config: Option<&'a str>,
    /// `generation_config.json`
    pub(crate) generation: Option<&'a str>,
}

/// Reads `tokenizer.json` and, when they exist, the two configuration files beside it.
pub(crate) fn open(path: &Path, template: Option<String>) -> Result<Parts, TextError> {
    let tokenizer = read(path)?;
    let beside = |name: &str| {
        let path = path.with_file_name(name);
        if path.exists() { read(&path).map(Some) } else { Ok(None) }
    };
    let (config, generation) = (beside("tokenizer_config.json")?, beside("generation_config.json")?);
    let name = path.display().to_string();
    let files = Files {
        name: &name,
        tokenizer: &tokenizer,
        config: config.as_deref(),
        generation: generation.as_deref(),
    };
    parse(files, template)
}

fn read(path: &Path) -> Result<String, TextError> {
    std::fs::read_to_string(path).map_err(|source| TextError::Read { path: path.to_owned(), source })
}

/// Builds the tokenizer from the files' contents.
pub(crate) fn parse(files: Files<'_>, template: Option<String>) -> Result<Parts, TextError> {
    let fail = |reason: String| TextError::Tokenizer { file: files.name.to_owned(), reason };
    let json = |name: &str, text: &str| -> Result<Value, TextError> {
        serde_json::from_str(text).map_err(|source| TextError::Json { file: name.to_owned(), source })
    };
    let spec = json(files.name, files.tokenizer)?;
    check_merges(&spec["model"]).map_err(fail)?;
    let (spelling, strips_space) = spelling(&spec).map_err(fail)?;
    let inner = tokenizers::Tokenizer::from_bytes(files.tokenizer).map_err(|e| fail(e.to_string()))?;
    let mut vocabulary = vocabulary(&inner, spelling).map_err(fail)?;
    let unknown = unknown_id(&spec["model"], &vocabulary);
    if unknown.is_none() && spelling == Spelling::ByteLevel {
        check_alphabet(|c| vocabulary.id_of(c).is_some()).map_err(fail)?;
    }

    let config = files.config.map_or(Ok(Value::Null), |t| json("tokenizer_config.json", t))?;
    let generation = files.generation.map_or(Ok(Value::Null), |t| json("generation_config.json", t))?;
    // What the file itself would put before every text.
    let first = inner.encode("", true).ok().and_then(|e| e.get_ids().first().copied());
    let first = first.filter(|&id| vocabulary.is_special(id));
    let named = |key: &str| token_name(&config[key]).and_then(|name| vocabulary.id_of(name));
    let bos = named("bos_token").or(first);
    let add_bos =
        bos.is_some() && config["add_bos_token"].as_bool().unwrap_or(first.is_some() && first == bos);
    let eos = named("eos_token");
    let mut end_ids: Vec<u32> = eos.into_iter().collect();
    end_ids
        .extend(ids(&generation["eos_token_id"]).into_iter().filter(|&id| (id as usize) < vocabulary.len()));
    for &id in bos.iter().chain(&end_ids) {
        vocabulary.mark_special(id);
    }
    let encoder = Encoder::Pieces(Box::new(Pieces::new(inner, unknown)));
    Ok(Parts { encoder, vocabulary, bos, eos, add_bos, end_ids, strips_space, template })
}

/// A token is named by a string, or by an object with the string inside.
fn token_name(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value["content"].as_str())
}

fn ids(value: &Value) -> Vec<u32> {
    let id = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
    match value.as_array() {
        Some(list) => list.iter().filter_map(id).collect(),
        None => id(value).into_iter().collect(),
    }
}

fn unknown_id(model: &Value, vocabulary: &Vocabulary) -> Option<u32> {
    let by_name = model["unk_token"].as_str().and_then(|name| vocabulary.id_of(name));
    by_name.or_else(|| model["unk_id"].as_u64().and_then(|id| u32::try_from(id).ok()))
}

/// Merges that name unknown tokens make the library panic instead of failing.
fn check_merges(model: &Value) -> Result<(), String> {
    if model["continuing_subword_prefix"].as_str().is_some_and(|p| !p.is_empty()) {
        return Err("continuing_subword_prefix is not supported; expected none".to_owned());
    }
    let (Some(vocab), Some(merges)) = (model["vocab"].as_object(), model["merges"].as_array()) else {
        return Ok(()); // not BPE, or refused later
    };
    for (i, merge) in merges.iter().enumerate() {
        let pair = match merge {
            Value::String(both) => both.split_once(' '),
            other => other[0].as_str().zip(other[1].as_str()),
        };
        let known = |(a, b): &(&str, &str)| {
            vocab.contains_key(*a) && vocab.contains_key(*b) && vocab.contains_key(&format!("{a}{b}"))
        };
        pair.filter(known)
            .ok_or_else(|| format!("merge {i} is {merge}, expected two tokens whose joint is a token"))?;
    }
    Ok(())
}

/// How tokens are spelled, and whether decoding drops one space at the start: read off the decoder.
fn spelling(spec: &Value) -> Result<(Spelling, bool), String> {
    let mut steps = Vec::new();
    collect_steps(&spec["decoder"], &mut steps);
    let kind = |step: &Value, name: &str| step["type"] == name;
    if steps.iter().any(|s| kind(s, "ByteLevel")) {
        return Ok((Spelling::ByteLevel, false));
    }
    let space = SPACE_SYMBOL.to_string();
    let spells_space = |s: &&Value| {
        kind(s, "Metaspace") && s["replacement"] == space.as_str()
            || kind(s, "Replace") && s["pattern"]["String"] == space.as_str() && s["content"] == " "
    };
    if !steps.iter().any(spells_space) {
        return Err(format!(
            "decoder {} is not supported; expected ByteLevel or SentencePiece's",
            spec["decoder"]
        ));
    }
    let strips = |s: &&Value| {
        kind(s, "Strip") && s["start"].as_u64().is_some_and(|n| n > 0)
            || kind(s, "Metaspace") && s["prepend_scheme"] != "never" && s["add_prefix_space"] != false
    };
    Ok((Spelling::SentencePiece, steps.iter().any(strips)))
}

fn collect_steps<'a>(decoder: &'a Value, steps: &mut Vec<&'a Value>) {
    match decoder["decoders"].as_array() {
        Some(inner) => inner.iter().for_each(|d| collect_steps(d, steps)),
        None => steps.push(decoder),
    }
}

fn vocabulary(inner: &tokenizers::Tokenizer, spelling: Spelling) -> Result<Vocabulary, String> {
    let added = inner.get_added_tokens_decoder();
    let words = inner.get_vocab(false);
    let size = words.values().chain(added.keys()).max().map_or(0, |&id| id as usize + 1);
    if size > VOCAB_SIZE_MAX {
        return Err(format!("largest token id is {}, expected below {VOCAB_SIZE_MAX}", size - 1));
    }
    let mut entries: Vec<Option<Entry>> = vec![None; size];
    for (content, id) in words {
        entries[id as usize] = Some(Entry { bytes: spelling.bytes(&content), content, special: false });
    }
    for (id, token) in added {
        let content = token.content.clone();
        let bytes =
            if token.special { content.clone().into_bytes() } else { whole_bytes(&content, spelling) };
        entries[id as usize] = Some(Entry { content, bytes, special: token.special });
    }
    Ok(Vocabulary::new(entries))
}
