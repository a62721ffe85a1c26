//! From a path to an engine that is ready.

use std::path::Path;

use calypte_engine::{Engine, Options, checkpoint};

use crate::bundled::or_bundled;
use crate::exit::Failure;
use crate::progress::Progress;

/// Positions that a conversation or a plan makes room for.
const CONTEXT_DEFAULT: usize = 4096;

/// Opens `model`, or the bundled one.
pub fn load(model: Option<&Path>, options: &Options, progress: &mut Progress) -> Result<Engine, Failure> {
    let path = or_bundled(model)?;
    let outcome = Engine::open(&path, options, progress);
    progress.clear();
    let engine = outcome?;
    tracing::info!(
        path = %path.display(),
        threads = options.threads(),
        io = %engine.io(),
        io_fallback = engine.io_fallback_reason(),
        budget_bytes = engine.budget().total_bytes(),
        expert_bytes = engine.budget().expert_bytes,
        "model open"
    );
    Ok(engine)
}

/// Positions to make room for when nobody says how many: no more than the model was made for.
pub fn context_default(path: &Path) -> Result<usize, Failure> {
    let catalog = checkpoint::open(path).map_err(|e| Failure::Engine(e.into()))?;
    Ok(match catalog.arch.context_max {
        0 => CONTEXT_DEFAULT,
        made_for => made_for.min(CONTEXT_DEFAULT),
    })
}
