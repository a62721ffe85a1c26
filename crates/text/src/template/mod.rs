//! Chat templates: Jinja programs that come with a model and turn messages into a prompt.
//!
//! They are written for Python's Jinja2 as `transformers` configures it, and must render to the same text here. They are
//! also untrusted input: work, recursion and nesting are limited.

mod format;
mod generation;
mod json;
mod python;
mod time;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind};
use serde::{Deserialize, Deserializer, Serialize};

use crate::error::TextError;

/// Work that any template may do; one unit is about one instruction, or 64 bytes of text handled.
const FUEL_BASE: u64 = 1_000_000;

/// Further work per byte of messages and tools; some templates walk all messages once per message.
const FUEL_PER_INPUT_BYTE: u64 = 16;

/// Most work whatever the input; also bounds how deep a hostile template can nest values, see `STACK_BYTES_PER_FUEL`.
const FUEL_MAX: u64 = 8_000_000;

/// Levels of nested blocks, macros and includes.
const RECURSION_MAX: usize = 200;

/// Longest template accepted; published ones have up to about 20 thousand bytes.
const TEMPLATE_BYTES_MAX: usize = 1 << 20;

const NAME: &str = "chat_template";

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, …
    pub role: String,
    /// A string or a list of parts. `None` leaves the field out; templates tell that from null.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub content: Option<serde_json::Value>,
    /// All other fields, e.g. `tool_calls`, `reasoning_content`.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

/// A null that is there is kept.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<serde_json::Value>, D::Error> {
    serde_json::Value::deserialize(deserializer).map(Some)
}

impl Message {
    /// A plain text message.
    pub fn new(role: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: Some(serde_json::Value::String(text.into())),
            other: serde_json::Map::new(),
        }
    }

    /// Turns the arguments of tool calls from JSON text, as clients send them, to the objects that most templates expect.
    /// Arguments that are not the text of a JSON object stay as they are.
    pub fn parse_tool_arguments(&mut self) {
        let calls = self.other.get_mut("tool_calls").and_then(|calls| calls.as_array_mut());
        for call in calls.into_iter().flatten() {
            let arguments = call.get_mut("function").and_then(|f| f.get_mut("arguments"));
            let Some(arguments) = arguments else { continue };
            let parsed = arguments.as_str().and_then(|text| serde_json::from_str(text).ok());
            if let Some(object @ serde_json::Value::Object(_)) = parsed {
                *arguments = object;
            }
        }
    }
}

/// A chat template, parsed and ready.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Parses `template`; `bos` and `eos` are the tokens it may write (empty when the model has none).
    ///
    /// # Errors
    /// [`TextError::Template`] with the line of what does not parse or is not supported.
    pub fn new(template: &str, bos: &str, eos: &str) -> Result<Self, TextError> {
        if template.len() > TEMPLATE_BYTES_MAX {
            let reason = format!("{} bytes long, expected at most {TEMPLATE_BYTES_MAX}", template.len());
            return Err(TextError::Template { line: 0, reason });
        }
        let mut environment = environment().map_err(|e| explain(&e, 0))?;
        // Jinja2 knows one line end.
        let template = template.replace("\r\n", "\n").replace('\r', "\n");
        let source = generation::strip_tags(&template);
        environment.add_template_owned(NAME, source).map_err(|e| explain(&e, 0))?;
        let template = Self { environment, bos: bos.to_owned(), eos: eos.to_owned() };
        Ok(template.with_clock(time::now_seconds))
    }

    /// Makes `strftime_now` tell `unix_seconds` instead of the time, so that a prompt can be repeated exactly.
    pub fn with_time(self, unix_seconds: i64) -> Self {
        self.with_clock(move || Some(unix_seconds))
    }

    fn with_clock(mut self, now: impl Fn() -> Option<i64> + Send + Sync + 'static) -> Self {
        self.environment.add_function("strftime_now", move |format: &str| {
            let seconds =
                now().ok_or_else(|| refuse("strftime_now: this platform has no clock; set the time"))?;
            time::format(format, seconds).map_err(refuse)
        });
        self
    }

    /// Renders a conversation to a prompt. `extra` holds further variables (`enable_thinking`, …), which override the
    /// standard ones.
    ///
    /// # Errors
    /// [`TextError::TemplateRaised`] when the template refuses the messages, [`TextError::TemplateTooExpensive`] when it
    /// does too much work, [`TextError::Template`] for everything else, with the line.
    pub fn render(
        &self,
        messages: &[Message],
        tools: Option<&serde_json::Value>,
        add_generation_prompt: bool,
        extra: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<String, TextError> {
        let messages = serde_json::to_value(messages).map_err(|e| TextError::Template {
            line: 0,
            reason: format!("the messages are not JSON: {e}"),
        })?;
        let input_bytes =
            [Some(&messages), tools].iter().flatten().map(|v| v.to_string().len() as u64).sum::<u64>()
                + extra.values().map(|v| v.to_string().len() as u64).sum::<u64>();
        let mut context = vec![
            ("messages", Value::from(Serde(&messages))),
            ("tools", Value::from(Serde(&tools))),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
            ("bos_token", Value::from(self.bos.as_str())),
            ("eos_token", Value::from(self.eos.as_str())),
        ];
        context.extend(extra.iter().map(|(name, value)| (name.as_str(), Value::from(Serde(value)))));
        // Of two variables with the same name the later one counts.
        self.render_limited(Value::from_pairs(context), fuel(input_bytes))
    }

    fn render_limited(&self, context: Value, fuel: u64) -> Result<String, TextError> {
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        on_deep_stack(fuel, move || {
            let template = environment.get_template(NAME).map_err(|e| explain(&e, fuel))?;
            template.render(context).map_err(|e| explain(&e, fuel))
        })
    }
}

fn fuel(input_bytes: u64) -> u64 {
    FUEL_BASE.saturating_add(input_bytes.saturating_mul(FUEL_PER_INPUT_BYTE)).min(FUEL_MAX)
}

/// Values nest as deep as fuel allows, and dropping or comparing them recurses. Only the touched part is ever allocated.
#[cfg(not(target_arch = "wasm32"))]
const STACK_BYTES_PER_FUEL: u64 = 256;

/// Runs `render` where a deeply nested value cannot overflow the stack, which would abort the process.
#[cfg(not(target_arch = "wasm32"))]
fn on_deep_stack(
    fuel: u64,
    render: impl FnOnce() -> Result<String, TextError> + Send,
) -> Result<String, TextError> {
    let failed = |reason: String| TextError::Template { line: 0, reason };
    let stack_bytes = usize::try_from(fuel.saturating_mul(STACK_BYTES_PER_FUEL)).unwrap_or(usize::MAX);
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(stack_bytes).spawn_scoped(scope, render);
        let thread = thread.map_err(|e| failed(format!("cannot start the thread that renders it: {e}")))?;
        thread
            .join()
            .unwrap_or_else(|_| Err(failed("rendering failed inside the template engine".to_owned())))
    })
}

/// A browser has no threads here; an overflow there is an exception, not the end of the process.
#[cfg(target_arch = "wasm32")]
fn on_deep_stack(_: u64, render: impl FnOnce() -> Result<String, TextError>) -> Result<String, TextError> {
    render()
}

/// Jinja as `transformers` sets it up.
fn environment() -> Result<Environment<'static>, Error> {
    let mut env = Environment::new();
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_recursion_limit(RECURSION_MAX);
    env.set_formatter(|out, state, value| match value.kind() {
        ValueKind::Number if !value.is_integer() => Ok(out.write_str(&python::number(value)?)?),
        _ => minijinja::escape_formatter(out, state, value),
    });
    env.set_debug(true); // so that errors know what was undefined
    env.set_unknown_method_callback(python::method);
    env.add_filter("format", format::percent);
    env.add_filter("tojson", json::tojson);
    env.add_filter("indent", python::indent);
    env.add_filter("int", python::int);
    env.add_filter("float", python::float);
    env.add_test("sequence", python::is_sequence);
    env.add_test("iterable", python::is_iterable);
    env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(refuse(&message).with_source(Raised(message)))
    });
    Ok(env)
}

/// Marks an error as the template's own.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

/// An error inside a template function.
fn refuse(reason: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason.to_string())
}

/// The first error of a chain with what it says, the line where it happened, and the template's own refusals told apart.
fn explain(error: &Error, fuel: u64) -> TextError {
    let (mut cause, mut line): (Option<&(dyn std::error::Error + 'static)>, _) =
        (Some(error), error.line().unwrap_or(0));
    let mut reasons: Vec<String> = Vec::new();
    while let Some(this) = cause {
        if let Some(Raised(message)) = this.downcast_ref::<Raised>() {
            return TextError::TemplateRaised { message: message.clone() };
        }
        match this.downcast_ref::<Error>() {
            Some(e) if e.kind() == ErrorKind::OutOfFuel => {
                return TextError::TemplateTooExpensive { line, fuel };
            }
            Some(e) => {
                line = e.line().unwrap_or(line); // the innermost line is where it happened
                reasons.push(match e.detail() {
                    Some(detail) => format!("{}: {detail}", e.kind()),
                    None => e.kind().to_string(),
                });
            }
            None => reasons.push(this.to_string()),
        }
        cause = this.source();
    }
    TextError::Template { line, reason: reasons.join("; ") }
}

#[cfg(test)]
mod tests;
