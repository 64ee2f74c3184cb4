//! What can be wrong with the values of this crate.
//!
//! One enum for the whole crate: callers mostly pass errors on, and those who decide something
//! match on the kind. The message says what is wrong with which thing; what to do about it is kept
//! apart, in [`Error::hint`], so that a command can print it on its own line.

use crate::digest::Violation;
use crate::version::ReleaseVersion;

/// Result of this crate's fallible functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A value that breaks a rule of the kernel format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A kernel reference that is neither `org/name[@revision][:Symbol]` nor a path.
    #[error("cannot parse kernel reference `{text}`: {reason}")]
    Reference {
        /// The reference as typed.
        text: String,
        /// The rule it breaks.
        reason: String,
        /// What would be right, where that can be guessed.
        hint: Option<String>,
    },
    /// A repository id that is not `owner/name`.
    #[error("invalid repository id `{text}`: {reason}")]
    RepositoryId {
        /// The id as given.
        text: String,
        /// The rule it breaks.
        reason: String,
    },
    /// A branch, tag or commit name that git would not accept.
    #[error("invalid revision `{text}`: {reason}")]
    Revision {
        /// The revision as given.
        text: String,
        /// The rule it breaks.
        reason: &'static str,
    },
    /// The name of a build directory that is not a variant.
    #[error("cannot parse variant `{name}`: {reason}")]
    Variant {
        /// Name of the directory.
        name: String,
        /// Which part does not fit, and what was expected there.
        reason: String,
    },
    /// A backend word that is not known, or lacks its version.
    #[error("invalid backend `{word}`: {reason}")]
    Backend {
        /// The word as given.
        word: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A version number of the wrong shape.
    #[error("invalid version `{text}`: {reason}")]
    Version {
        /// The version as given.
        text: String,
        /// The rule it breaks.
        reason: &'static str,
    },
    /// A commit id that is not 40 or 64 hexadecimal digits.
    #[error("invalid commit id `{text}`: expected 40 or 64 hexadecimal digits")]
    CommitId {
        /// The id as given.
        text: String,
    },
    /// A document (metadata, lock, index, machine description) that cannot be read.
    #[error("cannot parse {document}: {}", place(.field, .reason, *.line, *.column))]
    Document {
        /// What kind of document it is, or its file name.
        document: String,
        /// Path of the field inside the document, empty where the whole is meant.
        field: String,
        /// What is wrong there.
        reason: String,
        /// Line of the document, counted from one; zero where there is none.
        line: usize,
        /// Column of the line, counted from one.
        column: usize,
    },
    /// A lock in the format that was used before kernels 0.17.
    #[error("`kernels.lock` is in the format used before kernels 0.17 (entry for `{repository}`)")]
    OldLockfile {
        /// The first repository in it.
        repository: String,
    },
    /// A kernel id that must not become the name of a Python module.
    #[error("kernel id `{id}` cannot be used as a module name: {reason}")]
    ModuleId {
        /// The id as given in the metadata.
        id: String,
        /// The rule it breaks.
        reason: &'static str,
    },
    /// A kernel made for a later version of the kernel format.
    #[error(
        "kernel `{name}` needs kernels {required} or later, this is compatible with {supported}"
    )]
    TooNew {
        /// Name of the kernel.
        name: String,
        /// `kernels-minver` of its metadata.
        required: ReleaseVersion,
        /// The version this build is compatible with.
        supported: ReleaseVersion,
    },
    /// A file name that a kernel must not contain.
    #[error("refusing file name `{}`: {reason}", .path.escape_debug())]
    Path {
        /// The name, relative to the kernel's build directory.
        path: String,
        /// The rule it breaks.
        reason: &'static str,
    },
    /// Two files of one kernel under the same name.
    #[error("two files are named `{path}`")]
    DuplicatePath {
        /// The name, relative to the kernel's build directory.
        path: String,
    },
    /// Files that are not the ones the digest was made of.
    #[error("kernel does not match the expected digest:\n{}", lines(.violations))]
    DigestMismatch {
        /// Every deviation, in a fixed order.
        violations: Vec<Violation>,
    },
    /// A model config that asks for kernels in a way that cannot be understood.
    #[error("`{path}`: {reason}")]
    Config {
        /// JSON path of the value in the config.
        path: String,
        /// What is wrong with it.
        reason: String,
        /// What would be right, where that can be guessed.
        hint: Option<String>,
    },
    /// Index files that contradict each other or themselves.
    #[error("kernel index, `{file}`: {reason}")]
    Index {
        /// Name of the index file.
        file: String,
        /// The contradiction.
        reason: String,
    },
}

impl Error {
    /// What the user can do about it, where there is something. One sentence without full stop.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Reference { hint, .. } | Self::Config { hint, .. } => hint.clone(),
            Self::RepositoryId { .. } => {
                Some("a repository id reads `owner/name`, as in its address on the Hub".to_owned())
            }
            Self::Backend { .. } => Some(
                "known backends: cpu, metal, neuron, tpu, and with their version cu<NN>, rocm<NN>, \
                 xpu<NNNN>, cann<NN>, for example cu130 for CUDA 13.0"
                    .to_owned(),
            ),
            Self::OldLockfile { .. } => {
                Some("write it anew with `kernel-cli lock` and commit the result".to_owned())
            }
            Self::ModuleId { .. } => Some(
                "the kernel's author has to rebuild it with an id such as `_name_tpu_0a1b2c3`"
                    .to_owned(),
            ),
            Self::TooNew { .. } => Some("update kernel-cli, or pin an older version".to_owned()),
            Self::DigestMismatch { .. } => {
                Some("do not load this kernel; remove it and fetch it again".to_owned())
            }
            Self::Document { document, line: 1, column: 1, reason, .. }
                if reason.starts_with("expected value") =>
            {
                Some(format!("is {document} really JSON, in UTF-8 without a byte order mark?"))
            }
            _ => None,
        }
    }

    /// A short stable word for the kind of error, for machine-readable output.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Reference { .. } => "reference",
            Self::RepositoryId { .. } => "repository-id",
            Self::Revision { .. } => "revision",
            Self::Variant { .. } => "variant",
            Self::Backend { .. } => "backend",
            Self::Version { .. } => "version",
            Self::CommitId { .. } => "commit-id",
            Self::Document { .. } => "document",
            Self::OldLockfile { .. } => "old-lockfile",
            Self::ModuleId { .. } => "module-id",
            Self::TooNew { .. } => "too-new",
            Self::Path { .. } | Self::DuplicatePath { .. } => "file-name",
            Self::DigestMismatch { .. } => "digest-mismatch",
            Self::Config { .. } => "config",
            Self::Index { .. } => "index",
        }
    }
}

/// Field, reason and position of a document error, each only where it says something.
fn place(field: &str, reason: &str, line: usize, column: usize) -> String {
    let field = if field.is_empty() {
        String::new()
    } else {
        format!("`{field}`: ")
    };
    if line == 0 {
        format!("{field}{reason}")
    } else {
        format!("{field}{reason} at line {line} column {column}")
    }
}

/// One violation a line.
fn lines(violations: &[Violation]) -> String {
    violations
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}
