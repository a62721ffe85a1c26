//! Models in several GGUF files.
//!
//! Every file of a series says which one it is (`split.no`, from 0), how many there are (`split.count`) and how many
//! tensors all of them hold (`split.tensors.count`). Only the first has the rest of the metadata. By convention, names
//! count from 1: `stem-00001-of-00003.gguf`.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use calypte_disk::FileId;

use crate::catalog::WeightFile;
use crate::error::{MissingShard, OpenError, quote};
use crate::gguf::{self, Gguf};
use crate::gguf_config::wrong;
use crate::gguf_value::Value;
use crate::layout::check_extents;

/// The extension of file names.
pub(crate) const GGUF: &str = ".gguf";
const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";
/// Files of one series; the key has 16 bits.
const SHARDS_MAX: u64 = 1 << 16;

/// What a file says about the series that it is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Split {
    /// From 0.
    pub number: usize,
    /// At least 2.
    pub count: usize,
    /// Tensors of the whole series.
    pub tensors: Option<u64>,
}

/// Whether [`Split::of`] and [`Brief`] look at the key.
fn is_brief(key: &str) -> bool {
    [NUMBER, COUNT, TENSORS, ARCHITECTURE, TYPE].contains(&key)
}

const ARCHITECTURE: &str = "general.architecture";
const TYPE: &str = "general.type";
/// Values of `general.type` that are no models by themselves.
const COMPANIONS: [&str; 4] = ["mmproj", "adapter", "imatrix", "vocab"];
/// Vision and audio encoders that belong to a model; older ones do not have [`TYPE`].
const PROJECTOR: &str = "clip";

impl Split {
    /// What `metadata` of the file `path` says; `None` for a model in one file.
    fn of(path: &Path, metadata: &BTreeMap<String, Value>) -> Result<Option<Self>, OpenError> {
        let number = |key: &str, max: u64| match metadata.get(key) {
            None => Ok(None),
            Some(v) => match v.whole().filter(|&n| n <= max) {
                Some(n) => Ok(Some(n)),
                None => Err(wrong(path, key, format!("a whole number up to {max}"), v.in_words())),
            },
        };
        let Some(count) = number(COUNT, SHARDS_MAX)?.filter(|&n| n > 1) else {
            return Ok(None);
        };
        let Some(this) = number(NUMBER, count - 1)? else {
            let expected = format!("a whole number up to {}, since {COUNT} is {count}", count - 1);
            return Err(wrong(path, NUMBER, expected, "nothing".to_owned()));
        };
        // Both are below SHARDS_MAX.
        Ok(Some(Split { number: this as usize, count: count as usize, tensors: number(TENSORS, u64::MAX)? }))
    }

    fn is_same_series(&self, other: &Split) -> bool {
        (self.count, self.tensors) == (other.count, other.tensors)
    }
}

/// What a look at the metadata of a GGUF file tells about its place among others.
#[derive(Clone, Debug)]
pub(crate) struct Brief {
    pub path: PathBuf,
    pub split: Option<Split>,
    /// What kind of file it is, unless it is a model.
    pub companion: Option<String>,
}

impl Brief {
    pub fn read(path: &Path) -> Result<Brief, OpenError> {
        let metadata = gguf::read_keys(path, is_brief)?;
        let text = |key: &str| match metadata.get(key) {
            Some(Value::Text(t)) => Some(t.as_str()),
            _ => None,
        };
        let companion = match (text(TYPE), text(ARCHITECTURE)) {
            (Some(t), _) if COMPANIONS.contains(&t) => Some(quote(t)),
            (_, Some(PROJECTOR)) => Some("mmproj".to_owned()),
            _ => None,
        };
        Ok(Brief { path: path.to_owned(), split: Split::of(path, &metadata)?, companion })
    }

    /// Whether the file's name says which part of a series it is.
    fn numbers_itself(&self) -> bool {
        let number = shard_number(&file_name(&self.path), GGUF).map(|(_, _, of)| of);
        self.split.is_some_and(|s| number == Some(s.count))
    }

    /// What the files of one model have in common: stem of the name, if they number themselves, and size of the series.
    pub fn series(&self) -> (String, Option<Split>) {
        let name = file_name(&self.path);
        let Some(split) = self.split else {
            return (name, None);
        };
        let stem = match shard_number(&name, GGUF) {
            Some((stem, _, of)) if of == split.count => stem.to_owned(),
            _ => String::new(),
        };
        (stem, Some(Split { number: 0, ..split }))
    }
}

pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// `stem-00002-of-00003.gguf` with the extension `.gguf` as `("stem", 2, 3)`.
pub(crate) fn shard_number<'a>(name: &'a str, extension: &str) -> Option<(&'a str, usize, usize)> {
    const DIGITS: usize = 5;
    let number = |text: &str| {
        let is_number = text.len() == DIGITS && text.bytes().all(|b| b.is_ascii_digit());
        is_number.then(|| text.parse().ok()).flatten()
    };
    let at = name.len().checked_sub(extension.len())?;
    let (rest, end) = name.split_at_checked(at)?;
    let (rest, of) = rest.rsplit_once("-of-").filter(|_| end.eq_ignore_ascii_case(extension))?;
    let (stem, n) = rest.rsplit_once('-')?;
    let (n, of) = (number(n)?, number(of)?);
    (1..=of).contains(&n).then_some((stem, n, of))
}

/// The files of a model that are there, in order, and the others.
pub(crate) struct Gathered {
    /// The header of the file that was given.
    given: Gguf,
    /// `None` for a model in one file.
    split: Option<Split>,
    /// By number.
    shards: Vec<Result<PathBuf, MissingShard>>,
}

/// Finds the files of the model that `path` is a file of, among its `siblings`.
pub(crate) fn gather(
    path: &Path,
    siblings: impl FnOnce() -> Result<Vec<PathBuf>, OpenError>,
) -> Result<Gathered, OpenError> {
    let given = gguf::read_unchecked(path, FileId(0))?;
    let Some(split) = Split::of(path, &given.metadata)? else {
        return Ok(Gathered { given, split: None, shards: vec![Ok(path.to_owned())] });
    };
    let name = file_name(path);
    let stem = match shard_number(&name, GGUF) {
        Some((_, number, of)) if of == split.count && number != split.number + 1 => {
            let expected = format!("{}, since the file's name says {number} of {of}", number - 1);
            return Err(wrong(path, NUMBER, expected, split.number.to_string()));
        }
        Some((stem, _, of)) if of == split.count => Some(stem),
        _ => None,
    };
    let mut shards: Vec<Option<PathBuf>> = vec![None; split.count];
    put(&mut shards, split.number, path);
    let siblings = siblings()?;
    for sibling in &siblings {
        match shard_number(&file_name(sibling), GGUF) {
            Some((s, number, of)) if Some(s) == stem && of == split.count => {
                put(&mut shards, number - 1, sibling)
            }
            _ => {}
        }
    }
    if shards.contains(&None) {
        find_by_header(path, &split, &siblings, &mut shards)?;
    }
    let or_missing = |(i, shard): (usize, Option<PathBuf>)| {
        shard.ok_or_else(|| MissingShard {
            name: match stem {
                Some(stem) => quote(&format!("{stem}-{:05}-of-{:05}.gguf", i + 1, split.count)),
                None => format!("part {} of {} ({NUMBER} {i})", i + 1, split.count),
            },
            tensors: None,
        })
    };
    let shards = shards.into_iter().enumerate().map(or_missing).collect();
    Ok(Gathered { given, split: Some(split), shards })
}

/// Puts `path` in the place `number` if that is free.
fn put(shards: &mut [Option<PathBuf>], number: usize, path: &Path) {
    if let Some(place @ None) = shards.get_mut(number) {
        *place = Some(path.to_owned());
    }
}

/// Files whose names do not tell: what their headers say. Files that number themselves belong to another series.
fn find_by_header(
    path: &Path,
    split: &Split,
    siblings: &[PathBuf],
    shards: &mut [Option<PathBuf>],
) -> Result<(), OpenError> {
    let mut found: HashMap<usize, PathBuf> = HashMap::new();
    for sibling in siblings {
        // A file that cannot be read is no part of any series.
        let Ok(brief) = Brief::read(sibling) else { continue };
        let Some(other) = brief.split.filter(|s| s.is_same_series(split) && !brief.numbers_itself()) else {
            continue;
        };
        if shards.iter().flatten().any(|p| file_name(p) == file_name(sibling)) {
            continue;
        }
        let taken = shards.get(other.number).and_then(Option::as_deref);
        if let Some(first) = found.insert(other.number, sibling.clone()).as_deref().or(taken) {
            return Err(OpenError::NoModel {
                path: path.to_owned(),
                expected: "one file for each part of the model",
                found: format!(
                    "`{}` and `{}`, both part {} of {}",
                    quote(&file_name(first)),
                    quote(&file_name(sibling)),
                    other.number + 1,
                    split.count
                ),
                todo: "keep the files of one model only in the directory",
            });
        }
    }
    for (number, sibling) in found {
        put(shards, number, &sibling);
    }
    Ok(())
}

impl Gathered {
    /// The files that are not there.
    pub fn missing(&self) -> Vec<MissingShard> {
        self.shards.iter().filter_map(|s| s.as_ref().err().cloned()).collect()
    }

    /// Fails unless all files are there.
    pub fn check_complete(&self) -> Result<(), OpenError> {
        let missing = self.missing();
        if missing.is_empty() {
            return Ok(());
        }
        let of = self.shards.len();
        let path = self.given.path.clone();
        Err(OpenError::MissingShards { path, of, present: of - missing.len(), missing })
    }

    /// The headers of the files that are there, in order, and what is wrong with them one by one. Their tensors may lie
    /// anywhere.
    pub fn parts(self) -> impl Iterator<Item = Result<Gguf, OpenError>> {
        let mut given = Some(self.given);
        let paths = self.shards.into_iter().flatten();
        (0u32..).map(FileId).zip(paths).map(move |(file, path)| match given.take_if(|g| g.path == path) {
            Some(mut given) => {
                given.tensors.iter_mut().for_each(|t| t.extent.file = file);
                Ok(given)
            }
            None => gguf::read_unchecked(&path, file),
        })
    }

    /// The headers of all files, as one.
    pub fn read(self) -> Result<(Vec<WeightFile>, Gguf), OpenError> {
        self.check_complete()?;
        let (split, path) = (self.split, self.given.path.clone());
        let parts: Vec<Gguf> = self.parts().collect::<Result<_, _>>()?;
        for part in &parts {
            check_extents(&part.path, &part.tensors, part.size_bytes)?;
        }
        if let Some(split) = &split {
            check_parts(split, &parts)?;
        }
        let files = parts.iter().map(Gguf::weight_file).collect();
        let mut parts = parts.into_iter();
        let Some(mut first) = parts.next() else {
            let found = "none".to_owned();
            return Err(OpenError::NoModel {
                path,
                expected: "a GGUF file",
                found,
                todo: "give the model's path",
            });
        };
        first.tensors.extend(parts.flat_map(|p| p.tensors));
        Ok((files, first))
    }
}

/// All parts must speak of the same series, and no tensor may be in two of them.
fn check_parts(split: &Split, parts: &[Gguf]) -> Result<(), OpenError> {
    let mut place: HashMap<&str, &Path> = HashMap::new();
    for (number, part) in parts.iter().enumerate() {
        let found = Split::of(&part.path, &part.metadata)?;
        if found != Some(Split { number, ..*split }) {
            let words = |s: &Split| {
                let tensors = s.tensors.map_or_else(|| "unknown".to_owned(), |n| n.to_string());
                format!("part {} of {} with {tensors} tensors in all", s.number + 1, s.count)
            };
            let expected = words(&Split { number, ..*split });
            let found = found.map_or_else(|| "a model in one file".to_owned(), |s| words(&s));
            return Err(wrong(&part.path, "split.*", expected, found));
        }
        for t in &part.tensors {
            if let Some(first) = place.insert(&t.name, &part.path) {
                return Err(OpenError::Duplicate {
                    path: first.to_owned(),
                    what: "tensor",
                    name: quote(&t.name),
                    place: format!("in `{}`", quote(&file_name(&part.path))),
                });
            }
        }
    }
    match (split.tensors, parts.first()) {
        (Some(n), Some(first)) if n != place.len() as u64 => {
            let expected = format!("{}, as many as the {} files hold", place.len(), split.count);
            Err(wrong(&first.path, TENSORS, expected, n.to_string()))
        }
        _ => Ok(()),
    }
}
