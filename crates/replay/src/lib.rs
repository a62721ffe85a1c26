//! Recorded routing, and what a cache of experts would have made of it.
//!
//! What lives here: the [`Trace`] of a run (which experts every token was sent to) with its file format, the import of traces
//! that others publish, and [`replay()`]: the trace goes through the same [`calypte_residency::Machine`] that the engine uses,
//! under any policy, predictor and number of slots, with a model of disk and compute in place of the real ones. The
//! clairvoyant policies are here too, since only a replay knows the future.
//!
//! What must never live here: weights, models, the terminal, and policies or predictors that could run in the engine (those
//! are in `residency`).

mod belady;
mod draft;
mod error;
mod format;
mod npz;
mod recorder;
mod replay;
mod timing;
mod trace;
mod watch;

pub use belady::{Belady, Uses, bypass_hits};
pub use draft::{DRAFT_DEFAULT, DRAFT_WINDOW_MAX, Draft, DraftTokens};
pub use error::TraceError;
pub use recorder::Recorder;
pub use replay::{
    CLAIRVOYANT, GuessCounts, Memory, Outcome, RECORDED, ReplayError, SIMULATED, Setting, check, replay,
    replay_watched,
};
pub use timing::Timing;
pub use trace::{Expected, PREDICTOR_BYTES_MAX, Step, Trace, TraceLayer};
pub use watch::{Log, Watched, What};
