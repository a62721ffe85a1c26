//! Token types in GGUF metadata, and complaints about it.

use calypte_checkpoint::GgufTokenizer;

use crate::error::TextError;

/// Values of `tokenizer.ggml.token_type`.
pub(crate) mod token_type {
    pub(crate) const UNKNOWN: i32 = 2;
    pub(crate) const CONTROL: i32 = 3;
    pub(crate) const USER_DEFINED: i32 = 4;
    pub(crate) const BYTE: i32 = 6;
    /// Assumed where the file does not say.
    pub(crate) const NORMAL: i32 = 1;
}

/// Error about one metadata key.
pub(crate) fn bad(key: &str, reason: String) -> TextError {
    TextError::Tokenizer { file: format!("GGUF metadata tokenizer.ggml.{key}"), reason }
}

/// Type of token `id`.
pub(crate) fn kind(meta: &GgufTokenizer, id: usize) -> i32 {
    meta.token_types.get(id).copied().unwrap_or(token_type::NORMAL)
}
