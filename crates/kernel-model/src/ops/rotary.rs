//! Default rotary embedding, in both layouts, over all of a head or a first part of it.

use tch::Tensor;

use super::{DEFAULT, Rotary};
use crate::error::Result;
use crate::family::RotaryLayout;
use crate::host;

/// Rotates pairs of dimensions by the angle of their position.
#[derive(Debug, Clone, Copy)]
pub struct DefaultRotary {
    /// Which dimensions make a pair.
    pub layout: RotaryLayout,
}

impl Rotary for DefaultRotary {
    fn forward(
        &self,
        query: &Tensor,
        key: &Tensor,
        cos: &Tensor,
        sin: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        if let Some(rotated) = host::rotary(self.layout, query, key, cos, sin)? {
            return Ok(rotated);
        }
        // [B, T, R] to [B, 1, T, R]: the same angles for all heads.
        let (cos, sin) = (cos.f_unsqueeze(1)?, sin.f_unsqueeze(1)?);
        let rotated = cos.size4()?.3;
        match self.layout {
            RotaryLayout::Halves => Ok((
                partly(query, &cos, &sin, rotated, halves)?,
                partly(key, &cos, &sin, rotated, halves)?,
            )),
            RotaryLayout::Interleaved => {
                let (cos, sin) = (
                    cos.f_narrow(3, 0, rotated / 2)?,
                    sin.f_narrow(3, 0, rotated / 2)?,
                );
                Ok((
                    partly(query, &cos, &sin, rotated, interleaved)?,
                    partly(key, &cos, &sin, rotated, interleaved)?,
                ))
            }
        }
    }

    fn name(&self) -> &str {
        DEFAULT
    }
}

/// Rotates the first `R` dimensions and passes the others through.
fn partly(
    x: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
    rotated: i64,
    rotate: fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let width = x.size4()?.3;
    if rotated == width {
        return rotate(x, cos, sin);
    }
    let first = rotate(&x.f_narrow(3, 0, rotated)?, cos, sin)?;
    Ok(Tensor::f_cat(
        &[first, x.f_narrow(3, rotated, width - rotated)?],
        3,
    )?)
}

/// `x * cos + (-second, first) * sin`, with `cos` and `sin` of full width.
fn halves(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let half = x.size4()?.3 / 2;
    let (first, second) = (x.f_narrow(3, 0, half)?, x.f_narrow(3, half, half)?);
    let turned = Tensor::f_cat(&[&second.f_neg()?, &first], 3)?;
    Ok(x.f_mul(cos)?.f_add_(&turned.f_mul(sin)?)?)
}

/// The same on neighbours, with `cos` and `sin` of half width.
fn interleaved(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let (even, odd) = (x.f_slice(3, 0, None, 2)?, x.f_slice(3, 1, None, 2)?);
    let first = even.f_mul(cos)?.f_sub_(&odd.f_mul(sin)?)?;
    let second = odd.f_mul(cos)?.f_add_(&even.f_mul(sin)?)?;
    Ok(Tensor::f_stack(&[first, second], -1)?.f_flatten(-2, -1)?)
}
