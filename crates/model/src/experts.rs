//! The arithmetic of routed experts: each once for all rows that chose it, several side by side when they are there.

use std::cell::RefCell;

use calypte_checkpoint::ExpertMatrix;
use calypte_checkpoint::arch::Activation;
use calypte_kernels::matmul::matmul_serial;
use calypte_kernels::{Activations, Precision, Team, matmul, ops};
use calypte_quant::Matrix;
use calypte_residency::Lease;

use crate::Compute;
use crate::mlp::Pair;

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
        let [gates, ups, downs] = self.of(job.lease);
        let [gate_bias, up_bias, down_bias] = self.biases_of(job.lease);
        let rows = job.rows.iter().map(|row| *row as usize);
        let rounded = precision == Precision::Int8;
        match rounded && gates.dtype.is_integer() && ups.dtype.is_integer() {
            true => input.gather_rounded(x, rows),
            false => input.gather(x, rows),
        }
        let pair = Pair { matrices: [gates, ups], biases: [gate_bias, up_bias], activation: self.activation };
        pair.apply(team, precision, input, inner, up);
        match team {
            Some(team) => matmul(team, precision, &downs, inner, job.out),
            None => {
                if rounded && downs.dtype.is_integer() {
                    inner.quantize_serial();
                }
                matmul_serial(precision, &downs, inner, job.out);
            }
        }
        if let Some(bias) = down_bias {
            ops::add_to_rows(job.out, bias);
        }
    }

    /// Gate, up and down of an expert.
    fn of<'a>(&self, lease: &'a Lease) -> [Matrix<'a>; 3] {
        let bytes = [lease.gate(), lease.up(), lease.down()];
        std::array::from_fn(|part| {
            let ExpertMatrix { dtype, rows, cols } = self.matrices[part];
            Matrix { dtype, rows, cols, bytes: bytes[part] }
        })
    }

    /// What is added to their results.
    fn biases_of(&self, lease: &Lease) -> [Option<&[f32]>; 3] {
        std::array::from_fn(|part| {
            let (rows, biases) = (self.matrices[part].rows, self.biases.as_ref()?);
            Some(&biases[part][lease.expert as usize * rows..][..rows])
        })
    }
}
