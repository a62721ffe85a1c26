//! `calypte template`: the prompt that a chat template makes of messages.

use std::path::{Path, PathBuf};

use calypte_engine::text::{ChatTemplate, Message};
use clap::Args;
use serde_json::{Map, Value};

use crate::exit::Failure;
use crate::output::Out;
use crate::tokenize::{failed, read, tokenizer};

const EXAMPLES: &str = "\
Examples:
  calypte template model.gguf --messages chat.json
  calypte template chat_template.jinja --messages chat.json --tools tools.json
  calypte template model-directory --messages chat.json --set enable_thinking=false

chat.json is a JSON list of messages: [{\"role\": \"user\", \"content\": \"Hi\"}]. Messages and tools
reach the template as they are; nothing is put behind the prompt, not even a line end.";

/// Arguments of `template`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TemplateArgs {
    /// GGUF file, Hugging Face directory, or a file with a template (`.jinja`)
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// File with the messages, a JSON list; `-` is stdin
    #[arg(long, value_name = "FILE")]
    pub messages: PathBuf,
    /// File with the tools, a JSON list
    #[arg(long, value_name = "FILE")]
    pub tools: Option<PathBuf>,
    /// A further variable of the template, as JSON or else as text, e.g. `enable_thinking=false`; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    pub set: Vec<(String, Value)>,
    /// Do not ask for an answer (`add_generation_prompt` is false)
    #[arg(long)]
    pub no_generation_prompt: bool,
    /// Time that the template sees, in seconds since 1970 (UTC) [default: the clock's]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub now: Option<i64>,
}

fn variable(text: &str) -> Result<(String, Value), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
    Ok((name.to_owned(), value))
}

/// Runs the command.
///
/// # Errors
/// [`Failure`] when there is no template, it does not parse, or it refuses the messages.
pub fn template(args: &TemplateArgs) -> Result<(), Failure> {
    let mut template = of_model(&args.model)?;
    if let Some(seconds) = args.now {
        template = template.with_time(seconds);
    }
    let messages = messages(&args.messages)?;
    let tools = args.tools.as_deref().map(json).transpose()?;
    let variables: Map<String, Value> = args.set.iter().cloned().collect();
    let prompt = template.render(&messages, tools.as_ref(), !args.no_generation_prompt, &variables);
    Out::new().text(&prompt.map_err(failed)?)
}

fn of_model(model: &Path) -> Result<ChatTemplate, Failure> {
    let is_template = model.extension().is_some_and(|e| e == "jinja" || e == "jinja2" || e == "txt");
    if is_template {
        return ChatTemplate::new(&read(model)?, "", "").map_err(failed);
    }
    let missing = || Failure::Usage(format!("{}: the model has no chat template", model.display()));
    tokenizer(model)?.chat_template().map_err(failed)?.ok_or_else(missing)
}

fn json(file: &Path) -> Result<Value, Failure> {
    serde_json::from_str(&read(file)?)
        .map_err(|e| Failure::Usage(format!("{}: not valid JSON: {e}", file.display())))
}

fn messages(file: &Path) -> Result<Vec<Message>, Failure> {
    let wanted = "expected a list of objects with a role";
    serde_json::from_value(json(file)?)
        .map_err(|e| Failure::Usage(format!("{}: not messages: {e}; {wanted}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn variables_are_json_or_text() {
        let check = |text: &str, expected: Result<(&str, Value), ()>| {
            let expected = expected.map(|(name, value)| (name.to_owned(), value));
            assert_eq!(variable(text).map_err(|_| ()), expected, "{text}");
        };
        check("enable_thinking=false", Ok(("enable_thinking", json!(false))));
        check("date=26 Jul 2024", Ok(("date", json!("26 Jul 2024"))));
        check("a=[1]=", Ok(("a", json!("[1]="))));
        check("a", Err(()));
    }
}
