//! Which shapes and types a kernel takes.

use serde::{Deserialize, Serialize};

use crate::op::{Activation, DType, Layout};

/// Restrictions of one op of a kernel. What is left out is not restricted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constraints {
    /// Sizes of a head, D in [B, H, T, D].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_dims: Option<Vec<u64>>,
    /// Element types of inputs and result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtypes: Option<Vec<DType>>,
    /// Order of dimensions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<Layout>,
    /// Activation functions of an MLP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activations: Option<Vec<Activation>>,
}

/// What a model would call an op with. What an op does not have is left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpShape {
    /// Size of a head.
    pub head_dim: Option<u64>,
    /// Element type.
    pub dtype: Option<DType>,
    /// Order of dimensions.
    pub layout: Option<Layout>,
    /// Activation function.
    pub activation: Option<Activation>,
}

impl Constraints {
    /// Every restriction that a call would break, in words; empty where the kernel takes it.
    ///
    /// ```
    /// use kernel_spec::index::{Constraints, OpShape};
    ///
    /// let constraints = Constraints { head_dims: Some(vec![64, 128]), ..Constraints::default() };
    /// let shape = OpShape { head_dim: Some(96), ..OpShape::default() };
    /// assert_eq!(constraints.unmet(&shape), ["head dimension 96, the kernel takes 64, 128"]);
    /// ```
    pub fn unmet(&self, shape: &OpShape) -> Vec<String> {
        let layouts = self.layout.map(|layout| vec![layout]);
        [
            unmet("head dimension", shape.head_dim, self.head_dims.as_deref()),
            unmet("element type", shape.dtype, self.dtypes.as_deref()),
            unmet("layout", shape.layout, layouts.as_deref()),
            unmet("activation", shape.activation, self.activations.as_deref()),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

fn unmet<T>(what: &str, value: Option<T>, allowed: Option<&[T]>) -> Option<String>
where
    T: PartialEq + ToString,
{
    let (value, allowed) = value.zip(allowed)?;
    if allowed.contains(&value) {
        return None;
    }
    let allowed = allowed
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ");
    Some(format!(
        "{what} {}, the kernel takes {allowed}",
        value.to_string()
    ))
}
