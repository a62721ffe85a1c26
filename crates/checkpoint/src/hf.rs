//! From a Hugging Face directory to a [`Catalog`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use calypte_disk::FileId;
use serde::Deserialize;

use crate::arch::Arch;
use crate::catalog::{Catalog, Tensor, TokenizerSource, WeightFile};
use crate::error::{OpenError, list, quote};
use crate::hf_config::HfConfig;
use crate::json::{Entries, parse, read_file};
use crate::limits::{EOS_MAX, INDEX_BYTES_MAX, TEMPLATE_BYTES_MAX};
use crate::{census, families, fingerprint, safetensors, token_ids, validate};

pub(crate) const CONFIG: &str = "config.json";
pub(crate) const INDEX: &str = "model.safetensors.index.json";
const GENERATION_CONFIG: &str = "generation_config.json";
const SINGLE: &str = "model.safetensors";
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const TEMPLATE: &str = "chat_template.jinja";
const TEMPLATE_JSON: &str = "chat_template.json";

/// Opens the directory `dir`, whose files are `names`.
pub(crate) fn open(dir: &Path, names: &[String]) -> Result<Catalog, OpenError> {
    let config = HfConfig::read(&dir.join(CONFIG))?;
    let family = families::of_hf(&config)?;
    let mut arch = (family.from_hf)(&config)?;
    read_token_ids(dir, names, &config, &mut arch)?;
    token_ids::check(config.path(), &arch)?;
    validate::check(config.path(), &arch)?;
    let tied = config.bool_opt("tie_word_embeddings")?;
    let (files, tensors) = read_weights(dir, names)?;
    let fingerprint = fingerprint::of(&tensors);
    let census = census::take(dir, &mut arch, &family.hf_names, tensors, tied)?;
    Ok(Catalog {
        source: dir.to_owned(),
        format: "safetensors",
        name: model_name(dir, &config),
        arch,
        files,
        tensors: census.tensors,
        experts: census.experts,
        unclaimed: census.unclaimed,
        tokenizer: tokenizer(dir, names)?,
        fingerprint,
    })
}

fn has(names: &[String], name: &str) -> bool {
    names.iter().any(|n| n == name)
}

/// The directory's name, which for a downloaded model is that of its repository.
fn model_name(dir: &Path, config: &HfConfig) -> String {
    let absolute = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    match absolute.file_name() {
        Some(name) => name.to_string_lossy().into_owned(),
        None => config.get("model_type").and_then(|v| v.as_str()).map_or_else(|| "model".to_owned(), quote),
    }
}

/// `generation_config.json` often names more end tokens than `config.json` does; both count.
fn read_token_ids(dir: &Path, names: &[String], config: &HfConfig, arch: &mut Arch) -> Result<(), OpenError> {
    let generation = match has(names, GENERATION_CONFIG) {
        true => Some(HfConfig::read(&dir.join(GENERATION_CONFIG))?),
        false => None,
    };
    for source in [Some(config), generation.as_ref()].into_iter().flatten() {
        if arch.bos.is_none() {
            arch.bos = source.ids("bos_token_id", 1)?.first().copied();
        }
        for id in source.ids("eos_token_id", EOS_MAX)? {
            if !arch.eos.contains(&id) {
                arch.eos.push(id);
            }
        }
    }
    Ok(())
}

#[derive(Deserialize)]
struct Index {
    weight_map: Entries<String>,
}

/// The weight files and their tensors.
fn read_weights(dir: &Path, names: &[String]) -> Result<(Vec<WeightFile>, Vec<Tensor>), OpenError> {
    let (shards, weight_map) = if has(names, INDEX) {
        let weight_map = read_index(&dir.join(INDEX))?;
        (shards_of_index(dir, names, &weight_map)?, weight_map)
    } else if has(names, SINGLE) {
        (vec![SINGLE.to_owned()], Vec::new())
    } else {
        (shards_by_name(dir, names)?, Vec::new())
    };
    let (mut files, mut tensors) = (Vec::new(), Vec::new());
    for (i, shard) in shards.iter().enumerate() {
        let file = FileId(u32::try_from(i).unwrap_or(u32::MAX));
        let (weight_file, found) = safetensors::read(&dir.join(shard), file)?;
        files.push(weight_file);
        tensors.extend(found);
    }
    check_placement(dir, &shards, &weight_map, &tensors)?;
    Ok((files, tensors))
}

fn read_index(path: &Path) -> Result<Vec<(String, String)>, OpenError> {
    let bytes = read_file(path, INDEX_BYTES_MAX, "JSON")?;
    let index: Index = parse(path, &bytes, 0, "a safetensors index")?;
    let weight_map = index.weight_map.unique(path, "tensor")?;
    for (tensor, shard) in &weight_map {
        // An index must not lead out of its directory.
        if shard.is_empty() || shard.contains(['/', '\\']) || shard == ".." || shard == "." {
            return Err(OpenError::Config {
                path: path.to_owned(),
                key: format!("weight_map.{}", quote(tensor)),
                expected: "the name of a file in the same directory".to_owned(),
                found: format!("`{}`", quote(shard)),
            });
        }
    }
    if weight_map.is_empty() {
        return Err(OpenError::Config {
            path: path.to_owned(),
            key: "weight_map".to_owned(),
            expected: "at least one tensor".to_owned(),
            found: "none".to_owned(),
        });
    }
    Ok(weight_map)
}

fn shards_of_index(
    dir: &Path,
    names: &[String],
    weight_map: &[(String, String)],
) -> Result<Vec<String>, OpenError> {
    let shards: BTreeSet<&str> = weight_map.iter().map(|(_, shard)| shard.as_str()).collect();
    match shards.iter().find(|s| !has(names, s)) {
        None => Ok(shards.into_iter().map(str::to_owned).collect()),
        Some(missing) => {
            let tensors = weight_map.iter().filter(|(_, s)| s == missing).count();
            Err(OpenError::MissingShard {
                path: dir.join(INDEX),
                shard: quote(missing),
                why: format!("{tensors} of {} tensors are in it", weight_map.len()),
            })
        }
    }
}

/// Without an index, files that number themselves (`…-00001-of-00003.safetensors`), or a single one of any name.
fn shards_by_name(dir: &Path, names: &[String]) -> Result<Vec<String>, OpenError> {
    let all: Vec<&String> = names.iter().filter(|n| n.ends_with(".safetensors")).collect();
    if let [one] = all.as_slice()
        && shard_number(one).is_none_or(|(_, _, of)| of == 1)
    {
        return Ok(vec![(*one).clone()]);
    }
    let mut series: BTreeMap<(&str, usize), BTreeSet<usize>> = BTreeMap::new();
    for (stem, number, of) in all.iter().filter_map(|n| shard_number(n)) {
        series.entry((stem, of)).or_default().insert(number);
    }
    let mut series = series.into_iter();
    let (Some(((stem, of), numbers)), None) = (series.next(), series.next()) else {
        return Err(OpenError::NoModel {
            path: dir.to_owned(),
            expected: "model.safetensors, an index, or one series of files numbered -00001-of-0000N",
            found: list(all.iter().map(|n| n.as_str())),
            todo: "fetch model.safetensors.index.json, or keep the files of one model only",
        });
    };
    if let Some(missing) = (1..=of).find(|n| !numbers.contains(n)) {
        return Err(OpenError::MissingShard {
            path: dir.to_owned(),
            shard: format!("{stem}-{missing:05}-of-{of:05}.safetensors"),
            why: format!("{} of {of} files of this series are there", numbers.len()),
        });
    }
    Ok((1..=of).map(|n| format!("{stem}-{n:05}-of-{of:05}.safetensors")).collect())
}

/// `stem-00002-of-00003.safetensors` as `("stem", 2, 3)`.
fn shard_number(name: &str) -> Option<(&str, usize, usize)> {
    const DIGITS: usize = 5;
    let number = |text: &str| (text.len() == DIGITS).then(|| text.parse().ok()).flatten();
    let (rest, of) = name.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
    let (stem, n) = rest.rsplit_once('-')?;
    let (n, of) = (number(n)?, number(of)?);
    (1..=of).contains(&n).then_some((stem, n, of))
}

/// No tensor may be in two shards, and each must be in the shard that the index names.
fn check_placement(
    dir: &Path,
    shards: &[String],
    weight_map: &[(String, String)],
    tensors: &[Tensor],
) -> Result<(), OpenError> {
    let shard_of = |t: &Tensor| shards.get(t.extent.file.0 as usize).map_or("", String::as_str);
    let mut place: HashMap<&str, &str> = HashMap::with_capacity(tensors.len());
    for t in tensors {
        if let Some(first) = place.insert(&t.name, shard_of(t)) {
            return Err(OpenError::Duplicate {
                path: dir.join(first),
                what: "tensor",
                name: quote(&t.name),
                place: format!("in shard `{}`", shard_of(t)),
            });
        }
    }
    for (tensor, shard) in weight_map {
        let found = match place.get(tensor.as_str()) {
            Some(actual) if actual == shard => continue,
            Some(actual) => format!("in shard `{actual}`"),
            None => "nowhere".to_owned(),
        };
        return Err(OpenError::NotInShard {
            path: dir.join(INDEX),
            tensor: quote(tensor),
            shard: quote(shard),
            found,
        });
    }
    Ok(())
}

fn tokenizer(dir: &Path, names: &[String]) -> Result<TokenizerSource, OpenError> {
    if !has(names, TOKENIZER) {
        return Ok(TokenizerSource::Missing);
    }
    Ok(TokenizerSource::HuggingFace {
        tokenizer_json: dir.join(TOKENIZER),
        chat_template: chat_template(dir, names)?,
    })
}

/// The template's own file wins over the one inside `tokenizer_config.json`, which older models have.
fn chat_template(dir: &Path, names: &[String]) -> Result<Option<String>, OpenError> {
    if has(names, TEMPLATE) {
        let path = dir.join(TEMPLATE);
        let bytes = read_file(&path, TEMPLATE_BYTES_MAX, "a chat template")?;
        let text = String::from_utf8(bytes).map_err(|e| OpenError::Malformed {
            path,
            format: "a chat template",
            offset: e.utf8_error().valid_up_to() as u64,
            expected: "UTF-8".to_owned(),
            found: "other bytes".to_owned(),
        })?;
        return Ok(Some(text));
    }
    for file in [TEMPLATE_JSON, TOKENIZER_CONFIG] {
        if has(names, file)
            && let Some(template) = template_in(&HfConfig::read(&dir.join(file))?)?
        {
            return Ok(Some(template));
        }
    }
    Ok(None)
}

/// A string, or a list of named templates of which `default` is meant.
fn template_in(config: &HfConfig) -> Result<Option<String>, OpenError> {
    const KEY: &str = "chat_template";
    match config.get(KEY) {
        None => Ok(None),
        Some(serde_json::Value::String(text)) => Ok(Some(text.clone())),
        Some(serde_json::Value::Array(named)) => {
            let text =
                |key: &str, v: &serde_json::Value| v.get(key).and_then(|v| v.as_str()).map(str::to_owned);
            let default = named.iter().find(|v| text("name", v).as_deref() == Some("default"));
            Ok(default.and_then(|v| text("template", v)))
        }
        Some(_) => Err(config.wrong(KEY, "a string or a list of named templates")),
    }
}
