//! RMSNorm in one pass over each row.

use tch::Tensor;

use super::by_kind;
use super::element::{Element, rounded};
use super::view::{filled, numbers};
use crate::error::Result;

/// Hidden [.., h] and weight [h] to [.., h].
pub(crate) fn rms_norm(hidden: &Tensor, weight: &Tensor, eps: f64) -> Result<Option<Tensor>> {
    by_kind!(hidden.f_kind()?, rms_norm_of(hidden, weight, eps))
}

fn rms_norm_of<E: Element>(hidden: &Tensor, weight: &Tensor, eps: f64) -> Result<Option<Tensor>> {
    let (Some(all), Some(weight)) = (numbers::<E>(hidden), numbers::<E>(weight)) else {
        return Ok(None);
    };
    let size = hidden.size();
    let width = weight.len();
    if width == 0 || size.last() != Some(&(width as i64)) {
        return Ok(None);
    }
    filled::<E>(&size, |out| {
        for (row, out) in all.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            let mean = sum_of_squares(row) / width as f32;
            let inverse = 1.0 / (mean + eps as f32).sqrt();
            for ((number, weight), out) in row.iter().zip(weight).zip(out) {
                // The weight after the cast: see `DefaultNorm`.
                let normed = rounded::<E>(number.to_f32() * inverse);
                *out = E::from_f32(normed * weight.to_f32());
            }
        }
    })
    .map(Some)
}

/// Several sums side by side: faster, and rounded less than one long sum.
fn sum_of_squares<E: Element>(row: &[E]) -> f32 {
    const LANES: usize = 16;
    let mut sums = [0.0_f32; LANES];
    let chunks = row.chunks_exact(LANES);
    for (number, sum) in chunks.remainder().iter().zip(&mut sums) {
        *sum += number.to_f32() * number.to_f32();
    }
    for chunk in chunks {
        for (number, sum) in chunk.iter().zip(&mut sums) {
            *sum += number.to_f32() * number.to_f32();
        }
    }
    sums.iter().sum()
}
