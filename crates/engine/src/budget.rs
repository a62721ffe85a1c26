//! How the memory budget is divided, decided before any weight is read and held while running.

use std::sync::Arc;

use calypte_checkpoint::{Catalog, ExpertLayer};
use calypte_disk::{Disk, IoMode};
use calypte_model::{ArrangeExperts, Kv, working_bytes};
use calypte_residency::{Arrange, ExpertCache, LayerExperts, LayerSize};

use crate::learning;
use crate::memory::{Available, available};
use crate::size::human;
use crate::{Options, Size};

/// Program image, tokenizer, thread stacks, allocator: below 40 MiB over all models measured so far (vocabularies up to
/// 49k), rounded up.
pub const PROGRAM_BYTES: u64 = 48 << 20;
/// Share of the available memory that the automatic budget leaves alone, so that the system never has to page.
const RESERVE_SHARE: f64 = 0.1;
/// The automatic budget leaves at least this much.
const RESERVE_BYTES_MIN: u64 = 256 << 20;
/// When a model would not fit otherwise, it leaves only this much.
const RESERVE_BYTES_LEAST: u64 = 64 << 20;
/// Without a figure from the system, assume this much is available rather than everything.
const AVAILABLE_BYTES_UNKNOWN: u64 = 4 << 30;

/// Where every byte of the budget goes.
#[derive(Clone, Debug, PartialEq)]
pub struct Budget {
    /// Weights that stay in memory.
    pub resident_bytes: u64,
    /// Keys and values of `context` positions.
    pub kv_bytes: u64,
    /// Keys and values of one position.
    pub kv_bytes_per_token: u64,
    /// What a step computes in.
    pub working_bytes: u64,
    /// The rest of the program, with the tables of all that learns.
    pub program_bytes: u64,
    /// The expert cache.
    pub expert_bytes: u64,
    /// The least the expert cache can be: top-k slots in every layer.
    pub expert_bytes_floor: u64,
    /// What holds every expert.
    pub expert_bytes_whole: u64,
    /// What an automatic budget leaves to the system; `None` for one that was asked for.
    pub reserve_bytes: Option<u64>,
    /// How the expert part was decided.
    pub reason: String,
}

impl Budget {
    /// Everything but the experts.
    pub fn fixed_bytes(&self) -> u64 {
        self.resident_bytes + self.kv_bytes + self.working_bytes + self.program_bytes
    }

    /// Everything.
    pub fn total_bytes(&self) -> u64 {
        self.fixed_bytes() + self.expert_bytes
    }
}

/// The budget cannot work.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum BudgetError {
    /// Less than one token's experts.
    #[error(
        "the expert cache of {} is below the floor of {} ({floor_bytes} bytes: top-k experts in each of {layers} layers); \
         give --expert-cache at least that, or `min`",
        human(*asked_bytes), human(*floor_bytes)
    )]
    CacheBelowFloor {
        /// What was asked for.
        asked_bytes: u64,
        /// The least that works.
        floor_bytes: u64,
        /// Layers with experts.
        layers: usize,
    },
    /// The whole does not fit.
    #[error(
        "the model needs at least {} ({needed_bytes} bytes: {} resident weights, {} keys and values, {} working memory, {} \
         program, {} experts), but the budget is {} ({from}); give --ram at least that, or a shorter --ctx",
        human(*needed_bytes), human(*resident_bytes), human(*kv_bytes), human(*working_bytes),
        human(*program_bytes), human(*expert_bytes), human(*ram_bytes)
    )]
    RamBelowFloor {
        /// The least that works, or what the chosen cache makes it.
        needed_bytes: u64,
        /// Its parts.
        resident_bytes: u64,
        /// Keys and values.
        kv_bytes: u64,
        /// Working memory.
        working_bytes: u64,
        /// The program.
        program_bytes: u64,
        /// Experts.
        expert_bytes: u64,
        /// What there is.
        ram_bytes: u64,
        /// Where that figure comes from.
        from: String,
    },
}

/// The trunk's mixture layers as the expert cache wants them.
pub fn expert_layers(catalog: &Catalog) -> Vec<LayerExperts> {
    let top_k = catalog.arch.moe.as_ref().map_or(0, |m| m.top_k);
    let layer = |e: &ExpertLayer| LayerExperts {
        extents: e.extents.clone(),
        top_k,
        arrange: ArrangeExperts::of(e).map(|a| Arc::new(a) as Arc<dyn Arrange>),
    };
    catalog.trunk_experts().map(layer).collect()
}

/// Memory for what a policy and a predictor learn, and for what is remembered.
fn tables_bytes(layers: &[LayerExperts], disk: &Disk, options: &Options) -> u64 {
    let sizes: Vec<LayerSize> = layers.iter().map(|layer| layer.size(disk)).collect();
    // Whether anything is remembered or not: a plan shall say what a run does.
    let of_usage = learning::memory_bytes(layers.iter().map(|layer| layer.extents.len()));
    options.policy.memory_bytes(&sizes) + options.predictor.memory_bytes(&sizes) + of_usage
}

/// Divides the budget as `options` ask.
pub fn divide(catalog: &Catalog, disk: &Disk, options: &Options) -> Result<Budget, BudgetError> {
    let layers = expert_layers(catalog);
    let kv_bytes_per_token = Kv::bytes_per_position(&catalog.arch, options.kv(catalog));
    let mut budget = Budget {
        resident_bytes: resident_bytes(catalog, disk),
        kv_bytes: Kv::bytes(&catalog.arch, options.kv(catalog), options.context),
        kv_bytes_per_token,
        working_bytes: working_bytes(
            &catalog.arch,
            options.prefill_chunk.get(),
            options.context,
            options.threads(),
        ) + arranging_bytes(&layers),
        program_bytes: PROGRAM_BYTES + tables_bytes(&layers, disk, options),
        expert_bytes: 0,
        expert_bytes_floor: ExpertCache::floor_bytes(&layers, disk),
        expert_bytes_whole: ExpertCache::whole_bytes(&layers, disk),
        reserve_bytes: None,
        reason: String::new(),
    };
    let (floor, whole) = (budget.expert_bytes_floor, budget.expert_bytes_whole);
    // Decided once: the memory available changes from one reading to the next.
    let (ram_bytes, from) = match (options.ram, options.expert_cache) {
        (Some(size), _) => ram_bytes(size, &budget),
        // A chosen expert part says nothing about the rest, which must fit the machine all the same.
        (None, Some(_)) => everything(),
        (None, None) => {
            let (ram_bytes, reserve_bytes, from) =
                automatic(available_or_guess(), budget.fixed_bytes() + floor);
            budget.reserve_bytes = Some(reserve_bytes);
            (ram_bytes, from)
        }
    };
    (budget.expert_bytes, budget.reason) = match options.expert_cache {
        Some(size) => (cache_bytes(size, floor, whole, layers.len())?, "as asked for".to_string()),
        None => (ram_bytes.saturating_sub(budget.fixed_bytes()).min(whole), from.clone()),
    };
    let experts = budget.expert_bytes.max(floor);
    let needed_bytes = budget.fixed_bytes() + experts;
    if needed_bytes > ram_bytes {
        return Err(BudgetError::RamBelowFloor {
            needed_bytes,
            resident_bytes: budget.resident_bytes,
            kv_bytes: budget.kv_bytes,
            working_bytes: budget.working_bytes,
            program_bytes: budget.program_bytes,
            expert_bytes: experts,
            ram_bytes,
            from,
        });
    }
    Ok(budget)
}

/// Where an expert is put together that is not stored as the arithmetic reads it: room for the largest one.
fn arranging_bytes(layers: &[LayerExperts]) -> u64 {
    let bytes = |l: &LayerExperts| l.arrange.as_ref().map_or(0, |a| a.matrix_bytes().iter().sum());
    layers.iter().map(bytes).max().unwrap_or(0) as u64
}

/// A resident weight lives in the aligned buffer that it was read into. In memory mode the files are there as well.
fn resident_bytes(catalog: &Catalog, disk: &Disk) -> u64 {
    let weights = calypte_model::resident_bytes(catalog, |extent| disk.buffer_bytes(&[extent]) as u64);
    let files = catalog.files.iter().map(|f| f.size_bytes);
    if disk.mode() == IoMode::Memory { weights + files.sum::<u64>() } else { weights }
}

fn cache_bytes(size: Size, floor: u64, whole: u64, layers: usize) -> Result<u64, BudgetError> {
    let asked_bytes = match size {
        Size::Bytes(bytes) => bytes.min(whole),
        Size::Percent(p) => (whole as f64 * p / 100.0) as u64,
        Size::All => whole,
        Size::Min => floor,
    };
    if asked_bytes < floor {
        return Err(BudgetError::CacheBelowFloor { asked_bytes, floor_bytes: floor, layers });
    }
    Ok(asked_bytes)
}

fn ram_bytes(size: Size, budget: &Budget) -> (u64, String) {
    match size {
        Size::Bytes(bytes) => (bytes, "--ram".to_string()),
        Size::Percent(p) => {
            let Available { bytes, binding } = available_or_guess();
            (
                (bytes as f64 * p / 100.0) as u64,
                format!("--ram, {p}% of the memory available to this {binding}"),
            )
        }
        Size::All => (budget.fixed_bytes() + budget.expert_bytes_whole, "--ram all".to_string()),
        Size::Min => (budget.fixed_bytes() + budget.expert_bytes_floor, "--ram min".to_string()),
    }
}

fn available_or_guess() -> Available {
    available().unwrap_or(Available { bytes: AVAILABLE_BYTES_UNKNOWN, binding: "machine" })
}

fn everything() -> (u64, String) {
    let Available { bytes, binding } = available_or_guess();
    (bytes, format!("all memory available to this {binding}"))
}

/// What a model that needs at least `needed_bytes` may take, what is left, and why.
fn automatic(available: Available, needed_bytes: u64) -> (u64, u64, String) {
    let Available { bytes, binding } = available;
    let wanted = ((bytes as f64 * RESERVE_SHARE) as u64).max(RESERVE_BYTES_MIN);
    // Rather little left than a model that does not run.
    let reserve = wanted.min(bytes.saturating_sub(needed_bytes)).max(RESERVE_BYTES_LEAST.min(wanted));
    let reason = format!("memory available to this {binding}, less a reserve of {}", human(reserve));
    (bytes.saturating_sub(reserve), reserve, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_automatic_budget_leaves_a_reserve() {
        const MIB: u64 = 1 << 20;
        for (available, needed, ram, reserve) in [
            (10_000, 2_000, 9_000, 1_000),
            (2_000, 1_000, 1_744, 256),
            // Just as much as it needs, down to the least.
            (2_000, 1_900, 1_900, 100),
            (2_000, 1_950, 1_936, 64),
            (2_000, 3_000, 1_936, 64),
            (10, 3_000, 0, 64),
        ] {
            let available = Available { bytes: available * MIB, binding: "machine" };
            let (ram_bytes, reserve_bytes, reason) = automatic(available, needed * MIB);
            assert_eq!((ram_bytes / MIB, reserve_bytes / MIB), (ram, reserve), "{available:?} {needed}");
            assert!(reason.contains("this machine"), "{reason}");
        }
    }
}
