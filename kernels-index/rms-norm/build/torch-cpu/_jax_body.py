"""RMSNorm in plain JAX: what XLA compiles where there is no TPU."""

import jax
import jax.numpy as jnp
from jax import lax

from ._shapes import check


def rms_norm(x: jax.Array, weight: jax.Array, *, eps: float) -> jax.Array:
    """weight * cast(x / sqrt(mean(x^2) + eps)) over the last dimension, x [..., h], weight [h].

    The mean and the division are in float32; the cast to x's type comes before the weight, as in
    transformers.
    """
    check(x, weight, eps)
    wide = x.astype(jnp.float32)
    normed = wide * lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return normed.astype(x.dtype) * weight
