//! Memory that the mixers of all layers compute in, one after the other. It keeps its size: asking the system for megabytes in every
//! layer would cost more than their use.

use calypte_kernels::Activations;

/// What a mixer needs between its input and its output; each takes what it has a use for.
#[derive(Default)]
pub(crate) struct MixerScratch {
    /// Queries of all heads; what a short convolution projects its input to.
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    /// Compressed queries, before and after their norm.
    pub low: Vec<f32>,
    pub q_latent: Activations,
    /// Compressed keys and values.
    pub latents: Vec<f32>,
    /// Results of tasks, before they are put in order.
    pub pieces: Vec<f32>,
    /// What goes into the output projection.
    pub mixed: Activations,
}
