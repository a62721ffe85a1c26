//! What a model is given: where it comes from, and its tokens.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};

use calypte_engine::Engine;
use calypte_engine::text::{Specials, Tokenizer};

use crate::args::{PromptArgs, RunArgs, ScoreSource};
use crate::exit::Failure;
use crate::ids::Ids;

/// Positions added to an estimate from a text's bytes: room for the tokens that frame it.
const FRAME_TOKENS: usize = 16;

/// What to start from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// To be tokenised.
    Text(String),
    /// As they are.
    Ids(Vec<u32>),
}

impl Prompt {
    /// Positions that hold the prompt: exact for ids; for text its bytes, of which no tokenizer makes more tokens.
    pub fn positions_max(&self) -> usize {
        match self {
            Prompt::Text(text) => text.len().saturating_add(FRAME_TOKENS),
            Prompt::Ids(ids) => ids.len(),
        }
    }

    /// The tokens. A text gets the beginning-of-sequence token if the model expects one.
    pub fn tokens(self, engine: &Engine) -> Result<Vec<u32>, Failure> {
        match self {
            Prompt::Text(text) => encode_start(engine.tokenizer()?, &text),
            Prompt::Ids(ids) => Ok(ids),
        }
    }
}

/// Tokens of a text that starts a timeline.
pub fn encode_start(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, Failure> {
    let mut ids = encode(tokenizer, text)?;
    if let Some(bos) = tokenizer.bos().filter(|_| tokenizer.add_bos())
        && ids.first() != Some(&bos)
    {
        ids.insert(0, bos);
    }
    Ok(ids)
}

/// Tokens of a text; special tokens written out in it count as such.
pub fn encode(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, Failure> {
    let ids = tokenizer.encode(text, Specials::Parse);
    ids.map_err(|e| Failure::Usage(format!("the text cannot be tokenised: {e}")))
}

/// The prompt that options give, if they do.
fn of_flags(flags: &PromptArgs) -> Result<Option<Prompt>, Failure> {
    Ok(match (&flags.prompt, &flags.prompt_file, &flags.prompt_ids, &flags.ids_file) {
        (Some(text), ..) => Some(Prompt::Text(text.clone())),
        (_, Some(file), ..) => Some(Prompt::Text(read_text(file)?)),
        (.., Some(ids), _) => Some(Prompt::Ids(ids.0.clone())),
        (.., Some(file)) => Some(Prompt::Ids(read_ids(file)?)),
        _ => None,
    })
}

/// The prompt of a command that takes it from options alone and asks for one of them.
pub fn required(flags: &PromptArgs) -> Result<Prompt, Failure> {
    of_flags(flags)?.ok_or_else(|| no_prompt(None))
}

/// The model, if one is named, and the prompt of `calypte run`.
pub fn of_run(args: &RunArgs) -> Result<(Option<PathBuf>, Prompt), Failure> {
    let from_flag = of_flags(&args.prompt)?;
    let (model, words) = match (&args.first, &args.second) {
        (Some(first), None) if from_flag.is_some() || looks_like_model(first) => (Some(first), None),
        (Some(first), None) => (None, Some(first)),
        (first, second) => (first.as_ref(), second.as_ref()),
    };
    let prompt = match (from_flag, words) {
        (Some(prompt), None) => prompt,
        (None, Some(words)) => Prompt::Text(utf8(words.as_encoded_bytes().to_vec(), "the prompt")?),
        (Some(_), Some(_)) => {
            return Err(Failure::Usage(
                "there are two prompts, one in the arguments and one in an option; give one".to_string(),
            ));
        }
        (None, None) => return Err(no_prompt(model.map(|m| m.as_os_str()))),
    };
    Ok((model.map(PathBuf::from), prompt))
}

fn no_prompt(model: Option<&OsStr>) -> Failure {
    let taken = model.map_or_else(String::new, |m| format!(" (`{}` was taken for the model)", m.display()));
    Failure::Usage(format!(
        "there is no prompt{taken}; give the text to go on with as an argument, or with -p, --prompt-file, --prompt-ids or \
         --ids-file"
    ))
}

/// Whether a single argument of `run` means a model: what exists, or what can hardly be a text.
fn looks_like_model(argument: &OsStr) -> bool {
    let text = argument.to_string_lossy();
    let path_like = text.contains(std::path::is_separator) && !text.contains(char::is_whitespace);
    path_like || text.to_ascii_lowercase().ends_with(".gguf") || Path::new(argument).exists()
}

/// What `calypte score` is given.
pub fn of_score(source: &ScoreSource) -> Result<Prompt, Failure> {
    match (&source.ids_file, &source.text_file) {
        (Some(file), _) => Ok(Prompt::Ids(read_ids(file)?)),
        (None, Some(file)) => Ok(Prompt::Text(read_text(file)?)),
        // The command line's definition asks for one of them.
        (None, None) => Err(Failure::Usage("give --ids-file or --text-file".to_string())),
    }
}

fn read_ids(file: &Path) -> Result<Vec<u32>, Failure> {
    let ids = read_text(file)?.parse::<Ids>();
    ids.map(|ids| ids.0).map_err(|e| Failure::Usage(format!("{}: {e}", file.display())))
}

fn read_text(file: &Path) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let read = match file.as_os_str() == "-" {
        true => std::io::stdin().lock().read_to_end(&mut bytes),
        false => std::fs::File::open(file).and_then(|mut f| f.read_to_end(&mut bytes)),
    };
    read.map_err(|e| Failure::Usage(format!("{}: cannot be read: {e}", file.display())))?;
    utf8(bytes, &file.display().to_string())
}

fn utf8(bytes: Vec<u8>, what: &str) -> Result<String, Failure> {
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        let byte = e.as_bytes().get(at).copied().unwrap_or_default();
        Failure::Usage(format!(
            "{what}: at byte {at}: expected UTF-8 text, found the byte 0x{byte:02x}; convert the text to UTF-8"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_parse() {
        let cases = [
            ("1,2,3", Some(vec![1, 2, 3])),
            (" 1 2\n3,\t4 ", Some(vec![1, 2, 3, 4])),
            ("4294967295", Some(vec![u32::MAX])),
            ("4294967296", None),
            ("-1", None),
            ("", None),
            (" , ", None),
            ("1;2", None),
        ];
        for (text, want) in cases {
            assert_eq!(text.parse::<Ids>().ok().map(|i| i.0), want, "{text:?}");
        }
    }

    #[test]
    fn models_are_told_from_texts() {
        let cases = [
            ("model.gguf", true),
            ("Model.GGUF", true),
            ("models/x", true),
            (".", true),
            ("Once", false),
            ("either/or is the question", false),
            ("It was a bright cold morning", false),
        ];
        for (argument, want) in cases {
            assert_eq!(looks_like_model(OsStr::new(argument)), want, "{argument}");
        }
    }
}
