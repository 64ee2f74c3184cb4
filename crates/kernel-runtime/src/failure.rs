//! What can fail in a request, and how it is told to the command.

use std::error::Error as _;
use std::path::PathBuf;

use kernel_bench::workload::WorkloadError;
use kernel_bridge::BridgeError;
use kernel_model::ModelError;
use kernel_spec::protocol::Failure;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// The request is not one of this interface.
    #[error("the request cannot be read: {0}")]
    Request(#[source] serde_json::Error),
    /// The response cannot be written.
    #[error("the response cannot be written: {0}")]
    Response(#[source] serde_json::Error),
    /// An option whose value makes no sense.
    #[error("option `{option}`: {problem}")]
    Option {
        /// The option as the command spells it.
        option: &'static str,
        /// What is wrong with its value.
        problem: String,
        /// What would do instead.
        hint: Option<String>,
    },
    /// A file that the request names cannot be read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A kernel config that is not one.
    #[error("the kernel config in `{}` is not valid", path.display())]
    KernelConfig {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the field.
        #[source]
        source: kernel_spec::Error,
    },
    /// A kernel cannot be found, fetched or verified.
    #[error(transparent)]
    Registry(#[from] kernel_registry::Error),
    /// Python, or a kernel's code.
    #[error(transparent)]
    Bridge(#[from] BridgeError),
    /// The model, its tokenizer, or the generation.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The workload of a benchmark.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// An arm of a benchmark failed in its own process.
    #[error("arm `{arm}`: {}", failure.message)]
    Arm {
        /// The arm as given.
        arm: String,
        /// What the process told.
        failure: Box<Failure>,
    },
    /// The process of an arm is gone.
    #[error("the process of arm `{arm}` ended in the middle of its work ({status})")]
    ArmEnded {
        /// The arm as given.
        arm: String,
        /// How it ended.
        status: String,
    },
    /// The process of an arm cannot be had or asked.
    #[error("the process of arm `{arm}` {problem}")]
    ArmProcess {
        /// The arm as given.
        arm: String,
        /// What does not work.
        problem: &'static str,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// Two parts of a benchmark do not keep to what they agreed on.
    #[error("a benchmark is out of step: {0}")]
    OutOfTurn(&'static str),
    /// libtorch.
    #[error("libtorch: {0}")]
    Torch(#[from] tch::TchError),
}

impl RuntimeError {
    /// Stable name of the kind, for `--json`.
    pub fn kind(&self) -> &str {
        match self {
            Self::Request(_) => "request",
            Self::Response(_) | Self::OutOfTurn(_) => "internal",
            Self::Arm { failure, .. } => &failure.kind,
            Self::ArmEnded { .. } | Self::ArmProcess { .. } => "arm-process",
            Self::Option { .. } => "usage",
            Self::Read { .. } => "read",
            Self::KernelConfig { source, .. } => source.kind(),
            Self::Registry(error) => error.kind(),
            Self::Bridge(error) => error.kind(),
            Self::Model(error) | Self::Workload(WorkloadError::Op(error)) => error.kind(),
            Self::Workload(_) => "workload",
            Self::Torch(_) => "torch",
        }
    }

    /// What the user can do, where there is something.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Option { hint, .. } => hint.clone(),
            Self::KernelConfig { source, .. } => source.hint(),
            Self::Registry(error) => error.hint(),
            Self::Bridge(error) => error.hint(),
            Self::Arm { failure, .. } => failure.hint.clone(),
            Self::ArmEnded { .. } => Some(
                "what it printed last is above; without `--apart`, the arms run in this process"
                    .to_owned(),
            ),
            Self::Model(error) | Self::Workload(WorkloadError::Op(error)) => error.hint(),
            _ => None,
        }
    }

    /// The error as the command prints it.
    pub fn to_failure(&self) -> Failure {
        let mut causes: Vec<String> = match self {
            Self::Arm { failure, .. } => failure.causes.clone(),
            _ => Vec::new(),
        };
        let mut source = self.source();
        while let Some(error) = source {
            let text = error.to_string();
            let told = std::iter::once(self.to_string()).chain(causes.iter().cloned());
            if !told.into_iter().any(|earlier| earlier.contains(&text)) {
                causes.push(text);
            }
            source = error.source();
        }
        let detail = match self {
            Self::Bridge(error) => error.traceback().map(str::to_owned),
            Self::Arm { failure, .. } => failure.detail.clone(),
            _ => None,
        };
        Failure {
            kind: self.kind().to_owned(),
            message: self.to_string(),
            causes,
            hint: self.hint(),
            detail,
        }
    }
}
