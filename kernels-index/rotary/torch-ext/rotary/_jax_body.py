"""Rotary position embedding in plain JAX: what XLA compiles where there is no TPU."""

import jax
import jax.numpy as jnp

from ._shapes import check


def rotary_pos_emb(
    q: jax.Array, k: jax.Array, cos: jax.Array, sin: jax.Array, unsqueeze_dim: int = 1
) -> tuple[jax.Array, jax.Array]:
    """Rotates the first R dimensions of q [B, H, T, D] and k [B, K, T, D] by cos, sin [B, T, R].

    Dimension i turns with dimension i + R/2; those from R on pass through. `unsqueeze_dim` 2 takes
    q and k as [B, T, heads, D]. Computed in float32, rounded once.
    """
    check(q, k, cos, sin, unsqueeze_dim)
    cos = jnp.expand_dims(cos.astype(jnp.float32), unsqueeze_dim)
    sin = jnp.expand_dims(sin.astype(jnp.float32), unsqueeze_dim)
    return _rotate(q, cos, sin), _rotate(k, cos, sin)


def _rotate(x, cos, sin):
    rotated = cos.shape[-1]
    turning = x[..., :rotated].astype(jnp.float32)
    first, second = jnp.split(turning, 2, axis=-1)
    turned = turning * cos + jnp.concatenate([-second, first], axis=-1) * sin
    return jnp.concatenate([turned.astype(x.dtype), x[..., rotated:]], axis=-1)
