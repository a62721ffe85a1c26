//! The tokenizer of a model, wherever it came from.

use calypte_checkpoint::{GgufTokenizer, TokenizerSource};

use crate::error::TextError;
use crate::parts::{Encoder, Parts};
use crate::specials::Specials;
use crate::template::ChatTemplate;
use crate::{gguf, huggingface};

/// The tokenizer of a model.
#[derive(Debug)]
pub struct Tokenizer {
    parts: Parts,
}

impl Tokenizer {
    /// Reads the tokenizer that a checkpoint's catalogue points to.
    ///
    /// # Errors
    /// When there is none, a file cannot be read, or its contents are of an unknown or unsupported kind: a tokenizer is
    /// never guessed.
    pub fn from_source(source: &TokenizerSource) -> Result<Self, TextError> {
        match source {
            TokenizerSource::HuggingFace { tokenizer_json, chat_template } => {
                Ok(Self::new(huggingface::open(tokenizer_json, chat_template.clone())?))
            }
            TokenizerSource::Gguf(meta) => Self::from_gguf(meta),
            TokenizerSource::Missing => Err(TextError::NoTokenizer),
        }
    }

    /// From the tokenizer metadata of a GGUF file.
    ///
    /// # Errors
    /// As [`Tokenizer::from_source`].
    pub fn from_gguf(meta: &GgufTokenizer) -> Result<Self, TextError> {
        Ok(Self::new(gguf::parse(meta)?))
    }

    /// From the contents of `tokenizer.json` and, when there, of `tokenizer_config.json` and `generation_config.json`:
    /// for places without files, such as a browser.
    ///
    /// # Errors
    /// As [`Tokenizer::from_source`].
    pub fn from_json(
        tokenizer: &str,
        config: Option<&str>,
        generation: Option<&str>,
        chat_template: Option<String>,
    ) -> Result<Self, TextError> {
        let files = huggingface::Files { name: "tokenizer.json", tokenizer, config, generation };
        Ok(Self::new(huggingface::parse(files, chat_template)?))
    }

    fn new(mut parts: Parts) -> Self {
        parts.end_ids.sort_unstable();
        parts.end_ids.dedup();
        Self { parts }
    }

    /// Token ids of `text`. A beginning-of-sequence token is never added here; see [`Tokenizer::add_bos`].
    /// Control bytes that a byte-level vocabulary has no token for are left out, as all implementations do.
    ///
    /// # Errors
    /// [`TextError::Encode`] for texts that have no ids: a character that the vocabulary cannot write, or a run of
    /// letters or white space too long to split.
    pub fn encode(&self, text: &str, specials: Specials) -> Result<Vec<u32>, TextError> {
        match &self.parts.encoder {
            Encoder::Pieces(pieces) => pieces.encode(text, specials, &self.parts.vocabulary),
            Encoder::SentencePiece(spm) => spm.encode(text, specials),
            Encoder::Unigram(unigram) => unigram.encode(text, specials),
        }
    }

    /// The bytes that a token stands for; possibly half a character, so see [`crate::Utf8Stream`].
    ///
    /// # Errors
    /// [`TextError::UnknownId`] when the vocabulary has no such id.
    pub fn token_bytes(&self, id: u32) -> Result<&[u8], TextError> {
        self.parts.vocabulary.bytes(id)
    }

    /// Text of `ids`, special tokens included. Bytes that are no character, and ids that do not exist, become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let unknown = char::REPLACEMENT_CHARACTER.to_string();
        let bytes: Vec<u8> =
            ids.iter().flat_map(|&id| self.token_bytes(id).unwrap_or(unknown.as_bytes())).copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        match text.strip_prefix(' ') {
            Some(stripped) if self.parts.strips_space => stripped.to_owned(),
            _ => text.into_owned(),
        }
    }

    /// Whether `id` is a control token, which must never be shown.
    pub fn is_special(&self, id: u32) -> bool {
        self.parts.vocabulary.is_special(id)
    }

    /// Number of ids: the largest one plus one.
    pub fn vocab_size(&self) -> usize {
        self.parts.vocabulary.len()
    }

    /// Id of the token written `token` in the vocabulary (the first, if there are several).
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.parts.vocabulary.id_of(token)
    }

    /// The beginning-of-sequence token.
    pub fn bos(&self) -> Option<u32> {
        self.parts.bos
    }

    /// Whether the model expects [`Tokenizer::bos`] before every text. (Chat templates usually write it themselves.)
    pub fn add_bos(&self) -> bool {
        self.parts.add_bos
    }

    /// The end-of-sequence token.
    pub fn eos(&self) -> Option<u32> {
        self.parts.eos
    }

    /// All tokens that end a generation (end of sequence, end of turn), ascending.
    pub fn end_ids(&self) -> &[u32] {
        &self.parts.end_ids
    }

    /// The chat template that came with the model, if one did.
    ///
    /// # Errors
    /// [`TextError::Template`] when it does not parse.
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>, TextError> {
        let text = |id: Option<u32>| id.map(|id| self.decode(&[id])).unwrap_or_default();
        let template = |source: &String| ChatTemplate::new(source, &text(self.bos()), &text(self.eos()));
        self.parts.template.as_ref().map(template).transpose()
    }
}
