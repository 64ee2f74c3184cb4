//! The Python half of the bridge: embedded sources, made into a package in memory.

use std::ffi::CString;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::artifacts;
use crate::compile::Watch;
use crate::error::{BridgeError, PythonException};

/// Modules in the order in which they import each other.
const MODULES: [(&str, &str); 11] = [
    ("errors", include_str!("../python/errors.py")),
    ("compiles", include_str!("../python/compiles.py")),
    ("exchange", include_str!("../python/exchange.py")),
    ("interpret", include_str!("../python/interpret.py")),
    ("signature", include_str!("../python/signature.py")),
    ("ops", include_str!("../python/ops.py")),
    ("direct", include_str!("../python/direct.py")),
    ("facade", include_str!("../python/facade.py")),
    ("loader", include_str!("../python/loader.py")),
    ("layers", include_str!("../python/layers.py")),
    ("script", include_str!("../python/script.py")),
];
/// Further modules of the child process that `check` runs jobs in, in the same order.
const CHECK_MODULES: [(&str, &str); 7] = [
    ("check_case", include_str!("../python/check_case.py")),
    (
        "check_attention",
        include_str!("../python/check_attention.py"),
    ),
    (
        "check_contracts",
        include_str!("../python/check_contracts.py"),
    ),
    ("check_inspect", include_str!("../python/check_inspect.py")),
    (
        "check_compiler",
        include_str!("../python/check_compiler.py"),
    ),
    ("check_jobs", include_str!("../python/check_jobs.py")),
    ("check_server", include_str!("../python/check_server.py")),
];
pub(crate) const BOOTSTRAP: &str = include_str!("../python/bootstrap.py");

/// The sources of the whole package, by module name and in the order of their imports.
pub(crate) fn check_sources() -> serde_json::Map<String, serde_json::Value> {
    MODULES
        .iter()
        .chain(&CHECK_MODULES)
        .map(|(name, source)| ((*name).to_owned(), serde_json::Value::from(*source)))
        .collect()
}

/// The modules that the Rust side calls.
pub(crate) struct HostModules {
    pub(crate) loader: Py<PyAny>,
    pub(crate) layers: Py<PyAny>,
    pub(crate) compiles: Py<PyAny>,
    pub(crate) direct: Py<PyAny>,
    pub(crate) script: Py<PyAny>,
    pub(crate) errors: Py<PyAny>,
    /// The `Host` that payloads get their decorators from.
    pub(crate) host: Py<PyAny>,
    /// JAX's import of a capsule, its export of an array, and its device, see `python/exchange.py`.
    capsules: Option<[Py<PyAny>; 3]>,
}

impl HostModules {
    /// Imports torch and JAX as this machine needs them and makes the package.
    pub(crate) fn install(
        py: Python<'_>,
        tpu: bool,
        use_torch_tpu: bool,
        watch: Watch,
    ) -> Result<Self, BridgeError> {
        let build = || -> PyResult<Self> {
            let sources = PyDict::new(py);
            for (name, source) in MODULES {
                sources.set_item(name, source)?;
            }
            let code = CString::new(BOOTSTRAP)?;
            let bootstrap = PyModule::from_code(
                py,
                &code,
                c"<kernel-bridge>/bootstrap.py",
                c"_kernel_bridge_bootstrap",
            )?;
            let cache = artifacts::cache_root()
                .and_then(|root| artifacts::private_folder(&root.join("jax")))
                .map(|folder| folder.display().to_string());
            bootstrap.getattr("prepare")?.call1((tpu, cache))?;
            let modules = bootstrap.getattr("install")?.call1((sources,))?;
            let module = |name: &str| modules.get_item(name);
            module("compiles")?.setattr("watch", Py::new(py, watch)?)?;
            let direct = module("direct")?;
            let capsules: Option<[Py<PyAny>; 3]> = direct.getattr("CAPSULES")?.extract()?;
            Ok(Self {
                capsules,
                direct: direct.unbind(),
                compiles: module("compiles")?.unbind(),
                host: module("ops")?
                    .getattr("Host")?
                    .call1((use_torch_tpu,))?
                    .unbind(),
                loader: module("loader")?.unbind(),
                layers: module("layers")?.unbind(),
                script: module("script")?.unbind(),
                errors: module("errors")?.unbind(),
            })
        };
        build().map_err(|error| BridgeError::Host(exception(py, &error)))
    }

    /// Import, export and device for capsules; none where this JAX has them elsewhere.
    pub(crate) fn capsules(&self) -> Option<[&Py<PyAny>; 3]> {
        self.capsules.as_ref().map(<[Py<PyAny>; 3]>::each_ref)
    }
}

/// A Python exception in values of ours. Never fails: what cannot be read is left out.
pub(crate) fn exception(py: Python<'_>, error: &PyErr) -> PythonException {
    let class = error
        .get_type(py)
        .name()
        .map_or_else(|_| "Exception".to_owned(), |name| name.to_string());
    let message = error.value(py).to_string();
    let traceback = py
        .import("traceback")
        .and_then(|module| {
            module
                .getattr("format_exception")?
                .call1((error.value(py),))
        })
        .and_then(|lines| lines.extract::<Vec<String>>())
        .map_or_else(|_| message.clone(), |lines| lines.concat());
    PythonException {
        class,
        message: brief(&message),
        traceback,
    }
}

/// XLA's messages go on for pages; the first paragraph says what is wrong.
fn brief(message: &str) -> String {
    const LONGEST: usize = 600;
    let paragraph = message.trim().split("\n\n").next().unwrap_or_default();
    let line = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{} ...", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::brief;

    #[test]
    fn a_message_is_cut_to_one_readable_line() {
        assert_eq!(
            brief("\nRESOURCE_EXHAUSTED: too\n  much\n\nHLO dump"),
            "RESOURCE_EXHAUSTED: too much"
        );
        assert!(brief(&"é".repeat(1_000)).ends_with("é ..."));
    }
}
