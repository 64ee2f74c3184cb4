//! `kernel-status.toml`: what a repository says of itself.
//!
//! So far one thing: that the kernel has moved. The Python library can read the file but never
//! looks at it, so that an old id fails or loads old builds there.

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::reference::{KernelRef, Selector, check_revision};
use crate::repository::RepositoryId;

/// Name of the file, at the top of a branch.
pub const STATUS_FILE: &str = "kernel-status.toml";

/// What a repository says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum KernelStatus {
    /// The kernel has moved.
    Redirect {
        /// Where to.
        destination: RepositoryId,
        /// Branch, tag or commit there.
        revision: String,
    },
}

impl KernelStatus {
    /// Reads the file's content. Without `revision` a redirect leads to `main`.
    ///
    /// ```
    /// use kernel_spec::KernelStatus;
    ///
    /// let text = "kind = \"redirect\"\ndestination = \"kernels-test/relu\"\nrevision = \"v2\"\n";
    /// let KernelStatus::Redirect { destination, revision } = KernelStatus::from_toml(text)? else {
    ///     panic!("another kind");
    /// };
    /// assert_eq!((destination.as_str(), revision.as_str()), ("kernels-test/relu", "v2"));
    /// # Ok::<(), kernel_spec::Error>(())
    /// ```
    pub fn from_toml(text: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Raw {
            kind: String,
            destination: Option<String>,
            revision: Option<String>,
        }

        let raw: Raw =
            toml::from_str(text).map_err(|error| toml_error(STATUS_FILE, text, &error))?;
        let invalid = |field: &str, reason: String| Error::Document {
            document: STATUS_FILE.to_owned(),
            field: field.to_owned(),
            reason,
            line: 0,
            column: 0,
        };
        if raw.kind != "redirect" {
            let reason = format!("unknown kind `{}`, expected `redirect`", raw.kind);
            return Err(invalid("kind", reason));
        }
        let destination = raw
            .destination
            .ok_or_else(|| invalid("destination", "missing in a redirect".to_owned()))?
            .parse::<RepositoryId>()
            .map_err(|error| invalid("destination", error.to_string()))?;
        let revision = raw.revision.unwrap_or_else(|| "main".to_owned());
        check_revision(&revision).map_err(|error| invalid("revision", error.to_string()))?;
        Ok(Self::Redirect {
            destination,
            revision,
        })
    }

    /// The kernel to look at instead. A redirect to a branch `v<N>` leads to that version; one to
    /// `main`, which holds no builds, leads to the newest version.
    pub fn target(&self) -> Result<KernelRef> {
        match self {
            Self::Redirect {
                destination,
                revision,
            } => {
                let selector = match revision.as_str() {
                    "main" => Selector::Newest,
                    revision => Selector::from_revision(revision)?,
                };
                Ok(KernelRef::hub(destination.clone(), selector))
            }
        }
    }
}

/// A TOML error with its place, counted from one.
pub(crate) fn toml_error(document: &str, text: &str, error: &toml::de::Error) -> Error {
    let (line, column) = error.span().map_or((0, 0), |span| {
        let before = text.get(..span.start).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |index| index + 1);
        (
            before.matches('\n').count() + 1,
            before[line_start..].chars().count() + 1,
        )
    });
    Error::Document {
        document: document.to_owned(),
        field: String::new(),
        reason: error.message().to_owned(),
        line,
        column,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_leads_to_main_by_default() {
        let text = "kind = \"redirect\"\ndestination = \"a/b\"";
        let status = KernelStatus::from_toml(text).unwrap();
        assert_eq!(status.target().unwrap().to_string(), "a/b");
    }

    #[test]
    fn broken_files_say_where() {
        for (text, place) in [
            ("kind = \"gone\"", "`kind`: unknown kind `gone`"),
            ("kind = \"redirect\"", "`destination`: missing"),
            (
                "kind = \"redirect\"\ndestination = \"../x\"",
                "`destination`: invalid repository id",
            ),
            ("destination = \"a/b\"", "missing field `kind`"),
            ("kind =", "line 1 column"),
        ] {
            let error = KernelStatus::from_toml(text).unwrap_err().to_string();
            assert!(error.contains(place), "{text}: {error}");
        }
    }
}
