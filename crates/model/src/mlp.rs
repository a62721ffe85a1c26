//! The gated MLP: `down(act(gate x) · up x)` (arXiv 2002.05202).

use calypte_checkpoint::Role;
use calypte_checkpoint::arch::Activation;
use calypte_kernels::matmul::{matmul_gated, matmul_serial};
use calypte_kernels::scratch::grow;
use calypte_kernels::{Activations, Precision, Team, ops};
use calypte_quant::Matrix;

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

/// Gate and up, and what is added to their results.
pub(crate) struct Pair<'a> {
    pub matrices: [Matrix<'a>; 2],
    pub biases: [Option<&'a [f32]>; 2],
    pub activation: Activation,
}

impl Pair<'_> {
    /// `gate = act(gate x) · up x`, `[x.rows, rows of a matrix]`, with the help of a team or, inside one of its tasks, without; `up` is room
    /// for the second product. Without a team `x` must be rounded already if a matrix asks for it.
    pub fn apply(
        &self,
        team: Option<&Team>,
        precision: Precision,
        x: &mut Activations,
        gate: &mut Activations,
        up: &mut Vec<f32>,
    ) {
        let [gates, ups] = &self.matrices;
        let gate = gate.fill(x.rows(), gates.rows);
        grow(up, gate.len());
        let up = &mut up[..gate.len()];
        let finish = |first: usize, gate: &mut [f32], up: &mut [f32]| {
            let [gate_bias, up_bias] = self.biases.map(|bias| bias.map(|b| &b[first..first + gate.len()]));
            if let Some(bias) = gate_bias {
                ops::add_to_rows(gate, bias);
            }
            if let Some(bias) = up_bias {
                ops::add_to_rows(up, bias);
            }
            activate(self.activation, gate, up);
        };
        let Some(team) = team else {
            matmul_serial(precision, gates, x, gate);
            matmul_serial(precision, ups, x, up);
            let rows = gate.chunks_exact_mut(gates.rows.max(1)).zip(up.chunks_exact_mut(gates.rows.max(1)));
            return rows.for_each(|(gate, up)| finish(0, gate, up));
        };
        matmul_gated(team, precision, [gates, ups], x, gate, up, finish);
    }
}

/// `gate = act(gate) · up`.
fn activate(activation: Activation, gate: &mut [f32], up: &[f32]) {
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
        let pair = Pair {
            matrices: [self.gate.matrix(), self.up.matrix()],
            biases: [self.gate.bias(), self.up.bias()],
            activation: self.activation,
        };
        pair.apply(Some(compute.team), compute.precision, x, &mut scratch.inner, &mut scratch.up);
        self.down.apply(compute, &mut scratch.inner, out);
    }
}
