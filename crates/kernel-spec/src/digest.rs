//! Digests of a build's files.
//!
//! `metadata.json` holds a hash for every file of its build; the metadata itself is what a
//! signature or the kernel index vouches for. Nothing of a kernel runs before its files, read once
//! into memory, were compared with these hashes.

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256, Sha512};

use crate::error::{Error, Result};
use crate::json;
use crate::path::{check_relative_path, is_outside_digest};

/// Size of the pieces in which files are hashed: small enough for the cache of a core.
const PIECE: usize = 128 * 1024;

/// Hash function of a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DigestAlgorithm {
    /// SHA-256.
    Sha256,
    /// SHA-512.
    Sha512,
}

impl DigestAlgorithm {
    /// Hash of some bytes, in base64 with padding, as metadata spells it.
    pub fn hash(self, bytes: &[u8]) -> String {
        match self {
            Self::Sha256 => BASE64.encode(Sha256::digest(bytes)),
            Self::Sha512 => BASE64.encode(Sha512::digest(bytes)),
        }
    }

    /// Hash of what a reader gives, in base64, without holding it in memory.
    pub fn hash_reader(self, reader: impl io::Read) -> io::Result<String> {
        match self {
            Self::Sha256 => hash_pieces::<Sha256>(reader),
            Self::Sha512 => hash_pieces::<Sha512>(reader),
        }
    }

    /// The word in metadata.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }
}

fn hash_pieces<D: sha2::Digest>(mut reader: impl io::Read) -> io::Result<String> {
    let mut hasher = D::new();
    let mut piece = vec![0; PIECE];
    loop {
        match reader.read(&mut piece) {
            Ok(0) => return Ok(BASE64.encode(hasher.finalize())),
            Ok(count) => hasher.update(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The name in messages.
impl fmt::Display for DigestAlgorithm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Sha256 => "SHA256",
            Self::Sha512 => "SHA512",
        })
    }
}

/// Hashes of the files of one build.
///
/// ```
/// use kernel_spec::{Digest, DigestAlgorithm};
///
/// let expected = Digest::of_files(DigestAlgorithm::Sha256, [("__init__.py", "hello world")])?;
/// let actual = Digest::of_files(DigestAlgorithm::Sha256, [("__init__.py", "something else")])?;
/// assert_eq!(expected.validate(&actual).len(), 1);
/// # Ok::<(), kernel_spec::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Digest {
    /// Hash function.
    pub algorithm: DigestAlgorithm,
    /// Hash of each file, in base64, by its name relative to the build directory. Names follow the
    /// rules of [`check_relative_path`]; the map's order, that of their bytes, is the format's.
    pub files: BTreeMap<String, String>,
}

impl Digest {
    /// Digest of files given by name and content. Bytecode, the top-level metadata and its
    /// signature are left out. A refused or repeated name is an error.
    pub fn of_files<I, P, B>(algorithm: DigestAlgorithm, files: I) -> Result<Self>
    where
        I: IntoIterator<Item = (P, B)>,
        P: Into<String>,
        B: AsRef<[u8]>,
    {
        let hashes = files.into_iter().filter_map(|(path, bytes)| {
            let path = path.into();
            let covered = !is_outside_digest(&path);
            covered.then(|| (path, algorithm.hash(bytes.as_ref())))
        });
        Self::of_hashes(algorithm, hashes)
    }

    /// Digest of files given by name and [`DigestAlgorithm::hash`], by the same rules.
    pub fn of_hashes(
        algorithm: DigestAlgorithm,
        hashes: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self> {
        let mut files = BTreeMap::new();
        for (path, hash) in hashes {
            check_relative_path(&path)?;
            if is_outside_digest(&path) {
                continue;
            }
            if files.contains_key(&path) {
                return Err(Error::DuplicatePath { path });
            }
            files.insert(path, hash);
        }
        Ok(Self { algorithm, files })
    }

    /// Every deviation of `actual` from this digest: the algorithm, then missing and changed files
    /// in the order of their names, then unknown files.
    pub fn validate(&self, actual: &Self) -> Vec<Violation> {
        let mut violations = Vec::new();
        if self.algorithm != actual.algorithm {
            violations.push(Violation::AlgorithmMismatch {
                expected: self.algorithm,
                got: actual.algorithm,
            });
        }
        for (path, expected) in &self.files {
            match actual.files.get(path) {
                None => violations.push(Violation::MissingFile { path: path.clone() }),
                Some(got) if got != expected => violations.push(Violation::HashMismatch {
                    path: path.clone(),
                    expected: expected.clone(),
                    got: got.clone(),
                }),
                Some(_) => {}
            }
        }
        violations.extend(
            actual
                .files
                .keys()
                .filter(|path| !self.files.contains_key(*path))
                .map(|path| Violation::UnknownFile { path: path.clone() }),
        );
        violations
    }

    /// Like [`Digest::validate`], with the deviations as an error.
    pub fn verify(&self, actual: &Self) -> Result<()> {
        let violations = self.validate(actual);
        if violations.is_empty() {
            Ok(())
        } else {
            Err(Error::DigestMismatch { violations })
        }
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Raw {
            algorithm: DigestAlgorithm,
            #[serde(deserialize_with = "json::unique_map")]
            files: BTreeMap<String, String>,
        }

        let Raw { algorithm, files } = json::object(deserializer)?;
        for path in files.keys() {
            check_relative_path(path).map_err(serde::de::Error::custom)?;
        }
        Ok(Self { algorithm, files })
    }
}

/// One deviation of a build's files from its digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Violation {
    /// The digests were made with different hash functions.
    AlgorithmMismatch {
        /// The one of the metadata.
        expected: DigestAlgorithm,
        /// The one of the files.
        got: DigestAlgorithm,
    },
    /// A file of the digest is not there.
    MissingFile {
        /// Its name.
        path: String,
    },
    /// A file's content is not the one that was hashed.
    HashMismatch {
        /// Its name.
        path: String,
        /// Hash in the metadata.
        expected: String,
        /// Hash of the file.
        got: String,
    },
    /// A file is there that the digest does not know.
    UnknownFile {
        /// Its name.
        path: String,
    },
}

/// The texts of the Python library, which scripts search for.
impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlgorithmMismatch { expected, got } => {
                write!(
                    formatter,
                    "Algorithm mismatch: expected: {expected}, got: {got}"
                )
            }
            Self::MissingFile { path } => write!(formatter, "Missing file: {path}"),
            Self::HashMismatch {
                path,
                expected,
                got,
            } => write!(
                formatter,
                "File hash mismatch for {path}: expected: {expected}, got: {got}"
            ),
            Self::UnknownFile { path } => write!(formatter, "Unknown file: {path}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_name_is_an_error() {
        let files = [("a.py", "1"), ("a.py", "2")];
        let error = Digest::of_files(DigestAlgorithm::Sha256, files).unwrap_err();
        assert_eq!(
            error,
            Error::DuplicatePath {
                path: "a.py".to_owned()
            }
        );
    }

    /// Names that could leave the folder are refused when read, before anything is joined to them.
    #[test]
    fn names_in_a_document_are_checked() {
        for path in ["../x", "/x", "a\\\\b", "a//b"] {
            let text = format!(r#"{{"algorithm": "sha256", "files": {{"{path}": ""}}}}"#);
            let error = serde_json::from_str::<Digest>(&text)
                .unwrap_err()
                .to_string();
            assert!(error.contains("refusing file name"), "{error}");
        }
        let text = r#"{"algorithm": "sha256", "files": {"a": "1", "a": "2"}}"#;
        let error = serde_json::from_str::<Digest>(text)
            .unwrap_err()
            .to_string();
        assert!(error.contains("duplicate key `a`"), "{error}");
    }

    #[test]
    fn an_algorithm_mismatch_comes_first() {
        let one = Digest::of_files(DigestAlgorithm::Sha256, [("a", "")]).unwrap();
        let other = Digest::of_files(DigestAlgorithm::Sha512, [("b", "")]).unwrap();
        let texts: Vec<_> = one
            .validate(&other)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            texts,
            [
                "Algorithm mismatch: expected: SHA256, got: SHA512",
                "Missing file: a",
                "Unknown file: b"
            ]
        );
    }
}
