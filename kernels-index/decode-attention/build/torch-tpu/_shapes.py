"""What the operator accepts; shared by its bodies so that both refuse alike."""

import jax.numpy as jnp

DTYPES = (jnp.float32, jnp.bfloat16)


def check(q, k_cache, v_cache, lengths, scale, window):
    """Refuses what no body can compute, with a message that names the argument."""
    arrays = (("q", q), ("k_cache", k_cache), ("v_cache", v_cache))
    for name, array in arrays:
        _check_dimensions(name, array)
        _check_float(name, array)
        if array.dtype != q.dtype:
            raise TypeError(f"`{name}` is {array.dtype}, but `q` is {q.dtype}")
    _check_rest(q, k_cache, v_cache, lengths, scale, window)


def check_int8(q, k_cache, v_cache, k_scales, v_scales, lengths, scale, window):
    """The same for caches of int8 with a scale for each entry."""
    for name, array in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache)):
        _check_dimensions(name, array)
    _check_float("q", q)
    for name, array in (("k_cache", k_cache), ("v_cache", v_cache)):
        if array.dtype != jnp.int8:
            raise TypeError(f"`{name}` must be int8, got {array.dtype}")
    _check_rest(q, k_cache, v_cache, lengths, scale, window)
    batch, kv_heads, capacity, _ = k_cache.shape
    expected = (batch, kv_heads, 1, capacity)
    for name, array in (("k_scales", k_scales), ("v_scales", v_scales)):
        if array.shape != expected or array.dtype != jnp.float32:
            raise ValueError(
                f"`{name}` must be float32 of shape {expected}, got {array.dtype} {array.shape}"
            )


def _check_dimensions(name, array):
    if array.ndim != 4:
        raise ValueError(f"`{name}` must have four dimensions, got {array.shape}")
    if array.size == 0:
        raise ValueError(f"`{name}` has a dimension of size zero: {array.shape}")


def _check_float(name, array):
    if array.dtype not in DTYPES:
        raise TypeError(f"`{name}` must be float32 or bfloat16, got {array.dtype}")


def _check_rest(q, k_cache, v_cache, lengths, scale, window):
    batch, heads, queries, head_dim = q.shape
    if queries != 1:
        raise ValueError(f"`q` must be [batch, heads, 1, head_dim], got {q.shape}")
    if k_cache.shape != v_cache.shape:
        raise ValueError(f"`k_cache` {k_cache.shape} and `v_cache` {v_cache.shape} differ in shape")
    if k_cache.shape[0] != batch or k_cache.shape[3] != head_dim:
        raise ValueError(f"`k_cache` {k_cache.shape} does not fit `q` {q.shape}")
    if heads % k_cache.shape[1] != 0:
        raise ValueError(f"{heads} query heads are not a multiple of {k_cache.shape[1]} KV heads")
    if lengths.shape != (batch,) or lengths.dtype != jnp.int32:
        raise ValueError(
            f"`lengths` must be int32 of shape ({batch},), got {lengths.dtype} {lengths.shape}"
        )
    if window is not None and window < 1:
        raise ValueError(f"`window` must be at least 1, got {window}")
    if not scale > 0:
        raise ValueError(f"`scale` must be positive, got {scale}")
