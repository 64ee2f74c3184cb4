//! What a build was made from.

use serde::ser::SerializeStruct as _;
use serde::{Deserialize, Serialize};

use crate::json;
use crate::object_id::CommitId;

/// What a build was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Provenance {
    /// The tool that made the build.
    pub kernel_builder: BuilderProvenance,
    /// State of the kernel's source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<GitState>,
}

/// The tool that made a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuilderProvenance {
    /// Its version.
    pub version: String,
    /// State of its source, where it is known.
    pub git: Option<GitState>,
}

/// State of a git working tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GitState {
    /// The commit that was checked out.
    pub commit: CommitId,
    /// Whether there were changes on top of it.
    pub dirty: bool,
}

impl Provenance {
    /// Whether the build can be made again from what it names: neither source had local changes.
    pub fn is_dirty(&self) -> bool {
        let dirty = |state: &Option<GitState>| state.as_ref().is_some_and(|state| state.dirty);
        dirty(&self.kernel_builder.git) || dirty(&self.kernel)
    }
}

impl Serialize for BuilderProvenance {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = if self.git.is_some() { 3 } else { 1 };
        let mut object = serializer.serialize_struct("BuilderProvenance", fields)?;
        object.serialize_field("version", &self.version)?;
        if let Some(git) = &self.git {
            object.serialize_field("commit", &git.commit)?;
            object.serialize_field("dirty", &git.dirty)?;
        }
        object.end()
    }
}

impl<'de> Deserialize<'de> for Provenance {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "kebab-case")]
        struct Raw {
            kernel_builder: BuilderProvenance,
            kernel: Option<GitState>,
        }

        let raw: Raw = json::object(deserializer)?;
        Ok(Self {
            kernel_builder: raw.kernel_builder,
            kernel: raw.kernel,
        })
    }
}

impl<'de> Deserialize<'de> for BuilderProvenance {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Raw {
            version: String,
            // `sha` is the spelling of older releases; both at once are the same key twice.
            #[serde(default, alias = "sha", deserialize_with = "json::not_null")]
            commit: Option<CommitId>,
            #[serde(default, deserialize_with = "json::not_null")]
            dirty: Option<bool>,
        }

        let raw: Raw = json::object(deserializer)?;
        let git = match (raw.commit, raw.dirty) {
            (Some(commit), Some(dirty)) => Some(GitState { commit, dirty }),
            (None, None) => None,
            _ => {
                return Err(serde::de::Error::custom(
                    "`commit` and `dirty` come together",
                ));
            }
        };
        Ok(Self {
            version: raw.version,
            git,
        })
    }
}

impl<'de> Deserialize<'de> for GitState {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Raw {
            #[serde(alias = "sha")]
            commit: CommitId,
            dirty: bool,
        }

        let raw: Raw = json::object(deserializer)?;
        Ok(Self {
            commit: raw.commit,
            dirty: raw.dirty,
        })
    }
}
