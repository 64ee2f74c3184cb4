//! Names of kernels.

use std::fmt;
use std::str::FromStr;

use crate::json::serde_as_string;

/// A checked kernel name: lower-case letters, digits and dashes; the first is a letter, the last no
/// dash, and there are at least two.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelName(String);

/// A name that breaks the rules of [`KernelName`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid kernel name `{}`: expected two or more lower-case letters, digits and dashes, a letter \
     first and no dash last", .name.escape_debug()
)]
pub struct KernelNameError {
    /// The name as given.
    pub name: String,
}

impl KernelName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as Python spells it, with underscores.
    pub fn module_name(&self) -> String {
        self.0.replace('-', "_")
    }
}

impl FromStr for KernelName {
    type Err = KernelNameError;

    fn from_str(name: &str) -> Result<Self, KernelNameError> {
        let allowed = name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        let starts_with_letter = name.as_bytes().first().is_some_and(u8::is_ascii_lowercase);
        if name.len() >= 2 && allowed && starts_with_letter && !name.ends_with('-') {
            Ok(Self(name.to_owned()))
        } else {
            Err(KernelNameError {
                name: name.to_owned(),
            })
        }
    }
}

impl fmt::Display for KernelName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

serde_as_string!(KernelName);
