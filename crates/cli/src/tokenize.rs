//! `calypte tokenize`: what a model's tokenizer makes of a text, and back.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use calypte_engine::EngineError;
use calypte_engine::checkpoint::{self, TokenizerSource};
use calypte_engine::text::{Specials, TextError, Tokenizer};
use clap::Args;
use serde_json::{Value, json};

use crate::exit::Failure;
use crate::ids::Ids;
use crate::loading;
use crate::output::Out;

const EXAMPLES: &str = "\
Examples:
  calypte tokenize model.gguf \"Hello, world\"
  calypte tokenize model-directory --file chapter.txt --ids
  calypte tokenize model.gguf --decode 15496,11,995
  printf '\"a\\\\u0000b\"\\n' | calypte tokenize tokenizer.json --batch -

One line per token: its id and its bytes. No beginning-of-sequence token is added unless --bos asks for it.";

/// Arguments of `tokenize`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TokenizeArgs {
    /// GGUF file, Hugging Face directory, or a `tokenizer.json`
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// Text to tokenise
    #[arg(value_name = "TEXT", allow_hyphen_values = true, required_unless_present_any = ["file", "batch"])]
    pub text: Option<String>,
    /// File with the text, used to the byte (UTF-8); `-` is stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = ["text", "batch"])]
    pub file: Option<PathBuf>,
    /// File with one JSON string a line; prints one JSON list of ids for each. With --decode the other way round
    #[arg(long, value_name = "FILE", conflicts_with = "text")]
    pub batch: Option<PathBuf>,
    /// The input is ids (separated by commas or white space); print their text
    #[arg(long)]
    pub decode: bool,
    /// Read special tokens written out in the text as plain text
    #[arg(long)]
    pub no_special: bool,
    /// Begin with the beginning-of-sequence token if the model expects one
    #[arg(long)]
    pub bos: bool,
    /// Print the ids alone
    #[arg(long, conflicts_with = "json")]
    pub ids: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
///
/// # Errors
/// [`Failure`] when the tokenizer cannot be had, or the input has no ids or no text.
pub fn tokenize(args: &TokenizeArgs) -> Result<(), Failure> {
    let tokenizer = tokenizer(&args.model)?;
    match (&args.batch, args.decode) {
        (Some(file), decode) => batch(&tokenizer, &read(file)?, args, decode),
        (None, true) => {
            let ids = input(args)?.parse::<Ids>().map_err(Failure::Usage)?.0;
            let text = decode(&tokenizer, &ids)?;
            if args.json { print(&json!({"ids": ids, "text": text}).to_string()) } else { print(&text) }
        }
        (None, false) => {
            let ids = encode(&tokenizer, &input(args)?, args)?;
            print(&shown(&tokenizer, &ids, args)?)
        }
    }
}

/// The tokenizer of a model, or one in a file of its own.
pub fn tokenizer(model: &Path) -> Result<Tokenizer, Failure> {
    Tokenizer::from_source(&source(model)?).map_err(failed)
}

/// Where the tokenizer of `model` is; of a GGUF file no tensor is looked at, so vocabularies alone will do.
pub fn source(model: &Path) -> Result<TokenizerSource, Failure> {
    let has = |extension: &str| model.extension().is_some_and(|e| e.eq_ignore_ascii_case(extension));
    if model.is_dir() {
        Ok(loading::headers(Some(model))?.tokenizer)
    } else if has("json") {
        Ok(TokenizerSource::HuggingFace { tokenizer_json: model.to_owned(), chat_template: None })
    } else {
        checkpoint::gguf_tokenizer(model).map_err(|e| Failure::Engine(e.into()))
    }
}

/// What went wrong with text is for the engine's error type to classify.
pub fn failed(error: TextError) -> Failure {
    Failure::Engine(EngineError::from(error))
}

fn input(args: &TokenizeArgs) -> Result<String, Failure> {
    match (&args.file, &args.text) {
        (Some(file), _) => read(file),
        (None, Some(text)) => Ok(text.clone()),
        // The command line's definition asks for one of them.
        (None, None) => Err(Failure::Usage("give a text, --file or --batch".to_string())),
    }
}

fn encode(tokenizer: &Tokenizer, text: &str, args: &TokenizeArgs) -> Result<Vec<u32>, Failure> {
    let specials = if args.no_special { Specials::Plain } else { Specials::Parse };
    let mut ids = tokenizer.encode(text, specials).map_err(failed)?;
    if let Some(bos) = tokenizer.bos().filter(|_| args.bos && tokenizer.add_bos()) {
        ids.insert(0, bos);
    }
    Ok(ids)
}

fn decode(tokenizer: &Tokenizer, ids: &[u32]) -> Result<String, Failure> {
    for &id in ids {
        tokenizer.token_bytes(id).map_err(failed)?;
    }
    Ok(tokenizer.decode(ids))
}

fn batch(tokenizer: &Tokenizer, lines: &str, args: &TokenizeArgs, decoding: bool) -> Result<(), Failure> {
    let mut out = String::new();
    for (number, line) in (1..).zip(lines.lines()) {
        let bad = |e: serde_json::Error| {
            let wanted = if decoding { "a JSON list of ids" } else { "a JSON string" };
            Failure::Usage(format!("line {number} of the batch: {e}; expected {wanted}"))
        };
        let answer = if decoding {
            let ids: Vec<u32> = serde_json::from_str(line).map_err(bad)?;
            Value::from(decode(tokenizer, &ids)?)
        } else {
            let text: String = serde_json::from_str(line).map_err(bad)?;
            Value::from(encode(tokenizer, &text, args)?)
        };
        out.push_str(&answer.to_string());
        out.push('\n');
    }
    print(out.trim_end_matches('\n'))
}

fn shown(tokenizer: &Tokenizer, ids: &[u32], args: &TokenizeArgs) -> Result<String, Failure> {
    let bytes = |id: u32| tokenizer.token_bytes(id).map_err(failed);
    if args.json {
        let tokens: Result<Vec<String>, Failure> =
            ids.iter().map(|&id| Ok(String::from_utf8_lossy(bytes(id)?).into_owned())).collect();
        return Ok(json!({"ids": ids, "tokens": tokens?}).to_string());
    }
    if args.ids {
        return Ok(ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" "));
    }
    let line = |&id: &u32| Ok(format!("{id:>8} {}", quoted(bytes(id)?)));
    Ok(ids.iter().map(line).collect::<Result<Vec<_>, Failure>>()?.join("\n"))
}

/// Bytes as a person can tell them apart: text in quotes, everything else as `\xNN`.
fn quoted(bytes: &[u8]) -> String {
    let chunk = |c: std::str::Utf8Chunk<'_>| {
        let invalid: String = c.invalid().iter().map(|b| format!("\\x{b:02x}")).collect();
        c.valid().escape_debug().to_string() + &invalid
    };
    format!("\"{}\"", bytes.utf8_chunks().map(chunk).collect::<String>())
}

fn print(text: &str) -> Result<(), Failure> {
    Out::new().line(text)
}

/// The text in `file`, or on stdin for `-`.
pub fn read(file: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    let got = match file.as_os_str() == "-" {
        true => std::io::stdin().lock().read_to_string(&mut text),
        false => std::fs::File::open(file).and_then(|mut f| f.read_to_string(&mut text)),
    };
    got.map_err(|e| Failure::Usage(format!("{}: cannot be read as UTF-8 text: {e}", file.display())))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_told_apart() {
        let check = |bytes: &[u8], expected: &str| assert_eq!(quoted(bytes), expected);
        check(b" a\n", "\" a\\n\"");
        check(b"\xe5\xad", "\"\\xe5\\xad\"");
        check("é\"".as_bytes(), "\"é\\\"\"");
    }
}
