//! From verified bytes to a Python module, and from a module to callables.

use std::collections::HashMap;
use std::sync::Arc;

use kernel_registry::VerifiedKernel;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use sha2::{Digest, Sha256};

use crate::Inner;
use crate::call::{self, Op};
use crate::error::{BridgeError, Site};
use crate::layer::{LayerClass, SingleCall};
use crate::python;

/// A kernel whose module is there.
#[derive(Clone)]
pub struct LoadedKernel {
    pub(crate) inner: Arc<Inner>,
    pub(crate) module: Arc<Py<PyAny>>,
    name: Arc<str>,
}

impl std::fmt::Debug for LoadedKernel {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_tuple("LoadedKernel")
            .field(&self.name)
            .finish()
    }
}

impl LoadedKernel {
    pub(crate) fn load(inner: &Arc<Inner>, kernel: &VerifiedKernel) -> Result<Self, BridgeError> {
        let mut loaded = HashMap::new();
        Python::attach(|py| load_tree(py, inner, kernel, &mut loaded)).map(|module| Self {
            inner: Arc::clone(inner),
            module: Arc::new(module),
            name: describe(kernel).into(),
        })
    }

    /// The kernel, for messages: repository and commit, or its folder.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A function of the kernel's module.
    ///
    /// # Errors
    /// [`BridgeError::Symbol`]: there is no such name, or it cannot be called.
    pub fn function(&self, name: &str) -> Result<Op, BridgeError> {
        Python::attach(|py| {
            let find = || -> PyResult<Py<PyAny>> {
                let function = self.module.bind(py).getattr(name)?;
                if function.is_callable() {
                    Ok(function.unbind())
                } else {
                    Err(pyo3::exceptions::PyTypeError::new_err(format!(
                        "`{name}` cannot be called"
                    )))
                }
            };
            let callable = find().map_err(|error| self.symbol_error(py, name, &error))?;
            Op::new(
                py,
                Arc::clone(&self.inner),
                Arc::clone(&self.name),
                name,
                callable,
            )
            .map_err(|error| self.symbol_error(py, name, &error))
        })
    }

    /// A layer class of the kernel, checked: a `torch.nn.Module` that brings a `forward` only.
    ///
    /// # Errors
    /// [`BridgeError::Symbol`]: there is none of this name, or it breaks the rules for layers.
    pub fn layer(&self, name: &str) -> Result<LayerClass, BridgeError> {
        Python::attach(|py| {
            let find = || -> PyResult<(Py<PyAny>, Vec<String>, Option<SingleCall>)> {
                let layers = self.inner.modules.layers.bind(py);
                let class = layers
                    .getattr("find")?
                    .call1((self.module.bind(py), name))?;
                let forward = class.getattr("forward")?;
                // The first one is `self`.
                let parameters = call::parameters(&forward)?.into_iter().skip(1).collect();
                let single = SingleCall::of(&self.inner, &forward)?;
                Ok((forward.unbind(), parameters, single))
            };
            let (forward, parameters, single) =
                find().map_err(|error| self.symbol_error(py, name, &error))?;
            Ok(LayerClass::new(
                Arc::clone(&self.inner),
                Arc::clone(&self.name),
                name,
                forward,
                parameters,
                single,
            ))
        })
    }

    fn symbol_error(&self, py: Python<'_>, name: &str, error: &PyErr) -> BridgeError {
        BridgeError::Symbol {
            site: Site {
                kernel: self.name.to_string(),
                symbol: Some(name.to_owned()),
                arguments: Vec::new(),
            },
            exception: python::exception(py, error),
        }
    }
}

/// Loads dependencies first; `loaded` keeps what this tree has by module name.
fn load_tree(
    py: Python<'_>,
    inner: &Arc<Inner>,
    kernel: &VerifiedKernel,
    loaded: &mut HashMap<String, Py<PyAny>>,
) -> Result<Py<PyAny>, BridgeError> {
    let name = module_name(kernel);
    if let Some(module) = loaded.get(&name) {
        return Ok(module.clone_ref(py));
    }
    let mut modules = Vec::new();
    for dependency in kernel.dependencies() {
        let module = load_tree(py, inner, dependency, loaded)?;
        let repository = dependency
            .repository()
            .map(ToString::to_string)
            .unwrap_or_default();
        modules.push((repository, module));
    }
    let run = || -> PyResult<Py<PyAny>> {
        let dependencies = PyDict::new(py);
        for (repository, module) in modules {
            dependencies.set_item(repository, module)?;
        }
        let files = PyDict::new(py);
        for (name, bytes) in kernel.files() {
            files.set_item(name, PyBytes::new(py, bytes))?;
        }
        let path = kernel.path().display().to_string();
        let host = inner.modules.host.bind(py);
        let load = inner.modules.loader.bind(py).getattr("load")?;
        let metadata = kernel.metadata();
        let title = metadata.name.to_string();
        Ok(load
            .call1((&name, &metadata.id, title, files, path, dependencies, host))?
            .unbind())
    };
    let module = run().map_err(|error| {
        if error.is_instance_of::<PyKeyboardInterrupt>(py) {
            return BridgeError::Interrupted;
        }
        BridgeError::Load {
            site: Site {
                kernel: describe(kernel),
                ..Site::default()
            },
            exception: python::exception(py, &error),
        }
    })?;
    loaded.insert(name, module.clone_ref(py));
    Ok(module)
}

/// A module name of ours: by content, so that two kernels with one id, or two versions of one
/// kernel, never meet, and one kernel found in two places is loaded once.
pub(crate) fn module_name(kernel: &VerifiedKernel) -> String {
    let mut hash = Sha256::new();
    let mut add = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    add(kernel
        .repository()
        .map(ToString::to_string)
        .unwrap_or_default()
        .as_bytes());
    add(kernel.metadata().id.as_bytes());
    for (name, bytes) in kernel.files() {
        add(name.as_bytes());
        add(bytes);
    }
    for dependency in kernel.dependencies() {
        add(module_name(dependency).as_bytes());
    }
    format!("kernel_payload_{}", &hex::encode(hash.finalize())[..16])
}

fn describe(kernel: &VerifiedKernel) -> String {
    match (kernel.repository(), kernel.commit()) {
        (Some(repository), Some(commit)) => {
            let commit = commit.to_string();
            format!("{repository}@{}", commit.get(..12).unwrap_or(&commit))
        }
        (Some(repository), None) => repository.to_string(),
        (None, _) => kernel.path().display().to_string(),
    }
}
