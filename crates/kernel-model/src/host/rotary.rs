//! Rotary embedding in one pass over each head.

use tch::Tensor;

use super::by_kind;
use super::element::{Element, rounded};
use super::view::{filled, numbers};
use crate::error::Result;
use crate::family::RotaryLayout;

/// Query [B, H, T, D] and key [B, K, T, D], with angles [B, T, R]; see [`crate::ops::Rotary`].
pub(crate) fn rotary(
    layout: RotaryLayout,
    query: &Tensor,
    key: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
) -> Result<Option<(Tensor, Tensor)>> {
    by_kind!(query.f_kind()?, rotary_of(layout, query, key, cos, sin))
}

fn rotary_of<E: Element>(
    layout: RotaryLayout,
    query: &Tensor,
    key: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
) -> Result<Option<(Tensor, Tensor)>> {
    // The rows of a prompt share their angles through an expanded view.
    let (cos, sin) = (cos.f_contiguous()?, sin.f_contiguous()?);
    let (Some(cosines), Some(sines)) = (numbers::<E>(&cos), numbers::<E>(&sin)) else {
        return Ok(None);
    };
    let angles = Angles {
        size: cos.size(),
        cosines,
        sines,
        layout,
    };
    match (angles.rotate(query)?, angles.rotate(key)?) {
        (Some(query), Some(key)) => Ok(Some((query, key))),
        _ => Ok(None),
    }
}

/// Angles of all tokens, [B, T, R].
struct Angles<'a, E> {
    size: Vec<i64>,
    cosines: &'a [E],
    sines: &'a [E],
    layout: RotaryLayout,
}

impl<E: Element> Angles<'_, E> {
    /// [B, heads, T, D], a transposed view of what a projection gave, to the same.
    fn rotate(&self, heads: &Tensor) -> Result<Option<Tensor>> {
        let tokens_first = heads.f_transpose(1, 2)?;
        let size = tokens_first.size();
        let (&[batch, tokens, heads, head_dim], &[angle_batch, angle_tokens, rotated]) =
            (&*size, &*self.size)
        else {
            return Ok(None);
        };
        let Some(all) = numbers::<E>(&tokens_first) else {
            return Ok(None);
        };
        let (row, width, rotated) = (heads * head_dim, head_dim as usize, rotated as usize);
        let fits = batch == angle_batch && tokens == angle_tokens && rotated <= width;
        if !fits || all.is_empty() || rotated == 0 || !rotated.is_multiple_of(2) {
            return Ok(None);
        }
        let turned = filled::<E>(&size, |out| {
            let angles = self
                .cosines
                .chunks_exact(rotated)
                .zip(self.sines.chunks_exact(rotated));
            let tokens = all
                .chunks_exact(row as usize)
                .zip(out.chunks_exact_mut(row as usize));
            for ((token, out), (cos, sin)) in tokens.zip(angles) {
                for (head, out) in token.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
                    turn(self.layout, head, cos, sin, out);
                }
            }
        })?;
        Ok(Some(turned.f_transpose(1, 2)?))
    }
}

/// Turns the pairs of a head; what lies past the angles passes through. Each product is rounded
/// before the sum, as in ops on tensors.
fn turn<E: Element>(layout: RotaryLayout, head: &[E], cos: &[E], sin: &[E], out: &mut [E]) {
    let half = cos.len() / 2;
    let product = |a: E, b: E| rounded::<E>(a.to_f32() * b.to_f32());
    for pair in 0..half {
        // The angles of the second half repeat those of the first.
        let (first, second) = match layout {
            RotaryLayout::Halves => (pair, pair + half),
            RotaryLayout::Interleaved => (2 * pair, 2 * pair + 1),
        };
        let (a, b, cos, sin) = (head[first], head[second], cos[pair], sin[pair]);
        out[first] = E::from_f32(product(a, cos) - product(b, sin));
        out[second] = E::from_f32(product(b, cos) + product(a, sin));
    }
    out[cos.len()..].copy_from_slice(&head[cos.len()..]);
}
