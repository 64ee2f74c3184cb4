//! Backends: what kind of device a build runs on, and the words for it.
//!
//! Three vocabularies meet here. Variant names of compiled builds carry the toolkit's version
//! (`cu130`); those of Python builds a bare word, in which Huawei's CANN is called `npu`; and
//! `backend.type` in metadata uses bare words in which it is called `cann`.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::json::serde_as_string;
use crate::suggest;
use crate::version::MajorMinor;

/// A backend with the version of its toolkit, where it has one.
///
/// ```
/// use kernel_spec::{Backend, version::MajorMinor};
///
/// assert_eq!("cu130".parse(), Ok(Backend::Cuda(MajorMinor::new(13, 0))));
/// assert_eq!(Backend::Tpu.to_string(), "tpu");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Backend {
    /// Huawei Ascend, with the version of CANN.
    Cann(MajorMinor),
    /// No accelerator.
    Cpu,
    /// NVIDIA, with the version of CUDA.
    Cuda(MajorMinor),
    /// Apple GPUs.
    Metal,
    /// AWS Trainium and Inferentia.
    Neuron,
    /// AMD, with the version of ROCm.
    Rocm(MajorMinor),
    /// Google TPUs.
    Tpu,
    /// Intel GPUs, with the version of the oneAPI toolkit.
    Xpu(MajorMinor),
}

/// A kind of backend, without version, spelled as in `backend.type` of metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BackendKind {
    /// Huawei Ascend.
    Cann,
    /// No accelerator.
    Cpu,
    /// NVIDIA.
    Cuda,
    /// Apple GPUs.
    Metal,
    /// AWS Trainium and Inferentia.
    Neuron,
    /// AMD.
    Rocm,
    /// Google TPUs.
    Tpu,
    /// Intel GPUs.
    Xpu,
}

impl BackendKind {
    /// All kinds, in the order of their words.
    pub const ALL: [Self; 8] = [
        Self::Cann,
        Self::Cpu,
        Self::Cuda,
        Self::Metal,
        Self::Neuron,
        Self::Rocm,
        Self::Tpu,
        Self::Xpu,
    ];

    /// The word in metadata.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cann => "cann",
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Metal => "metal",
            Self::Neuron => "neuron",
            Self::Rocm => "rocm",
            Self::Tpu => "tpu",
            Self::Xpu => "xpu",
        }
    }

    /// The word in names of noarch variants: CANN is called `npu` there.
    pub const fn noarch_word(self) -> &'static str {
        match self {
            Self::Cann => "npu",
            other => other.as_str(),
        }
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl FromStr for BackendKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| Error::Backend {
                word: text.to_owned(),
                reason: format!(
                    "expected one of {}",
                    Self::ALL.map(|kind| format!("`{kind}`")).join(", ")
                ),
            })
    }
}

serde_as_string!(BackendKind);

impl Backend {
    /// The kind of backend.
    pub const fn kind(self) -> BackendKind {
        match self {
            Self::Cann(_) => BackendKind::Cann,
            Self::Cpu => BackendKind::Cpu,
            Self::Cuda(_) => BackendKind::Cuda,
            Self::Metal => BackendKind::Metal,
            Self::Neuron => BackendKind::Neuron,
            Self::Rocm(_) => BackendKind::Rocm,
            Self::Tpu => BackendKind::Tpu,
            Self::Xpu(_) => BackendKind::Xpu,
        }
    }

    /// Version of the toolkit, where the backend has one.
    pub const fn version(self) -> Option<MajorMinor> {
        match self {
            Self::Cann(version)
            | Self::Cuda(version)
            | Self::Rocm(version)
            | Self::Xpu(version) => Some(version),
            Self::Cpu | Self::Metal | Self::Neuron | Self::Tpu => None,
        }
    }
}

/// The word in names of arch variants.
impl fmt::Display for Backend {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self {
            Self::Cuda(_) => "cu",
            other => other.kind().as_str(),
        };
        match self.version() {
            Some(version) => write!(formatter, "{word}{}{}", version.major, version.minor),
            None => formatter.write_str(word),
        }
    }
}

impl FromStr for Backend {
    type Err = Error;

    /// Reads the word of an arch variant. The last digit is the minor version, all before it the
    /// major one: `cu128` is 12.8, and `cu13` is 1.3.
    fn from_str(word: &str) -> Result<Self> {
        type Make = fn(MajorMinor) -> Backend;
        const VERSIONED: [(&str, &str, Make); 4] = [
            ("cu", "CUDA", Backend::Cuda),
            ("rocm", "ROCm", Backend::Rocm),
            ("xpu", "XPU", Backend::Xpu),
            ("cann", "CANN", Backend::Cann),
        ];

        for backend in [Self::Cpu, Self::Metal, Self::Neuron, Self::Tpu] {
            if word == backend.kind().as_str() {
                return Ok(backend);
            }
        }
        let invalid = |reason: String| Error::Backend {
            word: word.to_owned(),
            reason,
        };
        for (prefix, title, make) in VERSIONED {
            if let Some(digits) = word.strip_prefix(prefix) {
                return split_version(digits).map(make).ok_or_else(|| {
                    invalid(format!(
                        "expected `{prefix}` and the version of {title} in two or more digits, the \
                         last one the minor version"
                    ))
                });
            }
        }
        let words = ["cpu", "metal", "neuron", "tpu", "cu", "rocm", "xpu", "cann"];
        Err(invalid(match (word, suggest::nearest(word, words)) {
            ("npu", _) => "expected `cann` and the version of CANN".to_owned(),
            (_, Some(near)) => format!("no such backend, did you mean `{near}`?"),
            (_, None) => "no such backend".to_owned(),
        }))
    }
}

serde_as_string!(Backend);

/// Splits digits into major and minor version; the last digit is the minor one.
fn split_version(digits: &str) -> Option<MajorMinor> {
    if digits.len() < 2 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (major, minor) = digits.split_at(digits.len() - 1);
    Some(MajorMinor::new(major.parse().ok()?, minor.parse().ok()?))
}
