//! Typed access to the metadata of a GGUF file.

use std::path::Path;

use crate::error::OpenError;
use crate::gguf::Gguf;
use crate::gguf_value::{List, Value};

/// Metadata seen by a family: keys are given without the leading `{architecture}.`.
pub(crate) struct GgufConfig<'a> {
    gguf: &'a Gguf,
    architecture: &'a str,
}

impl<'a> GgufConfig<'a> {
    pub fn new(gguf: &'a Gguf, architecture: &'a str) -> Self {
        GgufConfig { gguf, architecture }
    }

    pub fn path(&self) -> &'a Path {
        &self.gguf.path
    }

    /// The full name of a key.
    pub fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// Shape of the tensor `name`, if there is one.
    pub fn tensor_shape(&self, name: &str) -> Option<&'a [usize]> {
        self.gguf.tensors.iter().find(|t| t.name == name).map(|t| t.shape.as_slice())
    }

    /// Whether any tensor's name ends like this.
    pub fn has_tensor_ending(&self, end: &str) -> bool {
        self.gguf.tensors.iter().any(|t| t.name.ends_with(end))
    }

    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.gguf.metadata.get(&self.key(key))
    }

    /// A complaint about a key.
    pub fn wrong(&self, key: &str, expected: impl Into<String>) -> OpenError {
        let found = self.get(key).map_or_else(|| "nothing".to_owned(), Value::in_words);
        wrong(self.path(), &self.key(key), expected, found)
    }

    /// A refusal of a key's value.
    pub fn unsupported(&self, key: &str, expected: &str, todo: &'static str) -> OpenError {
        OpenError::Unsupported {
            path: self.path().to_owned(),
            what: format!("key `{}`", self.key(key)),
            expected: expected.to_owned(),
            found: self.get(key).map_or_else(|| "nothing".to_owned(), Value::in_words),
            todo,
        }
    }

    /// A whole number in `min..=max`, if the key is there. An array of equal numbers, one per layer, counts as one.
    pub fn number_opt(&self, key: &str, min: usize, max: usize) -> Result<Option<usize>, OpenError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match value.whole().and_then(|v| usize::try_from(v).ok()) {
            Some(v) if (min..=max).contains(&v) => Ok(Some(v)),
            _ => Err(self.wrong(key, format!("a whole number between {min} and {max}"))),
        }
    }

    /// A number in `1..=max`.
    pub fn count(&self, key: &str, max: usize) -> Result<usize, OpenError> {
        self.number_opt(key, 1, max)?
            .ok_or_else(|| self.wrong(key, format!("a whole number between 1 and {max}")))
    }

    /// One whole number in `0..=max` for each of `layers` layers, if the key is there: from an array, or one number that
    /// holds for all. Layers of another kind often have 0.
    pub fn per_layer(&self, key: &str, layers: usize, max: usize) -> Result<Option<Vec<usize>>, OpenError> {
        let fits = |v: u64| usize::try_from(v).ok().filter(|&v| v <= max);
        let numbers: Option<Vec<usize>> = match self.get(key) {
            None => return Ok(None),
            Some(Value::List(List::Unsigned(v))) => v.iter().map(|&v| fits(v)).collect(),
            Some(Value::List(List::Signed(v))) => {
                v.iter().map(|&v| u64::try_from(v).ok().and_then(fits)).collect()
            }
            Some(Value::List(_)) => None,
            Some(v) => v.whole().and_then(fits).map(|v| vec![v; layers]),
        };
        match numbers {
            Some(numbers) if numbers.len() == layers => Ok(Some(numbers)),
            _ => {
                let expected = format!("a whole number up to {max}, or an array of {layers} of them");
                Err(self.wrong(key, expected))
            }
        }
    }

    pub fn float_opt(&self, key: &str) -> Result<Option<f64>, OpenError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Float(v)) if v.is_finite() => Ok(Some(*v)),
            Some(v) => match v.whole() {
                Some(v) => Ok(Some(v as f64)),
                None => Err(self.wrong(key, "a finite number")),
            },
        }
    }

    pub fn bool_or(&self, key: &str, default: bool) -> Result<bool, OpenError> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Bool(v)) => Ok(*v),
            Some(_) => Err(self.wrong(key, "true or false")),
        }
    }

    pub fn text_opt(&self, key: &str) -> Result<Option<&'a str>, OpenError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Text(v)) => Ok(Some(v)),
            Some(_) => Err(self.wrong(key, "a string")),
        }
    }

    /// An array of truth values, or of numbers of which 0 is false.
    pub fn flags_opt(&self, key: &str) -> Result<Option<Vec<bool>>, OpenError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::List(List::Bool(v))) => Ok(Some(v.clone())),
            Some(Value::List(List::Unsigned(v))) => Ok(Some(v.iter().map(|&x| x != 0).collect())),
            Some(Value::List(List::Signed(v))) => Ok(Some(v.iter().map(|&x| x != 0).collect())),
            Some(_) => Err(self.wrong(key, "an array of truth values")),
        }
    }
}

/// A complaint about the key `key` of the file `path`.
pub(crate) fn wrong(path: &Path, key: &str, expected: impl Into<String>, found: String) -> OpenError {
    OpenError::Config { path: path.to_owned(), key: key.to_owned(), expected: expected.into(), found }
}

impl Value {
    /// The value as a number that is whole and not negative; arrays count when all their items are equal.
    pub fn whole(&self) -> Option<u64> {
        match self {
            Value::Unsigned(v) => Some(*v),
            Value::Signed(v) => u64::try_from(*v).ok(),
            Value::List(List::Unsigned(v)) => v.first().copied().filter(|f| v.iter().all(|x| x == f)),
            Value::List(List::Signed(v)) => {
                v.first().filter(|f| v.iter().all(|x| x == *f)).and_then(|&f| u64::try_from(f).ok())
            }
            _ => None,
        }
    }
}

/// The string under the full key `key`.
pub(crate) fn text(gguf: &Gguf, key: &str) -> Result<Option<String>, OpenError> {
    match gguf.metadata.get(key) {
        None => Ok(None),
        Some(Value::Text(v)) => Ok(Some(v.clone())),
        Some(v) => Err(wrong(&gguf.path, key, "a string", v.in_words())),
    }
}

/// The number under the full key `key`, as a token id.
pub(crate) fn id(gguf: &Gguf, key: &str) -> Result<Option<u32>, OpenError> {
    let Some(value) = gguf.metadata.get(key) else {
        return Ok(None);
    };
    match value.whole().and_then(|v| u32::try_from(v).ok()) {
        Some(v) => Ok(Some(v)),
        None => Err(wrong(&gguf.path, key, "a token id", value.in_words())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(value: Option<Value>, expected: Result<Option<Vec<usize>>, &str>) {
        let metadata = value.into_iter().map(|v| ("a.k".to_owned(), v)).collect();
        let gguf = Gguf { path: "m.gguf".into(), size_bytes: 0, metadata, tensors: Vec::new() };
        let found = GgufConfig::new(&gguf, "a").per_layer("k", 3, 8).map_err(|e| e.to_string());
        match expected {
            Ok(numbers) => assert_eq!(found, Ok(numbers)),
            Err(says) => assert!(found.as_ref().is_err_and(|e| e.contains(says)), "{found:?}"),
        }
    }

    #[test]
    fn numbers_for_each_layer() {
        check(None, Ok(None));
        check(Some(Value::Unsigned(8)), Ok(Some(vec![8, 8, 8])));
        check(Some(Value::Signed(2)), Ok(Some(vec![2, 2, 2])));
        check(Some(Value::List(List::Unsigned(vec![0, 8, 1]))), Ok(Some(vec![0, 8, 1])));
        check(Some(Value::List(List::Signed(vec![4, 0, 4]))), Ok(Some(vec![4, 0, 4])));
        let array =
            "m.gguf: key `a.k`: expected a whole number up to 8, or an array of 3 of them, found an array of";
        check(Some(Value::List(List::Unsigned(vec![1, 2]))), Err(&format!("{array} 2")));
        check(Some(Value::List(List::Unsigned(vec![1, 2, 3, 4]))), Err(&format!("{array} 4")));
        check(Some(Value::List(List::Unsigned(vec![1, 2, 9]))), Err(&format!("{array} 3")));
        check(Some(Value::List(List::Signed(vec![1, -2, 3]))), Err(&format!("{array} 3")));
        check(Some(Value::List(List::Float(vec![1.0; 3]))), Err(&format!("{array} 3")));
        check(Some(Value::Unsigned(9)), Err("found 9"));
        check(Some(Value::Float(1.0)), Err("found 1"));
    }
}
