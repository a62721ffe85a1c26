//! Everything that can go wrong when an expert is asked for.

use calypte_disk::DiskError;

/// Why an expert cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResidencyError {
    /// The budget cannot hold one token's experts of every layer.
    #[error(
        "the expert budget of {budget_bytes} bytes is below the floor of {floor_bytes} bytes (one token's experts in \
         every layer): raise the budget by at least {} bytes",
        .floor_bytes.saturating_sub(*.budget_bytes)
    )]
    BelowFloor {
        /// What was given.
        budget_bytes: u64,
        /// The least that works.
        floor_bytes: u64,
    },
    /// A step asked for an expert that the model does not have.
    #[error(
        "expert {expert} of MoE layer {layer} was asked for, but the model has {layers} MoE layers and this one has \
         {experts} experts: the router's output is damaged"
    )]
    UnknownExpert {
        /// MoE layer that was asked for.
        layer: usize,
        /// Expert that was asked for.
        expert: u32,
        /// MoE layers there are.
        layers: usize,
        /// Experts this layer has; 0 when there is no such layer.
        experts: usize,
    },
    /// The weights of an expert could not be read. The step is not usable: abort it.
    #[error("expert {expert} of MoE layer {layer} could not be read: {source}")]
    Read {
        /// MoE layer, counted from 0 over the layers that have experts.
        layer: usize,
        /// Expert in that layer.
        expert: u32,
        /// What the disk said: file, offset, expected, found and remedy.
        source: DiskError,
    },
    /// What was read for an expert cannot be put together to its matrices. The step is not usable: abort it.
    #[error(
        "expert {expert} of MoE layer {layer} cannot be put together from what was read: {message}; the checkpoint is not laid out as its configuration says"
    )]
    Arrange {
        /// MoE layer, counted from 0 over the layers that have experts.
        layer: usize,
        /// Expert in that layer.
        expert: u32,
        /// What does not fit.
        message: String,
    },
    /// The system refused memory that the budget allows. The step is not usable: abort it.
    #[error(
        "no memory for expert {expert} of MoE layer {layer}: the system refused {bytes} bytes that the expert budget \
         allows: lower the budget or free memory"
    )]
    NoMemory {
        /// MoE layer, counted from 0 over the layers that have experts.
        layer: usize,
        /// Expert in that layer.
        expert: u32,
        /// Size of the buffer, in bytes.
        bytes: u64,
    },
    /// A read of this step failed earlier, and the step was not aborted since.
    #[error("a read of this step of MoE layer {layer} failed before: abort the step, then begin it again")]
    StepFailed {
        /// MoE layer of the step.
        layer: usize,
    },
    /// The caller holds leases on every slot that the rest of the step could use.
    #[error(
        "{pending} experts of MoE layer {layer} wait for a slot while every slot they may use is leased: release \
         leases before asking for more"
    )]
    AllLeased {
        /// MoE layer of the step.
        layer: usize,
        /// Experts of the step that were not handed out.
        pending: usize,
    },
}
