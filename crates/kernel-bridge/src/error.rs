//! What can go wrong between Rust and a kernel's Python code.

use std::path::PathBuf;

use crate::environment::{PYTHON_VERSION, TORCH_VERSION, VARIABLE};
use crate::tpu::TpuError;

/// A Python environment that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// None is named, and the one of the build is gone.
    #[error("no Python environment was found")]
    None,
    /// The folder holds no interpreter.
    #[error("there is no Python in `{}`", .root.display())]
    NoPython {
        /// The environment's folder.
        root: PathBuf,
    },
    /// Another Python than libpython is linked from.
    #[error("`{}` holds Python {found}, and this program was built for Python {PYTHON_VERSION}", .root.display())]
    PythonVersion {
        /// The environment's folder.
        root: PathBuf,
        /// Its version.
        found: String,
    },
    /// The environment was made from a Python that cannot be embedded.
    #[error("`{}` was made from a Python in `{}` that has no shared library libpython", .root.display(), .base.display())]
    NoSharedLibrary {
        /// The environment's folder.
        root: PathBuf,
        /// Folder of the Python that it was made from.
        base: PathBuf,
    },
    /// A package is missing.
    #[error("`{package}` is not installed in `{}`", .root.display())]
    Missing {
        /// The environment's folder.
        root: PathBuf,
        /// The package.
        package: &'static str,
    },
    /// Another torch than libtorch is linked from.
    #[error("`{}` holds torch {found}, and this program needs torch {TORCH_VERSION}", .root.display())]
    TorchVersion {
        /// The environment's folder.
        root: PathBuf,
        /// Its version.
        found: String,
    },
    /// A JAX with a known fault.
    #[error("`{}` holds jax {found}, which computes kernels with several grids wrongly (jax-ml/jax#40847)", .root.display())]
    JaxVersion {
        /// The environment's folder.
        root: PathBuf,
        /// Its version.
        found: String,
    },
}

impl EnvironmentError {
    /// What mends it.
    pub fn hint(&self) -> String {
        match self {
            Self::None => {
                format!("make one with `cargo xtask env`, or name one in {VARIABLE}")
            }
            Self::PythonVersion { .. } => format!(
                "run `cargo xtask env` where Python {PYTHON_VERSION} is installed, or name an \
                 environment of that version in {VARIABLE}"
            ),
            Self::NoSharedLibrary { .. } => format!(
                "install a Python {PYTHON_VERSION} with its shared library (package \
                 libpython{PYTHON_VERSION}, or `--enable-shared`), remove the environment, and run \
                 `cargo xtask env`"
            ),
            Self::NoPython { .. }
            | Self::Missing { .. }
            | Self::TorchVersion { .. }
            | Self::JaxVersion { .. } => {
                "run `cargo xtask env`, which installs the pinned versions".to_owned()
            }
        }
    }
}

/// Where a kernel's code was when something failed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Site {
    /// The kernel: repository and commit, or its folder.
    pub kernel: String,
    /// Function or layer, where one was called.
    pub symbol: Option<String>,
    /// Shapes and types of the tensors that it was called with.
    pub arguments: Vec<String>,
}

impl std::fmt::Display for Site {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "kernel `{}`", self.kernel)?;
        if let Some(symbol) = &self.symbol {
            write!(formatter, ", `{symbol}`")?;
        }
        if !self.arguments.is_empty() {
            write!(formatter, " called with {}", self.arguments.join(", "))?;
        }
        Ok(())
    }
}

/// A Python exception in values of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PythonException {
    /// Name of its class, such as `ValueError`.
    pub class: String,
    /// Its message; the first line where it is long.
    pub message: String,
    /// The whole traceback, for `-v`.
    pub traceback: String,
}

impl std::fmt::Display for PythonException {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}: {}", self.class, self.message)
    }
}

/// A failure of the bridge.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BridgeError {
    /// The environment cannot be used.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// The TPU cannot be used.
    #[error(transparent)]
    Tpu(#[from] TpuError),
    /// The interpreter did not start.
    #[error("Python did not start from `{}`: {reason}", .root.display())]
    Start {
        /// The environment's folder.
        root: PathBuf,
        /// The interpreter's own words.
        reason: String,
    },
    /// This process already runs Python from another environment.
    #[error("Python already runs from `{}` in this process", .root.display())]
    OtherEnvironment {
        /// The folder of the running one.
        root: PathBuf,
    },
    /// A kernel's code failed while it was loaded.
    #[error("{site} cannot be loaded: {exception}")]
    Load {
        /// The kernel.
        site: Site,
        /// What its code raised.
        exception: PythonException,
    },
    /// The kernel has no such function or layer.
    #[error("{site} is not there: {exception}")]
    Symbol {
        /// The kernel and the symbol.
        site: Site,
        /// Why it is not usable.
        exception: PythonException,
    },
    /// A call's arguments do not fit the op.
    #[error("{site}: {problem}")]
    Argument {
        /// The kernel, the symbol and the arguments.
        site: Site,
        /// The parameter; empty where the call as a whole does not fit.
        parameter: String,
        /// What is wrong, the parameter's name included.
        problem: String,
    },
    /// The call would have to be compiled, and the guard forbids that.
    #[error("{site} would have to be compiled although the model is warm: {reason}")]
    Compile {
        /// The kernel, the symbol and the arguments.
        site: Site,
        /// What is new about the call.
        reason: String,
    },
    /// A kernel's code failed while it ran.
    #[error("{site} failed: {exception}")]
    Call {
        /// The kernel, the symbol and the arguments.
        site: Site,
        /// What its code raised.
        exception: PythonException,
    },
    /// A kernel returned something other than tensors.
    #[error("{site} returned {found}, expected tensors")]
    Result {
        /// The kernel and the symbol.
        site: Site,
        /// Class of what it returned.
        found: String,
    },
    /// The process that checks kernels failed as such.
    #[error("the process that checks kernels failed: {problem}")]
    Worker {
        /// What happened.
        problem: String,
    },
    /// The user asked for a stop.
    #[error("interrupted")]
    Interrupted,
    /// libtorch failed at the border.
    #[error("a tensor could not be handed over: {0}")]
    Tensor(#[from] tch::TchError),
    /// Our own Python code failed.
    #[error("the bridge's own Python code failed: {0}")]
    Host(PythonException),
}

impl BridgeError {
    /// Stable name of the kind, for `--json`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Environment(_) | Self::Start { .. } | Self::OtherEnvironment { .. } => {
                "python-environment"
            }
            Self::Tpu(_) => "tpu",
            Self::Load { .. } => "kernel-load",
            Self::Symbol { .. } => "kernel-symbol",
            Self::Argument { .. } => "kernel-argument",
            Self::Compile { .. } => "kernel-compile",
            Self::Call { .. } | Self::Result { .. } => "kernel-call",
            Self::Worker { .. } => "check-process",
            Self::Interrupted => "interrupted",
            Self::Tensor(_) => "tensor",
            Self::Host(_) => "internal",
        }
    }

    /// What the user can do, where there is something.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Environment(error) => Some(error.hint()),
            Self::Tpu(error) => Some(error.hint().to_owned()),
            Self::Start { .. } => Some("run `cargo xtask env` and build again".to_owned()),
            Self::Load { exception, .. } if exception.class == "ModuleNotFoundError" => Some(
                "install the module that the kernel needs into the environment, or choose another \
                 kernel"
                    .to_owned(),
            ),
            Self::Compile { .. } => Some(
                "warm the model up with every shape that it will meet, or allow compiles"
                    .to_owned(),
            ),
            Self::Call { exception, .. } if exception.message.contains("RESOURCE_EXHAUSTED") => {
                Some("the kernel wants more memory than the device has for these shapes".to_owned())
            }
            _ => None,
        }
    }

    /// The Python traceback, where there is one.
    pub fn traceback(&self) -> Option<&str> {
        match self {
            Self::Load { exception, .. }
            | Self::Symbol { exception, .. }
            | Self::Call { exception, .. }
            | Self::Host(exception) => Some(&exception.traceback),
            _ => None,
        }
    }
}
