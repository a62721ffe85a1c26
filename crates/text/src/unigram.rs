//! SentencePiece unigram: of all ways to cut a text into pieces, the one with the highest sum of scores.

use std::collections::HashMap;

use calypte_checkpoint::GgufTokenizer;

use crate::alphabet::byte_token;
use crate::charsmap::Normalizer;
use crate::error::TextError;
use crate::gguf_types::{bad, kind, token_type};
use crate::specials::{Fragment, Specials, TokenFinder};

/// How much worse than the worst piece a character without a piece is.
const UNKNOWN_PENALTY: f32 = 10.0;

/// A unigram vocabulary.
#[derive(Debug)]
pub(crate) struct Unigram {
    /// Pieces and their scores; neither control tokens nor byte tokens.
    pieces: HashMap<Box<str>, (u32, f32)>,
    piece_bytes_max: usize,
    unknown_score: f32,
    /// For characters without a piece.
    byte_ids: [Option<u32>; 256],
    unknown: Option<u32>,
    normalizer: Normalizer,
    /// Control and user-defined tokens.
    all_whole: TokenFinder,
    /// User-defined tokens.
    plain_whole: TokenFinder,
}

/// The best way to get to a place in the text.
#[derive(Clone, Copy)]
struct Step {
    score: f32,
    start: usize,
    /// `None` for a character without a piece.
    id: Option<u32>,
}

impl Unigram {
    pub(crate) fn new(meta: &GgufTokenizer, normalizer: Normalizer) -> Result<Self, TextError> {
        if meta.scores.len() != meta.tokens.len() || meta.scores.iter().any(|s| !s.is_finite()) {
            let found = meta.scores.len();
            let wanted =
                format!("{found} values, expected a finite one for each of {} tokens", meta.tokens.len());
            return Err(bad("scores", wanted));
        }
        let (mut pieces, mut byte_ids, mut unknown) = (HashMap::new(), [None; 256], None);
        let (mut control, mut user, mut worst) = (Vec::new(), Vec::new(), f32::INFINITY);
        for (index, ((id, token), &score)) in (0u32..).zip(&meta.tokens).zip(&meta.scores).enumerate() {
            match kind(meta, index) {
                token_type::UNKNOWN => unknown = unknown.or(Some(id)),
                token_type::CONTROL => control.push((token.clone(), id)),
                token_type::USER_DEFINED => user.push((token.clone(), id)),
                token_type::BYTE => {
                    let byte = byte_token(token).ok_or_else(|| {
                        bad("tokens", format!("byte token {id} is '{token}', expected <0xNN>"))
                    })?;
                    if let Some(slot) = byte_ids.get_mut(usize::from(byte)) {
                        slot.get_or_insert(id);
                    }
                }
                token_type::NORMAL => {
                    worst = worst.min(score);
                    pieces.entry(token.clone().into_boxed_str()).or_insert((id, score));
                }
                _ => {} // unused pieces are never chosen
            }
        }
        let piece_bytes_max = pieces.keys().map(|p| p.len()).max().unwrap_or(0);
        let unknown_score = if worst.is_finite() { worst - UNKNOWN_PENALTY } else { 0.0 };
        let plain_whole = TokenFinder::new(user.clone());
        let all_whole = TokenFinder::new(control.into_iter().chain(user));
        Ok(Self {
            pieces,
            piece_bytes_max,
            unknown_score,
            byte_ids,
            unknown,
            normalizer,
            all_whole,
            plain_whole,
        })
    }

    pub(crate) fn encode(&self, text: &str, specials: Specials) -> Result<Vec<u32>, TextError> {
        let finder = match specials {
            Specials::Parse => &self.all_whole,
            Specials::Plain => &self.plain_whole,
        };
        let mut out = Vec::new();
        for fragment in finder.split(text) {
            match fragment {
                Fragment::Token(id) => out.push(id),
                Fragment::Text(text) => self.encode_piece(&self.normalizer.apply(text), &mut out)?,
            }
        }
        Ok(out)
    }

    fn encode_piece(&self, text: &str, out: &mut Vec<u32>) -> Result<(), TextError> {
        let mut last_unknown = false;
        for (piece, id) in self.best(text) {
            let bytes: Option<Vec<u32>> =
                piece.bytes().map(|b| self.byte_ids.get(usize::from(b)).copied().flatten()).collect();
            match (id, bytes, self.unknown) {
                (Some(id), ..) => out.push(id),
                (None, Some(ids), _) => out.extend(ids),
                (None, None, Some(_)) if last_unknown => {} // one for a run of them
                (None, None, Some(unknown)) => out.push(unknown),
                (None, None, None) => {
                    let reason = format!("'{piece}' has no token, and the vocabulary has no unknown token");
                    return Err(TextError::Encode { reason });
                }
            }
            last_unknown = id.is_none();
        }
        Ok(())
    }

    /// The pieces of `text` in order, with their ids.
    fn best<'a>(&self, text: &'a str) -> Vec<(&'a str, Option<u32>)> {
        let mut steps: Vec<Option<Step>> = vec![None; text.len() + 1];
        for (start, c) in text.char_indices() {
            let before = match steps.get(start) {
                Some(Some(step)) => step.score,
                _ => 0.0, // the start of the text
            };
            let mut whole_character = false;
            let ends = text[start..].char_indices().map(|(at, c)| start + at + c.len_utf8());
            for end in ends.take_while(|end| end - start <= self.piece_bytes_max) {
                if let Some(&(id, score)) = self.pieces.get(&text[start..end]) {
                    whole_character |= end - start == c.len_utf8();
                    improve(&mut steps, end, Step { score: before + score, start, id: Some(id) });
                }
            }
            if !whole_character {
                let step = Step { score: before + self.unknown_score, start, id: None };
                improve(&mut steps, start + c.len_utf8(), step);
            }
        }
        let (mut out, mut end) = (Vec::new(), text.len());
        while let Some(Some(step)) = steps.get(end) {
            out.push((&text[step.start..end], step.id));
            end = step.start;
        }
        out.reverse();
        out
    }
}

/// Of equally good ways the first one stays.
fn improve(steps: &mut [Option<Step>], end: usize, step: Step) {
    if let Some(slot) = steps.get_mut(end)
        && slot.is_none_or(|old| step.score > old.score)
    {
        *slot = Some(step);
    }
}
