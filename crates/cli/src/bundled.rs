//! Where the bundled model is.

use std::path::{Path, PathBuf};

use crate::exit::Failure;

/// Environment variable with the directory that holds the models.
const MODELS_ENV: &str = "CALYPTE_MODELS";
/// The bundled model inside a directory of models.
const FILE: &str = "anna/anna-q8_0.gguf";
/// The models of the source tree that this program was built from.
const SOURCE_MODELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models");

/// The model that was asked for, else the bundled one.
pub fn or_bundled(model: Option<&Path>) -> Result<PathBuf, Failure> {
    match model {
        Some(path) => Ok(path.to_owned()),
        None => find(&directories()),
    }
}

fn find(directories: &[PathBuf]) -> Result<PathBuf, Failure> {
    let candidates: Vec<PathBuf> = directories.iter().map(|d| d.join(FILE)).collect();
    if let Some(found) = candidates.iter().find(|p| p.is_file()) {
        // Without the detours of the search, for messages.
        return Ok(found.canonicalize().unwrap_or_else(|_| found.clone()));
    }
    let looked: Vec<String> = candidates.iter().map(|p| format!("\n  {}", p.display())).collect();
    Err(Failure::Open(format!(
        "the bundled model was not found; looked for{}\nname a model (a GGUF file or a Hugging Face directory), or set \
         {MODELS_ENV} to the directory that holds {FILE}",
        looked.concat()
    )))
}

/// Where models may be. A directory that was named is the only one: another model in its place would be a surprise.
fn directories() -> Vec<PathBuf> {
    if let Some(named) = std::env::var_os(MODELS_ENV).filter(|v| !v.is_empty()) {
        return vec![PathBuf::from(named)];
    }
    let mut out = Vec::new();
    let program = std::env::current_exe().ok();
    if let Some(beside) = program.as_deref().and_then(Path::parent) {
        out.push(beside.join("../share/calypte/models"));
        out.push(beside.join("models"));
    }
    out.push(PathBuf::from(SOURCE_MODELS));
    out.push(PathBuf::from("models"));
    out
}
