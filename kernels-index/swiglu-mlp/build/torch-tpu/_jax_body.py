"""The gated MLP in plain JAX: what XLA compiles where there is no TPU."""

import jax
import jax.numpy as jnp

from ._shapes import check_activation, check_mlp


def swiglu_mlp(x: jax.Array, gate: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """down(silu(gate(x)) * up(x)) for x [..., h]; weights [out, in]: gate, up [I, h], down [o, I]."""
    check_mlp(x, gate, up, down)
    rows = x.reshape(-1, x.shape[-1])
    gated = _multiply(rows, gate)
    hidden = (jax.nn.silu(gated) * _multiply(rows, up)).astype(x.dtype)
    return _multiply(hidden, down).astype(x.dtype).reshape(*x.shape[:-1], down.shape[0])


def silu_and_mul(x: jax.Array) -> jax.Array:
    """silu(first half) * second half of the last dimension: x [..., 2d] to [..., d]."""
    check_activation(x, halves=True)
    first, second = jnp.split(x, 2, axis=-1)
    return (jax.nn.silu(first.astype(jnp.float32)) * second.astype(jnp.float32)).astype(x.dtype)


def silu(x: jax.Array) -> jax.Array:
    """x * sigmoid(x), computed in float32."""
    check_activation(x, halves=False)
    return jax.nn.silu(x.astype(jnp.float32)).astype(x.dtype)


def _multiply(x, weight):
    """x [rows, in] times weight [out, in] transposed, in float32."""
    return jax.lax.dot_general(
        x, weight, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
    )
