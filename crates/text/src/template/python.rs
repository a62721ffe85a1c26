//! Methods that templates call on Python's strings and dictionaries.

use minijinja::value::{Value, from_args};
use minijinja::{Error, State};

/// Methods that the engine's own collection does not have, then those.
pub(super) fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        match name {
            // Python counts the four separators as white space.
            "strip" | "lstrip" | "rstrip" if args.iter().all(Value::is_none) => {
                return Ok(Value::from(strip(text, name)));
            }
            "removeprefix" => {
                let (prefix,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)));
            }
            "removesuffix" => {
                let (suffix,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)));
            }
            "rsplit" => {
                let (separator, splits_max): (&str, Option<i64>) = from_args(args)?;
                return rsplit(text, separator, splits_max);
            }
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

fn strip<'a>(text: &'a str, name: &str) -> &'a str {
    let space = |c: char| c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}');
    match name {
        "lstrip" => text.trim_start_matches(space),
        "rstrip" => text.trim_end_matches(space),
        _ => text.trim_matches(space),
    }
}

fn rsplit(text: &str, separator: &str, splits_max: Option<i64>) -> Result<Value, Error> {
    if separator.is_empty() {
        return Err(super::refuse("rsplit: empty separator"));
    }
    let mut parts: Vec<&str> = match splits_max.and_then(|n| usize::try_from(n).ok()) {
        Some(n) => text.rsplitn(n.saturating_add(1), separator).collect(),
        None => text.rsplit(separator).collect(),
    };
    parts.reverse();
    Ok(parts.into_iter().map(Value::from).collect())
}
