//! How an engine is set up. None of these options changes a bit of the output, except `precision`
//! and `kv`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use calypte_checkpoint::Catalog;
use calypte_disk::IoMode;
use calypte_kernels::Precision;
use calypte_kernels::attention::KvType;

use crate::{Policy, Predictor, Size, cores::compute_threads};

/// Rows of a prefill step unless the caller chooses: enough that each expert is read once for many tokens, small enough
/// that the working memory stays modest.
pub const PREFILL_CHUNK_DEFAULT: usize = 512;

/// Set-up of an [`crate::Engine`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Compute threads; `None`: one per physical core that this process may use.
    pub threads: Option<NonZeroUsize>,
    /// How bytes are read; `None`: the best that works.
    pub io: Option<IoMode>,
    /// File in which measured disks are remembered: it is read when a model is opened, and written by the plan. `None`: nothing
    /// is remembered.
    pub disk_profiles: Option<PathBuf>,
    /// The whole budget: weights, keys and values, working memory and experts. A percentage is of the memory available.
    pub ram: Option<Size>,
    /// The expert part alone. A percentage is of the bytes of all experts.
    pub expert_cache: Option<Size>,
    /// Positions to make room for.
    pub context: usize,
    /// Rows of a prefill step.
    pub prefill_chunk: NonZeroUsize,
    /// What integer weights are multiplied with.
    pub precision: Precision,
    /// What keys and values are kept as; `None`: see [`Options::kv`].
    pub kv: Option<KvType>,
    /// Which experts lose their slots.
    pub policy: Policy,
    /// Who guesses the experts of later layers.
    pub predictor: Predictor,
    /// Whether experts are read on guesses; otherwise these only keep residents.
    pub prefetch: bool,
    /// Where is kept which experts of a model were used, from one run to the next; `None`: nothing is remembered, neither read nor
    /// written. The file is named after the model's fingerprint and is written when the engine is dropped, and now and then before.
    pub usage_directory: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            threads: None,
            io: None,
            disk_profiles: None,
            ram: None,
            expert_cache: None,
            context: 4096,
            prefill_chunk: NonZeroUsize::new(PREFILL_CHUNK_DEFAULT).unwrap_or(NonZeroUsize::MIN),
            precision: Precision::Int8,
            kv: None,
            policy: Policy::default(),
            predictor: Predictor::default(),
            prefetch: true,
            usage_directory: None,
        }
    }
}

impl Options {
    /// Compute threads: as asked for, else one per physical core that the affinity mask and the cgroup's quota allow.
    pub fn threads(&self) -> usize {
        self.threads.map_or_else(compute_threads, NonZeroUsize::get)
    }

    /// What keys and values of a model are kept as: as asked for, else f16 where activations are rounded too, that is for integer
    /// weights unless `precision` says otherwise, and f32 for a model in floats.
    pub fn kv(&self, catalog: &Catalog) -> KvType {
        let rounded = self.precision == Precision::Int8 && catalog.has_integer_weights();
        self.kv.unwrap_or(if rounded { KvType::F16 } else { KvType::F32 })
    }
}
