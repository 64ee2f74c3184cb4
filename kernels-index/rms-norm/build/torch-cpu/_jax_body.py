"""RMSNorm in plain JAX: what XLA compiles where there is no TPU."""

import jax
import jax.numpy as jnp
from jax import lax

from ._shapes import check, check_residual


def rms_norm(x: jax.Array, weight: jax.Array, *, eps: float) -> jax.Array:
    """weight * cast(x / sqrt(mean(x^2) + eps)) over the last dimension, x [..., h], weight [h].

    The mean and the division are in float32; the cast to x's type comes before the weight, as in
    transformers.
    """
    check(x, weight, eps)
    wide = x.astype(jnp.float32)
    normed = wide * lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return normed.astype(x.dtype) * weight


def add_rms_norm(
    x: jax.Array, residual: jax.Array, weight: jax.Array, *, eps: float
) -> tuple[jax.Array, jax.Array]:
    """rms_norm(x + residual) and x + residual, which is rounded to their type before the norm."""
    check_residual(x, residual)
    total = x + residual
    return rms_norm(total, weight, eps=eps), total
