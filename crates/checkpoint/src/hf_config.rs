//! Typed access to `config.json`.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::{OpenError, quote};
use crate::json::{Entries, parse, read_file};
use crate::limits::CONFIG_BYTES_MAX;

/// `config.json`, or an object inside it. A `null` counts as absent, as in transformers.
pub(crate) struct HfConfig {
    path: PathBuf,
    values: Map<String, Value>,
}

impl HfConfig {
    /// Reads a JSON object from `path`.
    pub fn read(path: &Path) -> Result<Self, OpenError> {
        HfConfig::from_bytes(path, &read_file(path, CONFIG_BYTES_MAX, "JSON")?)
    }

    /// Parses the contents of `path`.
    pub fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Self, OpenError> {
        let entries: Entries<Value> = parse(path, bytes, 0, "JSON")?;
        let values = entries.unique(path, "key")?.into_iter().collect();
        Ok(HfConfig { path: path.to_owned(), values })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the key is there, even if `null`.
    pub fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// All keys and values.
    pub fn entries(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.values.iter()
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key).filter(|v| !v.is_null())
    }

    /// The object under `key`.
    pub fn object(&self, key: &str) -> Result<Option<HfConfig>, OpenError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(o)) => Ok(Some(HfConfig { path: self.path.clone(), values: o.clone() })),
            Some(_) => Err(self.wrong(key, "an object")),
        }
    }

    fn found(&self, key: &str) -> String {
        self.values.get(key).map_or_else(|| "nothing".to_owned(), |v| quote(&v.to_string()))
    }

    /// A complaint about a key.
    pub fn wrong(&self, key: &str, expected: impl Into<String>) -> OpenError {
        OpenError::Config {
            path: self.path.clone(),
            key: key.to_owned(),
            expected: expected.into(),
            found: self.found(key),
        }
    }

    /// A refusal of a key's value.
    pub fn unsupported(&self, key: &str, expected: &str, todo: &'static str) -> OpenError {
        OpenError::Unsupported {
            path: self.path.clone(),
            what: format!("key `{key}`"),
            expected: expected.to_owned(),
            found: self.found(key),
            todo,
        }
    }

    /// A whole number in `min..=max`, if the key is there.
    pub fn number_opt(&self, key: &str, min: usize, max: usize) -> Result<Option<usize>, OpenError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match whole(value).and_then(|v| usize::try_from(v).ok()) {
            Some(v) if (min..=max).contains(&v) => Ok(Some(v)),
            _ => Err(self.wrong(key, format!("a whole number between {min} and {max}"))),
        }
    }

    /// A number in `1..=max`.
    pub fn count_or(&self, key: &str, default: usize, max: usize) -> Result<usize, OpenError> {
        Ok(self.number_opt(key, 1, max)?.unwrap_or(default))
    }

    pub fn float_opt(&self, key: &str) -> Result<Option<f64>, OpenError> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => match v.as_f64() {
                Some(f) if f.is_finite() => Ok(Some(f)),
                _ => Err(self.wrong(key, "a finite number")),
            },
        }
    }

    pub fn bool_opt(&self, key: &str) -> Result<Option<bool>, OpenError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(v)) => Ok(Some(*v)),
            Some(_) => Err(self.wrong(key, "true or false")),
        }
    }

    pub fn text_opt(&self, key: &str) -> Result<Option<&str>, OpenError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(v)) => Ok(Some(v)),
            Some(_) => Err(self.wrong(key, "a string")),
        }
    }

    /// A list of strings.
    pub fn texts_opt(&self, key: &str) -> Result<Option<Vec<&str>>, OpenError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let texts = value.as_array().and_then(|a| a.iter().map(Value::as_str).collect());
        texts.map(Some).ok_or_else(|| self.wrong(key, "a list of strings"))
    }

    /// A list of whole numbers.
    pub fn numbers_opt(&self, key: &str) -> Result<Option<Vec<u64>>, OpenError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let numbers = value.as_array().and_then(|a| a.iter().map(whole).collect());
        numbers.map(Some).ok_or_else(|| self.wrong(key, "a list of whole numbers"))
    }

    /// One token id or a list of them.
    pub fn ids(&self, key: &str, ids_max: usize) -> Result<Vec<u32>, OpenError> {
        let ids: Option<Vec<u32>> = match self.get(key) {
            None => Some(Vec::new()),
            Some(Value::Array(a)) => a.iter().map(id).collect(),
            Some(v) => id(v).map(|v| vec![v]),
        };
        ids.filter(|v| v.len() <= ids_max)
            .ok_or_else(|| self.wrong(key, format!("a token id or a list of at most {ids_max}")))
    }
}

/// A number without fraction; Python's `json` writes some of them as `1.0` or `1e6`.
fn whole(value: &Value) -> Option<u64> {
    const EXACT_MAX: f64 = (1u64 << 53) as f64;
    match (value.as_u64(), value.as_f64()) {
        (Some(v), _) => Some(v),
        (None, Some(f)) if (0.0..=EXACT_MAX).contains(&f) && f.fract() == 0.0 => Some(f as u64),
        _ => None,
    }
}

fn id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|v| u32::try_from(v).ok())
}
