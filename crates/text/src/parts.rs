//! What a tokenizer is made of, whichever file format it came in.

use crate::pieces::Pieces;
use crate::spm::SentencePiece;
use crate::unigram::Unigram;
use crate::vocabulary::Vocabulary;

/// Turns text into token ids.
#[derive(Debug)]
pub(crate) enum Encoder {
    Pieces(Box<Pieces>),
    SentencePiece(Box<SentencePiece>),
    Unigram(Box<Unigram>),
}

/// What the two file formats come down to.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) encoder: Encoder,
    pub(crate) vocabulary: Vocabulary,
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) add_bos: bool,
    /// May hold duplicates.
    pub(crate) end_ids: Vec<u32>,
    /// Decoding a whole text drops one space at its start.
    pub(crate) strips_space: bool,
    pub(crate) template: Option<String>,
}
