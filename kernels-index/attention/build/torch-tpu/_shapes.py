"""What the operator accepts; shared by its bodies so that both refuse alike."""

import jax.numpy as jnp

DTYPES = (jnp.float32, jnp.bfloat16)
# Those that the tests build for every generation; others may work.
HEAD_DIMS = (64, 96, 128, 256)


def check(q, k, v, scale, causal, window):
    """Refuses what no body can compute, with a message that names the argument."""
    for name, array in (("q", q), ("k", k), ("v", v)):
        if array.ndim != 4:
            raise ValueError(f"`{name}` must be [batch, heads, length, head_dim], got {array.shape}")
        if array.size == 0:
            raise ValueError(f"`{name}` has a dimension of size zero: {array.shape}")
        if array.dtype not in DTYPES:
            raise TypeError(f"`{name}` must be float32 or bfloat16, got {array.dtype}")
        if array.dtype != q.dtype:
            raise TypeError(f"`{name}` is {array.dtype}, but `q` is {q.dtype}")
    batch, heads, length, head_dim = q.shape
    if k.shape != v.shape:
        raise ValueError(f"`k` {k.shape} and `v` {v.shape} differ in shape")
    if k.shape[0] != batch or k.shape[3] != head_dim:
        raise ValueError(f"`k` {k.shape} does not fit `q` {q.shape} in batch or head_dim")
    if heads % k.shape[1] != 0:
        raise ValueError(f"{heads} query heads are not a multiple of {k.shape[1]} KV heads")
    if causal and k.shape[2] < length:
        raise ValueError(
            f"causal attention needs at least as many keys as queries, got {k.shape[2]} < {length}"
        )
    if window is not None:
        if not causal:
            raise ValueError("`window` needs `causal=True`")
        if window < 1:
            raise ValueError(f"`window` must be at least 1, got {window}")
    if not scale > 0:
        raise ValueError(f"`scale` must be positive, got {scale}")
