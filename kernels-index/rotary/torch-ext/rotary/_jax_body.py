"""Rotary position embedding in plain JAX: what XLA compiles where there is no TPU."""

import jax
import jax.numpy as jnp
from jax import lax

from ._shapes import check, check_norm


def rotary_pos_emb(
    q: jax.Array,
    k: jax.Array,
    cos: jax.Array,
    sin: jax.Array,
    unsqueeze_dim: int = 1,
    interleaved: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Rotates the first R dimensions of q [B, H, T, D] and k [B, K, T, D] by cos, sin [B, T, R].

    Dimension i turns with dimension i + R/2, or with `interleaved` 2i with 2i + 1; those from R on
    pass through. `unsqueeze_dim` 2 takes q and k as [B, T, heads, D]. Computed in float32, rounded
    once.
    """
    check(q, k, cos, sin, unsqueeze_dim)
    cos = jnp.expand_dims(cos.astype(jnp.float32), unsqueeze_dim)
    sin = jnp.expand_dims(sin.astype(jnp.float32), unsqueeze_dim)
    return _rotate(q, cos, sin, interleaved), _rotate(k, cos, sin, interleaved)


def norm_rotary(
    q: jax.Array,
    k: jax.Array,
    q_weight: jax.Array,
    k_weight: jax.Array,
    cos: jax.Array,
    sin: jax.Array,
    *,
    eps: float,
    unsqueeze_dim: int = 1,
) -> tuple[jax.Array, jax.Array]:
    """RMSNorm of each head of q and k with weights [D], then `rotary_pos_emb` in halves."""
    check(q, k, cos, sin, unsqueeze_dim)
    check_norm(q, k, q_weight, k_weight, eps)
    q, k = _norm(q, q_weight, eps), _norm(k, k_weight, eps)
    return rotary_pos_emb(q, k, cos, sin, unsqueeze_dim)


def _norm(x, weight, eps):
    wide = x.astype(jnp.float32)
    normed = wide * lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return normed.astype(x.dtype) * weight


def _rotate(x, cos, sin, interleaved):
    rotated = cos.shape[-1]
    turning = x[..., :rotated].astype(jnp.float32)
    if interleaved:
        # Angle i belongs to the pair (2i, 2i + 1); cos and sin hold the angles twice, in halves.
        cos, sin = (jnp.repeat(angle[..., : rotated // 2], 2, axis=-1) for angle in (cos, sin))
        pairs = turning.reshape(*turning.shape[:-1], rotated // 2, 2)
        swapped = jnp.stack([-pairs[..., 1], pairs[..., 0]], axis=-1).reshape(turning.shape)
    else:
        first, second = jnp.split(turning, 2, axis=-1)
        swapped = jnp.concatenate([-second, first], axis=-1)
    turned = turning * cos + swapped * sin
    return jnp.concatenate([turned.astype(x.dtype), x[..., rotated:]], axis=-1)
