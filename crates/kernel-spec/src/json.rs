//! Strict reading of JSON documents.
//!
//! serde alone is too lenient for files that decide what code runs: it takes arrays for objects,
//! lets the last of two equal map keys win, and its messages do not name the field. The helpers
//! here close those gaps for every document of the crate.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, Deserializer, Error as _, MapAccess, Visitor};

use crate::error::{Error, Result};

/// Reads a whole document. `document` is what error messages call it.
pub(crate) fn from_slice<T: DeserializeOwned>(document: &str, bytes: &[u8]) -> Result<T> {
    let text = std::str::from_utf8(bytes).map_err(|error| invalid_utf8(document, bytes, &error))?;
    // Knowing the path at every moment costs more than reading does, and only errors need it.
    if let Ok(value) = serde_json::from_str(text) {
        return Ok(value);
    }
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        // The path of the document itself is spelled `.`.
        let field = Some(error.path().to_string())
            .filter(|path| path != ".")
            .unwrap_or_default();
        document_error(document, field, error.inner())
    })?;
    deserializer
        .end()
        .map_err(|error| document_error(document, String::new(), &error))?;
    Ok(value)
}

fn document_error(document: &str, field: String, error: &serde_json::Error) -> Error {
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    Error::Document {
        document: document.to_owned(),
        field,
        reason: text.strip_suffix(&position).unwrap_or(&text).to_owned(),
        line: error.line(),
        column: error.column(),
    }
}

fn invalid_utf8(document: &str, bytes: &[u8], error: &std::str::Utf8Error) -> Error {
    let valid = &bytes[..error.valid_up_to()];
    let line_start = valid
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |index| index + 1);
    Error::Document {
        document: document.to_owned(),
        field: String::new(),
        reason: "not valid UTF-8".to_owned(),
        line: valid.split(|byte| *byte == b'\n').count(),
        column: valid.len() - line_start + 1,
    }
}

/// Reads `T` from an object and from nothing else. Derived implementations also take an array with
/// the fields in order, which no writer produces and which hides errors.
pub(crate) fn object<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct ObjectVisitor<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
        type Value = T;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
            T::deserialize(MapAccessDeserializer::new(map))
        }
    }

    deserializer.deserialize_map(ObjectVisitor(PhantomData))
}

/// Reads a field that may be left out but not be null.
pub(crate) fn not_null<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}

/// Reads a map in which every key occurs once.
pub(crate) fn unique_map<'de, D, K, V>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
where
    D: Deserializer<'de>,
    K: Deserialize<'de> + Ord + fmt::Display,
    V: Deserialize<'de>,
{
    struct MapVisitor<K, V>(PhantomData<(K, V)>);

    impl<'de, K, V> Visitor<'de> for MapVisitor<K, V>
    where
        K: Deserialize<'de> + Ord + fmt::Display,
        V: Deserialize<'de>,
    {
        type Value = BTreeMap<K, V>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
            let mut map = BTreeMap::new();
            while let Some(key) = access.next_key::<K>()? {
                if map.contains_key(&key) {
                    return Err(A::Error::custom(format_args!("duplicate key `{key}`")));
                }
                let value = access.next_value()?;
                map.insert(key, value);
            }
            Ok(map)
        }
    }

    deserializer.deserialize_map(MapVisitor(PhantomData))
}

/// Implements serde for a type that is a checked string: read with `FromStr`, written with `Display`.
macro_rules! serde_as_string {
    ($type:ty) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                // A visitor, not a `String` parsed afterwards: what fails inside of it is reported
                // with the position of the string, not with the end of the object around it.
                struct Visitor;

                impl serde::de::Visitor<'_> for Visitor {
                    type Value = $type;

                    fn expecting(
                        &self,
                        formatter: &mut std::fmt::Formatter<'_>,
                    ) -> std::fmt::Result {
                        formatter.write_str("a string")
                    }

                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$type, E> {
                        text.parse().map_err(E::custom)
                    }
                }

                deserializer.deserialize_str(Visitor)
            }
        }
    };
}
pub(crate) use serde_as_string;
