//! The mixture of experts: route, take the union, compute each expert once for all its rows, sum in rank order.

use calypte_checkpoint::arch::{self, Activation, Arch};
use calypte_checkpoint::{Catalog, ExpertLayer, ExpertMatrix, Role};
use calypte_kernels::{Activations, math, matmul, ops};
use calypte_quant::Matrix;
use calypte_quant::reference::dot_f32;
use calypte_residency::{ExpertCache, Lease};

use crate::gate::{Choice, choose};
use crate::mlp::{Mlp, MlpScratch, activate};
use crate::weights::{Loader, Weight};
use crate::{Compute, ModelError, Observer};

/// One layer's mixture. The routed experts are not here: they come from the cache, leased for as long as they are used.
pub(crate) struct MoeBlock {
    layer: usize,
    /// Index among the layers that the expert cache knows.
    cache_layer: usize,
    moe: arch::Moe,
    router: Weight,
    logit_bias: Option<Vec<f32>>,
    selection_bias: Option<Vec<f32>>,
    shared: Option<Mlp>,
    /// What of the shared expert a row gets is the sigmoid of its product with this.
    shared_router: Option<Vec<f32>>,
    matrices: [ExpertMatrix; 3],
    /// Of gate, up and down: `[experts, rows of the matrix]`.
    biases: Option<[Vec<f32>; 3]>,
    activation: Activation,
}

/// Memory that a mixture computes in.
#[derive(Default)]
pub(crate) struct MoeScratch {
    logits: Vec<f32>,
    choices: Vec<Choice>,
    /// Per expert of the union: the (row, rank) pairs that asked for it.
    users: Vec<Vec<(u32, u32)>>,
    union: Vec<u32>,
    leases: Vec<Lease>,
    input: Activations,
    output: Vec<f32>,
    /// `[row, rank, hidden]`: every result has its own place, so arrival order cannot matter.
    results: Vec<f32>,
    shared: Vec<f32>,
}

impl MoeBlock {
    pub fn load(
        loader: &mut Loader<'_>,
        arch: &Arch,
        layer: usize,
        cache_layer: usize,
    ) -> Result<MoeBlock, ModelError> {
        let l = Some(layer);
        let moe = arch.moe.clone().expect("an arch with mixture layers describes the mixture");
        let experts: &ExpertLayer = &loader.catalog.experts[cache_layer];
        let matrices = [experts.gate, experts.up, experts.down];
        let roles = [Role::SharedGate, Role::SharedUp, Role::SharedDown];
        let shared = moe.shared_width.map(|_| Mlp::load(loader, layer, roles, None, arch.activation));
        let mut vector_if = |there, role| if there { loader.vector(l, role).map(Some) } else { Ok(None) };
        Ok(MoeBlock {
            layer,
            cache_layer,
            logit_bias: vector_if(moe.gate.logit_bias, Role::RouterLogitBias)?,
            selection_bias: vector_if(moe.gate.selection_bias, Role::RouterBias)?,
            shared_router: vector_if(moe.shared_gate && moe.shared_width.is_some(), Role::SharedRouter)?,
            router: loader.finite_matrix(l, Role::Router)?,
            biases: if moe.expert_bias { Some(load_biases(loader, layer)?) } else { None },
            shared: shared.transpose()?,
            matrices,
            activation: arch.activation,
            moe,
        })
    }

    /// Index among `catalog.experts` of each trunk layer with a mixture.
    pub fn cache_layer(catalog: &Catalog, layer: usize) -> Option<usize> {
        catalog.experts.iter().position(|e| e.layer == layer)
    }

    /// `out = mixture(x)`, `[x.rows, hidden]`; `first` is the first row's position, for messages and the observer.
    pub fn forward(
        &self,
        compute: &Compute<'_>,
        first: usize,
        x: &mut Activations,
        experts: &mut ExpertCache,
        scratch: &mut MoeScratch,
        mlp: &mut MlpScratch,
        observer: &mut dyn Observer,
        out: &mut Vec<f32>,
    ) -> Result<(), ModelError> {
        self.route(compute, first, x, scratch, observer)?;
        experts.begin(self.cache_layer, &scratch.union);
        // Reads are on their way: everything that needs no expert comes now.
        let (rows, hidden, k) = (x.rows(), x.cols(), self.moe.top_k);
        scratch.shared.clear();
        if let Some(shared) = &self.shared {
            shared.forward(compute, x, mlp, &mut scratch.shared);
            self.gate_shared(x, &mut scratch.shared);
        }
        if self.matrices.iter().any(|m| m.dtype.is_integer()) {
            // Once for all experts; each then takes its rows of the rounding along.
            x.quantize(compute.team);
        }
        scratch.results.resize(rows * k * hidden, 0.0);
        loop {
            let mut leases = std::mem::take(&mut scratch.leases);
            let more = experts.ready(&mut leases);
            for lease in leases.drain(..) {
                self.expert(compute, x, &lease, scratch, mlp);
                experts.release(lease);
            }
            scratch.leases = leases;
            match more {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    experts.abort();
                    return Err(error.into());
                }
            }
        }
        self.reduce(rows, hidden, scratch, out);
        Ok(())
    }

    /// Chooses experts for every row and collects the union, ascending, each with the (row, rank) pairs it serves.
    fn route(
        &self,
        compute: &Compute<'_>,
        first: usize,
        x: &mut Activations,
        scratch: &mut MoeScratch,
        observer: &mut dyn Observer,
    ) -> Result<(), ModelError> {
        let (n, k) = (self.moe.experts, self.moe.top_k);
        self.router.apply(compute, x, &mut scratch.logits);
        scratch.users.iter_mut().for_each(Vec::clear);
        scratch.users.resize(n, Vec::new());
        scratch.choices.clear();
        for (row, logits) in scratch.logits.chunks_exact_mut(n).enumerate() {
            if let Some(bias) = &self.logit_bias {
                ops::add(logits, bias);
            }
            let choice = choose(&self.moe.gate, k, self.selection_bias.as_deref(), logits)
                .ok_or(ModelError::NotFiniteRouting { layer: self.layer, position: first + row })?;
            observer.routed(self.layer, first + row, &choice.experts, &choice.weights);
            for (rank, e) in choice.experts.iter().enumerate() {
                scratch.users[*e as usize].push((row as u32, rank as u32));
            }
            scratch.choices.push(choice);
        }
        scratch.union.clear();
        scratch.union.extend((0..n as u32).filter(|e| !scratch.users[*e as usize].is_empty()));
        Ok(())
    }

    /// Multiplies each row of the shared expert's output by what the row gets of it.
    fn gate_shared(&self, x: &Activations, shared: &mut [f32]) {
        let Some(router) = &self.shared_router else { return };
        for (row, out) in shared.chunks_exact_mut(x.cols()).enumerate() {
            ops::scale(out, math::sigmoid(dot_f32(x.row(row), router)));
        }
    }

    /// Computes one expert for all rows that chose it and puts each result in its own place.
    fn expert(
        &self,
        compute: &Compute<'_>,
        x: &Activations,
        lease: &Lease,
        scratch: &mut MoeScratch,
        mlp: &mut MlpScratch,
    ) {
        let users = &scratch.users[lease.expert as usize];
        let (n, hidden, k, width) = (users.len(), x.cols(), self.moe.top_k, self.moe.width);
        let [gate, up, down] = self.matrices;
        let matrix = |m: ExpertMatrix, bytes| Matrix { dtype: m.dtype, rows: m.rows, cols: m.cols, bytes };
        let (team, precision) = (compute.team, compute.precision);
        let bias = |part: usize, rows: usize| {
            let start = lease.expert as usize * rows;
            self.biases.as_ref().map(|b| &b[part][start..start + rows])
        };
        let add_bias =
            |out: &mut [f32], part, rows| bias(part, rows).iter().for_each(|b| ops::add_to_rows(out, b));
        scratch.input.gather(x, users.iter().map(|(row, _)| *row as usize));
        let inner = mlp.inner.fill(n, width);
        matmul(team, precision, &matrix(gate, lease.gate()), &mut scratch.input, inner);
        add_bias(inner, 0, width);
        mlp.up.resize(n * width, 0.0);
        matmul(team, precision, &matrix(up, lease.up()), &mut scratch.input, &mut mlp.up);
        add_bias(&mut mlp.up, 1, width);
        activate(self.activation, inner, &mlp.up);
        scratch.output.resize(n * hidden, 0.0);
        matmul(team, precision, &matrix(down, lease.down()), &mut mlp.inner, &mut scratch.output);
        add_bias(&mut scratch.output, 2, hidden);
        for ((row, rank), y) in users.iter().zip(scratch.output.chunks_exact(hidden)) {
            let at = (*row as usize * k + *rank as usize) * hidden;
            scratch.results[at..at + hidden].copy_from_slice(y);
        }
    }

    /// Sums each row's results in rank order, best expert first, then the shared expert.
    fn reduce(&self, rows: usize, hidden: usize, scratch: &mut MoeScratch, out: &mut Vec<f32>) {
        out.clear();
        out.resize(rows * hidden, 0.0);
        for (row, out) in out.chunks_exact_mut(hidden).enumerate() {
            for (rank, weight) in scratch.choices[row].weights.iter().enumerate() {
                let at = (row * self.moe.top_k + rank) * hidden;
                ops::axpy(out, *weight, &scratch.results[at..at + hidden]);
            }
            if self.shared.is_some() {
                ops::add(out, &scratch.shared[row * hidden..(row + 1) * hidden]);
            }
        }
    }
}

/// The experts' biases, which are small and always resident: of gate, up and down.
fn load_biases(loader: &mut Loader<'_>, layer: usize) -> Result<[Vec<f32>; 3], ModelError> {
    let l = Some(layer);
    let down = loader.vector(l, Role::ExpertDownBias)?;
    if loader.catalog.get(l, Role::ExpertGateUpBias).is_none() {
        return Ok([loader.vector(l, Role::ExpertGateBias)?, loader.vector(l, Role::ExpertUpBias)?, down]);
    }
    let by_turns = loader.vector(l, Role::ExpertGateUpBias)?;
    let every_second = |first: usize| by_turns.iter().skip(first).step_by(2).copied().collect();
    Ok([every_second(0), every_second(1), down])
}
