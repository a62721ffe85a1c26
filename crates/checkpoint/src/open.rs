//! The way in: from a path to a [`Catalog`].

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::catalog::Catalog;
use crate::error::{OpenError, list};
use crate::{gguf, gguf_catalog, hf};

/// What a directory listing may hold before it is no model directory any more.
const DIR_ENTRIES_MAX: usize = 100_000;

const EXPECTED: &str = "a .gguf file, or a directory with config.json and safetensors";

/// Reads the headers of the model at `path`: a GGUF file, a Hugging Face directory (`config.json` and safetensors,
/// sharded or not), or a directory that holds exactly one GGUF file. No weight is read.
///
/// # Errors
/// See [`OpenError`]; every message names the file and what to do.
pub fn open(path: &Path) -> Result<Catalog, OpenError> {
    let metadata = fs::metadata(path).map_err(OpenError::io(path))?;
    if metadata.is_dir() {
        return open_directory(path);
    }
    // Reading a pipe or a device could block for ever.
    if !metadata.is_file() {
        return Err(no_model(
            path,
            "neither a file nor a directory".to_owned(),
            "give the path of the model",
        ));
    }
    if has_extension(path, "gguf") || starts_like_gguf(path)? {
        return gguf_catalog::open(path);
    }
    Err(no_model(
        path,
        "another kind of file".to_owned(),
        "for safetensors, give the directory that holds config.json",
    ))
}

fn open_directory(dir: &Path) -> Result<Catalog, OpenError> {
    let names = file_names(dir)?;
    let with =
        |extension: &str| names.iter().filter(|n| has_extension(Path::new(n), extension)).collect::<Vec<_>>();
    let (ggufs, safetensors) = (with("gguf"), with("safetensors"));
    let has_config = names.iter().any(|n| n == hf::CONFIG);
    if has_config && (!safetensors.is_empty() || names.iter().any(|n| n == hf::INDEX)) {
        return hf::open(dir, &names);
    }
    match ggufs.as_slice() {
        [one] => gguf_catalog::open(&dir.join(one)),
        [] if !safetensors.is_empty() => {
            let found = "safetensors without config.json".to_owned();
            Err(no_model(dir, found, "fetch config.json from where the weights came from"))
        }
        [] if has_config => {
            let found = "config.json without any .safetensors file".to_owned();
            Err(no_model(dir, found, "fetch the weights as safetensors (PyTorch .bin files are not read)"))
        }
        [] => Err(no_model(dir, "neither".to_owned(), "give the path of the model")),
        several => {
            let found = format!("several GGUF files: {}", list(several.iter().map(|n| n.as_str())));
            Err(no_model(dir, found, "give the path of one of them"))
        }
    }
}

/// Names of the files in a directory, sorted. Names that are no Unicode cannot be those of a model.
fn file_names(dir: &Path) -> Result<Vec<String>, OpenError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(OpenError::io(dir))?.take(DIR_ENTRIES_MAX) {
        let entry = entry.map_err(OpenError::io(dir))?;
        if let Ok(name) = entry.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn no_model(path: &Path, found: String, todo: &'static str) -> OpenError {
    OpenError::NoModel { path: PathBuf::from(path), expected: EXPECTED, found, todo }
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case(extension))
}

fn starts_like_gguf(path: &Path) -> Result<bool, OpenError> {
    let file = fs::File::open(path).map_err(OpenError::io(path))?;
    let mut start = Vec::new();
    file.take(gguf::MAGIC.len() as u64).read_to_end(&mut start).map_err(OpenError::io(path))?;
    Ok(start == gguf::MAGIC)
}
