//! How tokens write bytes: the byte-level alphabet of GPT-2, and the spaces and byte tokens of SentencePiece.

/// What SentencePiece writes for a space.
pub(crate) const SPACE_SYMBOL: char = '\u{2581}';

/// Characters from U+0100 on stand for the bytes that have no printable character of their own, in ascending order.
const FIRST_SUBSTITUTE: u32 = 0x100;

/// How the tokens of a vocabulary spell their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// One character of a 256-character alphabet per byte.
    ByteLevel,
    /// Text with `▁` for a space, and `<0xNN>` for a byte that no other token has.
    SentencePiece,
}

impl Spelling {
    /// The bytes that the vocabulary entry `token` stands for.
    pub(crate) fn bytes(self, token: &str) -> Vec<u8> {
        match self {
            // A token outside the alphabet was added by hand, and stands for itself.
            Spelling::ByteLevel => token
                .chars()
                .map(char_to_byte)
                .collect::<Option<_>>()
                .unwrap_or_else(|| token.as_bytes().to_vec()),
            Spelling::SentencePiece => match byte_token(token) {
                Some(byte) => vec![byte],
                None => token.replace(SPACE_SYMBOL, " ").into_bytes(),
            },
        }
    }
}

/// Whether a byte is written as the character of the same number.
fn is_printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}

/// The character that stands for `byte` in a byte-level vocabulary.
pub(crate) fn byte_to_char(byte: u8) -> char {
    let unprintable_before = (0..byte).filter(|&b| !is_printable(b)).count() as u32;
    let code = if is_printable(byte) { u32::from(byte) } else { FIRST_SUBSTITUTE + unprintable_before };
    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The byte that `c` stands for in a byte-level vocabulary.
fn char_to_byte(c: char) -> Option<u8> {
    match u8::try_from(u32::from(c)) {
        Ok(byte) => is_printable(byte).then_some(byte),
        Err(_) => {
            let index = usize::try_from(u32::from(c).checked_sub(FIRST_SUBSTITUTE)?).ok()?;
            (0..=u8::MAX).filter(|&b| !is_printable(b)).nth(index)
        }
    }
}

/// The byte of a token such as `<0x0A>`.
pub(crate) fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let plain = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    if plain { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// Printable ASCII needs a token for every byte: the library drops what it cannot write. (Published vocabularies lack some
/// control bytes, which every implementation drops.)
pub(crate) fn check_alphabet(has: impl Fn(&str) -> bool) -> Result<(), String> {
    let missing = (b' '..=b'~').find(|&b| !has(byte_to_char(b).encode_utf8(&mut [0; 4])));
    match missing {
        Some(byte) => {
            Err(format!("no token for the byte {byte:#04x}, expected one for every printable byte"))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(spelling: Spelling, token: &str, expected: &[u8]) {
        assert_eq!(spelling.bytes(token), expected, "{token}");
    }

    #[test]
    fn tokens_spell_bytes() {
        check(Spelling::ByteLevel, "Ġhi", b" hi");
        check(Spelling::ByteLevel, "Ċ", b"\n");
        check(Spelling::ByteLevel, "Ã©", "é".as_bytes());
        check(Spelling::ByteLevel, "Ń", b"\xad");
        check(Spelling::ByteLevel, "<|im end|>", b"<|im end|>");
        check(Spelling::ByteLevel, "学", "学".as_bytes());
        check(Spelling::SentencePiece, "▁hi▁", b" hi ");
        check(Spelling::SentencePiece, "<0x0A>", b"\n");
        check(Spelling::SentencePiece, "<0xfF>", b"\xff");
        check(Spelling::SentencePiece, "<0x+A>", b"<0x+A>");
        check(Spelling::SentencePiece, "<0x00A>", b"<0x00A>");
    }

    #[test]
    fn alphabet_is_a_bijection() {
        for byte in 0..=u8::MAX {
            assert_eq!(char_to_byte(byte_to_char(byte)), Some(byte));
        }
        assert_eq!([b' ', b'\n', 0, 0x7f].map(byte_to_char), ['Ġ', 'Ċ', 'Ā', 'ġ']);
    }
}
