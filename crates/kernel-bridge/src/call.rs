//! Calling a kernel's functions with libtorch tensors.

use std::sync::Arc;

use pyo3::exceptions::{PyKeyboardInterrupt, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use tch::Tensor;

use crate::Inner;
use crate::direct::Direct;
use crate::error::{BridgeError, Site};
use crate::tensor::Shared;
use crate::{interpreter, python, tensor};

/// An argument of a kernel's function.
#[derive(Debug, Clone, Copy)]
pub enum Arg<'a> {
    /// A tensor; shared, not copied.
    Tensor(&'a Tensor),
    /// A floating-point number; static.
    Float(f64),
    /// An integer; static.
    Int(i64),
    /// A truth value; static.
    Bool(bool),
    /// A text; static.
    Text(&'a str),
    /// Python's `None`.
    None,
}

impl Arg<'_> {
    pub(crate) fn to_python(self, py: Python<'_>) -> Result<Bound<'_, PyAny>, BridgeError> {
        let host = |error: PyErr| BridgeError::Host(python::exception(py, &error));
        Ok(match self {
            Self::Tensor(tensor) => tensor::to_python(py, tensor)?,
            Self::Float(value) => value
                .into_pyobject(py)
                .map_err(|e| host(e.into()))?
                .into_any(),
            Self::Int(value) => value
                .into_pyobject(py)
                .map_err(|e| host(e.into()))?
                .into_any(),
            Self::Bool(value) => value
                .into_pyobject(py)
                .map_err(|e| host(e.into()))?
                .to_owned()
                .into_any(),
            Self::Text(value) => value
                .into_pyobject(py)
                .map_err(|e| host(e.into()))?
                .into_any(),
            Self::None => py.None().into_bound(py),
        })
    }

    fn describe(&self) -> String {
        match self {
            Self::Tensor(tensor) => {
                let kind = tensor
                    .f_kind()
                    .map_or_else(|_| "?".to_owned(), |kind| format!("{kind:?}"));
                format!("{kind}{:?}", tensor.size())
            }
            Self::Float(value) => value.to_string(),
            Self::Int(value) => value.to_string(),
            Self::Bool(value) => value.to_string(),
            Self::Text(value) => format!("{value:?}"),
            Self::None => "None".to_owned(),
        }
    }
}

/// A value of its own, as a bound layer keeps it.
#[derive(Debug)]
pub(crate) enum Value {
    Tensor(Shared),
    Float(f64),
    Int(i64),
    Bool(bool),
    Text(String),
    None,
}

impl Clone for Value {
    fn clone(&self) -> Self {
        match self {
            Self::Tensor(shared) => Self::Tensor(Shared::of(shared.tensor())),
            Self::Float(value) => Self::Float(*value),
            Self::Int(value) => Self::Int(*value),
            Self::Bool(value) => Self::Bool(*value),
            Self::Text(text) => Self::Text(text.clone()),
            Self::None => Self::None,
        }
    }
}

impl Value {
    /// A constant of Python code; none for types that no argument can be of.
    pub(crate) fn read(object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        Ok(if object.is_none() {
            Some(Self::None)
        } else if object.is_exact_instance_of::<PyBool>() {
            Some(Self::Bool(object.extract()?))
        } else if object.is_exact_instance_of::<PyInt>() {
            object.extract().ok().map(Self::Int)
        } else if object.is_exact_instance_of::<PyFloat>() {
            Some(Self::Float(object.extract()?))
        } else if object.is_exact_instance_of::<PyString>() {
            Some(Self::Text(object.extract()?))
        } else {
            None
        })
    }

    /// The value as an argument.
    pub(crate) fn as_arg(&self) -> Arg<'_> {
        match self {
            Self::Tensor(shared) => Arg::Tensor(shared.tensor()),
            Self::Float(value) => Arg::Float(*value),
            Self::Int(value) => Arg::Int(*value),
            Self::Bool(value) => Arg::Bool(*value),
            Self::Text(text) => Arg::Text(text),
            Self::None => Arg::None,
        }
    }
}

/// What every callable of a kernel carries.
pub(crate) struct Callable {
    pub(crate) inner: Arc<Inner>,
    pub(crate) kernel: Arc<str>,
    pub(crate) symbol: String,
    pub(crate) object: Py<PyAny>,
    /// The way past Python, where the object is an op.
    pub(crate) direct: Option<Arc<Direct>>,
}

impl Callable {
    pub(crate) fn call(
        &self,
        arguments: &[Arg<'_>],
        keywords: &[(&str, Arg<'_>)],
        receiver: Option<&Py<PyAny>>,
    ) -> Result<Vec<Tensor>, BridgeError> {
        if let Some(direct) = &self.direct
            && let Some(result) = direct.call(&self.inner, arguments, keywords)
        {
            return result;
        }
        Python::attach(|py| {
            let site = || Site {
                kernel: self.kernel.to_string(),
                symbol: Some(self.symbol.clone()),
                arguments: arguments
                    .iter()
                    .map(Arg::describe)
                    .chain(
                        keywords
                            .iter()
                            .map(|(name, value)| format!("{name}={}", value.describe())),
                    )
                    .collect(),
            };
            let mut values = Vec::with_capacity(arguments.len() + 1);
            values.extend(receiver.map(|receiver| receiver.bind(py).clone()));
            for argument in arguments {
                values.push(argument.to_python(py)?);
            }
            let failed = |error: &PyErr| {
                if error.is_instance_of::<PyKeyboardInterrupt>(py) {
                    return BridgeError::Interrupted;
                }
                if let Some(reason) = self.refused_compile(py, error) {
                    return BridgeError::Compile {
                        site: site(),
                        reason,
                    };
                }
                BridgeError::Call {
                    site: site(),
                    exception: python::exception(py, error),
                }
            };
            let named = match keywords {
                [] => None,
                keywords => {
                    let named = PyDict::new(py);
                    for (name, value) in keywords {
                        named
                            .set_item(name, value.to_python(py)?)
                            .map_err(|e| failed(&e))?;
                    }
                    Some(named)
                }
            };
            let positional = PyTuple::new(py, values).map_err(|error| failed(&error))?;
            // Payloads run for inference.
            let _guard = tch::no_grad_guard();
            let thread = interpreter::current_thread(py);
            self.inner.enter(thread);
            let outcome = self.object.bind(py).call(&positional, named.as_ref());
            self.inner.leave(thread);
            let result = outcome.map_err(|error| {
                match self.argument_problem(py, &error, &positional, named.as_ref()) {
                    Some((parameter, problem)) => BridgeError::Argument {
                        site: site(),
                        parameter,
                        problem,
                    },
                    None => failed(&error),
                }
            })?;
            let wrong = |object: &Bound<'_, PyAny>| BridgeError::Result {
                site: site(),
                found: object
                    .get_type()
                    .name()
                    .map_or_else(|_| "?".to_owned(), |name| format!("`{name}`")),
            };
            tensors_of(&result, &wrong)
        })
    }
}

impl Callable {
    /// What is new about a call that the guard did not let compile.
    fn refused_compile(&self, py: Python<'_>, error: &PyErr) -> Option<String> {
        let class = self
            .inner
            .modules
            .errors
            .bind(py)
            .getattr("CompileRefused")
            .ok()?;
        if !error.matches(py, class).unwrap_or(false) {
            return None;
        }
        error.value(py).getattr("reason").ok()?.extract().ok()
    }

    /// Parameter and problem where an exception says that the call was wrong, not the kernel.
    fn argument_problem(
        &self,
        py: Python<'_>,
        error: &PyErr,
        positional: &Bound<'_, PyTuple>,
        named: Option<&Bound<'_, PyDict>>,
    ) -> Option<(String, String)> {
        if !error.is_instance_of::<PyTypeError>(py) {
            return None;
        }
        let errors = self.inner.modules.errors.bind(py);
        let class = errors.getattr("ArgumentError").ok()?;
        if error.matches(py, class).unwrap_or(false) {
            let value = error.value(py);
            let parameter = value.getattr("parameter").ok()?.extract().ok()?;
            return Some((parameter, value.to_string()));
        }
        let named = named.cloned().unwrap_or_else(|| PyDict::new(py));
        let judge = errors.getattr("call_problem").ok()?;
        judge
            .call1((self.object.bind(py), positional, named))
            .ok()?
            .extract()
            .ok()?
    }
}

/// A tensor, or the tensors of a tuple or list.
fn tensors_of(
    result: &Bound<'_, PyAny>,
    wrong: &dyn Fn(&Bound<'_, PyAny>) -> BridgeError,
) -> Result<Vec<Tensor>, BridgeError> {
    if let Some(tensor) = tensor::from_python(result)? {
        return Ok(vec![tensor]);
    }
    let items: Vec<Bound<'_, PyAny>> = if let Ok(tuple) = result.cast::<PyTuple>() {
        tuple.iter().collect()
    } else if let Ok(list) = result.cast::<PyList>() {
        list.iter().collect()
    } else {
        return Err(wrong(result));
    };
    items
        .iter()
        .map(|item| tensor::from_python(item)?.ok_or_else(|| wrong(item)))
        .collect()
}

/// Names of a callable's parameters, in order.
pub(crate) fn parameters(callable: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    let signature = callable
        .py()
        .import("inspect")?
        .getattr("signature")?
        .call1((callable,))?;
    signature
        .getattr("parameters")?
        .try_iter()?
        .map(|name| name?.extract())
        .collect()
}

/// A function of a kernel.
pub struct Op {
    callable: Callable,
    parameters: Vec<String>,
}

impl std::fmt::Debug for Op {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "Op({}: {}({}))",
            self.callable.kernel,
            self.callable.symbol,
            self.parameters.join(", ")
        )
    }
}

impl Op {
    pub(crate) fn new(
        py: Python<'_>,
        inner: Arc<Inner>,
        kernel: Arc<str>,
        symbol: &str,
        object: Py<PyAny>,
    ) -> PyResult<Self> {
        let parameters = parameters(object.bind(py))?;
        let direct = Direct::of(&inner, object.bind(py))?;
        Ok(Self {
            callable: Callable {
                inner,
                kernel,
                symbol: symbol.to_owned(),
                object,
                direct,
            },
            parameters,
        })
    }

    /// Names of the function's parameters, in order.
    pub fn parameters(&self) -> &[String] {
        &self.parameters
    }

    /// Calls the function and returns its tensors.
    ///
    /// # Errors
    /// [`BridgeError::Call`] with what the function raised, [`BridgeError::Result`] where it
    /// returned something else, [`BridgeError::Interrupted`].
    pub fn call(
        &self,
        arguments: &[Arg<'_>],
        keywords: &[(&str, Arg<'_>)],
    ) -> Result<Vec<Tensor>, BridgeError> {
        self.callable.call(arguments, keywords, None)
    }
}
