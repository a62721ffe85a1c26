//! JSON files read with a size limit, and objects in which no key may occur twice.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::marker::PhantomData;
use std::path::Path;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error as _, MapAccess, Visitor};

use crate::error::{OpenError, quote};

/// A JSON object as the list of its entries, duplicates included: `serde_json` itself would keep the last one.
pub(crate) struct Entries<V>(pub Vec<(String, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Entries<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor<V>(PhantomData<V>);

        impl<'de, V: Deserialize<'de>> Visitor<'de> for EntriesVisitor<V> {
            type Value = Entries<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<V>, A::Error> {
                let mut entries = Vec::new();
                while let Some(key) = map.next_key::<String>()? {
                    let value = map.next_value().map_err(|e| {
                        A::Error::custom(format_args!("{e} in the value of `{}`", quote(&key)))
                    })?;
                    entries.push((key, value));
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(EntriesVisitor(PhantomData))
    }
}

impl<V> Entries<V> {
    /// The entries, if all keys differ.
    pub fn unique(self, path: &Path, what: &'static str) -> Result<Vec<(String, V)>, OpenError> {
        let mut seen = HashSet::with_capacity(self.0.len());
        match self.0.iter().find(|(key, _)| !seen.insert(key.as_str())) {
            None => Ok(self.0),
            Some((key, _)) => Err(OpenError::Duplicate {
                path: path.to_owned(),
                what,
                name: quote(key),
                place: "in the same object".to_owned(),
            }),
        }
    }
}

/// Reads a whole file of at most `bytes_max` bytes.
pub(crate) fn read_file(path: &Path, bytes_max: u64, format: &'static str) -> Result<Vec<u8>, OpenError> {
    let file = File::open(path).map_err(OpenError::io(path))?;
    let mut bytes = Vec::new();
    // One byte more than allowed tells a file that is too long from one that just fits.
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes).map_err(OpenError::io(path))?;
    if bytes.len() as u64 > bytes_max {
        return Err(OpenError::Malformed {
            path: path.to_owned(),
            format,
            offset: bytes_max,
            expected: format!("at most {bytes_max} bytes"),
            found: "more".to_owned(),
        });
    }
    Ok(bytes)
}

/// Parses `bytes`, which start at byte `base` of the file `path`.
pub(crate) fn parse<T: DeserializeOwned>(
    path: &Path,
    bytes: &[u8],
    base: u64,
    format: &'static str,
) -> Result<T, OpenError> {
    serde_json::from_slice(bytes).map_err(|e| OpenError::Malformed {
        path: path.to_owned(),
        format,
        offset: base.saturating_add(offset_of(bytes, e.line(), e.column())),
        expected: "valid JSON of the expected form".to_owned(),
        found: e.to_string(),
    })
}

/// Byte offset of a line and column that count from 1.
fn offset_of(bytes: &[u8], line: usize, column: usize) -> u64 {
    let before: usize = bytes.split(|&b| b == b'\n').take(line.saturating_sub(1)).map(|l| l.len() + 1).sum();
    before.saturating_add(column.saturating_sub(1)).min(bytes.len()) as u64
}
