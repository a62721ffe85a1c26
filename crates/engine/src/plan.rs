//! The plan: what would run, where every byte would be, and how fast, before any weight is read.

use std::time::Duration;

use calypte_checkpoint::{Catalog, Parameters};
use calypte_disk::Disk;
use calypte_kernels::{Activations, Isa, Precision, Team, matmul};
use calypte_quant::{DType, Matrix};
use calypte_residency::LayerShare;

use crate::budget::{Budget, BudgetError, divide, expert_layers};
use crate::disk::Reads;
use crate::stopwatch::Stopwatch;
use crate::{EngineError, Options};

pub use crate::disk::{DiskFigure, Probe};

/// Time given to the compute probe.
const COMPUTE_PROBE: Duration = Duration::from_millis(200);
/// Bytes of synthetic weights for the compute probe: beyond a private cache, small enough to make at once.
const COMPUTE_PROBE_BYTES: usize = 16 << 20;

/// What a model would do on this machine under given options.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Parameters by kind.
    pub parameters: Parameters,
    /// Where memory goes.
    pub budget: Budget,
    /// Set when the budget cannot work; then `budget` is what the least would be.
    pub refusal: Option<String>,
    /// What each mixture layer gets.
    pub shares: Vec<LayerShare>,
    /// Bytes of one expert, smallest and largest over the layers.
    pub expert_bytes: (u64, u64),
    /// Bytes that a token reads when nothing is cached: layers × k × expert bytes.
    pub cold_read_bytes: u64,
    /// Weight bytes that a token computes with.
    pub active_bytes: u64,
    /// The disk, measured with the engine's own reads of this model's files or of others like them on the same device.
    pub disk: Option<DiskFigure>,
    /// The instruction set that the kernels run on.
    pub isa: Isa,
    /// Weight bytes per second that the kernels get through when they are in memory.
    pub compute_bytes_per_s: f64,
    /// Prediction with an empty cache.
    pub cold: Prediction,
    /// Prediction once the cache is full, if routing were even (real routing is not, so this is a lower bound).
    pub warm: Prediction,
}

/// A predicted speed and what limits it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Tokens per second.
    pub tok_s: f64,
    /// `compute` or `disk`.
    pub binds: &'static str,
}

/// Makes the plan for a model whose headers were read. Reads experts when the disk is to be measured.
pub fn plan(catalog: &Catalog, options: &Options, probe: Probe) -> Result<Plan, EngineError> {
    let isa = Isa::from_env()?;
    let (measured, disk) = Reads::new(catalog).measured(options, probe)?;
    let layers = expert_layers(catalog);
    let (budget, refusal) = match divide(catalog, &disk, options) {
        Ok(budget) => (budget, None),
        Err(error) => (least(catalog, &disk, options)?, Some(error.to_string())),
    };
    let sizes: Vec<_> = layers.iter().map(|l| l.size(&disk)).collect();
    let shares = calypte_residency::share(&sizes, budget.expert_bytes)?;
    let of_expert: Vec<u64> = catalog.trunk_experts().map(|e| e.expert_bytes()).collect();
    let top_k = catalog.arch.moe.as_ref().map_or(0, |m| m.top_k as u64);
    let cold_read_bytes = of_expert.iter().sum::<u64>() * top_k;
    let resident: u64 = calypte_model::resident_extents(catalog).map(|e| e.len).sum();
    let embedding = catalog.get(None, calypte_checkpoint::Role::TokenEmbedding).map_or(0, |t| t.extent.len);
    // A token looks up one row of the embedding; the matrix is only multiplied when it is the output too.
    let active_bytes = resident - if catalog.arch.tied_embeddings { 0 } else { embedding } + cold_read_bytes;
    let compute_bytes_per_s =
        measure_compute(&Team::new(options.threads()), dominant(catalog), options.precision);
    let share = |missed: f64| {
        let disk_s = match &measured {
            Some(d) if d.bytes_per_s > 0.0 => cold_read_bytes as f64 * missed / d.bytes_per_s,
            _ => 0.0,
        };
        let compute_s = active_bytes as f64 / compute_bytes_per_s;
        // Reads run under the computation, so the longer of the two is what a token takes.
        Prediction {
            tok_s: 1.0 / disk_s.max(compute_s),
            binds: if disk_s > compute_s { "disk" } else { "compute" },
        }
    };
    let missed = match budget.expert_bytes_whole {
        0 => 0.0,
        whole => 1.0 - budget.expert_bytes as f64 / whole as f64,
    };
    let plan = Plan {
        parameters: catalog.parameters(),
        refusal,
        shares,
        expert_bytes: (
            of_expert.iter().min().copied().unwrap_or(0),
            of_expert.iter().max().copied().unwrap_or(0),
        ),
        cold_read_bytes,
        active_bytes,
        isa,
        compute_bytes_per_s,
        cold: share(1.0),
        warm: share(missed),
        disk: measured,
        budget,
    };
    Ok(plan)
}

/// The smallest budget that works, for a plan that says why the asked one does not.
fn least(catalog: &Catalog, disk: &Disk, options: &Options) -> Result<Budget, BudgetError> {
    let least = Options { ram: None, expert_cache: Some(crate::Size::Min), ..options.clone() };
    divide(catalog, disk, &least)
}

/// The type of most of the weights.
fn dominant(catalog: &Catalog) -> DType {
    let mut bytes = std::collections::BTreeMap::<DType, u64>::new();
    for e in &catalog.experts {
        *bytes.entry(e.gate.dtype).or_default() += e.expert_bytes();
    }
    if bytes.is_empty() {
        catalog.tensors.values().for_each(|t| *bytes.entry(t.dtype).or_default() += t.extent.len);
    }
    bytes.into_iter().max_by_key(|(_, n)| *n).map_or(DType::F32, |(d, _)| d)
}

/// Times the engine's own matrix-vector product over synthetic weights.
fn measure_compute(team: &Team, dtype: DType, precision: Precision) -> f64 {
    const COLS: usize = 2048;
    let row_bytes = dtype.row_bytes(COLS).unwrap_or(COLS * 4);
    let rows = COMPUTE_PROBE_BYTES / row_bytes;
    let bytes = vec![0x11u8; rows * row_bytes];
    let w = Matrix { dtype, rows, cols: COLS, bytes: &bytes };
    let mut x = Activations::new();
    x.fill(1, COLS).iter_mut().enumerate().for_each(|(i, v)| *v = (i % 17) as f32 - 8.0);
    let mut out = vec![0f32; rows];
    matmul(team, precision, &w, &mut x, &mut out);
    let (start, mut runs) = (Stopwatch::start(), 0u32);
    // At least once; without a clock that is all, and the rate comes out infinite: unknown.
    while runs == 0 || (!start.elapsed().is_zero() && start.elapsed() < COMPUTE_PROBE) {
        matmul(team, precision, &w, &mut x, &mut out);
        runs += 1;
    }
    runs as f64 * bytes.len() as f64 / start.elapsed().as_secs_f64()
}
