//! `metadata.json` of a build.
//!
//! The file says what a kernel is, what it needs, and which bytes belong to it. It is read strictly:
//! a known key given twice, a value of another type or a name that breaks the rules is an error
//! that names the field; unknown keys are ignored where the format allows later additions.
//! Signatures are made over the file's bytes, so verify those and never a re-serialisation.

mod git_url;
mod module_id;
mod name;
mod provenance;

use serde::{Deserialize, Serialize};

use crate::dependency::Dependency;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::json;
use crate::variant::BackendKind;
use crate::version::ReleaseVersion;

pub use git_url::GitUrl;
pub use module_id::check_module_id;
pub use name::KernelName;
pub use provenance::{BuilderProvenance, GitState, Provenance};

/// Metadata of one build. Fields are in the order in which kernel-builder writes them.
///
/// ```
/// use kernel_spec::Metadata;
///
/// let metadata = Metadata::from_slice(br#"{
///   "name": "relu-tpu", "id": "_relu_tpu_tpu_0a1b2c3", "version": 1, "license": "Apache-2.0",
///   "python-depends": [], "backend": {"type": "tpu"}
/// }"#)?;
/// assert_eq!(metadata.name.module_name(), "relu_tpu");
/// metadata.check_module_id()?;
/// # Ok::<(), kernel_spec::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Metadata {
    /// Name of the kernel.
    pub name: KernelName,
    /// What the Python library takes as module name. Not checked on reading, because published
    /// kernels have all sorts of ids; see [`Metadata::check_module_id`].
    pub id: String,
    /// Major version. Nothing ties it to the branch.
    pub version: u64,
    /// First release of the `kernels` library that can load the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernels_minver: Option<ReleaseVersion>,
    /// SPDX expression, may be empty.
    pub license: String,
    /// Repository of the code that the kernel was made from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream: Option<GitUrl>,
    /// Repository of the kernel's own source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<GitUrl>,
    /// Names of Python packages the kernel needs.
    pub python_depends: Vec<String>,
    /// Kernels the kernel needs.
    pub kernel_depends: Vec<Dependency>,
    /// What the build runs on.
    pub backend: BackendInfo,
    /// Hashes of the build's files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// What the build was made from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
}

/// What a build runs on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BackendInfo {
    /// Kind of backend.
    #[serde(rename = "type")]
    pub kind: BackendKind,
    /// Architectures the build has code for, in the backend's own words (`9.0a`, `gfx942`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub archs: Option<Vec<String>>,
}

impl BackendInfo {
    /// A backend without a list of architectures.
    pub const fn new(kind: BackendKind) -> Self {
        Self { kind, archs: None }
    }
}

impl Metadata {
    /// Reads the content of a `metadata.json`.
    pub fn from_slice(bytes: &[u8]) -> Result<Self> {
        json::from_slice("metadata.json", bytes)
    }

    /// The text kernel-builder would write: two spaces of indentation, no line break at the end.
    pub fn to_json_pretty(&self) -> String {
        // Only maps with keys other than strings, and failing `Serialize` implementations, make
        // serde_json fail; neither is here.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Checks that the kernel's id may become the name of a Python module. A rule for loading, not
    /// for reading: such kernels can be listed and inspected.
    pub fn check_module_id(&self) -> Result<()> {
        check_module_id(&self.id)
    }

    /// Checks that the kernel was made for this version of the format or an earlier one.
    pub fn check_compatible(&self, supported: ReleaseVersion) -> Result<()> {
        match self.kernels_minver {
            Some(required) if required > supported => Err(Error::TooNew {
                name: self.name.to_string(),
                required,
                supported,
            }),
            _ => Ok(()),
        }
    }
}

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "kebab-case")]
        struct Raw {
            name: KernelName,
            id: String,
            version: u64,
            kernels_minver: Option<ReleaseVersion>,
            license: String,
            upstream: Option<GitUrl>,
            source: Option<GitUrl>,
            python_depends: Vec<String>,
            #[serde(default)]
            kernel_depends: Vec<Dependency>,
            backend: BackendInfo,
            digest: Option<Digest>,
            provenance: Option<Provenance>,
        }

        let raw: Raw = json::object(deserializer)?;
        Ok(Self {
            name: raw.name,
            id: raw.id,
            version: raw.version,
            kernels_minver: raw.kernels_minver,
            license: raw.license,
            upstream: raw.upstream,
            source: raw.source,
            python_depends: raw.python_depends,
            kernel_depends: raw.kernel_depends,
            backend: raw.backend,
            digest: raw.digest,
            provenance: raw.provenance,
        })
    }
}

impl<'de> Deserialize<'de> for BackendInfo {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Raw {
            #[serde(rename = "type")]
            kind: BackendKind,
            archs: Option<Vec<String>>,
        }

        let raw: Raw = json::object(deserializer)?;
        Ok(Self {
            kind: raw.kind,
            archs: raw.archs,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TPU: &str = r#"{
  "name": "relu-tpu",
  "id": "_relu_tpu_tpu_0a1b2c3",
  "version": 1,
  "kernels-minver": "0.17.0",
  "license": "Apache-2.0",
  "python-depends": [],
  "kernel-depends": [
    {
      "repo-id": "kernels-test/leaf",
      "version": 3
    }
  ],
  "backend": {
    "type": "tpu"
  },
  "digest": {
    "algorithm": "sha256",
    "files": {
      "__init__.py": "uU0nuZNNPgilLlLX2n2r+sSE7+N6U4DukIj3rOLvzek="
    }
  }
}"#;

    #[test]
    fn writing_restores_what_kernel_builder_wrote() {
        assert_eq!(
            Metadata::from_slice(TPU.as_bytes())
                .unwrap()
                .to_json_pretty(),
            TPU
        );
    }

    #[test]
    fn errors_name_the_field_and_the_place() {
        let broken = TPU.replace("\"type\": \"tpu\"", "\"type\": \"npu\"");
        let error = Metadata::from_slice(broken.as_bytes())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("`backend.type`: invalid backend `npu`"),
            "{error}"
        );
        assert!(error.ends_with("at line 15 column 17"), "{error}");
    }

    #[test]
    fn a_kernel_of_a_later_format_is_told_from_a_broken_one() {
        let mut metadata = Metadata::from_slice(TPU.as_bytes()).unwrap();
        let supported = crate::version::COMPATIBLE_KERNELS;
        assert_eq!(metadata.check_compatible(supported), Ok(()));
        metadata.kernels_minver = Some(ReleaseVersion {
            major: 0,
            minor: 18,
            patch: 0,
        });
        let error = metadata.check_compatible(supported).unwrap_err();
        assert_eq!(error.kind(), "too-new");
    }
}
