//! Ids of commits.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::json::serde_as_string;

/// Id of a git commit: 40 (SHA-1) or 64 (SHA-256) hexadecimal digits, kept in lower case.
///
/// ```
/// let commit: kernel_spec::CommitId = "ABCDEF0123456789ABCDEF0123456789ABCDEF01".parse()?;
/// assert_eq!(commit.as_str(), "abcdef0123456789abcdef0123456789abcdef01");
/// # Ok::<(), kernel_spec::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommitId(String);

impl CommitId {
    /// The digits, in lower case.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a revision is a whole commit id, so that it needs no look at the Hub.
    pub fn is_commit_id(text: &str) -> bool {
        matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    }
}

impl FromStr for CommitId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if Self::is_commit_id(text) {
            Ok(Self(text.to_ascii_lowercase()))
        } else {
            Err(Error::CommitId {
                text: text.to_owned(),
            })
        }
    }
}

impl fmt::Display for CommitId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl AsRef<str> for CommitId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

serde_as_string!(CommitId);
