//! The kernels that a model's `config.json` asks for.
//!
//! Spellings are those of transformers, so that one config serves both:
//!
//! ```json
//! {
//!   "attn_implementation": "org/flash@v1:attention",
//!   "kernel_config": {
//!     "kernel_mapping": {
//!       "RMSNorm": {"tpu": "org/rms@v1:RMSNorm", "cpu": "./kernels/rms:RMSNorm"},
//!       "SwiGLUMLP": ["org/mlp:SwiGLUMLP", {"version": 1, "trust_remote_code": true}],
//!       "rotary_pos_emb": ""
//!     },
//!     "use_local_kernel": false,
//!     "inherit_mapping": true,
//!     "fallback": "warn"
//!   }
//! }
//! ```
//!
//! Whatever cannot be understood is an error that names the key; whether a kernel that was
//! understood can also be used is decided later, and [`Fallback`] says what happens when it cannot.

mod parse;
mod switch;

use std::collections::BTreeMap;

use serde_json::Value;

use crate::error::Result;
use crate::op::{DeviceType, OpName};
use crate::reference::KernelRef;

pub use switch::switched_off;

/// What to run an op with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpKernel {
    /// The model's own implementation, whatever other mappings say.
    Default,
    /// A kernel of the Hub or of this machine.
    Hub {
        /// Which one.
        reference: KernelRef,
        /// Whether the config vouches for the repository.
        trust_remote_code: bool,
    },
}

impl OpKernel {
    /// A kernel that the config does not vouch for.
    pub const fn hub(reference: KernelRef) -> Self {
        Self::Hub {
            reference,
            trust_remote_code: false,
        }
    }

    /// The kernel's reference.
    pub const fn reference(&self) -> Option<&KernelRef> {
        match self {
            Self::Default => None,
            Self::Hub { reference, .. } => Some(reference),
        }
    }
}

/// What happens when a kernel cannot be used for an op.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Fallback {
    /// The default op runs, and it is said why.
    #[default]
    Warn,
    /// It is an error.
    Error,
    /// The default op runs; the reason is only in the report.
    Silent,
}

impl Fallback {
    const WORDS: [(&'static str, Self); 3] = [
        ("warn", Self::Warn),
        ("error", Self::Error),
        ("silent", Self::Silent),
    ];

    /// The word in configs and on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Warn => "warn",
            Self::Error => "error",
            Self::Silent => "silent",
        }
    }
}

impl std::fmt::Display for Fallback {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl std::str::FromStr for Fallback {
    type Err = crate::Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = Self::WORDS.map(|(word, _)| word);
        Self::WORDS
            .iter()
            .find_map(|(word, value)| (*word == text).then_some(*value))
            .ok_or_else(|| crate::Error::Config {
                path: "fallback".to_owned(),
                reason: format!(
                    "unknown value `{text}`, expected one of {}",
                    known.join(", ")
                ),
                hint: Some(crate::suggest::hint(text, &known)),
            })
    }
}

/// The kernels of one op, for every device or for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpMapping {
    /// The same on whatever device the model runs.
    EveryDevice(OpKernel),
    /// By device; on other devices the op is not mapped.
    PerDevice(BTreeMap<DeviceType, OpKernel>),
}

impl OpMapping {
    /// What the mapping says for one device.
    pub fn on(&self, device: DeviceType) -> Option<&OpKernel> {
        match self {
            Self::EveryDevice(kernel) => Some(kernel),
            Self::PerDevice(devices) => devices.get(&device),
        }
    }
}

/// The kernels that a model asks for.
///
/// ```
/// use kernel_spec::{DeviceType, KernelConfig, OpName};
///
/// let config = serde_json::json!({"kernel_config": {"kernel_mapping": {
///     "RMSNorm": {"tpu": "org/rms@v1:RMSNorm"},
/// }}});
/// let kernels = KernelConfig::from_model_config(&config)?;
/// assert!(kernels.kernel(OpName::RmsNorm, DeviceType::Tpu).is_some());
/// assert!(kernels.kernel(OpName::RmsNorm, DeviceType::Cpu).is_none());
/// # Ok::<(), kernel_spec::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelConfig {
    /// Kernels by op.
    pub mapping: BTreeMap<OpName, OpMapping>,
    /// Whether texts that look like repository ids are paths (transformers' spelling; a leading
    /// `./` or `/` says the same for a single one).
    pub use_local_kernel: bool,
    /// Whether the index's default mapping applies to ops that are not in `mapping`.
    pub inherit_mapping: bool,
    /// What happens when a kernel cannot be used.
    pub fallback: Fallback,
}

impl Default for KernelConfig {
    /// No kernels but those of the default mapping.
    fn default() -> Self {
        Self {
            mapping: BTreeMap::new(),
            use_local_kernel: false,
            inherit_mapping: true,
            fallback: Fallback::default(),
        }
    }
}

impl KernelConfig {
    /// Reads `kernel_config` and `attn_implementation` of a model's `config.json`. Where both map
    /// attention, the mapping wins, because it can tell devices apart. A model without
    /// `kernel_config` asks for no kernels: the index's default mapping does not apply to it.
    pub fn from_model_config(config: &Value) -> Result<Self> {
        parse::model_config(config)
    }

    /// Reads the value of `kernel_config` alone, for files that hold nothing else.
    pub fn from_kernel_config(config: &Value) -> Result<Self> {
        parse::kernel_config(config)
    }

    /// What an op runs with on a device, where the config says so.
    pub fn kernel(&self, op: OpName, device: DeviceType) -> Option<&OpKernel> {
        self.mapping.get(&op)?.on(device)
    }

    /// Everything the config says for a device.
    pub fn kernels_on(&self, device: DeviceType) -> impl Iterator<Item = (OpName, &OpKernel)> {
        self.mapping
            .iter()
            .filter_map(move |(op, mapping)| Some((*op, mapping.on(device)?)))
    }

    /// Maps an op on every device, as `--kernel OP=REF` does.
    pub fn set(&mut self, op: OpName, kernel: OpKernel) {
        self.mapping.insert(op, OpMapping::EveryDevice(kernel));
    }
}
