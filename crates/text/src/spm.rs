//! SentencePiece BPE: adjacent pieces are joined, best score first, as long as the joint is a piece.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use calypte_checkpoint::GgufTokenizer;

use crate::alphabet::{SPACE_SYMBOL, byte_token};
use crate::error::TextError;
use crate::gguf_types::{bad, kind, token_type};
use crate::specials::{Fragment, Specials, TokenFinder};

/// A SentencePiece BPE vocabulary.
#[derive(Debug)]
pub(crate) struct SentencePiece {
    /// Pieces that joining may produce: neither control tokens nor byte tokens.
    ids: HashMap<Box<str>, u32>,
    /// By id.
    scores: Vec<f32>,
    /// For characters without a piece.
    byte_ids: [Option<u32>; 256],
    unknown: Option<u32>,
    space_prefix: bool,
    /// Control and user-defined tokens.
    all_whole: TokenFinder,
    /// User-defined tokens.
    plain_whole: TokenFinder,
}

/// A stretch of text that is one piece so far, in a doubly linked list.
#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    len: usize,
    prev: Option<usize>,
    next: Option<usize>,
}

/// Two neighbours that could be joined.
#[derive(PartialEq)]
struct Join {
    score: f32,
    left: usize,
    right: usize,
    /// Length of the joint when it was found; a different length by now means that one half was joined elsewhere.
    len: usize,
}

impl Eq for Join {}

impl Ord for Join {
    /// Highest score first, then leftmost.
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Join {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl SentencePiece {
    pub(crate) fn new(meta: &GgufTokenizer) -> Result<Self, TextError> {
        if meta.scores.len() != meta.tokens.len() {
            let found = meta.scores.len();
            return Err(bad(
                "scores",
                format!("{found} values, expected one for each of {} tokens", meta.tokens.len()),
            ));
        }
        let (mut ids, mut byte_ids, mut unknown) = (HashMap::new(), [None; 256], None);
        let (mut control, mut user) = (Vec::new(), Vec::new());
        for (index, (id, token)) in (0u32..).zip(&meta.tokens).enumerate() {
            match kind(meta, index) {
                token_type::CONTROL => control.push((token.clone(), id)),
                token_type::UNKNOWN => {
                    unknown = unknown.or(Some(id));
                    control.push((token.clone(), id));
                }
                token_type::BYTE => {
                    let byte = byte_token(token);
                    let byte = byte.ok_or_else(|| {
                        bad("tokens", format!("byte token {id} is '{token}', expected <0xNN>"))
                    })?;
                    byte_ids[usize::from(byte)].get_or_insert(id);
                }
                other => {
                    if other == token_type::USER_DEFINED {
                        user.push((token.clone(), id));
                    }
                    ids.entry(token.clone().into_boxed_str()).or_insert(id);
                }
            }
        }
        let plain_whole = TokenFinder::new(user.clone());
        let all_whole = TokenFinder::new(control.into_iter().chain(user));
        let space_prefix = meta.add_space_prefix.unwrap_or(true);
        Ok(Self { ids, scores: meta.scores.clone(), byte_ids, unknown, space_prefix, all_whole, plain_whole })
    }

    pub(crate) fn encode(&self, text: &str, specials: Specials) -> Result<Vec<u32>, TextError> {
        let finder = match specials {
            Specials::Parse => &self.all_whole,
            Specials::Plain => &self.plain_whole,
        };
        let (mut out, mut after_whole) = (Vec::new(), true);
        for fragment in finder.split(text) {
            match fragment {
                Fragment::Token(id) => out.push(id),
                Fragment::Text(text) => {
                    let mut escaped = String::with_capacity(text.len() + SPACE_SYMBOL.len_utf8());
                    if self.space_prefix && after_whole {
                        escaped.push(SPACE_SYMBOL);
                    }
                    escaped.extend(text.chars().map(|c| if c == ' ' { SPACE_SYMBOL } else { c }));
                    self.encode_piece(&escaped, &mut out)?;
                }
            }
            after_whole = matches!(fragment, Fragment::Token(_));
        }
        Ok(out)
    }

    fn encode_piece(&self, text: &str, out: &mut Vec<u32>) -> Result<(), TextError> {
        let mut last_unknown = false;
        let symbols = self.join(text);
        let mut at = (!symbols.is_empty()).then_some(0);
        while let Some(symbol) = at.and_then(|i| symbols.get(i)) {
            let piece = &text[symbol.start..symbol.start + symbol.len];
            last_unknown = self.push_piece(piece, last_unknown, out)?;
            at = symbol.next;
        }
        Ok(())
    }

    /// Gives the id of `piece`, or of its bytes, or of the unknown token (once for a run of unknown pieces).
    fn push_piece(&self, piece: &str, last_unknown: bool, out: &mut Vec<u32>) -> Result<bool, TextError> {
        if let Some(&id) = self.ids.get(piece) {
            out.push(id);
            return Ok(false);
        }
        let bytes: Option<Vec<u32>> = piece.bytes().map(|b| self.byte_ids[usize::from(b)]).collect();
        match (bytes, self.unknown) {
            (Some(ids), _) => out.extend(ids),
            (None, Some(unknown)) => {
                if !last_unknown {
                    out.push(unknown);
                }
                return Ok(true);
            }
            (None, None) => {
                let reason = format!("'{piece}' has no token, and the vocabulary has no unknown token");
                return Err(TextError::Encode { reason });
            }
        }
        Ok(false)
    }

    /// The text cut into pieces; the first is at index 0, the others follow through `next`.
    fn join(&self, text: &str) -> Vec<Symbol> {
        let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
        for (index, (start, c)) in text.char_indices().enumerate() {
            symbols.push(Symbol {
                start,
                len: c.len_utf8(),
                prev: index.checked_sub(1),
                next: Some(index + 1),
            });
        }
        if let Some(last) = symbols.last_mut() {
            last.next = None;
        }
        let mut queue = BinaryHeap::new();
        for right in 1..symbols.len() {
            queue.extend(self.candidate(text, &symbols, right - 1, right));
        }
        while let Some(join) = queue.pop() {
            let (left, right) = (symbols[join.left], symbols[join.right]);
            if left.len == 0 || right.len == 0 || left.len + right.len != join.len {
                continue;
            }
            symbols[join.left].len = join.len;
            symbols[join.left].next = right.next;
            symbols[join.right].len = 0;
            if let Some(next) = right.next {
                symbols[next].prev = Some(join.left);
                queue.extend(self.candidate(text, &symbols, join.left, next));
            }
            if let Some(prev) = left.prev {
                queue.extend(self.candidate(text, &symbols, prev, join.left));
            }
        }
        symbols
    }

    fn candidate(&self, text: &str, symbols: &[Symbol], left: usize, right: usize) -> Option<Join> {
        let start = symbols[left].start;
        let len = symbols[left].len + symbols[right].len;
        let id = *self.ids.get(&text[start..start + len])?;
        Some(Join { score: self.scores.get(id as usize).copied()?, left, right, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary() -> GgufTokenizer {
        let mut meta = GgufTokenizer { model: "llama".into(), ..GgufTokenizer::default() };
        let mut add = |token: &str, score: f32, kind: i32| {
            meta.tokens.push(token.into());
            meta.scores.push(score);
            meta.token_types.push(kind);
        };
        add("<unk>", 0.0, token_type::UNKNOWN);
        add("<s>", 0.0, token_type::CONTROL);
        for byte in 0..=255u8 {
            add(&format!("<0x{byte:02X}>"), 0.0, token_type::BYTE);
        }
        for (rank, piece) in ["ab", "bc", "▁a", "▁ab", "abc", "▁▁", "a", "b", "c", "▁"].iter().enumerate()
        {
            add(piece, -(rank as f32), token_type::NORMAL);
        }
        add("<tool>", -1.0, token_type::USER_DEFINED);
        meta
    }

    fn check(text: &str, specials: Specials, expected: &[&str]) {
        let meta = vocabulary();
        let ids = SentencePiece::new(&meta).unwrap().encode(text, specials).unwrap();
        let got: Vec<&str> = ids.iter().map(|&id| meta.tokens[id as usize].as_str()).collect();
        assert_eq!(got, expected, "{text:?}");
    }

    #[test]
    fn joins_by_score() {
        use Specials::{Parse, Plain};
        check("", Parse, &[]);
        check("abc", Parse, &["▁ab", "c"]); // ab (best), then ▁ab, which beats abc
        check("bc", Parse, &["▁", "bc"]);
        check("a  a", Parse, &["▁a", "▁", "▁a"]); // ▁a has the better score than ▁▁
        check("é\n", Parse, &["▁", "<0xC3>", "<0xA9>", "<0x0A>"]);
        check("<s>a<tool>b", Parse, &["<s>", "▁a", "<tool>", "▁", "b"]);
        check(
            "a<tool><0x0A>",
            Plain,
            &["▁a", "<tool>", "▁", "<0x3C>", "<0x30>", "<0x78>", "<0x30>", "<0x41>", "<0x3E>"],
        );
        check("<s>", Plain, &["▁", "<0x3C>", "<0x73>", "<0x3E>"]);
    }

    #[test]
    fn unknown_characters_without_byte_tokens() {
        let mut meta = vocabulary();
        for kind in &mut meta.token_types {
            *kind = if *kind == token_type::BYTE { token_type::NORMAL } else { *kind };
        }
        let ids = SentencePiece::new(&meta).unwrap().encode("éèa", Specials::Parse).unwrap();
        assert_eq!(
            ids.iter().map(|&id| meta.tokens[id as usize].as_str()).collect::<Vec<_>>(),
            ["▁", "<unk>", "a"]
        );
        meta.token_types[0] = token_type::NORMAL;
        assert!(SentencePiece::new(&meta).unwrap().encode("é", Specials::Parse).is_err());
    }
}
