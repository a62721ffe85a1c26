//! Finding whole tokens, such as `<|im_end|>`, in plain text.

use std::collections::HashMap;

/// What to do with special tokens, such as `<|im_end|>`, that are written out in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// They become the tokens they name: for prompts that a chat template made.
    Parse,
    /// They are plain text: for what a user wrote. Added tokens that are not special, such as `<think>`, stay tokens.
    Plain,
}

/// A piece of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fragment<'a> {
    /// Ordinary text, never empty.
    Text(&'a str),
    /// A token that stood in the text.
    Token(u32),
}

/// Splits texts at whole tokens: leftmost first, longest of several that start at the same place.
#[derive(Clone, Debug, Default)]
pub(crate) struct TokenFinder {
    /// By first byte, longest first.
    tokens: HashMap<u8, Vec<(String, u32)>>,
}

impl TokenFinder {
    /// Looks for `tokens`; of equal ones the first counts, empty ones are ignored.
    pub(crate) fn new(tokens: impl IntoIterator<Item = (String, u32)>) -> Self {
        let mut finder = Self::default();
        for (content, id) in tokens {
            if let Some(&first) = content.as_bytes().first() {
                finder.tokens.entry(first).or_default().push((content, id));
            }
        }
        for list in finder.tokens.values_mut() {
            list.sort_by_key(|(content, _)| std::cmp::Reverse(content.len())); // stable: the first of equals stays first
        }
        finder
    }

    /// The pieces of `text` in order.
    pub(crate) fn split<'a>(&self, text: &'a str) -> Vec<Fragment<'a>> {
        let (mut out, mut text_start, mut at) = (Vec::new(), 0, 0);
        let bytes = text.as_bytes();
        while let Some(first) = bytes.get(at) {
            let here = self.tokens.get(first).into_iter().flatten();
            // Comparing bytes at a token's first byte can only match at a character boundary: tokens are valid UTF-8.
            match here.clone().find(|(content, _)| bytes[at..].starts_with(content.as_bytes())) {
                Some((content, id)) => {
                    push_text(&mut out, &text[text_start..at]);
                    out.push(Fragment::Token(*id));
                    at += content.len();
                    text_start = at;
                }
                None => at += 1,
            }
        }
        push_text(&mut out, &text[text_start..]);
        out
    }
}

fn push_text<'a>(out: &mut Vec<Fragment<'a>>, text: &'a str) {
    if !text.is_empty() {
        out.push(Fragment::Text(text));
    }
}

#[cfg(test)]
mod tests {
    use super::Fragment::{Text, Token};
    use super::*;

    fn check(text: &str, expected: &[Fragment<'_>]) {
        let tokens = [("<s>", 1), ("</s>", 2), ("<s>>", 3), ("é", 4), ("", 5), ("<s>", 6)];
        let finder = TokenFinder::new(tokens.map(|(t, id)| (t.to_owned(), id)));
        assert_eq!(finder.split(text), expected, "{text}");
    }

    #[test]
    fn splits_at_tokens() {
        check("", &[]);
        check("a<s", &[Text("a<s")]);
        check("<s>a</s>", &[Token(1), Text("a"), Token(2)]);
        check("<<s>>>", &[Text("<"), Token(3), Text(">")]);
        check("cafés è", &[Text("caf"), Token(4), Text("s è")]);
    }
}
