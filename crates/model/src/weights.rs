//! Resident weights: everything but the routed experts, read once through the disk crate.

use std::path::PathBuf;

use calypte_checkpoint::{Catalog, Packing, Role, Tensor};
use calypte_disk::{Disk, Extent, Loaded};
use calypte_kernels::matmul::matmul_all;
use calypte_kernels::{Activations, matmul, ops};
use calypte_quant::arrange::Misfit;
use calypte_quant::formats::E4M3_GROUP;
use calypte_quant::{DType, Matrix, pack_float, unpack_row};

use crate::{Compute, ModelError, arrange};

/// Told how far the loading of resident weights has come.
pub trait Loading {
    /// `bytes` more of the resident weights are in memory.
    fn loaded(&mut self, bytes: u64);
}

/// Loading that nobody watches.
pub struct NoProgress;
impl Loading for NoProgress {
    fn loaded(&mut self, _bytes: u64) {}
}

/// A resident matrix (or a stack of equal ones along its rows).
pub(crate) struct Weight {
    dtype: DType,
    rows: usize,
    cols: usize,
    bytes: Bytes,
}

enum Bytes {
    /// As it came from the file.
    Read(Loaded),
    /// Rearranged once when it was loaded.
    Made(Vec<u8>),
}

impl Weight {
    /// The whole matrix.
    pub fn matrix(&self) -> Matrix<'_> {
        self.rows_at(0, self.rows)
    }

    /// Rows `first .. first + rows` as a matrix of their own: one head of a stack.
    pub fn rows_at(&self, first: usize, rows: usize) -> Matrix<'_> {
        let bytes = match &self.bytes {
            Bytes::Read(loaded) => loaded.view(0),
            Bytes::Made(made) => made,
        };
        let row_bytes = bytes.len() / self.rows;
        Matrix {
            dtype: self.dtype,
            rows,
            cols: self.cols,
            bytes: &bytes[first * row_bytes..(first + rows) * row_bytes],
        }
    }

    /// Whether activations must be rounded before they meet it.
    pub fn is_integer(&self) -> bool {
        self.dtype.is_integer()
    }

    /// `out = x · Wᵀ`, `out` resized to `[x.rows, rows]`.
    pub fn apply(&self, compute: &Compute<'_>, x: &mut Activations, out: &mut Vec<f32>) {
        out.resize(x.rows() * self.rows, 0.0);
        matmul(compute.team, compute.precision, &self.matrix(), x, out);
    }
}

/// A resident matrix, and what is added to its results.
pub(crate) struct Linear {
    weight: Weight,
    bias: Option<Vec<f32>>,
}

impl Linear {
    /// `out = x · Wᵀ + b`, `out` resized to `[x.rows, rows]`.
    pub fn apply(&self, compute: &Compute<'_>, x: &mut Activations, out: &mut Vec<f32>) {
        Linear::apply_all([self], compute, x, [out]);
    }

    /// [`Linear::apply`] of several that read one input.
    pub fn apply_all<const N: usize>(
        these: [&Linear; N],
        compute: &Compute<'_>,
        x: &mut Activations,
        mut out: [&mut Vec<f32>; N],
    ) {
        for (linear, out) in these.iter().zip(&mut out) {
            out.resize(x.rows() * linear.weight.rows, 0.0);
        }
        let matrices = these.map(Linear::matrix);
        let slices = out.each_mut().map(|out| out.as_mut_slice());
        matmul_all(compute.team, compute.precision, matrices.each_ref(), x, slices);
        these.iter().zip(out).for_each(|(linear, out)| linear.add_bias(out));
    }

    /// The matrix.
    pub fn matrix(&self) -> Matrix<'_> {
        self.weight.matrix()
    }

    /// What is added to its results.
    pub fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref()
    }

    fn add_bias(&self, out: &mut [f32]) {
        if let Some(bias) = &self.bias {
            ops::add_to_rows(out, bias);
        }
    }
}

/// Reads the tensors of a catalogue.
pub(crate) struct Loader<'a> {
    pub catalog: &'a Catalog,
    pub disk: &'a mut Disk,
    pub progress: &'a mut dyn Loading,
}

impl Loader<'_> {
    fn tensor(&self, layer: Option<usize>, role: Role) -> Result<&Tensor, ModelError> {
        self.catalog.get(layer, role).ok_or_else(|| ModelError::MissingTensor {
            path: self.catalog.source.clone(),
            role: format!("{role:?}"),
            layer,
        })
    }

    fn read(&mut self, extent: Extent) -> Result<Loaded, ModelError> {
        let loaded = self.disk.read_now(&[extent])?;
        self.progress.loaded(extent.len);
        Ok(loaded)
    }

    /// A matrix. Leading dimensions beyond two are stacked along the rows.
    pub fn matrix(&mut self, layer: Option<usize>, role: Role) -> Result<Weight, ModelError> {
        let tensor = self.tensor(layer, role)?.clone();
        let cols = tensor.shape.last().copied().unwrap_or(1);
        let rows = tensor.len() / cols.max(1);
        let stored = self.read(tensor.extent)?;
        let bytes = match tensor.scales() {
            None => Bytes::Read(stored),
            Some(scales) => {
                let scales = self.read(scales)?;
                let made = arrange::tensor(&tensor, [rows, cols], stored.view(0), scales.view(0));
                Bytes::Made(made.map_err(|what| self.misfit(&tensor, what))?)
            }
        };
        Ok(Weight { dtype: tensor.dtype, rows, cols, bytes })
    }

    /// A matrix and, where `bias` names one, what is added to its results.
    pub fn linear(
        &mut self,
        layer: Option<usize>,
        role: Role,
        bias: Option<Role>,
    ) -> Result<Linear, ModelError> {
        let bias = bias.map(|role| self.vector(layer, role)).transpose()?;
        Ok(Linear { weight: self.matrix(layer, role)?, bias })
    }

    /// The weights of a norm, with what the family adds to them.
    pub fn norm(&mut self, layer: Option<usize>, role: Role) -> Result<Vec<f32>, ModelError> {
        let offset = self.catalog.arch.norms.weight_offset;
        let mut weights = self.vector(layer, role)?;
        if offset != 0.0 {
            weights.iter_mut().for_each(|w| *w += offset);
        }
        Ok(weights)
    }

    /// [`Loader::norm`] where the model has it.
    pub fn norm_if(
        &mut self,
        there: bool,
        layer: Option<usize>,
        role: Role,
    ) -> Result<Option<Vec<f32>>, ModelError> {
        if there { self.norm(layer, role).map(Some) } else { Ok(None) }
    }

    fn misfit(&self, tensor: &Tensor, what: Misfit) -> ModelError {
        let file = self.catalog.files.get(tensor.extent.file.0 as usize);
        ModelError::Misfit {
            path: file.map_or_else(PathBuf::new, |f| f.path.clone()),
            tensor: tensor.name.clone(),
            offset: tensor.extent.offset,
            what,
        }
    }

    /// A matrix of a float type, all of whose values must be finite: a router, whose NaN would send tokens anywhere.
    pub fn finite_matrix(&mut self, layer: Option<usize>, role: Role) -> Result<Weight, ModelError> {
        let weight = self.matrix(layer, role)?;
        let mut row = vec![0f32; weight.cols];
        for i in 0..weight.rows {
            unpack_row(weight.dtype, weight.matrix().row(i), &mut row);
            self.check_finite(layer, role, i * weight.cols, &row)?;
        }
        Ok(weight)
    }

    /// A vector as f32, all of whose values must be finite.
    pub fn vector(&mut self, layer: Option<usize>, role: Role) -> Result<Vec<f32>, ModelError> {
        let tensor = self.tensor(layer, role)?.clone();
        let loaded = self.read(tensor.extent)?;
        let mut values = vec![0f32; tensor.len()];
        unpack_row(tensor.dtype, loaded.view(0), &mut values);
        self.check_finite(layer, role, 0, &values)?;
        Ok(values)
    }

    fn check_finite(
        &self,
        layer: Option<usize>,
        role: Role,
        first: usize,
        values: &[f32],
    ) -> Result<(), ModelError> {
        let Some(index) = values.iter().position(|v| !v.is_finite()) else { return Ok(()) };
        let tensor = self.tensor(layer, role)?;
        let file = self.catalog.files.get(tensor.extent.file.0 as usize);
        Err(ModelError::NotFiniteWeight {
            path: file.map_or_else(PathBuf::new, |f| f.path.clone()),
            tensor: tensor.name.clone(),
            offset: tensor.extent.offset,
            index: first + index,
            value: values[index],
        })
    }

    /// MLA's up-projections as two stacks of per-head matrices: keys `[heads · kv_lora, nope]` and values
    /// `[heads · v, kv_lora]`.
    ///
    /// GGUF stores them so. Hugging Face stores them in one matrix with the key half the other way round; it is taken
    /// apart and transposed here once, without changing a value, so both formats give the same bits.
    pub fn latent_up(
        &mut self,
        layer: usize,
        heads: usize,
        kv_lora: usize,
        nope: usize,
        v: usize,
    ) -> Result<(Weight, Weight), ModelError> {
        if self.catalog.get(Some(layer), Role::AttnKB).is_some() {
            return Ok((self.matrix(Some(layer), Role::AttnKB)?, self.matrix(Some(layer), Role::AttnVB)?));
        }
        let both = self.matrix(Some(layer), Role::AttnKvB)?;
        let dtype = transposed_dtype(&both);
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        let mut head = vec![0f32; nope * kv_lora];
        for h in 0..heads {
            let first = h * (nope + v);
            let m = both.rows_at(first, nope);
            for (i, row) in head.chunks_exact_mut(kv_lora).enumerate() {
                unpack_row(m.dtype, m.row(i), row);
            }
            let transposed = (0..kv_lora).flat_map(|l| (0..nope).map(move |n| (n, l)));
            pack_float(dtype, transposed.map(|(n, l)| head[n * kv_lora + l]), &mut keys);
            values.extend_from_slice(both.rows_at(first + nope, v).bytes);
        }
        Ok((
            Weight { dtype, rows: heads * kv_lora, cols: nope, bytes: Bytes::Made(keys) },
            Weight { dtype: both.dtype, rows: heads * v, cols: kv_lora, bytes: Bytes::Made(values) },
        ))
    }
}

/// The smallest float type that holds every value of a matrix exactly. Blocks cannot be transposed as they are: their
/// scales go along the rows. Few bits times a power of two, as FP8 with such scales has them, fit BF16.
fn transposed_dtype(weight: &Weight) -> DType {
    if weight.dtype.is_plain_float() {
        return weight.dtype;
    }
    let matrix = weight.matrix();
    let (mut row, mut packed, mut back) = (vec![0f32; matrix.cols], Vec::new(), vec![0f32; matrix.cols]);
    for i in 0..matrix.rows {
        unpack_row(matrix.dtype, matrix.row(i), &mut row);
        packed.clear();
        pack_float(DType::BF16, row.iter().copied(), &mut packed);
        unpack_row(DType::BF16, &packed, &mut back);
        if row != back {
            return DType::F32;
        }
    }
    DType::BF16
}

/// An upper estimate of the memory that resident weights take, in bytes: as stored, or more where
/// [`crate::Model::load`] rearranges them.
pub fn resident_bytes(catalog: &Catalog, buffer_bytes: impl Fn(Extent) -> u64) -> u64 {
    let trunk = catalog.arch.layers;
    let of_trunk = catalog.tensors.iter().filter(|(key, _)| key.layer.is_none_or(|l| l < trunk));
    let bytes = of_trunk.map(|(key, t)| {
        let values = t.len() as u64;
        match t.packing {
            // Keys of an undivided up-projection of blocks become single precision at worst, values stay.
            _ if key.role == Role::AttnKvB && !t.dtype.is_plain_float() => values * size_of::<f32>() as u64,
            Packing::Plain => buffer_bytes(t.extent),
            _ => t.stored_bytes() + values / E4M3_GROUP as u64 * size_of::<f32>() as u64,
        }
    });
    bytes.fold(0, u64::saturating_add)
}

/// Where the weights are that [`crate::Model::load`] will read: everything but routed experts and
/// multi-token-prediction layers.
pub fn resident_extents(catalog: &Catalog) -> impl Iterator<Item = Extent> + '_ {
    let trunk = catalog.arch.layers;
    let of_trunk = catalog.tensors.iter().filter(move |(key, _)| key.layer.is_none_or(|l| l < trunk));
    of_trunk.flat_map(|(_, t)| std::iter::once(t.extent).chain(t.scales()))
}
