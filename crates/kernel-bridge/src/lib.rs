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

mod artifacts;
mod attributes;
mod call;
pub mod check;
mod compile;
mod direct;
mod distributed;
mod dlpack;
mod element;
mod environment;
mod error;
mod interpreter;
mod kernel;
mod layer;
mod pjrt;
mod python;
mod script;
mod tensor;
pub mod tpu;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use kernel_registry::VerifiedKernel;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use tch::Tensor;

pub use artifacts::CACHE_VARIABLE;
pub use attributes::Attributes;
pub use call::{Arg, Op};
pub use compile::{Compile, CompileGuard, CpuPath};
pub use distributed::ProcessGroup;
pub use environment::{Environment, TORCH_VERSION, VARIABLE};
pub use error::{BridgeError, EnvironmentError, PythonException, Site};
pub use kernel::LoadedKernel;
pub use layer::{BoundLayer, LayerClass};
pub use pjrt::PjrtError;
pub use script::ScriptWorkload;

use crate::compile::{Switches, Watch};
use crate::direct::{Direct, Pjrt};
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

/// The running interpreter with our Python modules in it. Cheap to clone; usable from any thread.
#[derive(Clone)]
pub struct Bridge {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) modules: HostModules,
    pub(crate) environment: Environment,
    pub(crate) switches: Arc<Switches>,
    pub(crate) pjrt: Pjrt,
    /// By the address of the Python op, which each of them keeps alive. Locked for moments only.
    pub(crate) directs: Mutex<HashMap<usize, Arc<Direct>>>,
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
        if options.tpu {
            // Only where the caller found a chip: without one, the runtime hangs.
            let touched = tpu::first_touch(environment, tpu::FIRST_TOUCH_LIMIT)?;
            tracing::debug!("torch sees {} TPU devices", touched.devices);
            if let Some(hint) = tpu::allocator_hint() {
                tracing::info!("{hint}");
            }
        }
        interpreter::start(environment)?;
        Python::attach(|py| {
            let _starting = STARTING
                .lock_py_attached(py)
                .unwrap_or_else(PoisonError::into_inner);
            if let Some(bridge) = BRIDGE.get() {
                return Ok(bridge.clone());
            }
            let switches = Arc::new(Switches::default());
            let watch = Watch::new(Arc::clone(&switches));
            let bridge = Self {
                inner: Arc::new(Inner {
                    modules: HostModules::install(py, options.tpu, use_torch_tpu, watch)?,
                    environment: environment.clone(),
                    switches,
                    pjrt: Pjrt::default(),
                    directs: Mutex::default(),
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
            type Entry = (
                String,
                String,
                Vec<String>,
                Vec<String>,
                String,
                f64,
                f64,
                bool,
                String,
                bool,
            );
            let read = || -> PyResult<Vec<Compile>> {
                let list = self.inner.modules.compiles.bind(py).getattr("done")?;
                let entries: Vec<Entry> = list.extract()?;
                let compile = |entry: Entry| {
                    let (
                        module,
                        op,
                        shapes,
                        statics,
                        reason,
                        traced,
                        built,
                        interpreted,
                        path,
                        cached,
                    ) = entry;
                    Compile {
                        module,
                        op,
                        shapes,
                        statics,
                        reason,
                        trace_seconds: traced,
                        compile_seconds: built,
                        interpreted,
                        path: if path == "pjrt" {
                            CpuPath::Pjrt
                        } else {
                            CpuPath::Jax
                        },
                        cached,
                    }
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
                .compiles
                .bind(py)
                .getattr("done")
                .and_then(|list| list.len())
                .map_err(|error| BridgeError::Host(python::exception(py, &error)))
        })
    }

    /// Says what happens when a call has to be compiled: once a model is warm, that should not be.
    pub fn set_compile_guard(&self, guard: CompileGuard) {
        self.inner.switches.set_guard(guard);
    }

    /// Chooses how kernels run on the CPU, for comparisons; what an op cannot do goes the next way.
    pub fn set_cpu_path(&self, path: CpuPath) {
        self.inner.switches.set_path(path);
    }

    /// How kernels run on the CPU where they can.
    pub fn cpu_path(&self) -> CpuPath {
        direct::describe_path(
            &self.inner.switches,
            &self.inner.pjrt,
            &self.inner.environment,
        )
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

    /// A tensor with the same values where another tensor is: how tensors get to a TPU, which tch has
    /// no name for.
    ///
    /// # Errors
    /// [`BridgeError::Host`] where the copy fails.
    pub fn to_device_of(&self, tensor: &Tensor, other: &Tensor) -> Result<Tensor, BridgeError> {
        let device = self.device_of(other)?;
        self.to_device(tensor, &device)
    }

    /// The device of a tensor as Python's torch names it, such as `tpu:0`. tch's own
    /// `Tensor::device` says `Mps` of every device that it does not know.
    ///
    /// # Errors
    /// [`BridgeError::Host`].
    pub fn device_of(&self, tensor: &Tensor) -> Result<String, BridgeError> {
        Python::attach(|py| {
            crate::tensor::to_python(py, tensor)?
                .getattr("device")
                .map(|device| device.to_string())
                .map_err(|error| BridgeError::Host(python::exception(py, &error)))
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
