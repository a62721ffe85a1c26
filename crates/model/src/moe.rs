//! The mixture of experts: route, take the union, compute each expert once for all its rows, sum in rank order.

use calypte_checkpoint::arch::{self, Arch};
use calypte_checkpoint::{Catalog, ExpertLayer, ExpertMatrix, Role};
use calypte_kernels::{Activations, matmul, ops};
use calypte_quant::Matrix;
use calypte_residency::{ExpertCache, Lease};

use crate::gate::{Choice, choose};
use crate::mlp::{Mlp, MlpScratch};
use crate::weights::{Loader, Weight};
use crate::{Compute, ModelError, Observer};

/// One layer's mixture. The routed experts are not here: they come from the cache, leased for as long as they are used.
pub(crate) struct MoeBlock {
    layer: usize,
    /// Index among the layers that the expert cache knows.
    cache_layer: usize,
    moe: arch::Moe,
    router: Weight,
    bias: Option<Vec<f32>>,
    shared: Option<Mlp>,
    matrices: [ExpertMatrix; 3],
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
        let shared = match moe.shared_width {
            Some(_) => Some(Mlp::load(loader, layer, [Role::SharedGate, Role::SharedUp, Role::SharedDown])?),
            None => None,
        };
        Ok(MoeBlock {
            layer,
            cache_layer,
            router: loader.finite_matrix(l, Role::Router)?,
            bias: if moe.gate.selection_bias { Some(loader.vector(l, Role::RouterBias)?) } else { None },
            shared,
            matrices,
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
            let choice = choose(&self.moe.gate, k, self.bias.as_deref(), logits)
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
        scratch.input.gather(x, users.iter().map(|(row, _)| *row as usize));
        matmul(team, precision, &matrix(gate, lease.gate()), &mut scratch.input, mlp.inner.fill(n, width));
        mlp.up.resize(n * width, 0.0);
        matmul(team, precision, &matrix(up, lease.up()), &mut scratch.input, &mut mlp.up);
        ops::swiglu(mlp.inner.fill(n, width), &mlp.up);
        scratch.output.resize(n * hidden, 0.0);
        matmul(team, precision, &matrix(down, lease.down()), &mut mlp.inner, &mut scratch.output);
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
