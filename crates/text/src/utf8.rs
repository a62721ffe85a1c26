//! Bytes of tokens to whole characters.

/// Longest UTF-8 sequence, and so one more than can ever be held back.
const SEQUENCE_BYTES_MAX: usize = 4;

/// Puts characters together from the bytes of successive tokens: a token may hold half a character.
///
/// The text emitted over all calls equals `String::from_utf8_lossy` of all bytes together, however they were cut up.
#[derive(Clone, Debug, Default)]
pub struct Utf8Stream {
    /// The start of a character whose end has not come yet; at most three bytes.
    held: Vec<u8>,
}

impl Utf8Stream {
    /// An empty stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the bytes of one token and gives the characters that are complete by now. An unfinished character is held
    /// back; bytes that no continuation can make valid become U+FFFD.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        let mut out = String::with_capacity(bytes.len() + SEQUENCE_BYTES_MAX);
        let mut joined = std::mem::take(&mut self.held);
        joined.extend_from_slice(bytes);
        let mut chunks = joined.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            out.push_str(chunk.valid());
            let invalid = chunk.invalid();
            if invalid.is_empty() {
                continue;
            }
            if chunks.peek().is_none() && is_unfinished(invalid) {
                self.held = invalid.to_vec();
            } else {
                out.push(char::REPLACEMENT_CHARACTER);
            }
        }
        out
    }

    /// Ends the stream: an unfinished character becomes one U+FFFD. The stream can be used again.
    pub fn finish(&mut self) -> String {
        let unfinished = !std::mem::take(&mut self.held).is_empty();
        if unfinished { char::REPLACEMENT_CHARACTER.to_string() } else { String::new() }
    }

    /// Whether a character is unfinished.
    pub fn is_pending(&self) -> bool {
        !self.held.is_empty()
    }
}

/// Whether more bytes could still make `bytes` a character.
fn is_unfinished(bytes: &[u8]) -> bool {
    // `error_len` is none exactly when the input ended too early.
    std::str::from_utf8(bytes).is_err_and(|e| e.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(chunks: &[&[u8]], expected: &[&str], finish: &str) {
        let mut stream = Utf8Stream::new();
        let got: Vec<String> = chunks.iter().map(|c| stream.push(c)).collect();
        assert_eq!(got, expected, "{chunks:x?}");
        assert_eq!(stream.finish(), finish, "{chunks:x?}");
        assert!(!stream.is_pending());
    }

    #[test]
    fn cut_characters() {
        check(&[b"a", b"b"], &["a", "b"], "");
        check(&[b"\xf0", b"\x9f\x98", b"\x80!"], &["", "", "😀!"], "");
        check(&[b"x\xf0\x9f\x98"], &["x"], "\u{fffd}");
        // A new character starts before the old one ended.
        check(&[b"\xe5\xad", b"\xe5\xad\xa6"], &["", "\u{fffd}学"], "");
        // Bytes that can never be valid do not poison what follows.
        check(&[b"\xff", b"ok", b"\x80"], &["\u{fffd}", "ok", "\u{fffd}"], "");
        check(&[b"", b"\xc3", b"", b"\xa9"], &["", "", "", "é"], "");
        // An encoded surrogate is three invalid bytes.
        check(&[b"\xed", b"\xa0", b"\x80"], &["", "\u{fffd}\u{fffd}", "\u{fffd}"], "");
    }

    proptest! {
        #[test]
        fn equals_lossy_decoding_in_any_chunking(bytes in prop::collection::vec(any::<u8>(), 0..64), text in ".{0,16}", cuts in prop::collection::vec(0usize..96, 0..12)) {
            let mut all = bytes;
            all.extend_from_slice(text.as_bytes());
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(all.len())).collect();
            cuts.push(all.len());
            cuts.sort_unstable();
            let (mut stream, mut got, mut from) = (Utf8Stream::new(), String::new(), 0);
            for to in cuts {
                got += &stream.push(&all[from..to]);
                from = to;
            }
            got += &stream.finish();
            prop_assert_eq!(got, String::from_utf8_lossy(&all));
        }
    }
}
