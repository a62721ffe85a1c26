//! What can go wrong with text, and what to do about it.

use std::path::PathBuf;

/// Why a tokenizer or a template could not be built or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A file beside the weights could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not the JSON it should be.
    #[error("{file}: not valid JSON ({source}); download the file again")]
    Json {
        /// The file.
        file: String,
        /// Line, column and reason.
        source: serde_json::Error,
    },
    /// A tokenizer file is well-formed JSON, but not a tokenizer that can be used.
    #[error("{file}: {reason}")]
    Tokenizer {
        /// The file, or the metadata key of a GGUF file.
        file: String,
        /// What was found, what was expected, and what to do.
        reason: String,
    },
    /// The splitting rules of a GGUF tokenizer are not known; guessing them would give wrong ids.
    #[error(
        "tokenizer.ggml.pre is '{found}', whose splitting rules are not known; known: {known}. \
         Put the model's original tokenizer.json beside the weights and open that"
    )]
    UnknownPreTokenizer {
        /// The name in the file.
        found: String,
        /// The names that would have worked.
        known: String,
    },
    /// The kind of tokenizer is not supported.
    #[error("tokenizer kind '{found}' is not supported; supported: {supported}")]
    UnsupportedModel {
        /// The kind in the file.
        found: String,
        /// The kinds that would have worked.
        supported: &'static str,
    },
    /// The checkpoint came without a tokenizer.
    #[error("this checkpoint has no tokenizer; put its tokenizer.json beside the weights, or use token ids")]
    NoTokenizer,
    /// A token id that the vocabulary does not have.
    #[error("token id {id} is not in the vocabulary of {vocab_size} ids")]
    UnknownId {
        /// The id asked for.
        id: u32,
        /// Ids are below this.
        vocab_size: usize,
    },
    /// The text could not be encoded.
    #[error("cannot encode the text: {reason}")]
    Encode {
        /// What was found and where.
        reason: String,
    },
    /// The chat template is wrong, or uses something that is not supported.
    #[error("chat template, line {line}: {reason}")]
    Template {
        /// Line of the template, counted from 1; 0 when unknown.
        line: usize,
        /// The construct and what is wrong with it.
        reason: String,
    },
    /// The chat template itself refused the messages through `raise_exception`.
    #[error("the chat template refuses these messages: {message}")]
    TemplateRaised {
        /// The template's own words.
        message: String,
    },
    /// The chat template did too much work, e.g. an endless loop.
    #[error(
        "chat template, line {line}: stopped after {fuel} units of work; the template loops or repeats too much"
    )]
    TemplateTooExpensive {
        /// Line of the template, counted from 1; 0 when unknown.
        line: usize,
        /// The budget that was used up.
        fuel: u64,
    },
}
