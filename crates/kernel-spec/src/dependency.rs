//! One kernel's need of another, as `kernel-depends` of metadata and `kernels.lock` spell it.
//!
//! Kept apart from [`KernelRef`], because here a branch `v1` and version 1 are
//! two different requirements that must survive reading and writing.

use std::fmt;

use serde::ser::SerializeStruct as _;
use serde::{Deserialize, Serialize};

use crate::json;
use crate::reference::{KernelRef, Selector, check_revision};
use crate::repository::RepositoryId;

/// A kernel that another one, or a project, needs.
///
/// Ordered as entries of a lock are: by repository, versions before revisions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dependency {
    /// Repository of the kernel.
    pub repository: RepositoryId,
    /// Which state of it.
    pub requirement: Requirement,
}

/// Which state of a repository is needed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Requirement {
    /// The tip of branch `v<N>`.
    Version(u64),
    /// A branch, tag or commit.
    Revision(String),
}

impl Dependency {
    /// The same as a reference.
    pub fn to_kernel_ref(&self) -> KernelRef {
        let selector = match &self.requirement {
            Requirement::Version(version) => Selector::Version(*version),
            Requirement::Revision(revision) => Selector::Revision(revision.clone()),
        };
        KernelRef::hub(self.repository.clone(), selector)
    }
}

impl fmt::Display for Dependency {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.requirement {
            Requirement::Version(version) => write!(formatter, "{}@v{version}", self.repository),
            Requirement::Revision(revision) => write!(formatter, "{}@{revision}", self.repository),
        }
    }
}

impl Serialize for Dependency {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Dependency", 2)?;
        object.serialize_field("repo-id", &self.repository)?;
        match &self.requirement {
            Requirement::Version(version) => object.serialize_field("version", version)?,
            Requirement::Revision(revision) => object.serialize_field("revision", revision)?,
        }
        object.end()
    }
}

impl<'de> Deserialize<'de> for Dependency {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "kebab-case", deny_unknown_fields)]
        struct Raw {
            repo_id: RepositoryId,
            version: Option<u64>,
            revision: Option<String>,
        }

        let raw: Raw = json::object(deserializer)?;
        let requirement = match (raw.version, raw.revision) {
            (Some(version), None) => Requirement::Version(version),
            (None, Some(revision)) => {
                check_revision(&revision).map_err(serde::de::Error::custom)?;
                Requirement::Revision(revision)
            }
            (Some(_), Some(_)) => {
                return Err(serde::de::Error::custom(
                    "`version` and `revision` exclude each other",
                ));
            }
            (None, None) => {
                return Err(serde::de::Error::custom("expected `version` or `revision`"));
            }
        };
        Ok(Self {
            repository: raw.repo_id,
            requirement,
        })
    }
}
