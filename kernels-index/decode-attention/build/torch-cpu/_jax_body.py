"""Decode attention in plain JAX: what XLA compiles where there is no TPU."""

import jax
import jax.numpy as jnp

from ._shapes import check, check_int8


def decode_attention(
    q: jax.Array,
    k_cache: jax.Array,
    v_cache: jax.Array,
    lengths: jax.Array,
    *,
    scale: float,
    window: int | None = None,
) -> jax.Array:
    """softmax(q k^T * scale) v for q [B, H, 1, D] over caches [B, K, C, D], where K divides H.

    `lengths` [B], int32: entries filled in each sequence, the current token included; what lies
    beyond is never used. With `window`, only the last `window` entries count. A sequence of
    length 0 gives zeros.
    """
    check(q, k_cache, v_cache, lengths, scale, window)
    return _attend(q, k_cache, v_cache, lengths, scale, window)


def decode_attention_int8(
    q: jax.Array,
    k_cache: jax.Array,
    v_cache: jax.Array,
    k_scales: jax.Array,
    v_scales: jax.Array,
    lengths: jax.Array,
    *,
    scale: float,
    window: int | None = None,
) -> jax.Array:
    """`decode_attention` over int8 caches [B, K, C, D] whose entries are worth their scale times
    as much: k_scales and v_scales [B, K, 1, C], float32."""
    check_int8(q, k_cache, v_cache, k_scales, v_scales, lengths, scale, window)
    k, v = (
        cache.astype(jnp.float32) * scales.swapaxes(2, 3)
        for cache, scales in ((k_cache, k_scales), (v_cache, v_scales))
    )
    out = _attend(q.astype(jnp.float32), k, v, lengths, scale, window)
    return out.astype(q.dtype)


def _attend(q, k_cache, v_cache, lengths, scale, window):
    batch, heads, _, head_dim = q.shape
    kv_heads, capacity = k_cache.shape[1:3]
    packed = q.reshape(batch, kv_heads, heads // kv_heads, head_dim)
    s = jnp.einsum("bkgd,bkcd->bkgc", packed, k_cache, preferred_element_type=jnp.float32) * scale
    position = jnp.arange(capacity)
    length = lengths[:, None]
    seen = position < length
    if window is not None:
        seen &= position >= length - window
    seen = seen[:, None, None, :]
    s = jnp.where(seen, s, -1e30)
    p = jnp.where(seen, jnp.exp(s - s.max(axis=-1, keepdims=True)), 0)
    total = p.sum(axis=-1, keepdims=True)
    p = (p / jnp.where(total > 0, total, 1)).astype(q.dtype)
    # What lies beyond the length may be NaN, and 0 * NaN would reach the result.
    v = jnp.where(seen[:, :, 0, :, None], v_cache, 0)
    out = jnp.einsum("bkgc,bkcd->bkgd", p, v, preferred_element_type=jnp.float32)
    return out.reshape(q.shape).astype(q.dtype)
