//! Activations of the MLP's gate.

use tch::Tensor;

use crate::error::Result;

/// The `hidden_act` of a config.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU with the error function.
    Gelu,
    /// GELU in its tanh approximation.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
}

impl Activation {
    /// The activation of a name as config files spell it.
    pub fn by_name(name: &str) -> Option<Self> {
        Some(match name {
            "silu" | "swish" => Self::Silu,
            "gelu" => Self::Gelu,
            "gelu_pytorch_tanh" | "gelu_new" => Self::GeluTanh,
            "relu" => Self::Relu,
            _ => return None,
        })
    }

    /// The name that config files use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Silu => "silu",
            Self::Gelu => "gelu",
            Self::GeluTanh => "gelu_pytorch_tanh",
            Self::Relu => "relu",
        }
    }

    /// Applies it in place, to a tensor that nobody else reads.
    pub fn apply(self, mut x: Tensor) -> Result<Tensor> {
        let result = match self {
            Self::Silu => x.f_silu_()?,
            Self::Gelu => x.f_gelu_("none")?,
            Self::GeluTanh => x.f_gelu_("tanh")?,
            Self::Relu => x.f_relu_()?,
        };
        Ok(result)
    }
}
