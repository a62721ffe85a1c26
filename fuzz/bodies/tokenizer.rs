//! Tokenizers: the metadata of a GGUF file, or else `tokenizer.json`.

use calypte_checkpoint::fuzzing::gguf_tokenizer;
use calypte_text::{Specials, TextError, Tokenizer, Utf8Stream};

const TEXTS: [&str; 4] = [
    "",
    "Hello, world! 1234567 \u{4f60}\u{597d}",
    "<s> <|im_end|>\r\n\t   \u{1f469}\u{200d}\u{1f680}",
    "\u{0}\u{7f}\u{ad}e\u{301}",
];

/// Whatever the bytes are: no panic, an error that says something, or a tokenizer whose ids all stand for bytes that
/// come out of a stream as they are.
pub fn run(data: &[u8]) {
    let tokenizer = if data.starts_with(b"GGUF") {
        match gguf_tokenizer(data) {
            Ok(source) => Tokenizer::from_source(&source),
            Err(_) => return,
        }
    } else {
        let Ok(json) = std::str::from_utf8(data) else { return };
        Tokenizer::from_json(json, None, None, None)
    };
    match tokenizer {
        Ok(tokenizer) => TEXTS.iter().for_each(|text| check_text(&tokenizer, text)),
        Err(error) => check_error(&error),
    }
}

fn check_text(tokenizer: &Tokenizer, text: &str) {
    for specials in [Specials::Parse, Specials::Plain] {
        let ids = match tokenizer.encode(text, specials) {
            Ok(ids) => ids,
            Err(error) => {
                check_error(&error);
                continue;
            }
        };
        let (mut bytes, mut stream, mut streamed) = (Vec::new(), Utf8Stream::new(), String::new());
        for id in ids {
            let token = tokenizer.token_bytes(id).unwrap_or_else(|e| panic!("id {id} was encoded: {e}"));
            bytes.extend_from_slice(token);
            streamed += &stream.push(token);
        }
        streamed += &stream.finish();
        assert_eq!(streamed, String::from_utf8_lossy(&bytes));
    }
}

fn check_error(error: &TextError) {
    assert!(error.to_string().len() > 10, "says nothing: {error}");
}
