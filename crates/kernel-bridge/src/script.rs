//! The benchmark scripts that kernels ship (`benchmarks/benchmark*.py`), run on a loaded kernel.

use std::sync::Arc;

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use tch::Tensor;

use crate::error::{BridgeError, Site};
use crate::kernel::LoadedKernel;
use crate::{python, tensor};

/// One workload of a script: inputs, the kernel's call, and the reference that the script checks it
/// with.
pub struct ScriptWorkload {
    kernel: Arc<str>,
    name: String,
    has_reference: bool,
    object: Py<PyAny>,
}

impl std::fmt::Debug for ScriptWorkload {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_tuple("ScriptWorkload")
            .field(&self.name)
            .finish()
    }
}

impl LoadedKernel {
    /// Runs a script and gives its workloads. The script is code of the caller's choice: unlike the
    /// kernel's, no digest vouches for it. `path` is for messages and for the script's `__file__`.
    ///
    /// # Errors
    /// [`BridgeError::Load`]: the script failed, or holds no benchmark.
    pub fn benchmark_script(
        &self,
        source: &str,
        path: &str,
    ) -> Result<Vec<ScriptWorkload>, BridgeError> {
        Python::attach(|py| {
            let load = || -> PyResult<Vec<ScriptWorkload>> {
                let script = self.inner.modules.script.bind(py);
                let workloads: Vec<Bound<'_, PyAny>> = script
                    .getattr("load")?
                    .call1((source, path, self.module.bind(py)))?
                    .extract()?;
                workloads
                    .into_iter()
                    .map(|object| {
                        Ok(ScriptWorkload {
                            kernel: self.name().into(),
                            name: object.getattr("name")?.extract()?,
                            has_reference: object.getattr("has_reference")?.extract()?,
                            object: object.unbind(),
                        })
                    })
                    .collect()
            };
            load().map_err(|error| BridgeError::Load {
                site: Site {
                    kernel: self.name().to_owned(),
                    symbol: Some(path.to_owned()),
                    arguments: Vec::new(),
                },
                exception: python::exception(py, &error),
            })
        })
    }
}

impl ScriptWorkload {
    /// `Class.workload`, as the `kernels` library names it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the script has a reference for it.
    pub fn has_reference(&self) -> bool {
        self.has_reference
    }

    /// Makes new inputs; `seed` is added to the script's own.
    ///
    /// # Errors
    /// [`BridgeError::Call`]: the script's set-up failed.
    pub fn prepare(&self, seed: u64) -> Result<(), BridgeError> {
        Python::attach(|py| {
            let done = self.object.bind(py).call_method1("prepare", (seed,));
            done.map(drop).map_err(|error| self.failed(py, &error))
        })
    }

    /// One call of the kernel. The result is in [`ScriptWorkload::output`].
    ///
    /// # Errors
    /// [`BridgeError::Call`].
    pub fn run(&self) -> Result<(), BridgeError> {
        Python::attach(|py| {
            let done = self.object.bind(py).call_method0("run");
            done.map(drop).map_err(|error| self.failed(py, &error))
        })
    }

    /// One call of the reference, whose result is dropped.
    ///
    /// # Errors
    /// [`BridgeError::Call`].
    pub fn run_reference(&self) -> Result<(), BridgeError> {
        Python::attach(|py| {
            let done = self.object.bind(py).call_method0("reference");
            done.map(drop).map_err(|error| self.failed(py, &error))
        })
    }

    /// The reference's result.
    ///
    /// # Errors
    /// [`BridgeError::Call`], and [`BridgeError::Result`] where it is no tensor.
    pub fn reference(&self) -> Result<Tensor, BridgeError> {
        self.tensor("reference")
    }

    /// What the last call of the kernel left in `out`.
    ///
    /// # Errors
    /// [`BridgeError::Result`] where it is no tensor.
    pub fn output(&self) -> Result<Tensor, BridgeError> {
        self.tensor("output")
    }

    fn tensor(&self, method: &str) -> Result<Tensor, BridgeError> {
        Python::attach(|py| {
            let object = self
                .object
                .bind(py)
                .call_method0(method)
                .map_err(|error| self.failed(py, &error))?;
            tensor::from_python(&object)?.ok_or_else(|| BridgeError::Result {
                site: self.site(),
                found: object
                    .get_type()
                    .name()
                    .map_or_else(|_| "an object".to_owned(), |name| name.to_string()),
            })
        })
    }

    fn site(&self) -> Site {
        Site {
            kernel: self.kernel.to_string(),
            symbol: Some(self.name.clone()),
            arguments: Vec::new(),
        }
    }

    fn failed(&self, py: Python<'_>, error: &PyErr) -> BridgeError {
        if error.is_instance_of::<PyKeyboardInterrupt>(py) {
            return BridgeError::Interrupted;
        }
        BridgeError::Call {
            site: self.site(),
            exception: python::exception(py, error),
        }
    }
}
