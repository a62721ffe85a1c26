//! Which routed expert lives in memory.
//!
//! What lives here: the byte budget with its per-layer floors, the slots and their leases, eviction policies, predictors,
//! what is remembered of earlier runs, the counting of hits and misses, and the [`timeline`] that waits, reads and all stages above are
//! recorded on. [`Machine`] is pure and deterministic (events in, commands out), so that a recorded
//! routing trace gives the same hits on any machine; [`ExpertCache`] is the one small driver that executes its commands
//! on a [`calypte_disk::Disk`].
//!
//! What must never live here: file formats (that is `checkpoint`), reading (that is `disk`), arithmetic on weights
//! (that is `kernels`), and any decision that could change an answer: placement decides speed and nothing else.

mod budget;
mod driver;
mod error;
mod machine;
pub mod per_expert;
pub mod policy;
pub mod predict;
mod stats;
pub mod timeline;
mod usage;

pub use budget::{LayerShare, LayerSize, floor_bytes, share, whole_bytes};
pub use driver::{Arrange, ExpertCache, LayerExperts, Lease};
pub use error::ResidencyError;
pub use machine::{AHEAD_SLOTS_MAX, Command, Event, Key, Machine, SlotState};
pub use policy::Evict;
pub use stats::{CacheStats, MachineCounts};
pub use usage::{HALF_LIFE_TOKENS, USES_MAX, Usage};
