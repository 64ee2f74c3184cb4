//! Calls of an op that need no Python of ours: one look at the arguments, one compiled function.
//!
//! The first call of a kind (types, shapes and plain values) asks the Python side which of its values
//! are the arrays of the compiled function and compiles that, for PJRT where a plug-in is there,
//! else in JAX. Every further call of the kind finds it here. Whatever does not fit, from a list of
//! tensors to a donated one, goes the general way through the Python op, which also says what is
//! wrong.
#![expect(unsafe_code, reason = "tensors' memory is handed to compiled code")]

mod jax;
mod kind;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Instant;

use kernel_registry::system::pjrt::find_plugin;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use tch::Tensor;

use self::jax::JaxFunction;
use self::kind::{Described, Kind};
use crate::artifacts::Artifacts;
use crate::call::Arg;
use crate::compile::{CpuPath, Switches};
use crate::error::BridgeError;
use crate::pjrt::{self, Client, Executable, PjrtError};
use crate::tensor::View;
use crate::{Environment, Inner, tensor};

/// The PJRT side of the process: opened when it is first wanted.
#[derive(Default)]
pub(crate) struct Pjrt {
    opened: OnceLock<Option<Opened>>,
}

struct Opened {
    client: Arc<Client>,
    artifacts: Option<Artifacts>,
}

impl Pjrt {
    fn get(&self, environment: &Environment) -> Option<&Opened> {
        let open = || {
            let plugin = match find_plugin(environment.site_packages()) {
                Ok(plugin) => plugin,
                Err(absent) => {
                    tracing::debug!("kernels run in JAX: {absent}");
                    return None;
                }
            };
            match Client::open(&plugin) {
                Ok(client) => Some(Opened {
                    client,
                    artifacts: Artifacts::open(&plugin),
                }),
                Err(error) => {
                    tracing::warn!("kernels run in JAX: {error}");
                    None
                }
            }
        };
        self.opened.get_or_init(open).as_ref()
    }
}

/// An op, with what is compiled of it by the kind of call. Shared by all that call the op.
pub(crate) struct Direct {
    op: Py<PyAny>,
    module: String,
    plans: RwLock<HashMap<Kind, Option<Arc<Plan>>>>,
}

/// What a call of one kind comes down to.
struct Plan {
    /// For each array of the compiled function, the index among the call's values.
    inputs: Vec<usize>,
    compiled: Compiled,
}

enum Compiled {
    Pjrt(Executable),
    Jax(JaxFunction),
}

impl Direct {
    /// The direct way to an op; none where the object is another function, or an op that Python
    /// has to see each time.
    pub(crate) fn of(inner: &Inner, object: &Bound<'_, PyAny>) -> PyResult<Option<Arc<Self>>> {
        let py = object.py();
        let is_candidate: bool = inner
            .modules
            .direct
            .bind(py)
            .getattr("candidate")?
            .call1((object,))?
            .extract()?;
        if !is_candidate {
            return Ok(None);
        }
        let module: String = object.getattr("payload")?.extract()?;
        // The interpreter's lock is held already, and nothing of Python runs under this one.
        let mut known = inner.directs.lock().unwrap_or_else(PoisonError::into_inner);
        let direct = known.entry(object.as_ptr() as usize).or_insert_with(|| {
            Arc::new(Self {
                op: object.clone().unbind(),
                module,
                plans: RwLock::default(),
            })
        });
        Ok(Some(Arc::clone(direct)))
    }

    /// Calls the op. None where the general way must be taken.
    pub(crate) fn call(
        &self,
        inner: &Inner,
        arguments: &[Arg<'_>],
        keywords: &[(&str, Arg<'_>)],
    ) -> Option<Result<Vec<Tensor>, BridgeError>> {
        let switches = &inner.switches;
        let path = switches.path();
        if path == CpuPath::Python || switches.donations() {
            return None;
        }
        let Described { kind, mut views } = Described::of(path as i64, arguments, keywords)?;
        let known = {
            let plans = self.plans.read().unwrap_or_else(PoisonError::into_inner);
            plans.get(&kind).cloned()
        };
        let plan = match known {
            Some(plan) => plan?,
            None => match self.prepare(inner, path, arguments, keywords) {
                Ok(plan) => {
                    let mut plans = self.plans.write().unwrap_or_else(PoisonError::into_inner);
                    plans.entry(kind).or_insert(plan).clone()?
                }
                Err(Stop::Interrupted) => return Some(Err(BridgeError::Interrupted)),
                // The general way meets the same problem and reports it with its circumstances.
                Err(Stop::General) => return None,
            },
        };
        let mut copies = Vec::new();
        for index in &plan.inputs {
            let named = keywords.iter().map(|(_, value)| value);
            if let (Some(Arg::Tensor(tensor)), Some(Some(view))) =
                (arguments.iter().chain(named).nth(*index), views.get(*index))
                && !is_in_place(view)
            {
                copies.push((*index, tensor::compact_copy(tensor).ok()?));
            }
        }
        for (index, copy) in &copies {
            views[*index] = View::of(copy);
        }
        let inputs: Option<Vec<View<'_>>> = plan
            .inputs
            .iter()
            .map(|index| views.get_mut(*index).and_then(Option::take))
            .collect();
        let inputs = inputs?;
        let result = match &plan.compiled {
            Compiled::Pjrt(executable) => run_pjrt(executable, &inputs),
            Compiled::Jax(function) => function.call(inner, &inputs),
        };
        match result {
            Ok(results) => Some(Ok(results)),
            Err(Stop::Interrupted) => Some(Err(BridgeError::Interrupted)),
            Err(Stop::General) => None,
        }
    }

    fn prepare(
        &self,
        inner: &Inner,
        path: CpuPath,
        arguments: &[Arg<'_>],
        keywords: &[(&str, Arg<'_>)],
    ) -> Result<Option<Arc<Plan>>, Stop> {
        Python::attach(|py| {
            let mut positional = Vec::with_capacity(arguments.len());
            for argument in arguments {
                positional.push(argument.to_python(py)?);
            }
            let named = PyDict::new(py);
            for (name, value) in keywords {
                named.set_item(name, value.to_python(py)?)?;
            }
            let positional = PyTuple::new(py, positional)?;
            let prepared = inner.modules.direct.bind(py).getattr("prepare")?.call1((
                self.op.bind(py),
                positional,
                named,
            ))?;
            if prepared.is_none() {
                return Ok(None);
            }
            let inputs: Vec<usize> = prepared.getattr("inputs")?.extract()?;
            if path != CpuPath::Jax
                && let Some(opened) = inner.pjrt.get(&inner.environment)
                && let Some(executable) = self.compile(&prepared, opened)?
            {
                return Ok(Some(Arc::new(Plan {
                    inputs,
                    compiled: Compiled::Pjrt(executable),
                })));
            }
            let function = JaxFunction::new(inner, &prepared, inputs.len())?;
            Ok(function.map(|function| {
                Arc::new(Plan {
                    inputs,
                    compiled: Compiled::Jax(function),
                })
            }))
        })
    }

    /// The program for PJRT, from the cache or compiled now; none where JAX has to do it.
    fn compile(
        &self,
        prepared: &Bound<'_, PyAny>,
        opened: &Opened,
    ) -> Result<Option<Executable>, Stop> {
        let exported = prepared.call_method0("export")?;
        if exported.is_none() {
            return Ok(None);
        }
        let code = exported.cast::<PyBytes>().map_err(PyErr::from)?.as_bytes();
        let start = Instant::now();
        let stored = opened.artifacts.as_ref().map(|artifacts| {
            let key = artifacts.key(&self.module, code);
            (artifacts, key)
        });
        let cached = stored.as_ref().and_then(|(artifacts, key)| {
            let program = artifacts.load(key)?;
            opened.client.deserialize(&program).ok()
        });
        let is_cached = cached.is_some();
        let executable = match cached.map_or_else(|| opened.client.compile(code), Ok) {
            Ok(executable) => executable,
            Err(error) => {
                tracing::debug!("{} stays in JAX: {error}", self.module);
                return Ok(None);
            }
        };
        let seconds = start.elapsed().as_secs_f64();
        if let Some((artifacts, key)) = stored.filter(|_| !is_cached)
            && let Ok(program) = executable.serialize()
        {
            artifacts.store(&key, &program);
        }
        prepared.call_method1("record", (seconds, is_cached))?;
        Ok(Some(executable))
    }
}

/// Why a direct call ended without a result.
enum Stop {
    /// The user asked for it.
    Interrupted,
    /// Only the general way can go on, or say why not.
    General,
}

impl From<BridgeError> for Stop {
    fn from(error: BridgeError) -> Self {
        tracing::debug!("a call takes the general way: {error}");
        Self::General
    }
}

impl From<PjrtError> for Stop {
    fn from(error: PjrtError) -> Self {
        tracing::debug!("a call takes the general way: {error}");
        Self::General
    }
}

impl From<PyErr> for Stop {
    fn from(error: PyErr) -> Self {
        Python::attach(|py| {
            if error.is_instance_of::<PyKeyboardInterrupt>(py) {
                return Self::Interrupted;
            }
            tracing::debug!("a call takes the general way: {error}");
            Self::General
        })
    }
}

/// Whether XLA can read a tensor's memory where it is.
fn is_in_place(view: &View<'_>) -> bool {
    view.compact && view.data.addr().is_multiple_of(pjrt::ALIGNMENT)
}

fn run_pjrt(executable: &Executable, inputs: &[View<'_>]) -> Result<Vec<Tensor>, Stop> {
    // SAFETY: the plan was made for these types and shapes; the views borrow tensors that are alive,
    // compact and aligned. That nobody writes to them meanwhile is what every user of a tensor on
    // several threads has to see to.
    let buffers = unsafe { executable.run(inputs) }?;
    let mut results = Vec::with_capacity(buffers.len());
    for (buffer, output) in buffers.into_iter().zip(executable.outputs()) {
        let pointer = buffer.pointer()?;
        // SAFETY: the buffer holds a result of this type and shape in row-major order, the default
        // of a program that names no layout, and is the only one that has the memory.
        let tensor =
            unsafe { tensor::adopt(pointer, output.element, &output.shape, Box::new(buffer)) };
        results.push(tensor?);
    }
    Ok(results)
}

/// The switch that tells which of the two ways an op is called, for reports.
pub(crate) fn describe_path(
    switches: &Switches,
    pjrt: &Pjrt,
    environment: &Environment,
) -> CpuPath {
    match switches.path() {
        CpuPath::Auto | CpuPath::Pjrt if pjrt.get(environment).is_some() => CpuPath::Pjrt,
        CpuPath::Auto | CpuPath::Pjrt => CpuPath::Jax,
        other => other,
    }
}
