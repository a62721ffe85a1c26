//! What templates expect of Python: methods of strings and dictionaries, and filters and tests in Jinja2's own sense.

use minijinja::value::{Kwargs, Tuple, Value, ValueKind, from_args};
use minijinja::{Error, State};

/// Spaces that `indent` puts before lines unless told otherwise.
const INDENT_DEFAULT: usize = 4;

/// Most of them.
const INDENT_MAX: usize = 256;

/// Widest that `ljust`, `format` and their like make a text.
pub(super) const PAD_MAX: usize = 4096;

/// Floats below are converted to integers, 2⁶³.
const INTEGER_MAX: f64 = 9.2e18;

/// Methods that the engine's own collection does not have, then those.
pub(super) fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        match name {
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
            "split" | "rsplit" => return split(text, name, args),
            "index" | "rindex" => {
                let (part,): (&str,) = from_args(args)?;
                let at = if name == "index" { text.find(part) } else { text.rfind(part) };
                let at = at.ok_or_else(|| super::refuse(format!("{name}: substring not found")))?;
                return Ok(Value::from(text.get(..at).unwrap_or_default().chars().count()));
            }
            "ljust" | "rjust" | "center" | "zfill" => {
                let (width, fill): (usize, Option<&str>) = from_args(args)?;
                return pad(text, name, width, fill.unwrap_or(if name == "zfill" { "0" } else { " " }));
            }
            "partition" | "rpartition" => {
                let (separator,): (&str,) = from_args(args)?;
                let parts = match (name, text.split_once(separator), text.rsplit_once(separator)) {
                    ("partition", Some((left, right)), _) | ("rpartition", _, Some((left, right))) => {
                        [left, separator, right]
                    }
                    ("partition", ..) => [text, "", ""],
                    _ => ["", "", text],
                };
                return Ok(Value::from(Tuple::from(parts.map(Value::from).to_vec())));
            }
            "title" => return Ok(Value::from(title(text))),
            "format" => return super::format::braces(text, args),
            _ => {}
        }
    }
    match (value.kind(), name) {
        (ValueKind::Seq, "index" | "count") => {
            let (item,): (Value,) = from_args(args)?;
            let items: Vec<Value> = value.try_iter()?.collect();
            let at = items.iter().position(|x| *x == item);
            let missing = || super::refuse(format!("index: {item} is not in the list"));
            return match name {
                "count" => Ok(Value::from(items.iter().filter(|x| **x == item).count())),
                _ => at.map(Value::from).ok_or_else(missing),
            };
        }
        // Values cannot be changed, so a copy is the same.
        (ValueKind::Map | ValueKind::Seq, "copy") if args.is_empty() => return Ok(value.clone()),
        _ => {}
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// `value is sequence`: whatever has a length and can be indexed, which in Python is texts and dictionaries, too. (The
/// undefined value answers to both.)
pub(super) fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined)
}

/// `value is iterable`; unlike here, `none` is not.
pub(super) fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// `text|indent(width=4, first=false, blank=false)`, where the width may be the indentation itself.
pub(super) fn indent(
    text: &Value,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    options: Kwargs,
) -> Result<String, Error> {
    let text = text
        .as_str()
        .ok_or_else(|| super::refuse(format!("indent: expected a string, found {}", text.kind())))?;
    let width = width.map_or_else(|| options.get::<Option<Value>>("width"), |w| Ok(Some(w)))?;
    let first = first.map_or_else(|| options.get::<Option<bool>>("first"), |f| Ok(Some(f)))?.unwrap_or(false);
    let blank = blank.map_or_else(|| options.get::<Option<bool>>("blank"), |b| Ok(Some(b)))?.unwrap_or(false);
    options.assert_all_used()?;
    let indentation = match &width {
        None => " ".repeat(INDENT_DEFAULT),
        Some(w) => match w.as_str() {
            Some(indentation) => indentation.to_owned(),
            None => " ".repeat(w.as_usize().unwrap_or(0).min(INDENT_MAX)),
        },
    };
    let mut out = String::with_capacity(text.len());
    for (number, line) in split_lines(text).into_iter().enumerate() {
        if number > 0 {
            out.push('\n');
        }
        if if number == 0 { first } else { blank || !line.is_empty() } {
            out.push_str(&indentation);
        }
        out.push_str(line);
    }
    Ok(out)
}

/// Lines as Python sees them; unlike `splitlines`, there is one more after a line end that ends the text.
fn split_lines(text: &str) -> Vec<&str> {
    let is_end = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let (mut lines, mut rest) = (Vec::new(), text);
    while let Some((at, end)) = rest.char_indices().find(|(_, c)| is_end(*c)) {
        let (line, tail) = rest.split_at(at);
        lines.push(line);
        let end_bytes = if tail.starts_with("\r\n") { 2 } else { end.len_utf8() };
        rest = tail.get(end_bytes..).unwrap_or_default();
    }
    lines.push(rest);
    lines
}

fn strip<'a>(text: &'a str, name: &str) -> &'a str {
    match name {
        "lstrip" => text.trim_start_matches(is_space),
        "rstrip" => text.trim_end_matches(is_space),
        _ => text.trim_matches(is_space),
    }
}

/// `text.split(sep=None, maxsplit=-1)`
fn split(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, splits_max, options): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = separator.map_or_else(|| options.get::<Option<Value>>("sep"), |s| Ok(Some(s)))?;
    let splits_max = splits_max.map_or_else(|| options.get::<Option<i64>>("maxsplit"), |n| Ok(Some(n)))?;
    options.assert_all_used()?;
    let parts_max =
        splits_max.and_then(|n| usize::try_from(n).ok()).map_or(usize::MAX, |n| n.saturating_add(1));
    let parts: Vec<&str> = match separator.filter(|s| !s.is_none()) {
        None => split_at_space(text, name, parts_max),
        Some(separator) => {
            let separator =
                separator.as_str().ok_or_else(|| super::refuse(format!("{name}: expected a string")))?;
            if separator.is_empty() {
                return Err(super::refuse(format!("{name}: empty separator")));
            }
            match name {
                "split" => text.splitn(parts_max, separator).collect(),
                _ => reversed(text.rsplitn(parts_max, separator).collect()),
            }
        }
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

/// Runs of white space separate, and those at the ends do not count.
fn split_at_space<'a>(text: &'a str, name: &str, parts_max: usize) -> Vec<&'a str> {
    let (mut parts, mut rest) = (Vec::new(), text);
    let from_left = name == "split";
    loop {
        rest = if from_left { rest.trim_start_matches(is_space) } else { rest.trim_end_matches(is_space) };
        let cut = match from_left {
            _ if parts.len() + 1 >= parts_max => None,
            true => rest.find(is_space).map(|at| rest.split_at(at)),
            false => rest.char_indices().rfind(|(_, c)| is_space(*c)).map(|(at, c)| {
                let (tail, head) =
                    (rest.get(at + c.len_utf8()..).unwrap_or_default(), rest.get(..at).unwrap_or_default());
                (tail, head)
            }),
        };
        match cut {
            Some((part, others)) => {
                parts.push(part);
                rest = others;
            }
            None => break,
        }
    }
    if !rest.is_empty() {
        parts.push(rest);
    }
    if from_left { parts } else { reversed(parts) }
}

fn reversed<T>(mut list: Vec<T>) -> Vec<T> {
    list.reverse();
    list
}

/// Python counts the four separators as white space.
fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// Fills a text up to a width.
fn pad(text: &str, name: &str, width: usize, fill: &str) -> Result<Value, Error> {
    if width > PAD_MAX {
        return Err(super::refuse(format!("{name}: width {width}, expected at most {PAD_MAX}")));
    }
    let missing = width.saturating_sub(text.chars().count());
    // An odd space goes left where the width is odd, as in Python.
    let left = match name {
        "ljust" => 0,
        "center" => missing / 2 + (missing & width & 1),
        _ => missing,
    };
    let (before, after) = (fill.repeat(left), fill.repeat(missing - left));
    let (sign, digits) = match text.strip_prefix(['+', '-']) {
        Some(digits) if name == "zfill" => text.split_at(text.len() - digits.len()),
        _ => ("", text),
    };
    Ok(Value::from(format!("{sign}{before}{digits}{after}")))
}

/// Every letter after something else in upper case, the others in lower case.
fn title(text: &str) -> String {
    let (mut out, mut inside) = (String::with_capacity(text.len()), false);
    for c in text.chars() {
        match (c.is_alphabetic(), inside) {
            (true, false) => out.extend(c.to_uppercase()),
            (true, true) => out.extend(c.to_lowercase()),
            (false, _) => out.push(c),
        }
        inside = c.is_alphabetic();
    }
    out
}

/// A number as `str` writes it.
pub(super) fn number(value: &Value) -> Result<String, Error> {
    Ok(match super::json::number(value)? {
        text if text.ends_with("Infinity") => text.replace("Infinity", "inf"),
        text if text == "NaN" => "nan".to_owned(),
        text => text,
    })
}

/// `value|int(default=0)`: whatever is no number becomes the default.
pub(super) fn int(value: &Value, default: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let default = default_of(default, &options, Value::from(0))?;
    match value.kind() {
        ValueKind::Undefined => Err(Error::from(minijinja::ErrorKind::UndefinedError)),
        ValueKind::Bool => Ok(Value::from(i64::from(value.is_true()))),
        ValueKind::Number if value.is_integer() => Ok(value.clone()),
        _ => {
            let text = value.as_str().map(number_text);
            let whole = text.as_ref().and_then(|t| t.parse::<i64>().ok());
            let real = text.map_or_else(|| f64::try_from(value.clone()).ok(), |t| t.parse().ok());
            let truncated = real.filter(|x| x.abs() < INTEGER_MAX).map(|x| Value::from(x.trunc() as i64));
            Ok(whole.map(Value::from).or(truncated).unwrap_or(default))
        }
    }
}

/// `value|float(default=0.0)`
pub(super) fn float(value: &Value, default: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let default = default_of(default, &options, Value::from(0.0))?;
    match (value.kind(), value.as_str()) {
        (ValueKind::Undefined, _) => Err(Error::from(minijinja::ErrorKind::UndefinedError)),
        (ValueKind::Bool, _) => Ok(Value::from(f64::from(u8::from(value.is_true())))),
        (_, Some(text)) => Ok(number_text(text).parse::<f64>().map_or(default, Value::from)),
        _ => Ok(f64::try_from(value.clone()).map_or(default, Value::from)),
    }
}

fn default_of(given: Option<Value>, options: &Kwargs, otherwise: Value) -> Result<Value, Error> {
    let default = given.map_or_else(|| options.get::<Option<Value>>("default"), |d| Ok(Some(d)))?;
    options.assert_all_used()?;
    Ok(default.unwrap_or(otherwise))
}

/// Python allows white space around a number and single underscores within.
fn number_text(text: &str) -> String {
    let text = text.trim_matches(is_space);
    let lone = |t: &str| !t.starts_with('_') && !t.ends_with('_') && !t.contains("__");
    if lone(text) { text.replace('_', "") } else { text.to_owned() }
}
