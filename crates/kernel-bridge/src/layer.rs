//! Layers of a kernel: a class with a `forward`, and the class with a model's weights.
//!
//! Where `forward` does nothing but call an op with its arguments and attributes, which is what most
//! layers are, a bound layer calls the op itself. Every other one runs in Python.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use tch::Tensor;

use crate::Inner;
use crate::attributes::Attributes;
use crate::call::{Arg, Callable, Value};
use crate::direct::Direct;
use crate::error::BridgeError;

/// A layer class of a kernel, not yet bound to weights.
pub struct LayerClass {
    callable: Callable,
    parameters: Vec<String>,
    single: Option<SingleCall>,
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
        single: Option<SingleCall>,
    ) -> Self {
        let callable = Callable {
            inner,
            kernel,
            symbol: name.to_owned(),
            object: forward,
            direct: None,
        };
        Self {
            callable,
            parameters,
            single,
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
                    direct: None,
                },
                proxy: proxy.unbind(),
                call: self
                    .single
                    .as_ref()
                    .and_then(|single| single.bind(attributes)),
            })
        })
    }
}

/// A layer with weights.
pub struct BoundLayer {
    callable: Callable,
    proxy: Py<PyAny>,
    call: Option<BoundCall>,
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
        if let Some(call) = &self.call
            && let Some(result) = call.call(&self.callable.inner, arguments)
        {
            return result;
        }
        self.callable.call(arguments, &[], Some(&self.proxy))
    }
}

/// Keywords of a call as Python gives them.
type Named<'py> = Vec<(String, Bound<'py, PyTuple>)>;

/// A `forward` that is one call of an op.
pub(crate) struct SingleCall {
    direct: Arc<Direct>,
    positional: Vec<Source>,
    keywords: Vec<(String, Source)>,
}

/// Where an argument of the op comes from.
enum Source {
    /// A parameter of `forward`, with its default.
    Argument(usize, Option<Value>),
    /// What `forward` reads of `self`.
    Attribute(String),
    /// A constant in its text.
    Constant(Value),
}

impl SingleCall {
    /// What `forward` does, where it is one call; see `python/direct.py`.
    pub(crate) fn of(inner: &Inner, forward: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let found = inner
            .modules
            .direct
            .bind(forward.py())
            .getattr("single_call")?
            .call1((forward,))?;
        if found.is_none() {
            return Ok(None);
        }
        let (op, positional, named): (Bound<'_, PyAny>, Vec<Bound<'_, PyTuple>>, Named<'_>) =
            found.extract()?;
        let Some(direct) = Direct::of(inner, &op)? else {
            return Ok(None);
        };
        let mut call = Self {
            direct,
            positional: Vec::with_capacity(positional.len()),
            keywords: Vec::with_capacity(named.len()),
        };
        for source in &positional {
            let Some(source) = Source::read(source)? else {
                return Ok(None);
            };
            call.positional.push(source);
        }
        for (name, source) in named {
            let Some(source) = Source::read(&source)? else {
                return Ok(None);
            };
            call.keywords.push((name, source));
        }
        Ok(Some(call))
    }

    /// The call with what a model offers; none where `forward` reads something else.
    fn bind(&self, attributes: &Attributes<'_>) -> Option<BoundCall> {
        let positional = self.positional.iter().map(|source| source.bind(attributes));
        let keywords = self.keywords.iter().map(|(name, source)| {
            let piece = source.bind(attributes)?;
            Some((name.clone(), piece))
        });
        Some(BoundCall {
            direct: Arc::clone(&self.direct),
            positional: positional.collect::<Option<_>>()?,
            keywords: keywords.collect::<Option<_>>()?,
        })
    }
}

impl Source {
    fn read(source: &Bound<'_, PyTuple>) -> PyResult<Option<Self>> {
        let kind: String = source.get_item(0)?.extract()?;
        let second = source.get_item(1)?;
        Ok(match kind.as_str() {
            "argument" => {
                let defaults = source.get_item(2)?.cast_into::<PyTuple>()?;
                let default = match defaults.iter().next() {
                    None => None,
                    Some(default) => match Value::read(&default)? {
                        None => return Ok(None),
                        default => default,
                    },
                };
                Some(Self::Argument(second.extract()?, default))
            }
            "attribute" => Some(Self::Attribute(second.extract()?)),
            _ => Value::read(&second)?.map(Self::Constant),
        })
    }

    fn bind(&self, attributes: &Attributes<'_>) -> Option<Piece> {
        Some(match self {
            Self::Argument(index, default) => Piece::Argument(*index, default.clone()),
            Self::Attribute(path) => Piece::Value(attributes.value(path)?),
            Self::Constant(value) => Piece::Value(value.clone()),
        })
    }
}

/// A call of an op by a layer with weights.
struct BoundCall {
    direct: Arc<Direct>,
    positional: Vec<Piece>,
    keywords: Vec<(String, Piece)>,
}

enum Piece {
    Argument(usize, Option<Value>),
    Value(Value),
}

impl Piece {
    fn argument<'a>(&'a self, given: &[Arg<'a>]) -> Option<Arg<'a>> {
        match self {
            Self::Argument(index, default) => match given.get(*index) {
                Some(given) => Some(*given),
                None => default.as_ref().map(Value::as_arg),
            },
            Self::Value(value) => Some(value.as_arg()),
        }
    }
}

impl BoundCall {
    /// Calls the op; none where `forward` itself must, be it to say what is wrong.
    fn call(&self, inner: &Inner, given: &[Arg<'_>]) -> Option<Result<Vec<Tensor>, BridgeError>> {
        let used = self
            .positional
            .iter()
            .chain(self.keywords.iter().map(|(_, piece)| piece))
            .filter_map(|piece| match piece {
                Piece::Argument(index, _) => Some(index + 1),
                Piece::Value(_) => None,
            });
        // An argument too many, or one that `forward` takes and drops.
        if given.len() > used.max().unwrap_or(0) {
            return None;
        }
        let positional: Vec<Arg<'_>> = self
            .positional
            .iter()
            .map(|piece| piece.argument(given))
            .collect::<Option<_>>()?;
        let keywords: Vec<(&str, Arg<'_>)> = self
            .keywords
            .iter()
            .map(|(name, piece)| Some((name.as_str(), piece.argument(given)?)))
            .collect::<Option<_>>()?;
        self.direct.call(inner, &positional, &keywords)
    }
}
