"""What the operators accept; shared by their bodies so that both refuse alike."""

import jax.numpy as jnp

DTYPES = (jnp.float32, jnp.bfloat16)


def check_mlp(x, gate, up, down):
    """Refuses weights that do not fit x or each other, with a message that names them."""
    for name, array in (("x", x), ("gate", gate), ("up", up), ("down", down)):
        _check_array(name, array)
        if array.dtype != x.dtype:
            raise TypeError(f"`{name}` is {array.dtype}, but `x` is {x.dtype}")
        if name != "x" and array.ndim != 2:
            raise ValueError(f"`{name}` must be [out, in], got {array.shape}")
    if gate.shape != up.shape:
        raise ValueError(f"`gate` {gate.shape} and `up` {up.shape} differ in shape")
    if gate.shape[1] != x.shape[-1]:
        raise ValueError(f"`gate` {gate.shape} does not fit the last dimension of `x` {x.shape}")
    if down.shape[1] != gate.shape[0]:
        raise ValueError(f"`down` {down.shape} does not fit `gate` {gate.shape}")


def check_activation(x, halves):
    """Refuses an input that has no elements, or no two halves where it must."""
    _check_array("x", x)
    if halves and x.shape[-1] % 2 != 0:
        raise ValueError(f"`x` must have an even last dimension, got {x.shape}")


def _check_array(name, array):
    if array.ndim == 0 or array.size == 0:
        raise ValueError(f"`{name}` must not be a scalar or have a dimension of size zero: {array.shape}")
    if array.dtype not in DTYPES:
        raise TypeError(f"`{name}` must be float32 or bfloat16, got {array.dtype}")
