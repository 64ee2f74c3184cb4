//! Reading records from files: ours, and those of `kernels benchmark`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Comparison, FORMAT, PeerRecord};

/// Why a file is no record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// It cannot be read.
    #[error("cannot read `{}`", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// It is not JSON.
    #[error("`{}` is not JSON", .path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// It is JSON of another kind.
    #[error("`{}` is neither a record of `bench ab` nor one of `kernels benchmark`", .path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
    },
    /// A record of a format that this version does not know.
    #[error("`{}` has format {found}, this version reads format {FORMAT}", .path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The format as the file tells it.
        found: String,
    },
    /// A field is missing or of another kind.
    #[error("`{}`: field `{field}`: {problem}", .path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// Path of the field.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Samples of the arms do not go together.
    #[error(
        "`{}`: samples of `{workload}`: {a} of A, {b} of B and {control} of the control are no rounds",
        .path.display()
    )]
    Rounds {
        /// The file.
        path: PathBuf,
        /// The row.
        workload: String,
        /// Samples of A.
        a: usize,
        /// Samples of B.
        b: usize,
        /// Samples of the control.
        control: usize,
    },
}

impl ReadError {
    /// Stable name of the kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Io { .. } => "io",
            _ => "benchmark-record",
        }
    }

    /// What the user can do.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Unknown { .. } | Self::Json { .. } => {
                Some("make a record with `kernel-cli bench ab A B ... --output FILE`")
            }
            Self::Format { .. } => Some("read it with the version of kernel-cli that wrote it"),
            _ => None,
        }
    }
}

/// A record from a file.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// Ours.
    Comparison(Box<Comparison>),
    /// Of `kernels benchmark`.
    Peer(PeerRecord),
}

impl Record {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        let text = fs::read_to_string(path).map_err(|source| ReadError::Io {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text, path)
    }

    /// Reads the text of a file; `path` is for messages.
    ///
    /// # Errors
    /// [`ReadError`], other than [`ReadError::Io`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, ReadError> {
        let document: Value = serde_json::from_str(text).map_err(|source| ReadError::Json {
            path: path.to_owned(),
            source,
        })?;
        if document.get("kernelCommitSha").is_some() && document.get("results").is_some() {
            return Ok(Self::Peer(typed(document, path)?));
        }
        if document.get("samples").is_none() || document.get("environment").is_none() {
            return Err(ReadError::Unknown {
                path: path.to_owned(),
            });
        }
        let format = document.get("format").cloned().unwrap_or_default();
        if format != FORMAT {
            return Err(ReadError::Format {
                path: path.to_owned(),
                found: format.to_string(),
            });
        }
        let record: Comparison = typed(document, path)?;
        for row in &record.samples {
            let Some(samples) = &row.measurement else {
                continue;
            };
            let [a, b, control] = [&samples.a, &samples.b, &samples.control].map(Vec::len);
            if a != b || a != control {
                return Err(ReadError::Rounds {
                    path: path.to_owned(),
                    workload: row.workload.clone(),
                    a,
                    b,
                    control,
                });
            }
        }
        Ok(Self::Comparison(Box::new(record)))
    }
}

fn typed<T: DeserializeOwned>(document: Value, path: &Path) -> Result<T, ReadError> {
    serde_path_to_error::deserialize(document).map_err(|error| ReadError::Field {
        path: path.to_owned(),
        field: error.path().to_string(),
        problem: error.inner().to_string(),
    })
}
