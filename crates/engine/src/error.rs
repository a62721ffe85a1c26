//! Everything that can go wrong, sorted by what a caller does about it.

use calypte_checkpoint::OpenError;
use calypte_disk::DiskError;
use calypte_kernels::UnknownIsa;
use calypte_model::ModelError;
use calypte_residency::ResidencyError;
use calypte_text::TextError;

use crate::budget::BudgetError;

/// Which kind of failure an [`EngineError`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request makes no sense for this model.
    Usage,
    /// The model cannot be opened: missing, truncated, corrupt, unsupported.
    Open,
    /// It does not fit the memory budget.
    Budget,
    /// A read, or the computation, failed while running.
    Run,
    /// The caller asked to stop.
    Cancelled,
}

/// Why the engine could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The headers are unreadable or make no sense.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The weight files could not be opened or the resident weights not be read.
    #[error(transparent)]
    Load(ModelError),
    /// The budget is too small.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// The environment asks for an instruction set that the machine lacks.
    #[error(transparent)]
    Isa(#[from] UnknownIsa),
    /// A step failed.
    #[error(transparent)]
    Run(ModelError),
    /// The tokenizer or the template failed.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The model has no tokenizer, and the request needs one.
    #[error(
        "{path}: the model has no tokenizer (no tokenizer.json beside the weights, no tokenizer metadata in the file); \
         add one, or give token ids instead of text"
    )]
    NoTokenizer {
        /// The model.
        path: String,
    },
    /// There is nothing to start from.
    #[error("the prompt is empty; give at least one token")]
    EmptyPrompt,
    /// The text to score has no token to predict.
    #[error(
        "there are {tokens} tokens to score; scoring predicts each from those before it, so give at least two"
    )]
    TooShort {
        /// How many there are.
        tokens: usize,
    },
    /// The token id is not in the vocabulary.
    #[error("token id {id} is out of range: the model has ids 0 to {}", vocab - 1)]
    TokenOutOfRange {
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
}

impl EngineError {
    /// What kind of failure this is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            EngineError::Open(_) => ErrorKind::Open,
            EngineError::Load(ModelError::Cancelled) | EngineError::Run(ModelError::Cancelled) => {
                ErrorKind::Cancelled
            }
            EngineError::Load(_) => ErrorKind::Open,
            EngineError::Budget(_) => ErrorKind::Budget,
            EngineError::Run(ModelError::TokenOutOfRange { .. }) => ErrorKind::Usage,
            EngineError::Run(_) => ErrorKind::Run,
            EngineError::Text(_) => ErrorKind::Open,
            EngineError::Isa(_)
            | EngineError::NoTokenizer { .. }
            | EngineError::EmptyPrompt
            | EngineError::TooShort { .. }
            | EngineError::TokenOutOfRange { .. } => ErrorKind::Usage,
        }
    }
}

impl From<DiskError> for EngineError {
    fn from(error: DiskError) -> Self {
        EngineError::Load(ModelError::Disk(error))
    }
}

impl From<ResidencyError> for EngineError {
    fn from(error: ResidencyError) -> Self {
        EngineError::Load(ModelError::Residency(error))
    }
}
