//! From a GGUF file to a [`Catalog`].

use std::path::{Path, PathBuf};

use crate::catalog::{Catalog, GgufTokenizer, Tensor, TokenizerSource, WeightFile};
use crate::error::OpenError;
use crate::gguf::Gguf;
use crate::gguf_config::{GgufConfig, id, text, wrong};
use crate::gguf_split::{self, file_name};
use crate::gguf_value::{List, Value};
use crate::open::siblings;
use crate::stored::Stored;
use crate::{census, families, fingerprint, token_ids, validate};

const TOKENS: &str = "tokenizer.ggml.tokens";
/// Values of `tokenizer.ggml.model` that mean "no tokenizer".
const NO_TOKENIZER: [&str; 2] = ["none", "no_vocab"];

/// Opens the model that the GGUF file `path` is a file of; the others are among `siblings`.
pub(crate) fn open(
    path: &Path,
    siblings: impl FnOnce() -> Result<Vec<PathBuf>, OpenError>,
) -> Result<Catalog, OpenError> {
    let (files, gguf) = gguf_split::gather(path, siblings)?.read()?;
    describe(path, files, gguf)
}

/// What the headers describe; `source` is what was opened.
pub(crate) fn describe(source: &Path, files: Vec<WeightFile>, gguf: Gguf) -> Result<Catalog, OpenError> {
    let path = gguf.path.clone();
    let (family, architecture) = families::of_gguf(&gguf)?;
    let mut arch = (family.from_gguf)(&GgufConfig::new(&gguf, &architecture))?;
    let tokenizer = tokenizer(&gguf)?;
    if let TokenizerSource::Gguf(t) = &tokenizer {
        arch.bos = t.bos;
        arch.eos = [t.eos, t.eot].into_iter().flatten().collect();
        arch.eos.dedup();
        if t.tokens.len() > arch.vocab {
            let expected = format!("at most {} tokens, one for each row of the embedding", arch.vocab);
            return Err(wrong(&path, TOKENS, expected, t.tokens.len().to_string()));
        }
    }
    token_ids::check(&path, &arch)?;
    validate::check(&path, &arch)?;
    let name = name(&gguf);
    let file_of = |t: &Stored| files.get(t.extent.file.0 as usize).map_or(&path, |f| &f.path);
    let into_tensor = |t: Stored| {
        let file = file_of(&t).clone();
        t.into_tensor(&file)
    };
    let tensors: Vec<Tensor> = gguf.tensors.into_iter().map(into_tensor).collect::<Result<_, _>>()?;
    let fingerprint = fingerprint::of(&tensors);
    // No key says whether embeddings are tied; a missing output matrix does.
    let census = census::take(&path, &mut arch, &family.gguf_names, tensors, None)?;
    Ok(Catalog {
        source: source.to_owned(),
        format: "gguf",
        name,
        arch,
        files,
        tensors: census.tensors,
        experts: census.experts,
        unclaimed: census.unclaimed,
        ignored: Vec::new(),
        tokenizer,
        fingerprint,
    })
}

/// What the model calls itself, else the name of its file without what only numbers it.
fn name(gguf: &Gguf) -> String {
    if let Some(Value::Text(name)) = gguf.metadata.get("general.name")
        && !name.is_empty()
    {
        return name.clone();
    }
    match gguf_split::shard_number(&file_name(&gguf.path), gguf_split::GGUF) {
        Some((stem, _, _)) => stem.to_owned(),
        None => gguf.path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
    }
}

/// Reads the tokenizer of a GGUF file, which need not hold a model.
///
/// # Errors
/// As [`open`](crate::open).
pub fn gguf_tokenizer(path: &Path) -> Result<TokenizerSource, OpenError> {
    tokenizer(&gguf_split::gather(path, || siblings(path))?.read()?.1)
}

/// What the metadata says about tokens.
pub(crate) fn tokenizer(gguf: &Gguf) -> Result<TokenizerSource, OpenError> {
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
        remove_extra_whitespaces: flag(gguf, "tokenizer.ggml.remove_extra_whitespaces")?,
        precompiled_charsmap: bytes(gguf, "tokenizer.ggml.precompiled_charsmap")?,
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

/// An array of bytes, signed or not; absent means empty.
fn bytes(gguf: &Gguf, key: &str) -> Result<Vec<u8>, OpenError> {
    let bytes: Option<Vec<u8>> = match gguf.metadata.get(key) {
        None => return Ok(Vec::new()),
        Some(Value::List(List::Unsigned(v))) => v.iter().map(|&x| u8::try_from(x).ok()).collect(),
        Some(Value::List(List::Signed(v))) => {
            v.iter().map(|&x| i8::try_from(x).ok().map(i8::cast_unsigned)).collect()
        }
        Some(_) => None,
    };
    let found = || gguf.metadata.get(key).map_or_else(String::new, Value::in_words);
    bytes.ok_or_else(|| wrong(&gguf.path, key, "an array of bytes", found()))
}

fn flag(gguf: &Gguf, key: &str) -> Result<Option<bool>, OpenError> {
    match gguf.metadata.get(key) {
        None => Ok(None),
        Some(Value::Bool(v)) => Ok(Some(*v)),
        Some(v) => Err(wrong(&gguf.path, key, "true or false", v.in_words())),
    }
}
