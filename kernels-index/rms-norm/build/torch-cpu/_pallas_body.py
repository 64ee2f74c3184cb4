"""RMSNorm as a Pallas kernel for TPU: whole rows in VMEM, one read and one write of memory."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ._shapes import check

LANES = 128
# Bytes of rows, as float32, per grid step: large enough to hide what a step costs.
BLOCK_BYTES = 1 << 20


def rms_norm(x: jax.Array, weight: jax.Array, *, eps: float) -> jax.Array:
    """weight * cast(x / sqrt(mean(x^2) + eps)) over the last dimension, x [..., h], weight [h].

    The mean and the division are in float32; the cast to x's type comes before the weight, as in
    transformers.
    """
    check(x, weight, eps)
    hidden = x.shape[-1]
    rows = x.reshape(-1, hidden)
    count = rows.shape[0]
    block = max(16, BLOCK_BYTES // (4 * -(-hidden // LANES) * LANES) // 16 * 16)
    # A block that is not the whole array is a multiple of the tile; the last one may be ragged,
    # which is harmless because rows do not meet.
    block = min(block, count)
    dtype = jnp.promote_types(x.dtype, weight.dtype)
    out = pl.pallas_call(
        functools.partial(_kernel, eps=eps),
        out_shape=jax.ShapeDtypeStruct(rows.shape, dtype),
        grid=(pl.cdiv(count, block),),
        in_specs=[
            pl.BlockSpec((block, hidden), lambda i: (i, 0)),
            pl.BlockSpec((1, hidden), lambda i: (0, 0)),
        ],
        out_specs=pl.BlockSpec((block, hidden), lambda i: (i, 0)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        cost_estimate=pl.CostEstimate(
            flops=4 * x.size,
            transcendentals=count,
            bytes_accessed=x.size * (x.dtype.itemsize + dtype.itemsize),
        ),
        name="rms_norm",
    )(rows, weight.reshape(1, hidden))
    return out.reshape(x.shape)


def _kernel(x_ref, weight_ref, out_ref, *, eps):
    x = x_ref[...].astype(jnp.float32)
    normed = x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)
    # float32 arithmetic on values rounded to x's type: the product is rounded once, as it is
    # when both are of that type.
    normed = normed.astype(x_ref.dtype).astype(jnp.float32)
    out_ref[...] = (normed * weight_ref[...].astype(jnp.float32)).astype(out_ref.dtype)
