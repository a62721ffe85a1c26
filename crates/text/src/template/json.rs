//! The `tojson` filter, with the output of Python's `json.dumps` as `transformers` calls it.

use std::fmt::Write;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, State};

use super::refuse;

/// Levels of lists and maps.
const DEPTH_MAX: usize = 200;

/// Bytes written for one unit of fuel.
const BYTES_PER_FUEL: usize = 16;

/// Keyword arguments of `json.dumps`.
struct Style {
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
}

/// `value|tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`
pub(super) fn tojson(
    state: &State<'_, '_>,
    value: &Value,
    ensure_ascii: Option<Value>,
    indent: Option<Value>,
    options: Kwargs,
) -> Result<String, Error> {
    let named = |given: Option<Value>, name: &str| match given {
        Some(value) => Ok(Some(value)),
        None => options.get::<Option<Value>>(name),
    };
    let is_true = |v: Option<Value>| v.is_some_and(|v| v.is_true());
    let indent = indent_text(named(indent, "indent")?)?;
    let (item_separator, key_separator) = separators(options.get("separators")?, indent.is_some())?;
    let ensure_ascii = is_true(named(ensure_ascii, "ensure_ascii")?);
    let style = Style {
        ensure_ascii,
        sort_keys: is_true(options.get("sort_keys")?),
        indent,
        item_separator,
        key_separator,
    };
    options.assert_all_used()?;
    let mut out = String::new();
    write_value(state, value, &style, 0, &mut out)?;
    Ok(out)
}

fn indent_text(indent: Option<Value>) -> Result<Option<String>, Error> {
    match indent {
        None => Ok(None),
        Some(v) if v.is_none() || v.is_undefined() => Ok(None),
        Some(v) => match v.as_str() {
            Some(text) => Ok(Some(text.to_owned())),
            None => {
                let width =
                    v.as_i64().ok_or_else(|| refuse("tojson: indent must be a number or a string"))?;
                Ok(Some(" ".repeat(usize::try_from(width.clamp(0, 64)).unwrap_or(0))))
            }
        },
    }
}

fn separators(given: Option<Value>, indented: bool) -> Result<(String, String), Error> {
    match given.filter(|v| !v.is_none()) {
        None => Ok((if indented { "," } else { ", " }.to_owned(), ": ".to_owned())),
        Some(pair) => {
            let item = |i| pair.get_item_by_index(i).ok().and_then(|v| v.as_str().map(str::to_owned));
            item(0).zip(item(1)).ok_or_else(|| refuse("tojson: separators must be two strings"))
        }
    }
}

fn write_value(
    state: &State<'_, '_>,
    value: &Value,
    style: &Style,
    depth: usize,
    out: &mut String,
) -> Result<(), Error> {
    let before = out.len();
    if depth > DEPTH_MAX {
        return Err(refuse(format!("tojson: more than {DEPTH_MAX} levels")));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value)?),
        ValueKind::String => write_string(value.as_str().unwrap_or_default(), style.ensure_ascii, out),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?.collect::<Vec<_>>();
            write_container(state, style, depth, ['[', ']'], items.len(), out, |i, out| {
                write_value(state, &items[i], style, depth + 1, out)
            })?;
        }
        ValueKind::Map => {
            let entries = entries(value, style.sort_keys)?;
            write_container(state, style, depth, ['{', '}'], entries.len(), out, |i, out| {
                let (key, value) = &entries[i];
                write_string(key, style.ensure_ascii, out);
                out.push_str(&style.key_separator);
                write_value(state, value, style, depth + 1, out)
            })?;
        }
        other => return Err(refuse(format!("tojson: {other} is not JSON serializable"))),
    }
    // Each level pays for what it wrote, so that nesting costs what it takes.
    state.consume_fuel(((out.len() - before) / BYTES_PER_FUEL) as u64)
}

fn write_container(
    state: &State<'_, '_>,
    style: &Style,
    depth: usize,
    brackets: [char; 2],
    len: usize,
    out: &mut String,
    mut item: impl FnMut(usize, &mut String) -> Result<(), Error>,
) -> Result<(), Error> {
    let line = |depth: usize, out: &mut String| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    };
    out.push(brackets[0]);
    for i in 0..len {
        if i > 0 {
            out.push_str(&style.item_separator);
        }
        line(depth + 1, out);
        item(i, out)?;
        state.consume_fuel(1)?;
    }
    if len > 0 {
        line(depth, out);
    }
    out.push(brackets[1]);
    Ok(())
}

fn entries(map: &Value, sort: bool) -> Result<Vec<(String, Value)>, Error> {
    let mut entries = Vec::new();
    for key in map.try_iter()? {
        let name = match key.kind() {
            ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
            ValueKind::Number => number(&key)?,
            ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_owned(),
            ValueKind::None => "null".to_owned(),
            other => {
                return Err(refuse(format!("tojson: a key is a {other}, expected a string")));
            }
        };
        entries.push((name, map.get_item(&key)?));
    }
    if sort {
        entries.sort_by(|a, b| a.0.cmp(&b.0));
    }
    Ok(entries)
}

/// A number as Python writes it.
pub(super) fn number(value: &Value) -> Result<String, Error> {
    if value.is_integer() { Ok(value.to_string()) } else { Ok(float(f64::try_from(value.clone())?)) }
}

/// A float as Python writes it: the shortest digits that read back the same, in scientific notation outside 1e-4 … 1e16.
fn float(x: f64) -> String {
    if x.is_nan() {
        return "NaN".to_owned();
    }
    if x.is_infinite() {
        return if x > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        -4..=15 => {
            let plain = x.to_string();
            if plain.contains('.') { plain } else { plain + ".0" }
        }
        e => format!("{digits}e{}{:02}", if e < 0 { '-' } else { '+' }, e.abs()),
    }
}

fn write_string(text: &str, ensure_ascii: bool, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || ensure_ascii && c > '~' => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a string cannot fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_as_python_writes_them() {
        let check = |x: f64, expected: &str| assert_eq!(float(x), expected);
        check(1.0, "1.0");
        check(0.1, "0.1");
        check(-0.0, "-0.0");
        check(1e16, "1e+16");
        check(1e15, "1000000000000000.0");
        check(1.5e-5, "1.5e-05");
        check(0.0001, "0.0001");
        check(1.25e300, "1.25e+300");
        check(123456.789, "123456.789");
        check(f64::NAN, "NaN");
        check(f64::NEG_INFINITY, "-Infinity");
    }
}
