//! SentencePiece's normaliser: a table of replacements, and what happens to white space.

use crate::alphabet::SPACE_SYMBOL;

/// Bit that tells a value from a node in the table.
const VALUE_BIT: u32 = 1 << 31;

/// Longest sequence that is looked up; the published tables go to about 20 bytes.
const PREFIX_BYTES_MAX: usize = 256;

/// A compiled table: a trie over the bytes of what is replaced (a double array of 32-bit units), then the replacements,
/// each ended by a zero byte.
#[derive(Clone, Debug, Default)]
pub(crate) struct CharsMap {
    units: Vec<u32>,
    replacements: Vec<u8>,
}

impl CharsMap {
    /// Reads a `precompiled_charsmap`; an empty one replaces nothing.
    pub(crate) fn new(bytes: &[u8]) -> Result<Self, String> {
        let Some((head, rest)) = bytes.split_first_chunk::<4>() else {
            return if bytes.is_empty() {
                Ok(Self::default())
            } else {
                Err("shorter than its header".to_owned())
            };
        };
        let trie_bytes = usize::try_from(u32::from_le_bytes(*head)).unwrap_or(usize::MAX);
        let parts = rest.split_at_checked(trie_bytes).filter(|_| trie_bytes.is_multiple_of(4));
        let (trie, replacements) = parts.ok_or_else(|| {
            format!("its trie is said to have {trie_bytes} bytes, {} bytes follow; expected fewer, and whole units", rest.len())
        })?;
        let units = trie.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        Ok(Self { units, replacements: replacements.to_vec() })
    }

    /// The longest replaced sequence that `text` begins with: its length in bytes and its replacement.
    fn longest(&self, text: &str) -> Option<(usize, &str)> {
        let unit = |at: u32| self.units.get(usize::try_from(at).ok()?).copied();
        let offset = |unit: u32| (unit >> 10) << ((unit & (1 << 9)) >> 6);
        let mut at = offset(unit(0)?);
        let mut found = None;
        for (index, byte) in text.bytes().enumerate().take(PREFIX_BYTES_MAX) {
            at ^= u32::from(byte);
            let Some(node) = unit(at).filter(|u| u & (VALUE_BIT | 0xff) == u32::from(byte)) else { break };
            at ^= offset(node);
            if node >> 8 & 1 == 1 {
                found = unit(at).map(|value| (index + 1, value & !VALUE_BIT));
            }
        }
        let (len, start) = found?;
        let tail = self.replacements.get(usize::try_from(start).ok()?..)?;
        let replacement = tail.split(|&b| b == 0).next()?;
        // A table that cuts characters apart replaces nothing there.
        text.is_char_boundary(len).then_some(())?;
        Some((len, std::str::from_utf8(replacement).ok()?))
    }
}

/// How a text is prepared for its vocabulary.
#[derive(Clone, Debug)]
pub(crate) struct Normalizer {
    pub(crate) map: CharsMap,
    /// White space at the ends goes, several spaces become one.
    pub(crate) merges_space: bool,
    /// A space is put before the text.
    pub(crate) space_prefix: bool,
}

impl Normalizer {
    /// The text with `▁` for every space.
    pub(crate) fn apply(&self, text: &str) -> String {
        let mut rest = text;
        let mut out = String::with_capacity(text.len() + SPACE_SYMBOL.len_utf8());
        let (mut pending_prefix, mut after_space) = (self.space_prefix, self.merges_space);
        while let Some(first) = rest.chars().next() {
            let one = first.len_utf8();
            let (len, piece) =
                self.map.longest(rest).unwrap_or_else(|| (one, rest.get(..one).unwrap_or_default()));
            rest = rest.get(len..).unwrap_or_default();
            let piece = if after_space { piece.trim_start_matches(' ') } else { piece };
            if piece.is_empty() {
                continue;
            }
            if std::mem::take(&mut pending_prefix) {
                out.push(SPACE_SYMBOL);
            }
            out.extend(piece.chars().map(|c| if c == ' ' { SPACE_SYMBOL } else { c }));
            after_space = self.merges_space && piece.ends_with(' ');
        }
        if pending_prefix && !text.is_empty() && !self.merges_space {
            out.push(SPACE_SYMBOL); // everything was replaced by nothing
        }
        let end = if self.merges_space { out.trim_end_matches(SPACE_SYMBOL).len() } else { out.len() };
        out.truncate(end);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(merges_space: bool, text: &str, expected: &str) {
        let normalizer = Normalizer { map: CharsMap::default(), merges_space, space_prefix: true };
        assert_eq!(normalizer.apply(text), expected, "{text:?}");
    }

    #[test]
    fn white_space() {
        check(true, "  a  b ", "▁a▁b");
        check(true, "   ", "");
        check(true, "", "");
        check(false, " a  b ", "▁▁a▁▁b▁");
        check(false, "a\tb", "▁a\tb");
    }

    /// Tables come with the model file: whatever they hold, the answer is a text or a refusal.
    #[test]
    fn damaged_tables_do_no_harm() {
        for bytes in [&b"\x01"[..], b"\x05\0\0\0abcde", b"\xff\xff\xff\xff", b"\x08\0\0\0abcd"] {
            assert!(CharsMap::new(bytes).is_err(), "{bytes:?}");
        }
        for fill in [0u8, 1, 0x41, 0x61, 0xff] {
            let bytes = [&64u32.to_le_bytes()[..], &[fill; 80]].concat();
            let map = CharsMap::new(&bytes).unwrap();
            Normalizer { map, merges_space: true, space_prefix: true }.apply("a\0A é\u{ff21}");
        }
    }
}
