//! Typed reading of JSON objects, with errors that name file and field.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::{ModelError, Result};

/// One JSON object of a configuration file.
///
/// An absent key and an explicit `null` are different things to [`Fields::get`] and the same to
/// the typed readers, which is what the configuration classes of transformers do for most fields.
#[derive(Debug, Clone)]
pub(crate) struct Fields<'a> {
    path: &'a Path,
    prefix: String,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// The object at the root of a file.
    pub(crate) fn root(path: &'a Path, value: &'a Value) -> Result<Self> {
        let map = value.as_object().ok_or_else(|| ModelError::InvalidFile {
            path: path.to_owned(),
            problem: "the document is not a JSON object".to_owned(),
        })?;
        Ok(Self {
            path,
            prefix: String::new(),
            map,
        })
    }

    /// The file this object comes from.
    pub(crate) fn path(&self) -> PathBuf {
        self.path.to_owned()
    }

    /// The value of a key; `None` where the key is absent.
    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name)
    }

    /// All keys, in the order of the file.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.map.keys().map(String::as_str)
    }

    fn present(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// The error that says what is wrong with a field.
    pub(crate) fn error(&self, name: &str, problem: impl Into<String>) -> ModelError {
        ModelError::Field {
            path: self.path(),
            field: format!("{}{name}", self.prefix),
            problem: problem.into(),
        }
    }

    fn wrong_type(&self, name: &str, expected: &str, found: &Value) -> ModelError {
        let mut text = found.to_string();
        if text.chars().count() > 60 {
            text = text.chars().take(57).collect::<String>() + "...";
        }
        self.error(name, format!("must be {expected}, but is {text}"))
    }

    /// A nested object.
    pub(crate) fn object(&self, name: &str) -> Result<Option<Fields<'a>>> {
        let Some(value) = self.present(name) else {
            return Ok(None);
        };
        let map = value
            .as_object()
            .ok_or_else(|| self.wrong_type(name, "an object", value))?;
        Ok(Some(Fields {
            path: self.path,
            prefix: format!("{}{name}.", self.prefix),
            map,
        }))
    }

    /// An integer. A float with no fraction counts as one, as some writers emit `8.0`.
    pub(crate) fn integer(&self, name: &str) -> Result<Option<i64>> {
        let Some(value) = self.present(name) else {
            return Ok(None);
        };
        if let Some(number) = value.as_i64() {
            return Ok(Some(number));
        }
        match value.as_f64() {
            Some(number) if number.fract() == 0.0 && number.abs() < 9e15 => Ok(Some(number as i64)),
            _ => Err(self.wrong_type(name, "an integer", value)),
        }
    }

    /// A positive integer that the file has to state.
    pub(crate) fn required_size(&self, name: &str) -> Result<i64> {
        match self.size(name)? {
            Some(size) => Ok(size),
            None => Err(self.error(name, "is missing")),
        }
    }

    /// A positive integer.
    pub(crate) fn size(&self, name: &str) -> Result<Option<i64>> {
        match self.integer(name)? {
            // Sizes beyond 2^40 are errors of the file, and would overflow products of sizes.
            Some(size) if !(1..=1 << 40).contains(&size) => {
                Err(self.error(name, format!("must be a positive size, but is {size}")))
            }
            other => Ok(other),
        }
    }

    /// A finite number.
    pub(crate) fn number(&self, name: &str) -> Result<Option<f64>> {
        let Some(value) = self.present(name) else {
            return Ok(None);
        };
        match value.as_f64() {
            Some(number) if number.is_finite() => Ok(Some(number)),
            _ => Err(self.wrong_type(name, "a number", value)),
        }
    }

    /// A number above zero.
    pub(crate) fn positive(&self, name: &str) -> Result<Option<f64>> {
        match self.number(name)? {
            Some(number) if number <= 0.0 => {
                Err(self.error(name, format!("must be above 0, but is {number}")))
            }
            other => Ok(other),
        }
    }

    /// A truth value.
    pub(crate) fn boolean(&self, name: &str) -> Result<Option<bool>> {
        let Some(value) = self.present(name) else {
            return Ok(None);
        };
        value
            .as_bool()
            .map(Some)
            .ok_or_else(|| self.wrong_type(name, "true or false", value))
    }

    /// A string.
    pub(crate) fn string(&self, name: &str) -> Result<Option<&'a str>> {
        let Some(value) = self.present(name) else {
            return Ok(None);
        };
        value
            .as_str()
            .map(Some)
            .ok_or_else(|| self.wrong_type(name, "a string", value))
    }

    /// A list of strings.
    pub(crate) fn strings(&self, name: &str) -> Result<Option<Vec<&'a str>>> {
        let Some(value) = self.present(name) else {
            return Ok(None);
        };
        let list = value
            .as_array()
            .and_then(|list| list.iter().map(Value::as_str).collect());
        list.map(Some)
            .ok_or_else(|| self.wrong_type(name, "a list of strings", value))
    }

    /// A token id or a list of them; empty where the field is absent.
    pub(crate) fn token_ids(&self, name: &str) -> Result<Option<Vec<i64>>> {
        let Some(value) = self.present(name) else {
            return Ok(None);
        };
        let ids = match value {
            Value::Array(list) => list.iter().map(Value::as_i64).collect::<Option<Vec<_>>>(),
            single => single.as_i64().map(|id| vec![id]),
        };
        ids.map(Some)
            .ok_or_else(|| self.wrong_type(name, "a token id or a list of them", value))
    }
}

/// Reads and parses a JSON file.
pub(crate) fn read_json(path: &Path) -> Result<Value> {
    let bytes = std::fs::read(path).map_err(|source| ModelError::Read {
        path: path.to_owned(),
        source,
    })?;
    serde_json::from_slice(&bytes).map_err(|error| ModelError::InvalidFile {
        path: path.to_owned(),
        problem: format!("not JSON: {error}"),
    })
}
