//! The gated MLP: `down(silu(gate x) · up x)` (SwiGLU, arXiv 2002.05202).

use calypte_checkpoint::Role;
use calypte_kernels::{Activations, ops};

use crate::weights::{Loader, Weight};
use crate::{Compute, ModelError};

/// A resident MLP.
pub(crate) struct Mlp {
    gate: Weight,
    up: Weight,
    down: Weight,
}

/// Memory that MLPs, resident or streamed, compute in.
#[derive(Default)]
pub(crate) struct MlpScratch {
    pub inner: Activations,
    pub up: Vec<f32>,
}

impl Mlp {
    pub fn load(loader: &mut Loader<'_>, layer: usize, roles: [Role; 3]) -> Result<Mlp, ModelError> {
        let [gate, up, down] = roles;
        Ok(Mlp {
            gate: loader.matrix(Some(layer), gate)?,
            up: loader.matrix(Some(layer), up)?,
            down: loader.matrix(Some(layer), down)?,
        })
    }

    /// `out = mlp(x)`, `[x.rows, hidden]`.
    pub fn forward(
        &self,
        compute: &Compute<'_>,
        x: &mut Activations,
        scratch: &mut MlpScratch,
        out: &mut Vec<f32>,
    ) {
        self.gate.apply_into(compute, x, &mut scratch.inner);
        self.up.apply(compute, x, &mut scratch.up);
        let rows = x.rows();
        ops::swiglu(scratch.inner.fill(rows, self.gate.rows()), &scratch.up);
        self.down.apply(compute, &mut scratch.inner, out);
    }
}
