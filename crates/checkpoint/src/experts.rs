//! From stored expert tensors, stacked or one by one, to the extents of every expert.

use std::collections::BTreeMap;

use calypte_disk::Extent;
use calypte_quant::DType;

use crate::arch::Moe;
use crate::catalog::{Packing, Tensor};
use crate::error::OpenError;
use crate::expert_layer::{ExpertLayer, ExpertMatrix, Source};
use crate::families::names::{Part, Stack};
use crate::judge::Judge;

/// The expert tensors of one layer, as they were found.
#[derive(Default)]
pub(crate) struct Found {
    /// By part, then by expert.
    ones: [BTreeMap<usize, Tensor>; 3],
    /// By part.
    stacks: [Option<Tensor>; 3],
    /// Whether gate and up take turns, and the tensor with both.
    gate_up: Option<(bool, Tensor)>,
    down_or_transposed: Option<Tensor>,
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
            Stack::GateUp => self.gate_up.replace((false, tensor)).map(|(_, first)| first),
            Stack::GateUpByTurns => self.gate_up.replace((true, tensor)).map(|(_, first)| first),
            Stack::DownOrTransposed => self.down_or_transposed.replace(tensor),
        }
    }

    /// Number of experts, for messages.
    pub fn len(&self) -> usize {
        let ones = self.ones.iter().map(BTreeMap::len).max().unwrap_or(0);
        let stacked = self.stacked().filter_map(|t| t.shape.first()).max();
        ones.max(stacked.copied().unwrap_or(0))
    }

    /// Names of all tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let ones = self.ones.iter().flat_map(BTreeMap::values);
        ones.chain(self.stacked()).map(|t| t.name.as_str())
    }

    fn stacked(&self) -> impl Iterator<Item = &Tensor> {
        let gate_up = self.gate_up.iter().map(|(_, t)| t);
        self.stacks.iter().flatten().chain(gate_up).chain(&self.down_or_transposed)
    }
}

/// What is read for the experts of a layer, piece by piece.
struct Pieces {
    experts: usize,
    per_expert: Vec<Vec<Extent>>,
}

impl Pieces {
    fn new(experts: usize) -> Pieces {
        Pieces { experts, per_expert: vec![Vec::new(); experts] }
    }

    /// Adds one more piece of every expert and returns its number.
    fn push(&mut self, extents: impl IntoIterator<Item = Extent>) -> usize {
        let number = self.per_expert.first().map_or(0, Vec::len);
        for (pieces, extent) in self.per_expert.iter_mut().zip(extents) {
            pieces.push(extent);
        }
        number
    }

    /// Adds a tensor of all experts, and its scales if they are apart. The caller has checked that experts are
    /// outermost, and blocks never cross a row, so the division is exact.
    fn push_stack(&mut self, stack: &Tensor) -> usize {
        let number = self.push(slice(stack.extent, self.experts));
        if let Some(scales) = stack.scales() {
            self.push(slice(scales, self.experts));
        }
        number
    }
}

/// Checks the experts of layer `layer` and finds what is read for each.
pub(crate) fn assemble(
    judge: &Judge<'_>,
    moe: &Moe,
    layer: usize,
    mut found: Found,
) -> Result<ExpertLayer, OpenError> {
    let hidden = judge.arch.hidden;
    let mut pieces = Pieces::new(moe.experts);
    let (gate, up) = match found.gate_up.take() {
        Some((by_turns, fused)) => gate_and_up(judge, moe, by_turns, &fused, &mut pieces)?,
        None => {
            let gate = one_part(judge, moe, layer, Part::Gate, [moe.width, hidden], &mut found, &mut pieces)?;
            (gate, one_part(judge, moe, layer, Part::Up, [moe.width, hidden], &mut found, &mut pieces)?)
        }
    };
    let down = match found.down_or_transposed.take() {
        Some(stack) => down_or_transposed(judge, moe, &stack, &mut pieces)?,
        None => one_part(judge, moe, layer, Part::Down, [hidden, moe.width], &mut found, &mut pieces)?,
    };
    if let Some(name) = found.names().next() {
        let expected = format!("experts 0 to {} once each", moe.experts.saturating_sub(1));
        return Err(judge.disagree(name, expected, "one more"));
    }
    let [gate, up, down] = [gate, up, down];
    Ok(ExpertLayer {
        layer,
        gate: gate.0,
        up: up.0,
        down: down.0,
        extents: pieces.per_expert,
        sources: [gate.1, up.1, down.1],
    })
}

type Made = (ExpertMatrix, Source);

/// One matrix of every expert: a tensor with all of them, or one tensor each.
fn one_part(
    judge: &Judge<'_>,
    moe: &Moe,
    layer: usize,
    part: Part,
    [rows, cols]: [usize; 2],
    found: &mut Found,
    pieces: &mut Pieces,
) -> Result<Made, OpenError> {
    if let Some(stack) = found.stacks[part as usize].take() {
        judge.check_shape(&stack, &[moe.experts, rows, cols])?;
        let source = whole(judge, &stack, rows, pieces.push_stack(&stack))?;
        return Ok((ExpertMatrix { dtype: stack.dtype, rows, cols }, source));
    }
    let ones = &mut found.ones[part as usize];
    let mut tensors = Vec::with_capacity(moe.experts);
    for expert in 0..moe.experts {
        let Some(tensor) = ones.remove(&expert) else {
            let name = judge.names.spell_expert(layer, expert, part);
            let expected = format!("expert {expert} of {} with shape {:?}", moe.experts, [rows, cols]);
            return Err(judge.disagree(&name, expected, "no such tensor"));
        };
        judge.check_shape(&tensor, &[rows, cols])?;
        let first = tensors.first().unwrap_or(&tensor);
        if !same_kind(first, &tensor) {
            let expected = format!("{}, as the layer's first expert has", first.dtype);
            return Err(judge.disagree(&tensor.name, expected, tensor.dtype.to_string()));
        }
        tensors.push(tensor);
    }
    let piece = pieces.push(tensors.iter().map(|t| t.extent));
    if tensors.iter().any(|t| t.scales().is_some()) {
        pieces.push(tensors.iter().filter_map(Tensor::scales));
    }
    let Some(first) = tensors.first() else {
        return Ok((ExpertMatrix { dtype: DType::F32, rows, cols }, Source::Piece(piece)));
    };
    let source = match first.packing {
        Packing::Plain => Source::Piece(piece),
        Packing::Mxfp4 { .. } => Source::Mxfp4 { piece, first: 0, step: 1 },
        Packing::Int4 { .. } => Source::Int4 { piece },
        Packing::Fp8(s) => Source::Fp8 { piece, scales_dtype: s.dtype, block: s.block },
    };
    Ok((ExpertMatrix { dtype: first.dtype, rows, cols }, source))
}

fn same_kind(a: &Tensor, b: &Tensor) -> bool {
    let packing = match (a.packing, b.packing) {
        (Packing::Fp8(a), Packing::Fp8(b)) => a.dtype == b.dtype && a.block == b.block,
        (a, b) => std::mem::discriminant(&a) == std::mem::discriminant(&b),
    };
    a.dtype == b.dtype && packing && a.stored_bytes() == b.stored_bytes()
}

/// How a matrix of `rows` rows comes out of one expert's share of a tensor with all experts.
fn whole(judge: &Judge<'_>, stack: &Tensor, rows: usize, piece: usize) -> Result<Source, OpenError> {
    match stack.packing {
        Packing::Plain => Ok(Source::Piece(piece)),
        Packing::Mxfp4 { .. } => Ok(Source::Mxfp4 { piece, first: 0, step: 1 }),
        Packing::Fp8(s) if rows.is_multiple_of(s.block[0]) || s.block[0] == 1 => {
            Ok(Source::Fp8 { piece, scales_dtype: s.dtype, block: s.block })
        }
        Packing::Fp8(_) => Err(across_blocks(judge, stack)),
        Packing::Int4 { .. } => Err(one_by_one(judge, stack)),
    }
}

/// Nobody publishes INT4 experts in one tensor, so there is nothing to say how they would be cut.
fn one_by_one(judge: &Judge<'_>, stack: &Tensor) -> OpenError {
    judge.disagree(&stack.name, "INT4 weights in one tensor for each expert", "all experts in one tensor")
}

fn across_blocks(judge: &Judge<'_>, stack: &Tensor) -> OpenError {
    judge.disagree(&stack.name, "scales whose blocks end with an expert's rows", "blocks across experts")
}

/// Gate and up in one tensor.
fn gate_and_up(
    judge: &Judge<'_>,
    moe: &Moe,
    by_turns: bool,
    fused: &Tensor,
    pieces: &mut Pieces,
) -> Result<(Made, Made), OpenError> {
    let (rows, cols) = (moe.width, judge.arch.hidden);
    let matrix = ExpertMatrix { dtype: fused.dtype, rows, cols };
    let both = |source: &dyn Fn(usize) -> Source| ((matrix, source(0)), (matrix, source(1)));
    if !by_turns {
        judge.check_shape(fused, &[moe.experts, 2 * rows, cols])?;
        if let Packing::Int4 { .. } = fused.packing {
            return Err(one_by_one(judge, fused));
        }
        if fused.packing != Packing::Plain {
            let piece = pieces.push_stack(fused);
            let Packing::Mxfp4 { .. } = fused.packing else { return Err(across_blocks(judge, fused)) };
            // The rows of the gate, then those of up: every row from there on, as many as the matrix has.
            return Ok(both(&|half| Source::Mxfp4 { piece, first: half * rows, step: 1 }));
        }
        let halves = slice(fused.extent, 2 * moe.experts);
        let gate = pieces.push(halves.iter().step_by(2).copied());
        pieces.push(halves.iter().skip(1).step_by(2).copied());
        return Ok(both(&|half| Source::Piece(gate + half)));
    }
    let piece = pieces.push_stack(fused);
    match fused.packing {
        Packing::Mxfp4 { .. } => {
            judge.check_shape(fused, &[moe.experts, 2 * rows, cols])?;
            Ok(both(&|half| Source::Mxfp4 { piece, first: half, step: 2 }))
        }
        Packing::Plain => {
            judge.check_shape(fused, &[moe.experts, cols, 2 * rows])?;
            floats_only(judge, fused)?;
            Ok(both(&|half| Source::Transposed { piece, first: half, step: 2 }))
        }
        Packing::Fp8(_) => Err(across_blocks(judge, fused)),
        Packing::Int4 { .. } => Err(one_by_one(judge, fused)),
    }
}

fn down_or_transposed(
    judge: &Judge<'_>,
    moe: &Moe,
    stack: &Tensor,
    pieces: &mut Pieces,
) -> Result<Made, OpenError> {
    let (rows, cols) = (judge.arch.hidden, moe.width);
    let piece = pieces.push_stack(stack);
    let source = match stack.packing {
        Packing::Mxfp4 { .. } => {
            judge.check_shape(stack, &[moe.experts, rows, cols])?;
            Source::Mxfp4 { piece, first: 0, step: 1 }
        }
        Packing::Plain => {
            judge.check_shape(stack, &[moe.experts, cols, rows])?;
            floats_only(judge, stack)?;
            Source::Transposed { piece, first: 0, step: 1 }
        }
        Packing::Fp8(_) => return Err(across_blocks(judge, stack)),
        Packing::Int4 { .. } => return Err(one_by_one(judge, stack)),
    };
    Ok((ExpertMatrix { dtype: stack.dtype, rows, cols }, source))
}

/// Blocks of integers cannot be transposed without rounding them anew.
fn floats_only(judge: &Judge<'_>, tensor: &Tensor) -> Result<(), OpenError> {
    if !tensor.dtype.is_plain_float() {
        return Err(judge.disagree(&tensor.name, "one of F32, F16, BF16", tensor.dtype.to_string()));
    }
    Ok(())
}

/// Cuts an extent into `n` equal runs.
fn slice(whole: Extent, n: usize) -> Vec<Extent> {
    let len = whole.len / (n as u64).max(1);
    (0..n as u64).map(|i| Extent { offset: whole.offset + i * len, len, ..whole }).collect()
}
