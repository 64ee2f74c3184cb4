//! What a layer's `forward` finds on its `self`.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tch::Tensor;

use crate::call::{Arg, Value};
use crate::error::BridgeError;
use crate::python;
use crate::tensor::Shared;

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

    /// The value at a path such as `gate_proj.weight`; none where there is none or it is a function.
    pub(crate) fn value(&self, path: &str) -> Option<Value> {
        let (first, rest) = path
            .split_once('.')
            .map_or((path, None), |(first, rest)| (first, Some(rest)));
        // What was given last is what Python's attribute would be.
        let (_, attribute) = self.0.iter().rev().find(|(name, _)| *name == first)?;
        match (attribute, rest) {
            (Attribute::Child(child), Some(rest)) => child.value(rest),
            (Attribute::Tensor(tensor), None) => Some(Value::Tensor(Shared::of(tensor))),
            (Attribute::Float(value), None) => Some(Value::Float(*value)),
            (Attribute::Int(value), None) => Some(Value::Int(*value)),
            _ => None,
        }
    }

    pub(crate) fn proxy<'py>(
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
