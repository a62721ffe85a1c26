//! From a Hugging Face directory to a [`Catalog`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use calypte_disk::FileId;
use serde::Deserialize;

use crate::arch::Arch;
use crate::catalog::{Catalog, TokenizerSource, WeightFile};
use crate::error::{MissingShard, OpenError, list, quote};
use crate::families::Family;
use crate::families::names::Meaning;
use crate::gguf_split::shard_number;
use crate::hf_config::HfConfig;
use crate::json::{Entries, parse, read_file};
use crate::limits::{EOS_MAX, INDEX_BYTES_MAX, TEMPLATE_BYTES_MAX};
use crate::packed::{self, Joined};
use crate::stored::Stored;
use crate::{census, families, fingerprint, safetensors, token_ids, validate};

pub(crate) const CONFIG: &str = "config.json";
pub(crate) const INDEX: &str = "model.safetensors.index.json";
const GENERATION_CONFIG: &str = "generation_config.json";
const SAFETENSORS: &str = ".safetensors";
const SINGLE: &str = "model.safetensors";
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const TEMPLATE: &str = "chat_template.jinja";
const TEMPLATE_JSON: &str = "chat_template.json";

/// Opens the directory `dir`, whose files are `names`.
pub(crate) fn open(dir: &Path, names: &[String]) -> Result<Catalog, OpenError> {
    let config = HfConfig::read(&dir.join(CONFIG))?;
    let generation = match has(names, GENERATION_CONFIG) {
        true => Some(HfConfig::read(&dir.join(GENERATION_CONFIG))?),
        false => None,
    };
    let (family, mut arch) = describe(&config, generation.as_ref())?;
    // A family that ties by default does so even where a file carries an output matrix.
    let tied = config.bool_opt("tie_word_embeddings")?.or(arch.tied_embeddings.then_some(true));
    let Weights { files, tensors: stored, ignored } = read_weights(dir, names)?;
    let file_of = |t: &Stored| files.get(t.extent.file.0 as usize).map_or(dir, |f| f.path.as_path());
    let skip = |name: &str| family.hf_names.meaning(name) == Meaning::Buffer;
    let Joined { tensors, unused } = packed::join(dir, &config, stored, file_of, skip)?;
    let fingerprint = fingerprint::of(&tensors);
    let mut census = census::take(dir, &mut arch, &family.hf_names, tensors, tied)?;
    census.unclaimed.extend(unused);
    Ok(Catalog {
        source: dir.to_owned(),
        format: "safetensors",
        name: model_name(dir, &config),
        arch,
        files,
        tensors: census.tensors,
        experts: census.experts,
        unclaimed: census.unclaimed,
        ignored,
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

/// What `config.json` describes, apart from the weights. `generation_config.json` often names more end tokens than
/// `config.json` does; both count.
pub(crate) fn describe(
    config: &HfConfig,
    generation: Option<&HfConfig>,
) -> Result<(&'static Family, Arch), OpenError> {
    let family = families::of_hf(config)?;
    let mut arch = (family.from_hf)(config)?;
    for source in [Some(config), generation].into_iter().flatten() {
        if arch.bos.is_none() {
            arch.bos = source.ids("bos_token_id", 1)?.first().copied();
        }
        for id in source.ids("eos_token_id", EOS_MAX)? {
            if !arch.eos.contains(&id) {
                arch.eos.push(id);
            }
        }
    }
    token_ids::check(config.path(), &arch)?;
    validate::check(config.path(), &arch)?;
    Ok((family, arch))
}

#[derive(Deserialize)]
struct Index {
    weight_map: Entries<String>,
}

/// The weight files of a directory.
#[derive(Debug, Default)]
pub(crate) struct Shards {
    /// Names of those that are there, in order.
    pub present: Vec<String>,
    /// Those that are not.
    pub missing: Vec<MissingShard>,
    /// Weight files that belong to no model, or to another one.
    pub ignored: Vec<String>,
    /// Which tensor is in which file, where an index says so.
    weight_map: Vec<(String, String)>,
    /// What speaks of the missing ones.
    source: PathBuf,
}

/// Finds the weight files of the directory `dir`, whose files are `names`.
pub(crate) fn shards(dir: &Path, names: &[String]) -> Result<Shards, OpenError> {
    let mut out = if has(names, INDEX) {
        let weight_map = read_index(&dir.join(INDEX))?;
        shards_of_index(dir, names, weight_map)
    } else if has(names, SINGLE) {
        Shards { present: vec![SINGLE.to_owned()], source: dir.to_owned(), ..Shards::default() }
    } else {
        shards_by_name(dir, names)?
    };
    let weights = names.iter().filter(|n| n.ends_with(SAFETENSORS) && !out.present.contains(n));
    out.ignored = weights.cloned().collect();
    Ok(out)
}

/// The weight files, their tensors, and weight files that are none of the model's.
struct Weights {
    files: Vec<WeightFile>,
    tensors: Vec<Stored>,
    ignored: Vec<String>,
}

fn read_weights(dir: &Path, names: &[String]) -> Result<Weights, OpenError> {
    let shards = shards(dir, names)?;
    if !shards.missing.is_empty() {
        let Shards { source: path, present, missing, .. } = shards;
        let of = present.len() + missing.len();
        return Err(OpenError::MissingShards { path, of, present: present.len(), missing });
    }
    let (mut files, mut tensors) = (Vec::new(), Vec::new());
    for (file, shard) in (0u32..).map(FileId).zip(&shards.present) {
        let (weight_file, found) = safetensors::read(&dir.join(shard), file)?;
        files.push(weight_file);
        tensors.extend(found);
    }
    check_placement(dir, &shards.present, &shards.weight_map, &tensors)?;
    Ok(Weights { files, tensors, ignored: shards.ignored })
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

fn shards_of_index(dir: &Path, names: &[String], weight_map: Vec<(String, String)>) -> Shards {
    let mut tensors: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, shard) in &weight_map {
        *tensors.entry(shard).or_default() += 1;
    }
    let mut out = Shards { source: dir.join(INDEX), ..Shards::default() };
    for (shard, tensors) in tensors {
        match has(names, shard) {
            true => out.present.push(shard.to_owned()),
            false => out.missing.push(MissingShard { name: quote(shard), tensors: Some(tensors) }),
        }
    }
    Shards { weight_map, ..out }
}

/// Without an index, files that number themselves (`…-00001-of-00003.safetensors`), or a single one of any name.
fn shards_by_name(dir: &Path, names: &[String]) -> Result<Shards, OpenError> {
    let mut out = Shards { source: dir.to_owned(), ..Shards::default() };
    let all: Vec<&String> = names.iter().filter(|n| n.ends_with(SAFETENSORS)).collect();
    if let [one] = all.as_slice()
        && shard_number(one, SAFETENSORS).is_none_or(|(_, _, of)| of == 1)
    {
        out.present.push((*one).clone());
        return Ok(out);
    }
    let mut series: BTreeMap<(&str, usize), BTreeSet<usize>> = BTreeMap::new();
    for (stem, number, of) in all.iter().filter_map(|n| shard_number(n, SAFETENSORS)) {
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
    for number in 1..=of {
        let name = format!("{stem}-{number:05}-of-{of:05}{SAFETENSORS}");
        match numbers.contains(&number) {
            true => out.present.push(name),
            false => out.missing.push(MissingShard { name: quote(&name), tensors: None }),
        }
    }
    Ok(out)
}

/// No tensor may be in two shards, and each must be in the shard that the index names.
fn check_placement(
    dir: &Path,
    shards: &[String],
    weight_map: &[(String, String)],
    tensors: &[Stored],
) -> Result<(), OpenError> {
    let shard_of = |t: &Stored| shards.get(t.extent.file.0 as usize).map_or("", String::as_str);
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
