//! The encoding pipeline of the `tokenizers` crate, with special tokens parsed or not per call.

use tokenizers::{AddedVocabulary, Model as _, OffsetReferential, OffsetType, PreTokenizer as _, Token};

use crate::error::TextError;
use crate::specials::Specials;
use crate::vocabulary::Vocabulary;

/// Longest run of characters of one kind (letters, white space). Past about a million, the regular expressions give up
/// half-way *without an error*, and the ids would be wrong.
const RUN_CHARS_MAX: usize = 200_000;

/// Normalizer, added tokens, pre-tokenizer and model. The library keeps "special tokens are plain text" as a setting of
/// the whole tokenizer; two tables of added tokens around one model make it an argument instead.
#[derive(Debug)]
pub(crate) struct Pieces {
    inner: tokenizers::Tokenizer,
    plain: AddedVocabulary,
    /// The model's own answer to what it cannot write; may come out of plain text.
    unknown: Option<u32>,
}

impl Pieces {
    pub(crate) fn new(inner: tokenizers::Tokenizer, unknown: Option<u32>) -> Self {
        // The environment variable that also controls this is not ours to set, and a second thread pool would compete
        // with the compute threads.
        tokenizers::utils::parallelism::set_parallelism(false);
        let mut plain = inner.get_added_vocabulary().clone();
        plain.set_encode_special_tokens(true);
        Self { inner, plain, unknown }
    }

    pub(crate) fn encode(
        &self,
        text: &str,
        specials: Specials,
        vocabulary: &Vocabulary,
    ) -> Result<Vec<u32>, TextError> {
        check_runs(text)?;
        let added = match specials {
            Specials::Parse => self.inner.get_added_vocabulary(),
            Specials::Plain => &self.plain,
        };
        let mut pieces = added.extract_and_normalize(self.inner.get_normalizer(), text);
        let run = |pieces: &mut tokenizers::PreTokenizedString| {
            if let Some(split) = self.inner.get_pre_tokenizer() {
                split.pre_tokenize(pieces)?;
            }
            pieces.tokenize(|piece| self.tokenize(piece.get(), vocabulary))
        };
        run(&mut pieces).map_err(|e| TextError::Encode { reason: e.to_string() })?;
        let splits = pieces.get_splits(OffsetReferential::Normalized, OffsetType::None);
        Ok(splits.iter().filter_map(|(_, _, tokens)| tokens.as_ref()).flatten().map(|t| t.id).collect())
    }

    /// Tokens of one piece. A piece that spells a special token may be in the model's own vocabulary; it is cut in two,
    /// so that a look-alike never becomes the real one.
    fn tokenize(&self, piece: &str, vocabulary: &Vocabulary) -> tokenizers::Result<Vec<Token>> {
        let tokens = self.inner.get_model().tokenize(piece)?;
        if !tokens.iter().any(|t| vocabulary.is_special(t.id) && Some(t.id) != self.unknown) {
            return Ok(tokens);
        }
        let middle = piece.char_indices().map(|(i, _)| i).nth(piece.chars().count() / 2);
        match middle.map(|at| piece.split_at(at)) {
            Some((left, right)) if !left.is_empty() => {
                let mut tokens = self.tokenize(left, vocabulary)?;
                tokens.extend(self.tokenize(right, vocabulary)?);
                Ok(tokens)
            }
            _ => {
                Err(format!("'{piece}' exists as a special token only; remove it or allow special tokens")
                    .into())
            }
        }
    }
}

/// Refuses texts whose splitting would exceed the backtracking limit of the regular expressions.
fn check_runs(text: &str) -> Result<(), TextError> {
    let kind = |c: char| (c.is_whitespace(), c.is_alphabetic());
    let (mut run, mut last) = (0usize, None);
    for (at, c) in text.char_indices() {
        run = if last == Some(kind(c)) { run + 1 } else { 1 };
        last = Some(kind(c));
        if run > RUN_CHARS_MAX {
            let reason = format!(
                "more than {RUN_CHARS_MAX} characters without a word boundary before byte {at}; split the text"
            );
            return Err(TextError::Encode { reason });
        }
    }
    Ok(())
}
