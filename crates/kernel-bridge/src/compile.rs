//! Compiles: what they were, and whether a further one is allowed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use pyo3::prelude::*;

/// One compile of a kernel's function.
#[derive(Debug, Clone, PartialEq)]
pub struct Compile {
    /// Our name of the kernel's module.
    pub module: String,
    /// The op, as the kernel registered it.
    pub op: String,
    /// Types and shapes of the tensors, such as `float32[8, 128]`.
    pub shapes: Vec<String>,
    /// Static arguments, such as `causal=True`.
    pub statics: Vec<String>,
    /// What was new about the call, such as `` `x` is float32[13], was float32[11] ``.
    pub reason: String,
    /// Seconds of tracing in JAX.
    pub trace_seconds: f64,
    /// Seconds of compiling in XLA, or of reading what was compiled before.
    pub compile_seconds: f64,
    /// Whether a Pallas body runs in interpret mode, which says nothing about speed.
    pub interpreted: bool,
    /// What runs it.
    pub path: CpuPath,
    /// Whether the machine code came from the compile cache on disk.
    pub cached: bool,
}

/// How a kernel's JAX function runs on the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum CpuPath {
    /// PJRT where a plug-in is there and the function can go that way, else JAX.
    #[default]
    Auto,
    /// JAX in this process's Python, called from Rust.
    Jax,
    /// JAX, with every call going through the Python op: what an op that the other two cannot take
    /// costs.
    Python,
    /// A PJRT plug-in, without Python; reported of compiles, and as a wish the same as `Auto`.
    Pjrt,
}

/// What happens when a call would have to be compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum CompileGuard {
    /// It is compiled.
    #[default]
    Allow,
    /// It is compiled, with a warning that names the kernel, the op and what was new.
    Warn,
    /// The call fails with [`BridgeError::Compile`](crate::BridgeError::Compile).
    Refuse,
}

/// Settings and marks that calls look at, on both sides of the border.
#[derive(Debug, Default)]
pub(crate) struct Switches {
    guard: AtomicU8,
    path: AtomicU8,
    donations: AtomicBool,
}

impl Switches {
    pub(crate) fn set_guard(&self, guard: CompileGuard) {
        self.guard.store(guard as u8, Ordering::Relaxed);
    }

    fn guard(&self) -> CompileGuard {
        match self.guard.load(Ordering::Relaxed) {
            1 => CompileGuard::Warn,
            2 => CompileGuard::Refuse,
            _ => CompileGuard::Allow,
        }
    }

    pub(crate) fn set_path(&self, path: CpuPath) {
        self.path.store(path as u8, Ordering::Relaxed);
    }

    pub(crate) fn path(&self) -> CpuPath {
        match self.path.load(Ordering::Relaxed) {
            1 => CpuPath::Jax,
            2 => CpuPath::Python,
            _ => CpuPath::Auto,
        }
    }

    /// Whether an op of this process takes tensors over. Then each call has to look whether its
    /// tensors are still there, which is known to their Python objects only.
    pub(crate) fn donations(&self) -> bool {
        self.donations.load(Ordering::Relaxed)
    }
}

/// What the Python side asks and tells the Rust side.
#[pyclass(frozen, module = "kernel_bridge_host")]
pub(crate) struct Watch {
    switches: Arc<Switches>,
}

impl Watch {
    pub(crate) fn new(switches: Arc<Switches>) -> Self {
        Self { switches }
    }
}

#[pymethods]
impl Watch {
    /// Whether an op may be compiled now.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "Python's values arrive owned"
    )]
    fn may_compile(&self, module: String, op: String, reason: String) -> bool {
        match self.switches.guard() {
            CompileGuard::Allow => true,
            CompileGuard::Warn => {
                tracing::warn!(
                    "`{op}` of {module} is compiled although the model is warm: {reason}"
                );
                true
            }
            CompileGuard::Refuse => false,
        }
    }

    /// There is an op that takes tensors over.
    fn donates(&self) {
        self.switches.donations.store(true, Ordering::Relaxed);
    }
}
