"""What the operator accepts; shared by its bodies so that both refuse alike."""

import jax.numpy as jnp

DTYPES = (jnp.float32, jnp.bfloat16)


def check(q, k, cos, sin, unsqueeze_dim):
    """Refuses what no body can compute, with a message that names the argument."""
    if unsqueeze_dim not in (1, 2):
        raise ValueError(f"`unsqueeze_dim` must be 1 or 2, got {unsqueeze_dim}")
    for name, array, dimensions in (("q", q, 4), ("k", k, 4), ("cos", cos, 3), ("sin", sin, 3)):
        if array.ndim != dimensions:
            raise ValueError(f"`{name}` must have {dimensions} dimensions, got {array.shape}")
        if array.size == 0:
            raise ValueError(f"`{name}` has a dimension of size zero: {array.shape}")
        if array.dtype not in DTYPES:
            raise TypeError(f"`{name}` must be float32 or bfloat16, got {array.dtype}")
    if cos.shape != sin.shape:
        raise ValueError(f"`cos` {cos.shape} and `sin` {sin.shape} differ in shape")
    length = 2 if unsqueeze_dim == 1 else 1
    batch, positions, rotated = cos.shape
    for name, array in (("q", q), ("k", k)):
        if batch not in (1, array.shape[0]) or positions != array.shape[length]:
            raise ValueError(f"`cos` {cos.shape} does not fit `{name}` {array.shape}")
        if rotated > array.shape[3] or rotated % 2 != 0:
            raise ValueError(
                f"`cos` must have an even last dimension of at most {array.shape[3]}, got {rotated}"
            )


def check_norm(q, k, q_weight, k_weight, eps):
    """Refuses weights of the norms of q and k that do not fit their heads."""
    for name, weight, array in (("q_weight", q_weight, q), ("k_weight", k_weight, k)):
        if weight.shape != array.shape[-1:]:
            raise ValueError(f"`{name}` {weight.shape} does not fit head_dim {array.shape[-1]}")
        if weight.dtype != array.dtype:
            raise TypeError(f"`{name}` is {weight.dtype}, but its heads are {array.dtype}")
    if not eps >= 0:
        raise ValueError(f"`eps` must not be negative, got {eps}")
