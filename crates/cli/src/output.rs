//! Writing to stdout, and how numbers and tables look.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, StdoutLock, Write};
use std::time::Duration;

use crate::exit::Failure;

/// Stdout. Every write can fail (a closed pipe, a full disk), so nothing here panics as `println!` would.
pub struct Out {
    stdout: StdoutLock<'static>,
    terminal: bool,
}

impl Out {
    /// Takes stdout.
    pub fn new() -> Out {
        Out { terminal: io::stdout().is_terminal(), stdout: io::stdout().lock() }
    }

    /// Writes text and makes it visible at once.
    pub fn text(&mut self, text: &str) -> Result<(), Failure> {
        let written = if self.terminal {
            self.stdout.write_all(harmless(text).as_bytes())
        } else {
            self.stdout.write_all(text.as_bytes())
        };
        written.and_then(|()| self.stdout.flush()).map_err(failure)
    }

    /// Writes a line.
    pub fn line(&mut self, line: &str) -> Result<(), Failure> {
        self.text(line)?;
        self.text("\n")
    }
}

fn failure(source: io::Error) -> Failure {
    match source.kind() {
        io::ErrorKind::BrokenPipe => Failure::NobodyListens,
        _ => Failure::Output { to: "stdout".to_string(), source },
    }
}

/// Text of a model or a file without the control characters that would steer a terminal.
fn harmless(text: &str) -> String {
    let keep = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    text.chars().map(|c| if keep(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
}

/// Prints a line on stderr. There is nobody to tell when that fails.
pub fn note(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// A count with its digits in groups of three: `13 824 000` is `13,824,000`.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A count for people: three digits and a letter.
pub fn short(count: u64) -> String {
    let steps = [(1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")];
    let value = count as f64;
    match steps.iter().find(|(unit, _)| value >= *unit) {
        None => count.to_string(),
        Some((unit, letter)) => format!("{} {letter}", three_digits(value / unit)),
    }
}

/// A number with three digits that matter.
pub fn three_digits(value: f64) -> String {
    match value {
        v if v < 10.0 => format!("{v:.2}"),
        v if v < 100.0 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

/// A time for people.
pub fn time(time: Duration) -> String {
    let s = time.as_secs_f64();
    if s < 1.0 { format!("{} ms", three_digits(s * 1e3)) } else { format!("{} s", three_digits(s)) }
}

/// Rows of a label and a value, the values in one column. An empty label is a heading, or with an empty value a gap.
pub fn table(rows: &[(String, String)]) -> String {
    let width = rows.iter().map(|(label, _)| label.chars().count()).max();
    let width = width.unwrap_or(0);
    let mut out = String::new();
    for (label, value) in rows {
        match label.is_empty() {
            true => out.extend([value, "\n"]),
            false => out.push_str(&table_row(label, value, width)),
        }
    }
    out
}

/// One row of a [`table`] whose longest label has `width` characters, for rows that are printed as they come.
pub fn table_row(label: &str, value: &str, width: usize) -> String {
    format!("  {label:width$}  {value}\n")
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, b| {
        let _ = write!(out, "{b:02x}");
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        let cases = [
            (grouped(7), "7"),
            (grouped(13_824_000), "13,824,000"),
            (short(999), "999"),
            (short(13_824_000), "13.8 M"),
            (short(744_000_000_000), "744 B"),
            (time(Duration::from_micros(1234)), "1.23 ms"),
            (time(Duration::from_secs(75)), "75.0 s"),
            (hex(&[0, 171]), "00ab"),
        ];
        for (got, want) in cases {
            assert_eq!(got, want);
        }
    }

    #[test]
    fn a_terminal_gets_no_control_characters() {
        assert_eq!(harmless("a\x1b[2Jb\r\n\tc\u{9b}"), "a\u{fffd}[2Jb\u{fffd}\n\tc\u{fffd}");
    }

    #[test]
    fn tables_line_up() {
        let rows = [("", "Head"), ("a", "1"), ("long", "2")];
        let rows = rows.map(|(l, v)| (l.to_string(), v.to_string()));
        assert_eq!(table(&rows), "Head\n  a     1\n  long  2\n");
    }
}
