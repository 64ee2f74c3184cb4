//! Kernels in the slots of a model.
//!
//! Each adapter calls a function or a bound layer of a kernel, checks shape and dtype of what
//! comes back, and knows the default op: where the policy allows it, a kernel that fails while
//! the model runs is replaced by the default for good, and the failure is recorded.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kernel_bridge::{Arg, BoundLayer, BridgeError, Op};
use kernel_spec::Fallback;
use tch::Tensor;

use super::report::Incidents;
use crate::error::{ModelError, Result};
use crate::ops::{
    AttentionParameters, DecodeAttention, DefaultMlp, DefaultNorm, Mlp, MlpWeights, Norm,
    PrefillAttention, Rotary, RowLengths, SdpaDecode, SdpaPrefill,
};

/// What all adapters of one kernel share.
#[derive(Debug, Clone)]
pub(super) struct Kernel {
    /// The slot, for messages.
    pub(super) op: &'static str,
    /// The kernel's reference.
    pub(super) reference: Arc<str>,
    /// What to do when it fails.
    pub(super) fallback: Fallback,
    /// Set by the first failure.
    pub(super) failed: Arc<AtomicBool>,
    /// Where failures are written down.
    pub(super) incidents: Incidents,
}

impl Kernel {
    /// Runs the kernel, or the default where the kernel has failed and that is allowed.
    fn run<T>(
        &self,
        kernel: impl FnOnce() -> Result<T>,
        default: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if self.failed.load(Ordering::Relaxed) {
            return default();
        }
        match kernel() {
            Err(ModelError::Cancelled) => Err(ModelError::Cancelled),
            Err(error) if self.fallback != Fallback::Error => {
                self.failed.store(true, Ordering::Relaxed);
                let incident = format!("{error}; {} goes on with the default op", self.op);
                if self.fallback == Fallback::Warn {
                    tracing::warn!("{incident}");
                }
                self.incidents.add(self.op, incident);
                default()
            }
            other => other,
        }
    }

    fn error(&self, reason: impl Into<String>) -> ModelError {
        ModelError::Kernel {
            op: self.op.to_owned(),
            reference: self.reference.to_string(),
            reason: reason.into(),
        }
    }

    fn called<T>(&self, result: Result<T, BridgeError>) -> Result<T> {
        result.map_err(|error| match error {
            BridgeError::Interrupted => ModelError::Cancelled,
            other => self.error(other.to_string()),
        })
    }

    /// The one tensor of a call, which has to look like another one.
    fn one(&self, result: Result<Vec<Tensor>, BridgeError>, like: &Tensor) -> Result<Tensor> {
        let mut tensors = self.called(result)?;
        match (tensors.pop(), tensors.is_empty()) {
            (Some(tensor), true) => self.checked(tensor, &like.size(), like),
            _ => Err(self.error("it did not return one tensor")),
        }
    }

    fn checked(&self, tensor: Tensor, size: &[i64], like: &Tensor) -> Result<Tensor> {
        let (kind, expected) = (tensor.f_kind()?, like.f_kind()?);
        if tensor.size() != size || kind != expected {
            return Err(self.error(format!(
                "it returned {kind:?}{:?} where {expected:?}{size:?} was expected",
                tensor.size()
            )));
        }
        Ok(tensor)
    }
}

/// Python's spelling of an optional window.
fn window_argument(parameters: &AttentionParameters) -> Arg<'static> {
    parameters.window.map_or(Arg::None, Arg::Int)
}

/// Keywords that a function takes; a window that it cannot take is an error where there is one.
fn keywords<'a>(
    kernel: &Kernel,
    op: &Op,
    all: &[(&'a str, Arg<'a>)],
    window: Option<i64>,
) -> Result<Vec<(&'a str, Arg<'a>)>> {
    let takes = |name: &str| op.parameters().iter().any(|parameter| parameter == name);
    if window.is_some() && !takes("window") {
        return Err(kernel.error("the model has sliding windows, the kernel takes none"));
    }
    Ok(all
        .iter()
        .copied()
        .filter(|(name, _)| takes(name))
        .collect())
}

/// `attention(q, k, v, *, scale, causal, window)`.
pub(super) struct KernelPrefill {
    pub(super) kernel: Kernel,
    pub(super) op: Op,
}

impl PrefillAttention for KernelPrefill {
    fn forward(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        parameters: &AttentionParameters,
    ) -> Result<Tensor> {
        self.kernel.run(
            || {
                let all = [
                    ("scale", Arg::Float(parameters.scale)),
                    ("causal", Arg::Bool(parameters.causal)),
                    ("window", window_argument(parameters)),
                ];
                let keywords = keywords(&self.kernel, &self.op, &all, parameters.window)?;
                let arguments = [Arg::Tensor(query), Arg::Tensor(key), Arg::Tensor(value)];
                self.kernel.one(self.op.call(&arguments, &keywords), query)
            },
            || SdpaPrefill.forward(query, key, value, parameters),
        )
    }

    fn name(&self) -> &str {
        &self.kernel.reference
    }

    fn compiles_per_shape(&self) -> bool {
        true
    }
}

/// `decode_attention(q, k_cache, v_cache, lengths, *, scale, window)`.
pub(super) struct KernelDecode {
    pub(super) kernel: Kernel,
    pub(super) op: Op,
}

impl DecodeAttention for KernelDecode {
    fn forward(
        &self,
        query: &Tensor,
        key_cache: &Tensor,
        value_cache: &Tensor,
        lengths: &RowLengths,
        parameters: &AttentionParameters,
    ) -> Result<Tensor> {
        self.kernel.run(
            || {
                let all = [
                    ("scale", Arg::Float(parameters.scale)),
                    ("window", window_argument(parameters)),
                ];
                let keywords = keywords(&self.kernel, &self.op, &all, parameters.window)?;
                let arguments = [
                    Arg::Tensor(query),
                    Arg::Tensor(key_cache),
                    Arg::Tensor(value_cache),
                    Arg::Tensor(lengths.tensor()),
                ];
                self.kernel.one(self.op.call(&arguments, &keywords), query)
            },
            || SdpaDecode.forward(query, key_cache, value_cache, lengths, parameters),
        )
    }

    fn name(&self) -> &str {
        &self.kernel.reference
    }

    fn compiles_per_shape(&self) -> bool {
        true
    }
}

/// How a kernel computes RMSNorm.
pub(super) enum NormCall {
    /// A layer bound to the weight and epsilon of one place.
    Layer(BoundLayer),
    /// `rms_norm(x, weight, *, eps)`.
    Function(Op),
}

/// RMSNorm at one place of the model.
pub(super) struct KernelNorm {
    pub(super) kernel: Kernel,
    pub(super) call: NormCall,
}

impl Norm for KernelNorm {
    fn forward(&self, hidden: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
        self.kernel.run(
            || {
                let result = match &self.call {
                    NormCall::Layer(layer) => layer.forward(&[Arg::Tensor(hidden)]),
                    NormCall::Function(op) => op.call(
                        &[Arg::Tensor(hidden), Arg::Tensor(weight)],
                        &[("eps", Arg::Float(eps))],
                    ),
                };
                self.kernel.one(result, hidden)
            },
            || DefaultNorm.forward(hidden, weight, eps),
        )
    }

    fn name(&self) -> &str {
        &self.kernel.reference
    }

    fn compiles_per_shape(&self) -> bool {
        true
    }
}

/// How much of the MLP a kernel computes.
pub(super) enum MlpCall {
    /// All of it, by a layer bound to the weights of one place.
    Whole(BoundLayer),
    /// `swiglu_mlp(x, gate, up, down)`.
    WholeFunction(Op),
    /// Activation and product, of [.., 2I] to [.., I].
    ActivationAndProduct(BoundLayer),
    /// The activation alone.
    Activation(BoundLayer),
}

/// The MLP of one layer.
pub(super) struct KernelMlp {
    pub(super) kernel: Kernel,
    pub(super) call: MlpCall,
}

impl Mlp for KernelMlp {
    fn forward(&self, hidden: &Tensor, weights: &MlpWeights) -> Result<Tensor> {
        let kernel = &self.kernel;
        kernel.run(
            || match &self.call {
                MlpCall::Whole(layer) => kernel.one(layer.forward(&[Arg::Tensor(hidden)]), hidden),
                MlpCall::WholeFunction(op) => {
                    let arguments = [
                        Arg::Tensor(hidden),
                        Arg::Tensor(&weights.gate.weight),
                        Arg::Tensor(&weights.up.weight),
                        Arg::Tensor(&weights.down.weight),
                    ];
                    kernel.one(op.call(&arguments, &[]), hidden)
                }
                MlpCall::ActivationAndProduct(layer) => {
                    let (gate, up) = (weights.gate.forward(hidden)?, weights.up.forward(hidden)?);
                    let both = Tensor::f_cat(&[&gate, &up], -1)?;
                    let inner = kernel.one(layer.forward(&[Arg::Tensor(&both)]), &gate)?;
                    weights.down.forward(&inner)
                }
                MlpCall::Activation(layer) => {
                    let gate = weights.gate.forward(hidden)?;
                    let gated = kernel.one(layer.forward(&[Arg::Tensor(&gate)]), &gate)?;
                    weights
                        .down
                        .forward(&gated.f_mul(&weights.up.forward(hidden)?)?)
                }
            },
            || DefaultMlp.forward(hidden, weights),
        )
    }

    fn name(&self) -> &str {
        &self.kernel.reference
    }

    fn compiles_per_shape(&self) -> bool {
        true
    }
}

/// `rotary_pos_emb(q, k, cos, sin)`.
pub(super) struct KernelRotary {
    pub(super) kernel: Kernel,
    pub(super) op: Op,
    /// The op that was there before.
    pub(super) default: Arc<dyn Rotary>,
}

impl Rotary for KernelRotary {
    fn forward(
        &self,
        query: &Tensor,
        key: &Tensor,
        cos: &Tensor,
        sin: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        self.kernel.run(
            || {
                let arguments = [
                    Arg::Tensor(query),
                    Arg::Tensor(key),
                    Arg::Tensor(cos),
                    Arg::Tensor(sin),
                ];
                let mut tensors = self.kernel.called(self.op.call(&arguments, &[]))?;
                match (tensors.pop(), tensors.pop(), tensors.is_empty()) {
                    (Some(second), Some(first), true) => Ok((
                        self.kernel.checked(first, &query.size(), query)?,
                        self.kernel.checked(second, &key.size(), key)?,
                    )),
                    _ => Err(self.kernel.error("it did not return two tensors")),
                }
            },
            || self.default.forward(query, key, cos, sin),
        )
    }

    fn name(&self) -> &str {
        &self.kernel.reference
    }

    fn compiles_per_shape(&self) -> bool {
        true
    }
}
