"""Attention in plain JAX: what XLA compiles where there is no TPU.

Queries are taken in blocks, so that no array of [length, length] is made.
"""

import jax
import jax.numpy as jnp
from jax import lax

from ._shapes import check

QUERY_BLOCK = 256


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    scale: float,
    causal: bool = True,
    window: int | None = None,
) -> jax.Array:
    """softmax(q k^T * scale) v for q [B, H, T, D] and k, v [B, K, S, D], where K divides H.

    Query head h reads KV head h // (H / K). With `causal`, query i sees keys up to i + S - T;
    with `window`, only the last `window` of these.
    """
    check(q, k, v, scale, causal, window)
    batch, heads, queries, head_dim = q.shape
    kv_heads, keys = k.shape[1:3]
    group = heads // kv_heads
    block = min(QUERY_BLOCK, queries)
    count = -(-queries // block)
    padded = jnp.pad(q, ((0, 0), (0, 0), (0, count * block - queries), (0, 0)))
    grouped = padded.reshape(batch, kv_heads, group, count, block, head_dim)
    column = jnp.arange(keys)

    def one_block(index):
        rows = grouped[:, :, :, index] * jnp.asarray(scale, q.dtype)
        s = jnp.einsum("bkgqd,bksd->bkgqs", rows, k, preferred_element_type=jnp.float32)
        if causal:
            row = index * block + jnp.arange(block)[:, None] + (keys - queries)
            seen = column <= row
            if window is not None:
                seen &= column > row - window
            s = jnp.where(seen, s, -jnp.inf)
        p = jax.nn.softmax(s, axis=-1).astype(q.dtype)
        return jnp.einsum("bkgqs,bksd->bkgqd", p, v, preferred_element_type=jnp.float32)

    out = lax.map(one_block, jnp.arange(count)) if count > 1 else one_block(0)[None]
    out = jnp.moveaxis(out, 0, 3).reshape(batch, heads, count * block, head_dim)
    return out[:, :, :queries].astype(q.dtype)
