//! The serde types of index files.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};

use super::Constraints;
use crate::digest::DigestAlgorithm;
use crate::error::Result;
use crate::json::{self, serde_as_string};
use crate::object_id::CommitId;
use crate::op::{DeviceType, OpName};
use crate::reference::{KernelRef, Selector};
use crate::repository::RepositoryId;

/// One repository of the index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RepositoryEntry {
    /// Version of the format, [`INDEX_FORMAT`](super::INDEX_FORMAT).
    pub format: u32,
    /// Id of the repository.
    pub repository: RepositoryId,
    /// One line on what the kernels do.
    pub summary: String,
    /// SPDX expression.
    pub license: String,
    /// Where the builds are.
    pub origin: Origin,
    /// What the kernel offers.
    pub ops: Vec<OpEntry>,
    /// Its versions, in any order.
    pub versions: Vec<IndexVersion>,
}

impl RepositoryEntry {
    /// The version that a selector means: version `N`, the version with that commit, or the newest
    /// one that is not yanked. None where the index does not know it; the Hub may.
    pub fn version(&self, selector: &Selector) -> Option<&IndexVersion> {
        let mut versions = self.versions.iter();
        match selector {
            Selector::Version(number) => versions.find(|entry| entry.version == *number),
            Selector::Revision(revision) => {
                versions.find(|entry| entry.commit.as_str().eq_ignore_ascii_case(revision))
            }
            Selector::Newest => versions
                .filter(|entry| entry.yanked.is_none())
                .max_by_key(|entry| entry.version),
        }
    }
}

/// Where the builds of a repository are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// Inside the program.
    Embedded,
    /// On the Hub.
    Hub,
}

/// One op that a kernel offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpEntry {
    /// The op.
    pub op: OpName,
    /// Function or layer within the kernel, dotted where it is in a sub-module.
    pub symbol: String,
    /// Devices it runs on.
    pub devices: Vec<DeviceType>,
    /// Shapes and types it takes.
    #[serde(default)]
    pub constraints: Constraints,
}

/// One version of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IndexVersion {
    /// Major version.
    pub version: u64,
    /// The commit it is fixed to.
    pub commit: CommitId,
    /// Hash of each variant's metadata, by the name of the variant directory.
    #[serde(deserialize_with = "json::unique_map")]
    pub digests: BTreeMap<String, MetadataDigest>,
    /// Why the version is no longer chosen unless it is pinned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub yanked: Option<String>,
}

/// What ops run with by default on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DefaultMapping {
    /// Version of the format, [`INDEX_FORMAT`](super::INDEX_FORMAT).
    pub format: u32,
    /// The device.
    pub device: DeviceType,
    /// Kernels by op.
    #[serde(deserialize_with = "json::unique_map")]
    pub mapping: BTreeMap<OpName, KernelRef>,
}

/// Hash over the bytes of a `metadata.json`, `sha256-<base64>` or `sha512-<base64>`.
///
/// ```
/// use kernel_spec::index::MetadataDigest;
///
/// let digest = MetadataDigest::of(b"{}");
/// assert!(digest.matches(b"{}"));
/// assert!(!digest.matches(b"{ }"));
/// assert_eq!(digest.to_string().parse(), Ok(digest));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MetadataDigest {
    algorithm: DigestAlgorithm,
    hash: String,
}

/// A text that is no [`MetadataDigest`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid digest `{text}`: expected `sha256-` or `sha512-` and the hash in base64")]
pub struct MetadataDigestError {
    /// The text.
    pub text: String,
}

impl MetadataDigest {
    /// SHA-256 of some metadata.
    pub fn of(metadata: &[u8]) -> Self {
        let algorithm = DigestAlgorithm::Sha256;
        Self {
            algorithm,
            hash: algorithm.hash(metadata),
        }
    }

    /// Whether some metadata is the one that was hashed.
    pub fn matches(&self, metadata: &[u8]) -> bool {
        self.algorithm.hash(metadata) == self.hash
    }
}

impl fmt::Display for MetadataDigest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}-{}", self.algorithm.as_str(), self.hash)
    }
}

impl FromStr for MetadataDigest {
    type Err = MetadataDigestError;

    fn from_str(text: &str) -> Result<Self, MetadataDigestError> {
        let invalid = || MetadataDigestError {
            text: text.to_owned(),
        };
        let (word, hash) = text.split_once('-').ok_or_else(invalid)?;
        let (algorithm, length) = match word {
            "sha256" => (DigestAlgorithm::Sha256, 32),
            "sha512" => (DigestAlgorithm::Sha512, 64),
            _ => return Err(invalid()),
        };
        match BASE64.decode(hash) {
            Ok(bytes) if bytes.len() == length => Ok(Self {
                algorithm,
                hash: hash.to_owned(),
            }),
            _ => Err(invalid()),
        }
    }
}

serde_as_string!(MetadataDigest);
