//! Default MLP, and the linear layer that it and the projections are made of.

use tch::Tensor;

use super::{Activation, DEFAULT, Mlp};
use crate::error::Result;
use crate::host;

/// A linear map: `x @ weight^T + bias`.
#[derive(Debug)]
pub struct Linear {
    /// [out, in].
    pub weight: Tensor,
    /// [out].
    pub bias: Option<Tensor>,
}

impl Linear {
    /// Hidden [.., in] to [.., out].
    pub fn forward(&self, hidden: &Tensor) -> Result<Tensor> {
        if let Some(output) = host::linear(hidden, &[self])?.and_then(|mut all| all.pop()) {
            return Ok(output);
        }
        Ok(hidden.f_linear(&self.weight, self.bias.as_ref())?)
    }

    /// Several maps of one input, in one pass over all weights where the host does it.
    pub fn forward_all(hidden: &Tensor, maps: &[&Self]) -> Result<Vec<Tensor>> {
        match host::linear(hidden, maps)? {
            Some(outputs) => Ok(outputs),
            None => maps.iter().map(|map| map.forward(hidden)).collect(),
        }
    }
}

/// Weights of one gated MLP.
#[derive(Debug)]
pub struct MlpWeights {
    /// [I, h]; a view of the first half where the checkpoint fuses it with `up`.
    pub gate: Linear,
    /// [I, h].
    pub up: Linear,
    /// [h, I].
    pub down: Linear,
    /// On the gate.
    pub activation: Activation,
}

impl MlpWeights {
    /// Whether any of the three maps has a bias.
    pub fn has_bias(&self) -> bool {
        [&self.gate, &self.up, &self.down]
            .iter()
            .any(|linear| linear.bias.is_some())
    }
}

/// Three products and an activation.
#[derive(Debug, Clone, Copy, Default)]
pub struct DefaultMlp;

impl Mlp for DefaultMlp {
    fn forward(&self, hidden: &Tensor, weights: &MlpWeights) -> Result<Tensor> {
        if let Some(output) = host::gated_mlp(hidden, weights)? {
            return Ok(output);
        }
        let mut gated = weights.activation.apply(weights.gate.forward(hidden)?)?;
        let gated = gated.f_mul_(&weights.up.forward(hidden)?)?;
        weights.down.forward(&gated)
    }

    fn name(&self) -> &str {
        DEFAULT
    }
}
