//! What can be wrong with a fixture.

use std::path::PathBuf;

/// Result of this crate's fallible functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A fixture that cannot be built or served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server cannot listen.
    #[error("cannot listen on the loopback interface")]
    Listen(#[source] std::io::Error),
    /// A file of a directory tree cannot be read or written.
    #[error("cannot access `{}`", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A value of a kernel breaks a rule of the format.
    #[error("kernel `{repository}`")]
    Kernel {
        /// Its repository.
        repository: String,
        /// The rule.
        #[source]
        source: kernel_spec::Error,
    },
    /// A kernel's repository has no such branch.
    #[error("kernel `{repository}` has no branch `{branch}`")]
    Branch {
        /// Its repository.
        repository: String,
        /// The branch.
        branch: String,
    },
    /// A certificate or signature cannot be made.
    #[error("cannot make a certificate: {0}")]
    Certificate(String),
}

impl Error {
    pub(crate) fn certificate(error: impl std::fmt::Display) -> Self {
        Self::Certificate(error.to_string())
    }
}
