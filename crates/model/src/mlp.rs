//! The gated MLP: `down(act(gate x) · up x)` (arXiv 2002.05202).

use calypte_checkpoint::Role;
use calypte_checkpoint::arch::Activation;
use calypte_kernels::{Activations, ops};

use crate::weights::{Linear, Loader};
use crate::{Compute, ModelError};

/// A resident MLP.
pub(crate) struct Mlp {
    gate: Linear,
    up: Linear,
    down: Linear,
    activation: Activation,
}

/// Memory that MLPs, resident or streamed, compute in.
#[derive(Default)]
pub(crate) struct MlpScratch {
    pub inner: Activations,
    pub up: Vec<f32>,
}

/// `gate = act(gate) · up`.
pub(crate) fn activate(activation: Activation, gate: &mut [f32], up: &[f32]) {
    match activation {
        Activation::SwiGlu => ops::swiglu(gate, up),
        Activation::GeGluTanh => ops::geglu_tanh(gate, up),
        Activation::SwiGluClamped { alpha, limit } => ops::swiglu_clamped(gate, up, alpha, limit),
    }
}

impl Mlp {
    /// `roles` are those of the matrices, `biases` those of their biases.
    pub fn load(
        loader: &mut Loader<'_>,
        layer: usize,
        roles: [Role; 3],
        biases: Option<[Role; 3]>,
        activation: Activation,
    ) -> Result<Mlp, ModelError> {
        let mut linear = |i: usize| loader.linear(Some(layer), roles[i], biases.map(|b| b[i]));
        Ok(Mlp { gate: linear(0)?, up: linear(1)?, down: linear(2)?, activation })
    }

    /// `out = mlp(x)`, `[x.rows, hidden]`.
    pub fn forward(
        &self,
        compute: &Compute<'_>,
        x: &mut Activations,
        scratch: &mut MlpScratch,
        out: &mut Vec<f32>,
    ) {
        let inner = self.gate.apply_into(compute, x, &mut scratch.inner);
        self.up.apply(compute, x, &mut scratch.up);
        let (up, width) = (&scratch.up, inner.len() / x.rows().max(1));
        compute.rows(inner, width, |row, gate| {
            activate(self.activation, gate, &up[row * width..(row + 1) * width]);
        });
        self.down.apply(compute, &mut scratch.inner, out);
    }
}
