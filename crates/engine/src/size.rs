//! Amounts of memory as people write them.

use std::str::FromStr;

/// An amount of memory, absolute or relative to what would hold everything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Size {
    /// This many bytes.
    Bytes(u64),
    /// This share, in percent, of what the option says.
    Percent(f64),
    /// Enough for everything.
    All,
    /// The least that works.
    Min,
}

/// A size that could not be understood.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error(
    "`{0}` is no size; expected bytes (`1048576`), a unit (`64MiB`, `1.5GB`), a share (`25%`), `all` or `min`"
)]
pub struct UnknownSize(pub String);

const UNITS: [(&str, f64); 13] = [
    ("KIB", 1024.0),
    ("MIB", 1048576.0),
    ("GIB", 1073741824.0),
    ("TIB", 1099511627776.0),
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("K", 1024.0),
    ("M", 1048576.0),
    ("G", 1073741824.0),
    ("T", 1099511627776.0),
    ("B", 1.0),
];

impl FromStr for Size {
    type Err = UnknownSize;

    fn from_str(text: &str) -> Result<Size, UnknownSize> {
        let unknown = || UnknownSize(text.to_string());
        let upper = text.trim().to_ascii_uppercase();
        match upper.as_str() {
            "ALL" => return Ok(Size::All),
            "MIN" => return Ok(Size::Min),
            _ => {}
        }
        let number = |digits: &str| {
            let digits = digits.trim();
            let plain = digits.starts_with(|c: char| c.is_ascii_digit());
            digits.parse::<f64>().ok().filter(|v| plain && v.is_finite())
        };
        if let Some(digits) = upper.strip_suffix('%') {
            return number(digits).filter(|p| *p <= 100.0).map(Size::Percent).ok_or_else(unknown);
        }
        let unit = UNITS.iter().find_map(|(name, factor)| upper.strip_suffix(name).map(|d| (d, *factor)));
        let (digits, factor) = unit.unwrap_or((&upper, 1.0));
        let bytes = number(digits).ok_or_else(unknown)? * factor;
        // Beyond 2⁵³ the conversion would invent digits, and no machine has it.
        if bytes < 9.0e15 { Ok(Size::Bytes(bytes as u64)) } else { Err(unknown()) }
    }
}

/// Bytes for people: three significant digits and a binary unit.
pub fn human(bytes: u64) -> String {
    let (mut value, mut unit) = (bytes as f64, 0);
    const NAMES: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    while value >= 1024.0 && unit + 1 < NAMES.len() {
        value /= 1024.0;
        unit += 1;
    }
    match value {
        _ if unit == 0 => format!("{bytes} B"),
        v if v < 10.0 => format!("{v:.2} {}", NAMES[unit]),
        v if v < 100.0 => format!("{v:.1} {}", NAMES[unit]),
        v => format!("{v:.0} {}", NAMES[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse() {
        let cases = [
            ("1048576", Some(Size::Bytes(1 << 20))),
            ("64MiB", Some(Size::Bytes(64 << 20))),
            ("64m", Some(Size::Bytes(64 << 20))),
            ("1.5 GB", Some(Size::Bytes(1_500_000_000))),
            ("0", Some(Size::Bytes(0))),
            ("25%", Some(Size::Percent(25.0))),
            ("ALL", Some(Size::All)),
            ("min", Some(Size::Min)),
            ("101%", None),
            ("-1", None),
            ("nan", None),
            ("inf", None),
            ("1e300", None),
            ("GiB", None),
            ("", None),
            ("12 parsecs", None),
        ];
        for (text, want) in cases {
            assert_eq!(text.parse::<Size>().ok(), want, "{text}");
        }
    }

    #[test]
    fn bytes_read_well() {
        for (bytes, want) in
            [(512, "512 B"), (1536, "1.50 KiB"), (104_448, "102 KiB"), (25 << 30, "25.0 GiB")]
        {
            assert_eq!(human(bytes), want);
        }
    }
}
