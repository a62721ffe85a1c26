//! What can go wrong while a model is loaded or computes.

use std::path::PathBuf;

use calypte_disk::DiskError;
use calypte_quant::arrange::Misfit;
use calypte_residency::ResidencyError;

/// Why a model could not be loaded or a step not be computed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A weight file could not be read.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// An expert could not be had.
    #[error(transparent)]
    Residency(#[from] ResidencyError),
    /// A weight that steers the computation is NaN or infinite.
    #[error(
        "{}: tensor {tensor} at offset {offset}: value {index} is {value}, expected a finite number; the file is damaged \
         or was converted wrongly, so download or convert it again", path.display()
    )]
    NotFiniteWeight {
        /// The file.
        path: PathBuf,
        /// The tensor's name in it.
        tensor: String,
        /// Byte offset of the tensor.
        offset: u64,
        /// Index of the value.
        index: usize,
        /// What was found.
        value: f32,
    },
    /// A tensor and its scales do not fit each other.
    #[error(
        "{}: tensor {tensor} at offset {offset} and its scales: {what}; the file is not laid out as its configuration says, \
         so download or convert it again", path.display()
    )]
    Misfit {
        /// The file.
        path: PathBuf,
        /// The tensor's name in it.
        tensor: String,
        /// Byte offset of the tensor.
        offset: u64,
        /// What does not fit.
        what: Misfit,
    },
    /// A tensor that the architecture asks for is not in the catalogue.
    #[error(
        "{}: no tensor for {role} of layer {layer:?}, which this architecture needs; the file is incomplete, so download \
         or convert it again", path.display()
    )]
    MissingTensor {
        /// File or directory of the model.
        path: PathBuf,
        /// What is missing.
        role: String,
        /// Where.
        layer: Option<usize>,
    },
    /// The computation itself went out of range.
    #[error(
        "layer {layer}: the router's scores for position {position} are not finite; a weight before this layer is damaged \
         (verify the file's checksum) or its format does not fit the model"
    )]
    NotFiniteRouting {
        /// Layer number.
        layer: usize,
        /// Position in the sequence.
        position: usize,
    },
    /// The output is not a number.
    #[error(
        "the logits of position {position} are not finite; a weight is damaged (verify the file's checksum) or its format \
         does not fit the model"
    )]
    NotFiniteLogits {
        /// Position in the sequence.
        position: usize,
    },
    /// A token id that the model does not have.
    #[error("token id {id} is out of range: the model has ids 0 to {}", vocab - 1)]
    TokenOutOfRange {
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// The caller asked to stop; nothing of the unfinished step remains.
    #[error("cancelled")]
    Cancelled,
}
