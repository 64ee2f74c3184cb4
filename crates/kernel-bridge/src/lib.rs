//! Embedded Python: loads the payloads of verified kernels and calls them on libtorch tensors.
//!
//! ```text
//! Environment ──► Bridge::start ──► Bridge::load(&VerifiedKernel) ──► LoadedKernel
//!                                                                      │ function(name) ──► Op::call
//!                                                                      └ layer(name) ──► LayerClass::bind ──► BoundLayer::forward
//! ```
//!
//! No other crate touches Python. What a caller may rely on:
//!
//! - Code runs only from the bytes of a [`VerifiedKernel`](kernel_registry::VerifiedKernel).
//! - Tensors cross without copies, except where JAX cannot take them as they are (see
//!   `python/exchange.py`).
//! - A Python exception becomes a [`BridgeError`] that names kernel, symbol and arguments; its
//!   traceback is kept apart.
//! - The interpreter's lock is taken inside a call and never while a lock of ours is held.

mod call;
mod environment;
mod error;
mod interpreter;
mod kernel;
mod python;
mod tensor;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use kernel_registry::VerifiedKernel;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use tch::Tensor;

pub use call::{Arg, Attributes, BoundLayer, LayerClass, Op};
pub use environment::{Environment, TORCH_VERSION, VARIABLE};
pub use error::{BridgeError, EnvironmentError, PythonException, Site};
pub use kernel::LoadedKernel;

use crate::python::HostModules;

/// What answers a payload's import of `torch_tpu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PayloadHost {
    /// torch_tpu where there is a TPU, else the stand-in: importing torch_tpu takes seconds.
    #[default]
    Auto,
    /// torch_tpu, which must be installed; CPU tensors still take the direct way.
    TorchTpu,
    /// A stand-in with the same rules.
    StandIn,
}

/// How the bridge is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BridgeOptions {
    /// What answers a payload's import of `torch_tpu`.
    pub payload_host: PayloadHost,
    /// Whether this machine has a TPU that may be touched. Without one, torch's device plug-ins
    /// stay unloaded and JAX looks at the CPU only.
    pub tpu: bool,
}

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
    /// Seconds of tracing in JAX.
    pub trace_seconds: f64,
    /// Seconds of compiling in XLA.
    pub compile_seconds: f64,
    /// Whether a Pallas body runs in interpret mode, which says nothing about speed.
    pub interpreted: bool,
}

/// The running interpreter with our Python modules in it. Cheap to clone; usable from any thread.
#[derive(Clone)]
pub struct Bridge {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) modules: HostModules,
    environment: Environment,
    /// Python's identifiers of the threads that run kernels. Locked for moments only, and by
    /// holders of the interpreter's lock only.
    running: Mutex<Vec<u64>>,
}

impl Inner {
    fn running(&self) -> MutexGuard<'_, Vec<u64>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call begins on this thread.
    pub(crate) fn enter(&self, thread: u64) {
        self.running().push(thread);
    }

    /// A call on this thread is over.
    pub(crate) fn leave(&self, thread: u64) {
        let mut running = self.running();
        if let Some(index) = running.iter().position(|other| *other == thread) {
            running.swap_remove(index);
        }
    }
}

impl std::fmt::Debug for Bridge {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Bridge")
            .field("environment", &self.inner.environment)
            .finish_non_exhaustive()
    }
}

impl Bridge {
    /// Starts Python from the environment, or joins it where it runs from there already. The
    /// options of the first start hold for the process.
    ///
    /// # Errors
    /// [`BridgeError::Environment`] where JAX is missing, [`BridgeError::Start`],
    /// [`BridgeError::OtherEnvironment`], or [`BridgeError::Host`] where torch cannot be imported.
    pub fn start(environment: &Environment, options: BridgeOptions) -> Result<Self, BridgeError> {
        static BRIDGE: OnceLock<Bridge> = OnceLock::new();
        // One thread makes the Python side; whoever waits for it does so without the interpreter's
        // lock, which that thread needs.
        static STARTING: Mutex<()> = Mutex::new(());
        if let Some(bridge) = BRIDGE.get() {
            interpreter::start(environment)?;
            return Ok(bridge.clone());
        }
        let missing = |package| EnvironmentError::Missing {
            root: environment.root().to_owned(),
            package,
        };
        for package in ["jax", "jaxlib"] {
            if environment.installed(package).is_none() {
                return Err(missing(package).into());
            }
        }
        let use_torch_tpu = match options.payload_host {
            PayloadHost::Auto => options.tpu,
            PayloadHost::TorchTpu => true,
            PayloadHost::StandIn => false,
        };
        if use_torch_tpu && environment.installed("torch_tpu").is_none() {
            return Err(missing("torch_tpu").into());
        }
        interpreter::start(environment)?;
        Python::attach(|py| {
            let _starting = STARTING
                .lock_py_attached(py)
                .unwrap_or_else(PoisonError::into_inner);
            if let Some(bridge) = BRIDGE.get() {
                return Ok(bridge.clone());
            }
            let bridge = Self {
                inner: Arc::new(Inner {
                    modules: HostModules::install(py, options.tpu, use_torch_tpu)?,
                    environment: environment.clone(),
                    running: Mutex::default(),
                }),
            };
            Ok(BRIDGE.get_or_init(|| bridge).clone())
        })
    }

    /// Loads a kernel and, before it, the kernels that it depends on. A kernel that is loaded
    /// already is found, not run again.
    ///
    /// # Errors
    /// [`BridgeError::Load`]: its code failed; nothing of it stays, so a second try is possible.
    pub fn load(&self, kernel: &VerifiedKernel) -> Result<LoadedKernel, BridgeError> {
        LoadedKernel::load(&self.inner, kernel)
    }

    /// The compiles that kernels caused in this process so far, oldest first.
    ///
    /// # Errors
    /// [`BridgeError::Host`].
    pub fn compiles(&self) -> Result<Vec<Compile>, BridgeError> {
        Python::attach(|py| {
            type Entry = (String, String, Vec<String>, Vec<String>, f64, f64, bool);
            let read = || -> PyResult<Vec<Compile>> {
                let list = self.inner.modules.ops.bind(py).getattr("compiles")?;
                let entries: Vec<Entry> = list.extract()?;
                let compile =
                    |(module, op, shapes, statics, traced, built, interpreted): Entry| Compile {
                        module,
                        op,
                        shapes,
                        statics,
                        trace_seconds: traced,
                        compile_seconds: built,
                        interpreted,
                    };
                Ok(entries.into_iter().map(compile).collect())
            };
            read().map_err(|error| BridgeError::Host(python::exception(py, &error)))
        })
    }

    /// How many compiles there were so far.
    ///
    /// # Errors
    /// [`BridgeError::Host`].
    pub fn compile_count(&self) -> Result<usize, BridgeError> {
        Python::attach(|py| {
            self.inner
                .modules
                .ops
                .bind(py)
                .getattr("compiles")
                .and_then(|list| list.len())
                .map_err(|error| BridgeError::Host(python::exception(py, &error)))
        })
    }

    /// A tensor with the same values on a device that only Python's torch knows, such as `tpu`.
    ///
    /// # Errors
    /// [`BridgeError::Host`] where torch has no such device or the copy fails.
    pub fn to_device(&self, tensor: &Tensor, device: &str) -> Result<Tensor, BridgeError> {
        Python::attach(|py| {
            let moved = crate::tensor::to_python(py, tensor)?
                .call_method1("to", (device,))
                .map_err(|error| BridgeError::Host(python::exception(py, &error)))?;
            // `Tensor.to` gives a tensor or raises.
            match crate::tensor::from_python(&moved)? {
                Some(tensor) => Ok(tensor),
                None => Ok(tensor.shallow_clone()),
            }
        })
    }

    /// Versions of what takes part, for reports.
    pub fn versions(&self) -> BTreeMap<String, String> {
        let mut versions: BTreeMap<String, String> =
            ["torch", "jax", "jaxlib", "torch_tpu", "libtpu"]
                .into_iter()
                .filter_map(|name| Some((name.to_owned(), self.inner.environment.installed(name)?)))
                .collect();
        let python = Python::attach(|py| {
            let version = py.version_info();
            format!("{}.{}.{}", version.major, version.minor, version.patch)
        });
        versions.insert("python".to_owned(), python);
        versions
    }

    /// The environment that Python runs from.
    pub fn environment(&self) -> &Environment {
        &self.inner.environment
    }

    /// Asks all kernels that run to stop: their Python code gets a KeyboardInterrupt, and their calls
    /// end with [`BridgeError::Interrupted`]. Does nothing where none runs. Returns when the calls have
    /// ended, or after two seconds.
    ///
    /// Python drops an exception that arrives within a callback of its garbage collector, so it is
    /// raised again until the call ends.
    pub fn interrupt(&self) {
        const PAUSE: Duration = Duration::from_millis(50);
        for _ in 0..40 {
            // A call takes its mark away before it lets go of the interpreter's lock, so that none
            // but it can be hit.
            let running = Python::attach(|py| {
                let threads = self.inner.running().clone();
                for thread in &threads {
                    interpreter::raise_keyboard_interrupt(py, *thread);
                }
                !threads.is_empty()
            });
            if !running {
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }
}
