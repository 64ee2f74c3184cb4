//! The ops of a model that a kernel can replace, and the devices and types it can run them with.
//!
//! Names are those of transformers wherever it has one, so that a kernel mapping written for it
//! works here.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::json::serde_as_string;
use crate::suggest;
use crate::variant::BackendKind;

/// An enum whose values are words in config and index files.
macro_rules! words {
    (
        $(#[$meta:meta])*
        $name:ident, $what:literal {
            $($(#[$doc:meta])* $value:ident = $word:literal,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$doc])* $value,)+
        }

        impl $name {
            /// Every value.
            pub const ALL: &'static [Self] = &[$(Self::$value,)+];

            /// The words of all values.
            pub(crate) const WORDS: &'static [&'static str] = &[$($word,)+];

            /// The word in config and index files.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $word,)+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                Self::ALL.iter().copied().find(|value| value.as_str() == text).ok_or_else(|| {
                    Error::Config {
                        path: text.to_owned(),
                        reason: format!(
                            concat!("not ", $what, ", expected one of {}"),
                            Self::WORDS.join(", ")
                        ),
                        hint: suggest::nearest(text, Self::WORDS.iter().copied())
                            .map(|word| format!("did you mean `{word}`?")),
                    }
                })
            }
        }

        serde_as_string!($name);
    };
}

words! {
    /// An op of a decoder model that a kernel can replace.
    ///
    /// ```
    /// use kernel_spec::OpName;
    ///
    /// assert_eq!("SwiGLUMLP".parse(), Ok(OpName::SwiGluMlp));
    /// assert!("SwigluMLP".parse::<OpName>().unwrap_err().hint().unwrap().contains("`SwiGLUMLP`"));
    /// ```
    OpName, "an op that a kernel can replace" {
        /// Attention of a whole prompt. Queries [B, H, T, D], keys and values [B, K, T, D].
        Attention = "attention",
        /// Attention of one new token over a static cache. Queries [B, H, 1, D], caches [B, K, C, D].
        DecodeAttention = "decode_attention",
        /// Root mean square norm over the last dimension of [.., h].
        RmsNorm = "RMSNorm",
        /// The whole gated MLP with SiLU: `down(silu(gate(x)) * up(x))`, [B, T, h] to [B, T, h].
        SwiGluMlp = "SwiGLUMLP",
        /// `silu(x[.., :d]) * x[.., d:]`, [.., 2d] to [.., d].
        SiluAndMul = "SiluAndMul",
        /// SiLU of every element.
        Silu = "SiLU",
        /// Rotary position embedding of queries and keys [B, H, T, D] with cos and sin [B, T, R].
        RotaryPosEmb = "rotary_pos_emb",
        /// The whole gated MLP with GELU.
        GeGluMlp = "GeGLUMLP",
    }
}

words! {
    /// A type of device in a kernel mapping, as PyTorch names it (`mps`, not `metal`; `npu`, not
    /// `cann`).
    DeviceType, "a device type" {
        /// The processor.
        Cpu = "cpu",
        /// NVIDIA GPUs.
        Cuda = "cuda",
        /// AMD GPUs.
        Rocm = "rocm",
        /// Apple GPUs.
        Mps = "mps",
        /// Intel GPUs.
        Xpu = "xpu",
        /// Huawei Ascend.
        Npu = "npu",
        /// AWS Trainium and Inferentia.
        Neuron = "neuron",
        /// Google TPUs.
        Tpu = "tpu",
    }
}

impl DeviceType {
    /// The kind of backend whose builds run on the device.
    pub const fn backend(self) -> BackendKind {
        match self {
            Self::Cpu => BackendKind::Cpu,
            Self::Cuda => BackendKind::Cuda,
            Self::Rocm => BackendKind::Rocm,
            Self::Mps => BackendKind::Metal,
            Self::Xpu => BackendKind::Xpu,
            Self::Npu => BackendKind::Cann,
            Self::Neuron => BackendKind::Neuron,
            Self::Tpu => BackendKind::Tpu,
        }
    }
}

impl From<BackendKind> for DeviceType {
    fn from(kind: BackendKind) -> Self {
        match kind {
            BackendKind::Cpu => Self::Cpu,
            BackendKind::Cuda => Self::Cuda,
            BackendKind::Rocm => Self::Rocm,
            BackendKind::Metal => Self::Mps,
            BackendKind::Xpu => Self::Xpu,
            BackendKind::Cann => Self::Npu,
            BackendKind::Neuron => Self::Neuron,
            BackendKind::Tpu => Self::Tpu,
        }
    }
}

words! {
    /// Element type of a tensor.
    DType, "an element type" {
        /// 16-bit brain floating point.
        Bf16 = "bf16",
        /// 16-bit floating point.
        F16 = "f16",
        /// 32-bit floating point.
        F32 = "f32",
        /// 64-bit floating point.
        F64 = "f64",
    }
}

words! {
    /// Activation function of an MLP, as `hidden_act` of a model's config names it.
    Activation, "an activation" {
        /// `x * sigmoid(x)`.
        Silu = "silu",
        /// Exact GELU.
        Gelu = "gelu",
        /// GELU by its tanh approximation.
        GeluTanh = "gelu_pytorch_tanh",
    }
}

words! {
    /// Order of the dimensions of an op's tensors.
    Layout, "a layout" {
        /// Batch, heads, positions, head dimension.
        Bhtd = "bhtd",
        /// Batch, positions, heads, head dimension.
        Bthd = "bthd",
        /// Any dimensions, then the hidden one.
        Rows = "rows",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_and_backends_correspond() {
        for device in DeviceType::ALL {
            assert_eq!(DeviceType::from(device.backend()), *device);
        }
    }

    #[test]
    fn unknown_words_list_the_known_ones() {
        let error = "metal".parse::<DeviceType>().unwrap_err();
        assert!(error.to_string().contains("mps"), "{error}");
    }
}
