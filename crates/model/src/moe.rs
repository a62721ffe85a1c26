//! The mixture of experts: route, take the union, compute each expert once for all its rows, sum in rank order.

use calypte_checkpoint::arch::{self, Arch};
use calypte_checkpoint::{ExpertLayer, Role};
use calypte_kernels::{Activations, math, ops};
use calypte_quant::reference::dot_f32;
use calypte_residency::timeline::Lane;
use calypte_residency::{ExpertCache, Lease};

use crate::experts::{Experts, Job};
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
    logit_bias: Option<Vec<f32>>,
    selection_bias: Option<Vec<f32>>,
    shared: Option<Mlp>,
    /// What of the shared expert a row gets is the sigmoid of its product with this.
    shared_router: Option<Vec<f32>>,
    experts: Experts,
}

impl MoeScratch {
    /// Of the last row that was routed: its experts, best first, and the router's logits.
    pub fn last_routed(&self) -> (&[u32], &[f32]) {
        (self.choices.last().map_or(&[], |choice| &choice.experts), &self.last_logits)
    }
}

/// Memory that a mixture computes in.
#[derive(Default)]
pub(crate) struct MoeScratch {
    logits: Vec<f32>,
    /// What the router said of the last row, before it was made into scores.
    last_logits: Vec<f32>,
    choices: Vec<Choice>,
    /// Per expert: the rows that asked for it.
    users: Vec<Vec<u32>>,
    /// Per expert: its first row of `results`.
    starts: Vec<usize>,
    /// Per row and rank: the row of `results`.
    places: Vec<u32>,
    union: Vec<u32>,
    leases: Vec<Lease>,
    /// `[expert, its rows, hidden]`: every result has its own place, so arrival order cannot matter.
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
            experts: Experts {
                matrices,
                biases: if moe.expert_bias { Some(load_biases(loader, layer)?) } else { None },
                activation: arch.activation,
            },
            shared: shared.transpose()?,
            moe,
        })
    }

    /// Asks the cache for the experts of the rows that were routed last.
    pub fn begin(&self, experts: &mut ExpertCache, scratch: &MoeScratch) {
        experts.begin(self.cache_layer, &scratch.union);
    }

    /// `out = mixture(x)`, `[x.rows, hidden]`, after [`MoeBlock::route`] and [`MoeBlock::begin`] with the same rows.
    pub fn forward(
        &self,
        compute: &Compute<'_>,
        x: &mut Activations,
        experts: &mut ExpertCache,
        scratch: &mut MoeScratch,
        mlp: &mut MlpScratch,
        out: &mut Vec<f32>,
    ) -> Result<(), ModelError> {
        // Reads are on their way: everything that needs no expert comes now.
        let begun = compute.recording.begin();
        let (rows, hidden, k) = (x.rows(), x.cols(), self.moe.top_k);
        scratch.shared.clear();
        if let Some(shared) = &self.shared {
            shared.forward(compute, x, mlp, &mut scratch.shared);
            self.gate_shared(x, &mut scratch.shared);
        }
        if self.experts.is_integer() {
            // Once for all experts; each then takes its rows of the rounding along.
            x.quantize(compute.team);
        }
        let name = if self.shared.is_some() { "shared expert" } else { "rounding" };
        compute.computed(begun, name, self.layer);
        scratch.results.resize(rows * k * hidden, 0.0);
        loop {
            let mut leases = std::mem::take(&mut scratch.leases);
            let more = experts.ready(&mut leases);
            let begun = compute.recording.begin();
            self.compute(compute, x, &leases, scratch);
            let numbers = [self.layer as u64, leases.len() as u64];
            leases.drain(..).for_each(|lease| experts.release(lease));
            if numbers[1] > 0 {
                compute.recording.end(begun, Lane::Compute, "experts", &["layer", "experts"], numbers);
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
        let begun = compute.recording.begin();
        self.reduce(compute, rows, hidden, scratch, out);
        compute.computed(begun, "reduce", self.layer);
        Ok(())
    }

    /// The router's logits for rows that another layer made, `[rows, experts]`.
    pub fn logits(&self, compute: &Compute<'_>, x: &mut Activations, logits: &mut Vec<f32>) {
        self.router.apply(compute, x, logits);
    }

    /// The experts that a row with these logits goes to, best first; none if they are not finite.
    pub fn choose(&self, logits: &mut [f32]) -> Vec<u32> {
        if let Some(bias) = &self.logit_bias {
            ops::add(logits, bias);
        }
        let choice = choose(&self.moe.gate, self.moe.top_k, self.selection_bias.as_deref(), logits);
        choice.map_or_else(Vec::new, |choice| choice.experts)
    }

    /// Number of the layer.
    pub fn number(&self) -> usize {
        self.layer
    }

    /// Index among the layers that the expert cache knows.
    pub fn number_in_cache(&self) -> usize {
        self.cache_layer
    }

    /// Chooses experts for every row and collects the union, ascending, each with the rows it serves. `first` is the first row's
    /// position, for messages and the observer.
    pub fn route(
        &self,
        compute: &Compute<'_>,
        first: usize,
        x: &mut Activations,
        scratch: &mut MoeScratch,
        observer: &mut dyn Observer,
    ) -> Result<(), ModelError> {
        let (n, k) = (self.moe.experts, self.moe.top_k);
        self.router.apply(compute, x, &mut scratch.logits);
        scratch.last_logits.clear();
        scratch.last_logits.extend_from_slice(&scratch.logits[scratch.logits.len() - n..]);
        scratch.users.iter_mut().for_each(Vec::clear);
        scratch.users.resize(n, Vec::new());
        scratch.choices.clear();
        scratch.places.clear();
        for (row, logits) in scratch.logits.chunks_exact_mut(n).enumerate() {
            if let Some(bias) = &self.logit_bias {
                ops::add(logits, bias);
            }
            let choice = choose(&self.moe.gate, k, self.selection_bias.as_deref(), logits)
                .ok_or(ModelError::NotFiniteRouting { layer: self.layer, position: first + row })?;
            observer.routed(self.layer, first + row, &choice.experts, &choice.weights);
            for e in &choice.experts {
                let users = &mut scratch.users[*e as usize];
                // Within the expert's results for now.
                scratch.places.push(users.len() as u32);
                users.push(row as u32);
            }
            scratch.choices.push(choice);
        }
        scratch.starts.clear();
        let mut start = 0;
        for users in &scratch.users {
            scratch.starts.push(start);
            start += users.len();
        }
        let chosen = scratch.choices.iter().flat_map(|choice| &choice.experts);
        for (place, e) in scratch.places.iter_mut().zip(chosen) {
            *place += scratch.starts[*e as usize] as u32;
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

    /// Computes experts for all rows that chose them and puts the results in their own places.
    fn compute(&self, compute: &Compute<'_>, x: &Activations, leases: &[Lease], scratch: &mut MoeScratch) {
        let hidden = x.cols();
        let mut ascending: Vec<&Lease> = leases.iter().collect();
        ascending.sort_unstable_by_key(|lease| lease.expert);
        let (mut rest, mut cut) = (&mut scratch.results[..], 0);
        let mut jobs: Vec<Job<'_>> = Vec::with_capacity(leases.len());
        for lease in ascending {
            let rows = &scratch.users[lease.expert as usize];
            let start = scratch.starts[lease.expert as usize];
            let (out, behind) = rest[(start - cut) * hidden..].split_at_mut(rows.len() * hidden);
            (rest, cut) = (behind, start + rows.len());
            jobs.push(Job { lease, rows, out });
        }
        self.experts.forward(compute, x, &mut jobs);
    }

    /// Sums each row's results in rank order, best expert first, then the shared expert.
    fn reduce(
        &self,
        compute: &Compute<'_>,
        rows: usize,
        hidden: usize,
        scratch: &MoeScratch,
        out: &mut Vec<f32>,
    ) {
        out.resize(rows * hidden, 0.0);
        let k = self.moe.top_k;
        compute.rows(out, hidden, |row, out| {
            out.fill(0.0);
            let places = &scratch.places[row * k..(row + 1) * k];
            for (place, weight) in places.iter().zip(&scratch.choices[row].weights) {
                let at = *place as usize * hidden;
                ops::axpy(out, *weight, &scratch.results[at..at + hidden]);
            }
            if self.shared.is_some() {
                ops::add(out, &scratch.shared[row * hidden..(row + 1) * hidden]);
            }
        });
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
