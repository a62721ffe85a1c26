//! `"…"|format(…)` and `"…".format(…)`: format strings that are looked through before the engine formats them.
//!
//! The engine reads keys (`%(key)s`, `{[key]}`) byte by byte and panics inside a character, pads `{:>WIDTH}` as far as it is
//! told without asking for fuel, and hands widths to Rust's formatting, which panics beyond 16 bits. Python has none of
//! these limits; no published template comes near them.

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Rest, Value, ValueOrKwargs};
use minijinja::{Error, State, filters};

use super::python::PAD_MAX;

/// `text|format(…)`, with the fields of C's `printf`.
pub(super) fn percent(
    state: &mut State<'_, '_>,
    text: &Value,
    args: Rest<ValueOrKwargs>,
) -> Result<Value, Error> {
    look_through(text.as_str().unwrap_or_default(), FormatStyle::Printf)?;
    filters::format(state, text, args)
}

/// `text.format(…)`, with fields in braces.
pub(super) fn braces(text: &str, args: &[Value]) -> Result<Value, Error> {
    look_through(text, FormatStyle::StrFormat)?;
    format(FormatStyle::StrFormat, text, args).map(Value::from)
}

/// Refuses keys with characters outside ASCII and fields wider than [`PAD_MAX`]. Other mistakes are left for the engine
/// to name; it stops at the first one, so that it does not matter what is seen in the text behind.
fn look_through(text: &str, style: FormatStyle) -> Result<(), Error> {
    let delimiter = match style {
        FormatStyle::Printf => '%',
        FormatStyle::StrFormat => '{',
    };
    let mut rest = text;
    while let Some((_, field)) = rest.split_once(delimiter) {
        rest = match field.strip_prefix(delimiter) {
            Some(behind_escape) => behind_escape,
            None => match style {
                FormatStyle::Printf => check_percent_field(field)?,
                FormatStyle::StrFormat => check_brace_field(field)?,
            },
        };
    }
    Ok(())
}

/// `(key)`, flags, width, `.` and precision; returns what follows.
fn check_percent_field(field: &str) -> Result<&str, Error> {
    let options = match field.strip_prefix('(') {
        Some(key) => skip_key(key, ')')?,
        None => field,
    };
    check_sizes(options.trim_start_matches(['#', '0', '-', ' ', '+']))
}

/// A name or a number, then any `.name` and `[key]`, then after `:` fill, alignment, signs, width, grouping and precision;
/// returns what follows.
fn check_brace_field(field: &str) -> Result<&str, Error> {
    let mut path = field;
    loop {
        path = path.trim_start_matches(|c: char| c == '_' || c == '.' || c.is_ascii_alphanumeric());
        match path.strip_prefix('[') {
            Some(key) => path = skip_key(key, ']')?,
            None => break,
        }
    }
    let Some(options) = path.strip_prefix(':') else { return Ok(path) };
    let mut characters = options.chars();
    let options = match (characters.next(), characters.next()) {
        (Some(_), Some('<' | '>' | '^')) => characters.as_str(),
        _ => options.trim_start_matches(['<', '>', '^']),
    };
    check_sizes(options.trim_start_matches(['+', ' ', '-', '#', '0']))
}

/// What follows the key that ends with `end`.
fn skip_key(text: &str, end: char) -> Result<&str, Error> {
    let (key, behind) = text.split_once(end).unwrap_or((text, ""));
    match key.chars().find(|c| !c.is_ascii()) {
        Some(c) => {
            Err(super::refuse(format!("format: a key contains {c:?}, expected ASCII characters only")))
        }
        None => Ok(behind),
    }
}

/// What follows a width and a precision.
fn check_sizes(text: &str) -> Result<&str, Error> {
    let behind_width = check_size(text, "width")?;
    let behind_grouping = behind_width.trim_start_matches([',', '_']);
    behind_grouping.strip_prefix('.').map_or(Ok(behind_grouping), |text| check_size(text, "precision"))
}

/// What follows a number, if one is there.
fn check_size<'a>(text: &'a str, what: &str) -> Result<&'a str, Error> {
    let behind = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = text.get(..text.len() - behind.len()).unwrap_or_default();
    if digits.is_empty() || digits.parse().is_ok_and(|size: usize| size <= PAD_MAX) {
        return Ok(behind);
    }
    Err(super::refuse(format!("format: {what} {digits}, expected at most {PAD_MAX}")))
}
