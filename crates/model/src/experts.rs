//! The arithmetic of routed experts: each once for all rows that chose it, several side by side when they are there.

use std::cell::RefCell;

use calypte_checkpoint::ExpertMatrix;
use calypte_checkpoint::arch::Activation;
use calypte_kernels::matmul::matmul_serial;
use calypte_kernels::scratch::grow;
use calypte_kernels::{Activations, Precision, Team, matmul, ops};
use calypte_quant::Matrix;
use calypte_residency::Lease;

use crate::Compute;
use crate::mlp::activate;

/// From so many experts per thread on, every expert is one task: nothing has to be waited for in between, and the threads
/// are never idle for longer than one expert takes.
const TOGETHER_PER_THREAD_MIN: usize = 2;

/// What all experts of a layer have in common.
pub(crate) struct Experts {
    /// Gate, up and down.
    pub matrices: [ExpertMatrix; 3],
    /// Of gate, up and down: `[experts, rows of the matrix]`.
    pub biases: Option<[Vec<f32>; 3]>,
    pub activation: Activation,
}

/// One expert at work.
pub(crate) struct Job<'a> {
    pub lease: &'a Lease,
    /// The rows that chose it.
    pub rows: &'a [u32],
    /// Its results, `[rows, hidden]`.
    pub out: &'a mut [f32],
}

/// What an expert computes in.
#[derive(Default)]
struct Scratch {
    input: Activations,
    inner: Activations,
    up: Vec<f32>,
}

thread_local! {
    /// Kept per thread so that a steady state allocates nothing.
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

impl Experts {
    /// Whether any of the matrices wants rounded activations.
    pub fn is_integer(&self) -> bool {
        self.matrices.iter().any(|m| m.dtype.is_integer())
    }

    /// Computes experts for their rows of `x`, which is rounded already if they need that.
    pub fn forward(&self, compute: &Compute<'_>, x: &Activations, jobs: &mut [Job<'_>]) {
        let (team, precision) = (compute.team, compute.precision);
        let one = |team, job: &mut Job<'_>| SCRATCH.with_borrow_mut(|s| self.one(team, precision, x, job, s));
        if jobs.len() >= team.threads() * TOGETHER_PER_THREAD_MIN {
            team.run_pieces(jobs, 1, |_, job| job.iter_mut().for_each(|job| one(None, job)));
        } else {
            jobs.iter_mut().for_each(|job| one(Some(team), job));
        }
    }

    /// One expert, with the help of the team or, inside a task, without.
    fn one(
        &self,
        team: Option<&Team>,
        precision: Precision,
        x: &Activations,
        job: &mut Job<'_>,
        scratch: &mut Scratch,
    ) {
        let Scratch { input, inner, up } = scratch;
        let [gate_matrix, up_matrix, down_matrix] = self.matrices;
        let (n, width) = (job.rows.len(), gate_matrix.rows);
        let rows = job.rows.iter().map(|row| *row as usize);
        let all_rounded =
            precision == Precision::Int8 && gate_matrix.dtype.is_integer() && up_matrix.dtype.is_integer();
        match all_rounded {
            true => input.gather_rounded(x, rows),
            false => input.gather(x, rows),
        }
        let gate = inner.fill(n, width);
        self.product(team, precision, 0, job.lease, input, gate);
        grow(up, n * up_matrix.rows);
        let up = &mut up[..n * up_matrix.rows];
        self.product(team, precision, 1, job.lease, input, up);
        activate(self.activation, gate, up);
        if down_matrix.dtype.is_integer() && precision == Precision::Int8 && team.is_none() {
            inner.quantize_serial();
        }
        self.product(team, precision, 2, job.lease, inner, job.out);
    }

    /// `out = matrix(x) + bias` of gate (0), up (1) or down (2).
    fn product(
        &self,
        team: Option<&Team>,
        precision: Precision,
        part: usize,
        lease: &Lease,
        x: &mut Activations,
        out: &mut [f32],
    ) {
        let ExpertMatrix { dtype, rows, cols } = self.matrices[part];
        let bytes = [lease.gate(), lease.up(), lease.down()][part];
        let matrix = Matrix { dtype, rows, cols, bytes };
        match team {
            Some(team) => matmul(team, precision, &matrix, x, out),
            None => matmul_serial(precision, &matrix, x, out),
        }
        if let Some(biases) = &self.biases {
            let start = lease.expert as usize * rows;
            ops::add_to_rows(out, &biases[part][start..start + rows]);
        }
    }
}
