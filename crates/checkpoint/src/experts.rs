//! From stored expert tensors, stacked or one by one, to the extents of every expert.

use std::collections::BTreeMap;

use calypte_disk::Extent;
use calypte_quant::DType;

use crate::arch::Moe;
use crate::catalog::{ExpertLayer, ExpertMatrix, Tensor};
use crate::error::OpenError;
use crate::families::names::{Part, Stack};
use crate::judge::Judge;

/// The expert tensors of one layer, as they were found.
#[derive(Default)]
pub(crate) struct Found {
    /// By part, then by expert.
    ones: [BTreeMap<usize, Tensor>; 3],
    /// By part.
    stacks: [Option<Tensor>; 3],
    gate_up: Option<Tensor>,
}

impl Found {
    /// Returns the tensor that had the same meaning, if there was one.
    pub fn put_one(&mut self, expert: usize, part: Part, tensor: Tensor) -> Option<Tensor> {
        self.ones[part as usize].insert(expert, tensor)
    }

    /// Returns the tensor that had the same meaning, if there was one.
    pub fn put_stack(&mut self, stack: Stack, tensor: Tensor) -> Option<Tensor> {
        match stack {
            Stack::One(part) => self.stacks[part as usize].replace(tensor),
            Stack::GateUp => self.gate_up.replace(tensor),
        }
    }

    /// Number of experts, for messages.
    pub fn len(&self) -> usize {
        let ones = self.ones.iter().map(BTreeMap::len).max().unwrap_or(0);
        let stacked = self.stacks.iter().flatten().chain(&self.gate_up).filter_map(|t| t.shape.first()).max();
        ones.max(stacked.copied().unwrap_or(0))
    }

    /// Names of all tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let ones = self.ones.iter().flat_map(BTreeMap::values);
        ones.chain(self.stacks.iter().flatten()).chain(&self.gate_up).map(|t| t.name.as_str())
    }
}

/// One matrix of every expert of a layer.
struct Sliced {
    matrix: ExpertMatrix,
    extents: Vec<Extent>,
}

/// Checks the experts of layer `layer` and finds the extents of each.
pub(crate) fn assemble(
    judge: &Judge<'_>,
    moe: &Moe,
    layer: usize,
    mut found: Found,
) -> Result<ExpertLayer, OpenError> {
    let hidden = judge.arch.hidden;
    let (gate, up) = match found.gate_up.take() {
        Some(fused) => split_gate_up(judge, moe, &fused)?,
        None => {
            let gate = one_part(judge, moe, layer, Part::Gate, [moe.width, hidden], &mut found)?;
            (gate, one_part(judge, moe, layer, Part::Up, [moe.width, hidden], &mut found)?)
        }
    };
    let down = one_part(judge, moe, layer, Part::Down, [hidden, moe.width], &mut found)?;
    if let Some(name) = found.names().next() {
        let expected = format!("experts 0 to {} once each", moe.experts.saturating_sub(1));
        return Err(judge.disagree(name, expected, "one more"));
    }
    let pairs = gate.extents.into_iter().zip(up.extents).zip(down.extents);
    let extents = pairs.map(|((g, u), d)| [g, u, d]).collect();
    Ok(ExpertLayer { layer, gate: gate.matrix, up: up.matrix, down: down.matrix, extents })
}

fn one_part(
    judge: &Judge<'_>,
    moe: &Moe,
    layer: usize,
    part: Part,
    [rows, cols]: [usize; 2],
    found: &mut Found,
) -> Result<Sliced, OpenError> {
    if let Some(stack) = found.stacks[part as usize].take() {
        judge.check_shape(&stack, &[moe.experts, rows, cols])?;
        let extents = slice(&stack, moe.experts);
        return Ok(Sliced { matrix: ExpertMatrix { dtype: stack.dtype, rows, cols }, extents });
    }
    let ones = &mut found.ones[part as usize];
    let mut dtype: Option<DType> = None;
    let mut extents = Vec::with_capacity(moe.experts);
    for expert in 0..moe.experts {
        let Some(tensor) = ones.remove(&expert) else {
            let name = judge.names.spell_expert(layer, expert, part);
            let expected = format!("expert {expert} of {} with shape {:?}", moe.experts, [rows, cols]);
            return Err(judge.disagree(&name, expected, "no such tensor"));
        };
        judge.check_shape(&tensor, &[rows, cols])?;
        let first = *dtype.get_or_insert(tensor.dtype);
        if tensor.dtype != first {
            let expected = format!("{first}, as the layer's first expert has");
            return Err(judge.disagree(&tensor.name, expected, tensor.dtype.to_string()));
        }
        extents.push(tensor.extent);
    }
    let dtype = dtype.unwrap_or(DType::F32);
    Ok(Sliced { matrix: ExpertMatrix { dtype, rows, cols }, extents })
}

/// `[experts, 2·width, hidden]`: of each expert first the rows of the gate, then those of up.
fn split_gate_up(judge: &Judge<'_>, moe: &Moe, fused: &Tensor) -> Result<(Sliced, Sliced), OpenError> {
    let (rows, cols) = (moe.width, judge.arch.hidden);
    judge.check_shape(fused, &[moe.experts, 2 * rows, cols])?;
    let halves = slice(fused, 2 * moe.experts);
    let every_second = |first: usize| Sliced {
        matrix: ExpertMatrix { dtype: fused.dtype, rows, cols },
        extents: halves.iter().skip(first).step_by(2).copied().collect(),
    };
    Ok((every_second(0), every_second(1)))
}

/// Cuts a tensor into `n` equal runs. The caller has checked that its outer dimensions divide that way, and blocks
/// never cross a row, so the division is exact.
fn slice(tensor: &Tensor, n: usize) -> Vec<Extent> {
    let whole = tensor.extent;
    let len = whole.len / (n as u64).max(1);
    (0..n as u64).map(|i| Extent { offset: whole.offset + i * len, len, ..whole }).collect()
}
