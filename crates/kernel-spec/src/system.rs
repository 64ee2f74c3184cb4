//! The machine that kernels are resolved for.
//!
//! Usually this one, found out by the registry; or another one, described by a file or by a
//! backend's name, when kernels are fetched for a machine that cannot reach the Hub.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::json;
use crate::variant::Backend;
use crate::version::{DottedVersion, MajorMinor};

/// What decides which builds fit a machine.
///
/// ```
/// use kernel_spec::{Backend, System};
///
/// let system = System::from_slice(
///     br#"{"cpu": "x86_64", "os": "linux", "torch_version": "2.13.0+cpu", "backend": "tpu"}"#,
/// )?;
/// assert_eq!(system.backend, Backend::Tpu);
/// assert_eq!(system.torch_version.map(|version| version.to_string()).as_deref(), Some("2.13"));
/// # Ok::<(), kernel_spec::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct System {
    /// Processor, as in variant names: `x86_64`, `aarch64`.
    pub cpu: String,
    /// Operating system in lower case: `linux`, `darwin`, `windows`.
    pub os: String,
    /// Version of PyTorch, where it is installed.
    #[serde(default)]
    pub torch_version: Option<MajorMinor>,
    /// Whether PyTorch uses the C++11 ABI; known on Linux only.
    #[serde(default)]
    pub torch_cxx11_abi: Option<bool>,
    /// Version of tvm-ffi, where it is installed.
    #[serde(default)]
    pub tvm_ffi_version: Option<MajorMinor>,
    /// Version of macOS.
    #[serde(default)]
    pub macos_version: Option<DottedVersion>,
    /// Backend, with the version of its toolkit.
    pub backend: Backend,
}

impl System {
    /// A machine without PyTorch and tvm-ffi. Processor and system are brought to the spelling of
    /// variant names (`arm64` of macOS is `aarch64`, `AMD64` of Windows is `x86_64`).
    pub fn new(cpu: &str, os: &str, backend: Backend) -> Self {
        let os = os.to_lowercase();
        let cpu = match (os.as_str(), cpu) {
            ("darwin", "arm64") => "aarch64",
            ("windows", "AMD64") => "x86_64",
            (_, cpu) => cpu,
        };
        Self {
            cpu: cpu.to_owned(),
            os,
            torch_version: None,
            torch_cxx11_abi: None,
            tvm_ffi_version: None,
            macos_version: None,
            backend,
        }
    }

    /// The same machine with another version of PyTorch.
    #[must_use]
    pub fn with_torch(mut self, version: MajorMinor, cxx11_abi: Option<bool>) -> Self {
        self.torch_version = Some(version);
        self.torch_cxx11_abi = cxx11_abi;
        self
    }

    /// The same machine with another backend.
    #[must_use]
    pub fn with_backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Reads the description of a machine (`--system FILE`): a JSON object with the fields of this
    /// type, of which `cpu`, `os` and `backend` are required. Unknown keys are errors, so that a
    /// typing error does not silently describe another machine.
    pub fn from_slice(bytes: &[u8]) -> Result<Self> {
        let given: Self = json::from_slice::<Strict>("system description", bytes)?.0;
        let spelled = Self::new(&given.cpu, &given.os, given.backend);
        Ok(Self {
            cpu: spelled.cpu,
            os: spelled.os,
            ..given
        })
    }
}

/// A [`System`] read from an object only.
struct Strict(System);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        json::object(deserializer).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_name_the_key() {
        let error = System::from_slice(br#"{"cpu": "x86_64", "os": "linux", "backnd": "tpu"}"#);
        assert!(
            error
                .unwrap_err()
                .to_string()
                .contains("unknown field `backnd`")
        );
        let error = System::from_slice(br#"{"cpu": "x86_64", "os": "linux", "backend": "cuda"}"#);
        let text = error.unwrap_err().to_string();
        assert!(text.contains("`backend`: invalid backend `cuda`"), "{text}");
        assert!(System::from_slice(b"[]").is_err());
    }

    #[test]
    fn a_description_survives_writing_and_reading() {
        let system =
            System::new("arm64", "Darwin", Backend::Metal).with_torch(MajorMinor::new(2, 10), None);
        assert_eq!(
            (system.cpu.as_str(), system.os.as_str()),
            ("aarch64", "darwin")
        );
        let text = serde_json::to_vec(&system).unwrap();
        assert_eq!(System::from_slice(&text), Ok(system));
    }
}
