"""What the operator accepts; shared by its bodies so that both refuse alike."""

import jax.numpy as jnp

DTYPES = (jnp.float32, jnp.bfloat16)


def check(x, weight, eps):
    """Refuses what no body can compute, with a message that names the argument."""
    if x.ndim == 0 or x.size == 0:
        raise ValueError(f"`x` must be [..., hidden] without a dimension of size zero, got {x.shape}")
    if weight.shape != x.shape[-1:]:
        raise ValueError(f"`weight` {weight.shape} does not fit the last dimension of `x` {x.shape}")
    for name, array in (("x", x), ("weight", weight)):
        if array.dtype not in DTYPES:
            raise TypeError(f"`{name}` must be float32 or bfloat16, got {array.dtype}")
    if not eps >= 0:
        raise ValueError(f"`eps` must not be negative, got {eps}")


def check_residual(x, residual):
    """Refuses a residual that is not shaped and typed as x."""
    if residual.shape != x.shape or residual.dtype != x.dtype:
        raise ValueError(
            f"`residual` must be {x.dtype} of shape {x.shape}, got {residual.dtype} {residual.shape}"
        )
