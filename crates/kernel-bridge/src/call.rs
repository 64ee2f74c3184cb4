//! Calling functions and layers of a kernel with libtorch tensors.

use std::sync::Arc;

use pyo3::exceptions::{PyKeyboardInterrupt, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use tch::Tensor;

use crate::Inner;
use crate::error::{BridgeError, Site};
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
    fn to_python(self, py: Python<'_>) -> Result<Bound<'_, PyAny>, BridgeError> {
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

/// What every callable of a kernel carries.
struct Callable {
    inner: Arc<Inner>,
    kernel: Arc<str>,
    symbol: String,
    object: Py<PyAny>,
}

impl Callable {
    fn call(
        &self,
        arguments: &[Arg<'_>],
        keywords: &[(&str, Arg<'_>)],
        receiver: Option<&Py<PyAny>>,
    ) -> Result<Vec<Tensor>, BridgeError> {
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
        Ok(Self {
            callable: Callable {
                inner,
                kernel,
                symbol: symbol.to_owned(),
                object,
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

/// A layer class of a kernel, not yet bound to weights.
pub struct LayerClass {
    callable: Callable,
    parameters: Vec<String>,
}

impl std::fmt::Debug for LayerClass {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "LayerClass({}: {})",
            self.callable.kernel, self.callable.symbol
        )
    }
}

impl LayerClass {
    pub(crate) fn new(
        inner: Arc<Inner>,
        kernel: Arc<str>,
        name: &str,
        forward: Py<PyAny>,
        parameters: Vec<String>,
    ) -> Self {
        let callable = Callable {
            inner,
            kernel,
            symbol: name.to_owned(),
            object: forward,
        };
        Self {
            callable,
            parameters,
        }
    }

    /// Names of the parameters of `forward`, without `self`.
    pub fn parameters(&self) -> &[String] {
        &self.parameters
    }

    /// Binds the layer to the attributes that its `forward` reads from `self`. Tensors are shared:
    /// a later change of the weights in place is seen.
    ///
    /// # Errors
    /// [`BridgeError::Tensor`] or [`BridgeError::Host`].
    pub fn bind(&self, attributes: &Attributes<'_>) -> Result<BoundLayer, BridgeError> {
        let from = &self.callable;
        Python::attach(|py| {
            let layers = from.inner.modules.layers.bind(py);
            let proxy = attributes.proxy(py, layers, &from.symbol)?;
            Ok(BoundLayer {
                callable: Callable {
                    inner: Arc::clone(&from.inner),
                    kernel: Arc::clone(&from.kernel),
                    symbol: from.symbol.clone(),
                    object: from.object.clone_ref(py),
                },
                proxy: proxy.unbind(),
            })
        })
    }
}

/// A layer with weights.
pub struct BoundLayer {
    callable: Callable,
    proxy: Py<PyAny>,
}

impl std::fmt::Debug for BoundLayer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "BoundLayer({}: {})",
            self.callable.kernel, self.callable.symbol
        )
    }
}

impl BoundLayer {
    /// Calls `forward` and returns its tensors.
    ///
    /// # Errors
    /// As [`Op::call`].
    pub fn forward(&self, arguments: &[Arg<'_>]) -> Result<Vec<Tensor>, BridgeError> {
        self.callable.call(arguments, &[], Some(&self.proxy))
    }
}

/// What a layer's `forward` may read from `self`.
#[derive(Debug, Default)]
pub struct Attributes<'a>(Vec<(&'a str, Attribute<'a>)>);

#[derive(Debug)]
enum Attribute<'a> {
    Tensor(&'a Tensor),
    Float(f64),
    Int(i64),
    Activation(&'a str),
    Child(Attributes<'a>),
}

impl<'a> Attributes<'a> {
    /// No attributes.
    pub fn new() -> Self {
        Self::default()
    }

    /// A tensor, such as `weight`.
    #[must_use]
    pub fn tensor(self, name: &'a str, tensor: &'a Tensor) -> Self {
        self.with(name, Attribute::Tensor(tensor))
    }

    /// A number, such as `variance_epsilon`.
    #[must_use]
    pub fn float(self, name: &'a str, value: f64) -> Self {
        self.with(name, Attribute::Float(value))
    }

    /// An integer, such as `hidden_size`.
    #[must_use]
    pub fn int(self, name: &'a str, value: i64) -> Self {
        self.with(name, Attribute::Int(value))
    }

    /// A function by the name that `hidden_act` of a config gives it: `silu`, `gelu` or
    /// `gelu_pytorch_tanh`.
    #[must_use]
    pub fn activation(self, name: &'a str, activation: &'a str) -> Self {
        self.with(name, Attribute::Activation(activation))
    }

    /// A module within the module, such as `gate_proj`; it can be called as a linear map where it
    /// has a `weight`.
    #[must_use]
    pub fn child(self, name: &'a str, attributes: Self) -> Self {
        self.with(name, Attribute::Child(attributes))
    }

    fn with(mut self, name: &'a str, attribute: Attribute<'a>) -> Self {
        self.0.push((name, attribute));
        self
    }

    fn proxy<'py>(
        &self,
        py: Python<'py>,
        layers: &Bound<'py, PyAny>,
        owner: &str,
    ) -> Result<Bound<'py, PyAny>, BridgeError> {
        let host = |error: PyErr| BridgeError::Host(python::exception(py, &error));
        let values = PyDict::new(py);
        for (name, attribute) in &self.0 {
            let value = match attribute {
                Attribute::Tensor(tensor) => Arg::Tensor(tensor).to_python(py)?,
                Attribute::Float(value) => Arg::Float(*value).to_python(py)?,
                Attribute::Int(value) => Arg::Int(*value).to_python(py)?,
                Attribute::Activation(activation) => layers
                    .getattr("ACTIVATIONS")
                    .and_then(|table| table.get_item(activation))
                    .map_err(host)?,
                Attribute::Child(child) => child.proxy(py, layers, &format!("{owner}.{name}"))?,
            };
            values.set_item(name, value).map_err(host)?;
        }
        layers
            .getattr("proxy")
            .and_then(|f| f.call1((owner, values)))
            .map_err(host)
    }
}
