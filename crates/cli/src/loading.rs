//! From a path to an engine that is ready.

use std::path::Path;

use calypte_engine::checkpoint::{self, Catalog};
use calypte_engine::{Engine, Options};

use crate::bundled::or_bundled;
use crate::exit::Failure;
use crate::progress::Progress;

/// Positions that a conversation or a plan makes room for.
const CONTEXT_DEFAULT: usize = 4096;

/// Reads the headers of `model`, or of the bundled one.
pub fn headers(model: Option<&Path>) -> Result<Catalog, Failure> {
    checkpoint::open(&or_bundled(model)?).map_err(|e| Failure::Engine(e.into()))
}

/// Makes a model whose headers were read ready to answer.
pub fn load(catalog: Catalog, options: &Options, progress: &mut Progress) -> Result<Engine, Failure> {
    let outcome = Engine::from_catalog(catalog, options, progress);
    progress.clear();
    let engine = outcome?;
    tracing::info!(
        path = %engine.catalog().source.display(),
        threads = options.threads(),
        isa = engine.isa().name(),
        io = %engine.io(),
        io_fallback = engine.io_fallback_reason(),
        budget_bytes = engine.budget().total_bytes(),
        expert_bytes = engine.budget().expert_bytes,
        "model open"
    );
    Ok(engine)
}

/// Positions to make room for when nobody says how many: no more than the model was made for.
pub fn context_default(catalog: &Catalog) -> usize {
    match catalog.arch.context_max {
        0 => CONTEXT_DEFAULT,
        made_for => made_for.min(CONTEXT_DEFAULT),
    }
}
