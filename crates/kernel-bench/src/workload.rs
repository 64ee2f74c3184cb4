//! Workloads of single ops: named sizes, random inputs, and one call of whatever fills the slot.

mod work;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use kernel_model::family::RotaryLayout;
use kernel_model::kernelize::{SingleKernel, Slot};
use kernel_model::ops::{
    Activation, AttentionParameters, DecodeAttention, DefaultMlp, DefaultNorm, DefaultRotary,
    Linear, Mlp, MlpWeights, Norm, PrefillAttention, Rotary, RowLengths, SdpaDecode, SdpaPrefill,
};
use kernel_model::{ModelConfig, ModelError};
use kernel_spec::OpName;
use tch::{Device, Kind, TchError, Tensor};

/// Why a workload cannot be made or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkloadError {
    /// No op of that name.
    #[error("`{0}` is not an op that can be compared (one of {names})", names = OpKind::NAMES.join(", "))]
    UnknownOp(String),
    /// A size that the op does not have.
    #[error("op `{op}` has no size `{size}` (it has {known})")]
    UnknownSize {
        /// The op.
        op: &'static str,
        /// The size as given.
        size: String,
        /// The op's sizes.
        known: String,
    },
    /// Sizes that do not go together.
    #[error("sizes of op `{op}` do not go together: {reason}")]
    Sizes {
        /// The op.
        op: &'static str,
        /// Which and why.
        reason: String,
    },
    /// libtorch cannot make the inputs.
    #[error("cannot make inputs: {0}")]
    Torch(#[from] TchError),
    /// The op failed.
    #[error(transparent)]
    Op(#[from] ModelError),
}

/// An op that can be compared by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpKind {
    /// Attention over a prompt.
    Attention,
    /// Attention of one token over the cache.
    DecodeAttention,
    /// The gated MLP.
    Mlp,
    /// RMSNorm.
    RmsNorm,
    /// Rotary embedding.
    Rotary,
}

impl OpKind {
    /// The names, as reports of a model spell them.
    pub const NAMES: [&'static str; 5] =
        ["attention", "decode_attention", "mlp", "rms_norm", "rotary"];

    /// The op of a report's name.
    ///
    /// # Errors
    /// [`WorkloadError::UnknownOp`].
    pub fn by_name(name: &str) -> Result<Self, WorkloadError> {
        match name {
            "attention" => Ok(Self::Attention),
            "decode_attention" => Ok(Self::DecodeAttention),
            "mlp" | "SwiGLUMLP" => Ok(Self::Mlp),
            "rms_norm" | "RMSNorm" => Ok(Self::RmsNorm),
            "rotary" | "rotary_pos_emb" => Ok(Self::Rotary),
            _ => Err(WorkloadError::UnknownOp(name.to_owned())),
        }
    }

    /// The name.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// The op that a kernel's op is compared as.
    pub fn of(op: OpName) -> Self {
        match op {
            OpName::Attention => Self::Attention,
            OpName::DecodeAttention => Self::DecodeAttention,
            OpName::RmsNorm => Self::RmsNorm,
            OpName::RotaryPosEmb => Self::Rotary,
            OpName::SwiGluMlp | OpName::GeGluMlp | OpName::SiluAndMul | OpName::Silu => Self::Mlp,
        }
    }

    /// Ops of kernels that fill it, the one that takes over most first.
    pub fn ops(self) -> &'static [OpName] {
        match self {
            Self::Attention => Slot::Attention.ops(),
            Self::DecodeAttention => Slot::DecodeAttention.ops(),
            Self::Mlp => Slot::Mlp.ops(),
            Self::RmsNorm => Slot::RmsNorm.ops(),
            Self::Rotary => Slot::Rotary.ops(),
        }
    }

    /// The op's sizes with the values that a call gets which names none: those of a model with
    /// 8 billion parameters (Llama 3.1 8B).
    fn usual_sizes(self) -> &'static [(&'static str, i64)] {
        match self {
            Self::Attention | Self::Rotary => {
                &[("B", 1), ("H", 32), ("K", 8), ("T", 512), ("D", 128)]
            }
            Self::DecodeAttention => &[
                ("B", 1),
                ("H", 32),
                ("K", 8),
                ("C", 2048),
                ("L", 2048),
                ("D", 128),
            ],
            Self::Mlp => &[("R", 1), ("H", 4096), ("I", 14336)],
            Self::RmsNorm => &[("R", 512), ("H", 4096)],
        }
    }
}

/// One op at one shape.
///
/// | op | sizes |
/// | --- | --- |
/// | attention, rotary | batch B, query heads H, key/value heads K, tokens T, head width D |
/// | decode_attention | as above, with cache entries C, of which L are filled, in place of T |
/// | mlp | rows R, hidden width H, inner width I |
/// | rms_norm | rows R, width H |
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpShape {
    /// The op.
    pub op: OpKind,
    sizes: BTreeMap<&'static str, i64>,
}

impl fmt::Display for OpShape {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.op.name())?;
        // In the order of the table, which is the order of the layout.
        for (name, _) in self.op.usual_sizes() {
            write!(formatter, " {name}={}", self.size(name))?;
        }
        Ok(())
    }
}

impl OpShape {
    /// The op at the given sizes; sizes that are not named take their usual value.
    ///
    /// # Errors
    /// [`WorkloadError::UnknownSize`] and [`WorkloadError::Sizes`].
    pub fn new(op: OpKind, given: &BTreeMap<String, usize>) -> Result<Self, WorkloadError> {
        let mut sizes: BTreeMap<&'static str, i64> = op.usual_sizes().iter().copied().collect();
        for (name, value) in given {
            let Some(size) = sizes.get_mut(name.as_str()) else {
                return Err(WorkloadError::UnknownSize {
                    op: op.name(),
                    size: name.clone(),
                    known: op
                        .usual_sizes()
                        .iter()
                        .map(|(name, _)| *name)
                        .collect::<Vec<_>>()
                        .join(", "),
                });
            };
            *size = i64::try_from(*value).unwrap_or(i64::MAX);
        }
        if op == OpKind::DecodeAttention && given.contains_key("C") && !given.contains_key("L") {
            sizes.insert("L", sizes["C"]);
        }
        let shape = Self { op, sizes };
        shape.check()?;
        Ok(shape)
    }

    /// The shapes at which a model calls an op: `tokens` tokens of prompt, or one token over a cache
    /// of `tokens` entries.
    ///
    /// # Errors
    /// [`WorkloadError::Sizes`].
    pub fn of_model(
        op: OpKind,
        config: &ModelConfig,
        tokens: i64,
    ) -> Result<Vec<Self>, WorkloadError> {
        let heads = [
            ("B", 1),
            ("H", config.heads),
            ("K", config.key_value_heads),
            ("D", config.head_dim),
        ];
        let shapes: Vec<Vec<(&'static str, i64)>> = match op {
            OpKind::Attention => vec![[&heads[..], &[("T", tokens)]].concat()],
            OpKind::DecodeAttention => vec![[&heads[..], &[("C", tokens), ("L", tokens)]].concat()],
            OpKind::Rotary => [1, tokens]
                .map(|tokens| [&heads[..], &[("T", tokens)]].concat())
                .to_vec(),
            OpKind::Mlp => [1, tokens]
                .map(|rows| {
                    vec![
                        ("R", rows),
                        ("H", config.hidden_size),
                        ("I", config.intermediate_size),
                    ]
                })
                .to_vec(),
            OpKind::RmsNorm => [1, tokens]
                .map(|rows| vec![("R", rows), ("H", config.hidden_size)])
                .to_vec(),
        };
        shapes
            .into_iter()
            .map(|sizes| {
                let shape = Self {
                    op,
                    sizes: sizes.into_iter().collect(),
                };
                shape.check()?;
                Ok(shape)
            })
            .collect()
    }

    /// The sizes by their letters.
    pub fn sizes(&self) -> &BTreeMap<&'static str, i64> {
        &self.sizes
    }

    fn size(&self, name: &str) -> i64 {
        self.sizes.get(name).copied().unwrap_or_default()
    }

    fn check(&self) -> Result<(), WorkloadError> {
        let refuse = |reason: String| {
            Err(WorkloadError::Sizes {
                op: self.op.name(),
                reason,
            })
        };
        if let Some((name, value)) = self
            .sizes
            .iter()
            .find(|(_, value)| !(1..=1 << 32).contains(*value))
        {
            return refuse(format!("{name}={value} is not between 1 and 2^32"));
        }
        if self.sizes.contains_key("K") && self.size("H") % self.size("K") != 0 {
            return refuse(format!(
                "K={} does not divide H={}",
                self.size("K"),
                self.size("H")
            ));
        }
        if self.op == OpKind::Rotary && self.size("D") % 2 != 0 {
            return refuse(format!("D={} is odd", self.size("D")));
        }
        if self.op == OpKind::DecodeAttention && self.size("L") > self.size("C") {
            return refuse(format!(
                "L={} entries do not fit C={}",
                self.size("L"),
                self.size("C")
            ));
        }
        Ok(())
    }
}

/// What fills the slot of an op.
#[derive(Debug, Clone)]
pub enum Subject {
    /// Attention over a prompt.
    Attention(Arc<dyn PrefillAttention>),
    /// Attention over the cache.
    DecodeAttention(Arc<dyn DecodeAttention>),
    /// The MLP.
    Mlp(Arc<dyn Mlp>),
    /// RMSNorm.
    RmsNorm(Arc<dyn Norm>),
    /// Rotary embedding.
    Rotary(Arc<dyn Rotary>),
}

impl Subject {
    /// A kernel's implementation, bound to the weights of a case.
    ///
    /// # Errors
    /// [`WorkloadError::Op`] where the kernel has nothing of that name or refuses the weights.
    pub fn of_kernel(
        op: OpKind,
        kernel: &SingleKernel<'_>,
        case: &OpCase,
    ) -> Result<Self, WorkloadError> {
        Ok(match (op, case.mlp_weights(), case.norm_weight()) {
            (OpKind::Mlp, Some(weights), _) => Self::Mlp(kernel.mlp(weights)?),
            (OpKind::RmsNorm, _, Some((weight, eps))) => Self::RmsNorm(kernel.norm(weight, eps)?),
            (OpKind::Attention, ..) => Self::Attention(kernel.prefill_attention()?),
            (OpKind::DecodeAttention, ..) => Self::DecodeAttention(kernel.decode_attention()?),
            (OpKind::Rotary, ..) => Self::Rotary(kernel.rotary()?),
            // A case of another op: `OpCase::run` says so.
            (OpKind::Mlp | OpKind::RmsNorm, ..) => Self::default_of(op),
        })
    }

    /// The default implementation of an op.
    pub fn default_of(op: OpKind) -> Self {
        match op {
            OpKind::Attention => Self::Attention(Arc::new(SdpaPrefill)),
            OpKind::DecodeAttention => Self::DecodeAttention(Arc::new(SdpaDecode)),
            OpKind::Mlp => Self::Mlp(Arc::new(DefaultMlp)),
            OpKind::RmsNorm => Self::RmsNorm(Arc::new(DefaultNorm)),
            OpKind::Rotary => Self::Rotary(Arc::new(DefaultRotary {
                layout: RotaryLayout::Halves,
            })),
        }
    }
}

/// Inputs of one op at one shape.
#[derive(Debug)]
pub struct OpCase {
    inputs: Inputs,
}

#[derive(Debug)]
enum Inputs {
    Attention {
        query: Tensor,
        key: Tensor,
        value: Tensor,
        parameters: AttentionParameters,
    },
    Decode {
        query: Tensor,
        key: Tensor,
        value: Tensor,
        lengths: RowLengths,
        parameters: AttentionParameters,
    },
    Mlp {
        hidden: Tensor,
        weights: MlpWeights,
    },
    Norm {
        hidden: Tensor,
        weight: Tensor,
    },
    Rotary {
        query: Tensor,
        key: Tensor,
        cos: Tensor,
        sin: Tensor,
    },
}

/// The epsilon of Llama's norms.
const EPSILON: f64 = 1e-5;

impl OpCase {
    /// Random inputs of the shape on the CPU; the same seed gives the same numbers.
    ///
    /// # Errors
    /// [`WorkloadError::Torch`], for example where memory runs out.
    pub fn random(shape: &OpShape, kind: Kind, seed: u64) -> Result<Self, WorkloadError> {
        tch::manual_seed(i64::from_ne_bytes(seed.to_ne_bytes()));
        let normal = |sizes: &[i64], scale: f64| -> Result<Tensor, TchError> {
            Tensor::f_randn(sizes, (Kind::Float, Device::Cpu))?
                .f_mul_scalar(scale)?
                .f_to_kind(kind)
        };
        let size = |name: &str| shape.size(name);
        let (batch, heads, groups, width) = (size("B"), size("H"), size("K"), size("D"));
        let parameters = AttentionParameters {
            scale: (width.max(1) as f64).powf(-0.5),
            causal: true,
            window: None,
        };
        let inputs = match shape.op {
            OpKind::Attention => Inputs::Attention {
                query: normal(&[batch, heads, size("T"), width], 1.0)?,
                key: normal(&[batch, groups, size("T"), width], 1.0)?,
                value: normal(&[batch, groups, size("T"), width], 1.0)?,
                parameters,
            },
            OpKind::DecodeAttention => Inputs::Decode {
                query: normal(&[batch, heads, 1, width], 1.0)?,
                key: normal(&[batch, groups, size("C"), width], 1.0)?,
                value: normal(&[batch, groups, size("C"), width], 1.0)?,
                lengths: RowLengths::on_cpu(vec![size("L"); batch as usize])?,
                parameters,
            },
            OpKind::Mlp => {
                let (rows, hidden, inner) = (size("R"), size("H"), size("I"));
                // Scaled so that a layer's output has the size of its input.
                let linear = |out: i64, width: i64| -> Result<Linear, TchError> {
                    let weight = normal(&[out, width], (width as f64).powf(-0.5))?;
                    Ok(Linear { weight, bias: None })
                };
                Inputs::Mlp {
                    hidden: normal(&[1, rows, hidden], 1.0)?,
                    weights: MlpWeights {
                        gate: linear(inner, hidden)?,
                        up: linear(inner, hidden)?,
                        down: linear(hidden, inner)?,
                        activation: Activation::Silu,
                    },
                }
            }
            OpKind::RmsNorm => Inputs::Norm {
                hidden: normal(&[1, size("R"), size("H")], 1.0)?,
                weight: normal(&[size("H")], 1.0)?,
            },
            OpKind::Rotary => {
                let angles =
                    Tensor::f_rand([batch, size("T"), width / 2], (Kind::Float, Device::Cpu))?
                        .f_mul_scalar(std::f64::consts::TAU)?;
                let angles = Tensor::f_cat(&[&angles, &angles], -1)?;
                Inputs::Rotary {
                    query: normal(&[batch, heads, size("T"), width], 1.0)?,
                    key: normal(&[batch, groups, size("T"), width], 1.0)?,
                    cos: angles.f_cos()?.f_to_kind(kind)?,
                    sin: angles.f_sin()?.f_to_kind(kind)?,
                }
            }
        };
        Ok(Self { inputs })
    }

    /// The weights of an MLP case, for a kernel that is bound to them.
    pub fn mlp_weights(&self) -> Option<&MlpWeights> {
        match &self.inputs {
            Inputs::Mlp { weights, .. } => Some(weights),
            _ => None,
        }
    }

    /// The weight and epsilon of a norm case, for a kernel that is bound to them.
    pub fn norm_weight(&self) -> Option<(&Tensor, f64)> {
        match &self.inputs {
            Inputs::Norm { weight, .. } => Some((weight, EPSILON)),
            _ => None,
        }
    }

    /// One call of the subject on these inputs; `None` where the subject is of another op.
    ///
    /// # Errors
    /// [`WorkloadError::Op`].
    pub fn run(&self, subject: &Subject) -> Result<Option<Vec<Tensor>>, WorkloadError> {
        Ok(Some(match (&self.inputs, subject) {
            (
                Inputs::Attention {
                    query,
                    key,
                    value,
                    parameters,
                },
                Subject::Attention(op),
            ) => {
                vec![op.forward(query, key, value, parameters)?]
            }
            (
                Inputs::Decode {
                    query,
                    key,
                    value,
                    lengths,
                    parameters,
                },
                Subject::DecodeAttention(op),
            ) => vec![op.forward(query, key, value, lengths, parameters)?],
            (Inputs::Mlp { hidden, weights }, Subject::Mlp(op)) => {
                vec![op.forward(hidden, weights)?]
            }
            (Inputs::Norm { hidden, weight }, Subject::RmsNorm(op)) => {
                vec![op.forward(hidden, weight, EPSILON)?]
            }
            (
                Inputs::Rotary {
                    query,
                    key,
                    cos,
                    sin,
                },
                Subject::Rotary(op),
            ) => {
                let (query, key) = op.forward(query, key, cos, sin)?;
                vec![query, key]
            }
            _ => return Ok(None),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(given: &[(&str, usize)]) -> BTreeMap<String, usize> {
        given
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect()
    }

    #[test]
    fn sizes_that_are_not_named_take_their_usual_value() {
        let shape = OpShape::new(OpKind::RmsNorm, &sizes(&[("R", 3)])).unwrap();
        assert_eq!(shape.to_string(), "rms_norm R=3 H=4096");
        let shape = OpShape::new(OpKind::DecodeAttention, &sizes(&[("C", 64)])).unwrap();
        assert!(shape.to_string().contains("C=64 L=64"), "{shape}");
    }

    #[test]
    fn sizes_that_do_not_fit_are_named() {
        for (op, given, word) in [
            (OpKind::RmsNorm, sizes(&[("T", 3)]), "no size `T`"),
            (OpKind::RmsNorm, sizes(&[("R", 0)]), "R=0"),
            (
                OpKind::Attention,
                sizes(&[("H", 9), ("K", 2)]),
                "does not divide",
            ),
            (
                OpKind::DecodeAttention,
                sizes(&[("C", 4), ("L", 5)]),
                "do not fit",
            ),
            (OpKind::Rotary, sizes(&[("D", 7)]), "odd"),
        ] {
            let error = OpShape::new(op, &given).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        assert!(
            OpKind::by_name("dance")
                .unwrap_err()
                .to_string()
                .contains("rms_norm")
        );
    }

    #[test]
    fn every_default_op_runs_on_its_own_case_and_on_no_other() {
        let small = |op| {
            let given = match op {
                OpKind::Attention | OpKind::Rotary => {
                    sizes(&[("H", 4), ("K", 2), ("T", 5), ("D", 8)])
                }
                OpKind::DecodeAttention => {
                    sizes(&[("H", 4), ("K", 2), ("C", 7), ("L", 5), ("D", 8)])
                }
                OpKind::Mlp => sizes(&[("R", 2), ("H", 8), ("I", 16)]),
                OpKind::RmsNorm => sizes(&[("R", 2), ("H", 8)]),
            };
            OpCase::random(&OpShape::new(op, &given).unwrap(), Kind::Float, 1).unwrap()
        };
        let all = [
            OpKind::Attention,
            OpKind::DecodeAttention,
            OpKind::Mlp,
            OpKind::RmsNorm,
            OpKind::Rotary,
        ];
        for op in all {
            for other in all {
                let result = small(op).run(&Subject::default_of(other)).unwrap();
                assert_eq!(result.is_some(), op == other);
            }
        }
    }
}
