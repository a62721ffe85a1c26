//! From a GGUF file to a [`Catalog`].

use std::path::Path;

use calypte_disk::FileId;

use crate::catalog::{Catalog, GgufTokenizer, TokenizerSource, WeightFile};
use crate::error::OpenError;
use crate::gguf::{self, Gguf};
use crate::gguf_config::{GgufConfig, id, text, wrong};
use crate::gguf_value::{List, Value};
use crate::{census, families, fingerprint, token_ids, validate};

const SPLIT_COUNT: &str = "split.count";
const TOKENS: &str = "tokenizer.ggml.tokens";
/// Values of `tokenizer.ggml.model` that mean "no tokenizer".
const NO_TOKENIZER: [&str; 2] = ["none", "no_vocab"];

/// Opens the GGUF file `path`.
pub(crate) fn open(path: &Path) -> Result<Catalog, OpenError> {
    let gguf = gguf::read(path, FileId(0))?;
    refuse_split(&gguf)?;
    let (family, name) = families::of_gguf(&gguf)?;
    let mut arch = (family.from_gguf)(&GgufConfig::new(&gguf, &name))?;
    let tokenizer = tokenizer(&gguf)?;
    if let TokenizerSource::Gguf(t) = &tokenizer {
        arch.bos = t.bos;
        arch.eos = [t.eos, t.eot].into_iter().flatten().collect();
        arch.eos.dedup();
        if t.tokens.len() > arch.vocab {
            let expected = format!("at most {} tokens, one for each row of the embedding", arch.vocab);
            return Err(wrong(path, TOKENS, expected, t.tokens.len().to_string()));
        }
    }
    token_ids::check(path, &arch)?;
    validate::check(path, &arch)?;
    let fingerprint = fingerprint::of(&gguf.tensors);
    // No key says whether embeddings are tied; a missing output matrix does.
    let census = census::take(path, &mut arch, &family.gguf_names, gguf.tensors, None)?;
    let stem = || path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let name = match gguf.metadata.get("general.name") {
        Some(Value::Text(name)) if !name.is_empty() => name.clone(),
        _ => stem(),
    };
    Ok(Catalog {
        source: path.to_owned(),
        format: "gguf",
        name,
        arch,
        files: vec![WeightFile { path: gguf.path, size_bytes: gguf.size_bytes }],
        tensors: census.tensors,
        experts: census.experts,
        unclaimed: census.unclaimed,
        tokenizer,
        fingerprint,
    })
}

/// Reads the tokenizer of a GGUF file, which need not hold a model.
///
/// # Errors
/// As [`open`](crate::open).
pub fn gguf_tokenizer(path: &Path) -> Result<TokenizerSource, OpenError> {
    tokenizer(&gguf::read(path, FileId(0))?)
}

/// A part of a split file alone would look like a model with missing tensors.
fn refuse_split(gguf: &Gguf) -> Result<(), OpenError> {
    let Some(value) = gguf.metadata.get(SPLIT_COUNT) else {
        return Ok(());
    };
    if matches!(value, Value::Unsigned(0 | 1) | Value::Signed(0 | 1)) {
        return Ok(());
    }
    Err(OpenError::Unsupported {
        path: gguf.path.clone(),
        what: format!("key `{SPLIT_COUNT}`"),
        expected: "a model in one file".to_owned(),
        found: format!("a part of {}", value.in_words()),
        todo: "merge the parts into one file first (llama.cpp's `llama-gguf-split --merge`)",
    })
}

fn tokenizer(gguf: &Gguf) -> Result<TokenizerSource, OpenError> {
    let model = text(gguf, "tokenizer.ggml.model")?;
    let tokens = texts(gguf, TOKENS)?;
    let Some(model) = model.filter(|m| !NO_TOKENIZER.contains(&m.as_str()) && !tokens.is_empty()) else {
        return Ok(TokenizerSource::Missing);
    };
    let t = GgufTokenizer {
        model,
        pre: text(gguf, "tokenizer.ggml.pre")?,
        scores: per_token(gguf, "tokenizer.ggml.scores", tokens.len(), |v| match v {
            List::Float(v) => Some(v.iter().map(|&x| x as f32).collect()),
            _ => None,
        })?,
        token_types: per_token(gguf, "tokenizer.ggml.token_type", tokens.len(), |v| match v {
            List::Signed(v) => v.iter().map(|&x| i32::try_from(x).ok()).collect(),
            List::Unsigned(v) => v.iter().map(|&x| i32::try_from(x).ok()).collect(),
            _ => None,
        })?,
        tokens,
        merges: texts(gguf, "tokenizer.ggml.merges")?,
        bos: id(gguf, "tokenizer.ggml.bos_token_id")?,
        eos: id(gguf, "tokenizer.ggml.eos_token_id")?,
        eot: id(gguf, "tokenizer.ggml.eot_token_id")?,
        add_bos: flag(gguf, "tokenizer.ggml.add_bos_token")?,
        add_space_prefix: flag(gguf, "tokenizer.ggml.add_space_prefix")?,
        chat_template: text(gguf, "tokenizer.chat_template")?,
    };
    Ok(TokenizerSource::Gguf(Box::new(t)))
}

fn texts(gguf: &Gguf, key: &str) -> Result<Vec<String>, OpenError> {
    match gguf.metadata.get(key) {
        None => Ok(Vec::new()),
        Some(Value::List(List::Text(v))) => Ok(v.clone()),
        Some(v) => Err(wrong(&gguf.path, key, "an array of strings", v.in_words())),
    }
}

/// An array that is absent or has one item for each token.
fn per_token<T>(
    gguf: &Gguf,
    key: &str,
    tokens: usize,
    convert: impl Fn(&List) -> Option<Vec<T>>,
) -> Result<Vec<T>, OpenError> {
    let Some(value) = gguf.metadata.get(key) else {
        return Ok(Vec::new());
    };
    let items = match value {
        Value::List(v) if v.len() == tokens => convert(v),
        _ => None,
    };
    items.ok_or_else(|| wrong(&gguf.path, key, format!("an array of {tokens} numbers"), value.in_words()))
}

fn flag(gguf: &Gguf, key: &str) -> Result<Option<bool>, OpenError> {
    match gguf.metadata.get(key) {
        None => Ok(None),
        Some(Value::Bool(v)) => Ok(Some(*v)),
        Some(v) => Err(wrong(&gguf.path, key, "true or false", v.in_words())),
    }
}
