//! Default RMSNorm.

use tch::{Kind, Tensor};

use super::{DEFAULT, Norm};
use crate::error::Result;
use crate::host;

/// Normalises in f32, casts back, and only then applies the weight: the order in which the
/// checkpoints were trained, and one that matters in bf16.
#[derive(Debug, Clone, Copy, Default)]
pub struct DefaultNorm;

impl Norm for DefaultNorm {
    fn forward(&self, hidden: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
        if let Some(normed) = host::rms_norm(hidden, weight, eps)? {
            return Ok(normed);
        }
        let kind = hidden.f_kind()?;
        let wide = hidden.f_to_kind(Kind::Float)?;
        let mut mean_square =
            wide.f_square()?
                .f_mean_dim([-1_i64].as_slice(), true, Kind::Float)?;
        let inverse = mean_square.f_add_scalar_(eps)?.f_rsqrt_()?;
        let mut normed = wide.f_mul(&inverse)?;
        if kind == Kind::Float {
            return Ok(normed.f_mul_(weight)?);
        }
        Ok(normed.f_to_kind(kind)?.f_mul_(weight)?)
    }

    fn name(&self) -> &str {
        DEFAULT
    }
}
