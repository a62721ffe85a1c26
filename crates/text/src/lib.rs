//! Text in, token ids out, and back: tokenizers, streaming decoding, stop strings and chat templates.
//!
//! What lives here: [`Tokenizer`] (from a `tokenizer.json` or from GGUF metadata), [`Utf8Stream`] (token bytes to whole
//! characters), [`StopMatcher`] (stop strings across chunk boundaries) and [`ChatTemplate`] (messages to a prompt).
//! Every target uses the same pure-Rust regular expressions, so that a browser tokenises exactly as a server does.
//!
//! What must never live here: tensors, sampling, HTTP types.

mod alphabet;
mod charsmap;
mod error;
mod gguf;
mod gguf_types;
mod huggingface;
mod parts;
mod pieces;
mod pretokenizer;
mod specials;
mod spm;
mod stop;
mod template;
mod tokenizer;
mod unigram;
mod utf8;
mod vocabulary;

pub use error::TextError;
pub use specials::Specials;
pub use stop::{Emit, StopMatcher};
pub use template::{ChatTemplate, Message};
pub use tokenizer::Tokenizer;
pub use utf8::Utf8Stream;
