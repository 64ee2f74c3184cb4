//! The slots of a model as kernels see them: names, candidate ops, and what a model calls them
//! with.

use kernel_spec::index::OpShape;
use kernel_spec::op::{Activation as SpecActivation, Layout};
use kernel_spec::{DType, OpName};

use crate::config::{Dtype, ModelConfig};
use crate::family::RotaryLayout;
use crate::model::Model;
use crate::ops::Activation;

/// A kind of place in a model that a kernel can take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Slot {
    /// Attention over prompts.
    Attention,
    /// Attention over the cache.
    DecodeAttention,
    /// The MLP.
    Mlp,
    /// RMSNorm.
    RmsNorm,
    /// Rotary embedding.
    Rotary,
}

impl Slot {
    /// All slots, in the order of reports.
    pub const ALL: [Self; 5] = [
        Self::Attention,
        Self::DecodeAttention,
        Self::Mlp,
        Self::RmsNorm,
        Self::Rotary,
    ];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Attention => "attention",
            Self::DecodeAttention => "decode_attention",
            Self::Mlp => "mlp",
            Self::RmsNorm => "rms_norm",
            Self::Rotary => "rotary",
        }
    }

    /// Ops that can fill it, the one that takes over most first.
    pub fn ops(self) -> &'static [OpName] {
        match self {
            Self::Attention => &[OpName::Attention],
            Self::DecodeAttention => &[OpName::DecodeAttention],
            Self::Mlp => &[
                OpName::SwiGluMlp,
                OpName::GeGluMlp,
                OpName::SiluAndMul,
                OpName::Silu,
            ],
            Self::RmsNorm => &[OpName::RmsNorm],
            Self::Rotary => &[OpName::RotaryPosEmb],
        }
    }

    /// Places of the slot in a model.
    pub fn total(self, model: &mut Model) -> usize {
        match self {
            Self::RmsNorm => model.norms_mut().count(),
            _ => model.layers().len(),
        }
    }

    /// The same, from a config.
    pub(crate) fn places(self, config: &ModelConfig) -> usize {
        let family = config.family;
        let of_layer = match self {
            Self::RmsNorm => {
                2 + 2 * usize::from(family.query_key_norm) + 2 * usize::from(family.post_norms)
            }
            _ => 1,
        };
        let final_norm = usize::from(self == Self::RmsNorm);
        usize::try_from(config.layers).unwrap_or(0) * of_layer + final_norm
    }

    /// What the model calls the op with, for the constraints of the index.
    pub(super) fn shape(self, config: &ModelConfig, dtype: Dtype) -> OpShape {
        let dtype = match dtype {
            Dtype::Float32 => DType::F32,
            Dtype::BFloat16 => DType::Bf16,
            Dtype::Float16 => DType::F16,
        };
        let heads = matches!(self, Self::Attention | Self::DecodeAttention | Self::Rotary);
        OpShape {
            head_dim: u64::try_from(config.head_dim).ok().filter(|_| heads),
            dtype: Some(dtype),
            layout: Some(if heads { Layout::Bhtd } else { Layout::Rows }),
            activation: spec_activation(config.activation).filter(|_| self == Self::Mlp),
        }
    }
}

fn spec_activation(activation: Activation) -> Option<SpecActivation> {
    match activation {
        Activation::Silu => Some(SpecActivation::Silu),
        Activation::Gelu => Some(SpecActivation::Gelu),
        Activation::GeluTanh => Some(SpecActivation::GeluTanh),
        Activation::Relu => None,
    }
}

/// Why an op's own meaning does not fit a model, whatever a kernel does; `None` where it fits.
pub(super) fn misfit(op: OpName, config: &ModelConfig) -> Option<String> {
    let gelu = matches!(config.activation, Activation::Gelu | Activation::GeluTanh);
    match op {
        OpName::SwiGluMlp | OpName::SiluAndMul | OpName::Silu
            if config.activation != Activation::Silu =>
        {
            Some(format!(
                "{op} computes SiLU, but the model's hidden_act is `{}`",
                config.activation.name()
            ))
        }
        OpName::GeGluMlp if !gelu => Some(format!(
            "{op} computes GELU, but the model's hidden_act is `{}`",
            config.activation.name()
        )),
        OpName::RotaryPosEmb if config.rotary_layout() == RotaryLayout::Interleaved => Some(
            format!("{op} pairs the halves of a head, but the model pairs neighbouring dimensions"),
        ),
        _ => None,
    }
}
