"""RMSNorm as a Pallas kernel for TPU: whole rows in VMEM, one read and one write of memory."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ._shapes import check, check_residual

LANES = 128
# Bytes of the rows of one array, as float32, per grid step: large enough to hide what a step costs,
# by the compiler's estimates.
BLOCK_BYTES = 1 << 20


def rms_norm(x: jax.Array, weight: jax.Array, *, eps: float) -> jax.Array:
    """weight * cast(x / sqrt(mean(x^2) + eps)) over the last dimension, x [..., h], weight [h].

    The mean and the division are in float32; the cast to x's type comes before the weight, as in
    transformers.
    """
    check(x, weight, eps)
    dtype = jnp.promote_types(x.dtype, weight.dtype)
    (normed,) = _over_rows(_norm_kernel, (x,), weight, (dtype,), eps)
    return normed


def add_rms_norm(
    x: jax.Array, residual: jax.Array, weight: jax.Array, *, eps: float
) -> tuple[jax.Array, jax.Array]:
    """rms_norm(x + residual) and x + residual, which is rounded to their type before the norm.

    One read of both and one write of both, where a sum and a norm apart read the sum once more.
    """
    check_residual(x, residual)
    check(x, weight, eps)
    dtype = jnp.promote_types(x.dtype, weight.dtype)
    return _over_rows(_add_norm_kernel, (x, residual), weight, (dtype, x.dtype), eps)


def _over_rows(kernel, inputs, weight, dtypes, eps):
    """A kernel over blocks of whole rows; results of the given types, shaped as the inputs."""
    shape, hidden = inputs[0].shape, inputs[0].shape[-1]
    rows = [x.reshape(-1, hidden) for x in inputs]
    count = rows[0].shape[0]
    itemsizes = [jnp.dtype(dtype).itemsize for dtype in (*(x.dtype for x in inputs), *dtypes)]
    row_bytes = 4 * -(-hidden // LANES) * LANES
    block = max(16, BLOCK_BYTES // row_bytes // 16 * 16)
    # A block that is not the whole array is a multiple of the tile; the last one may be ragged,
    # which is harmless because rows do not meet.
    block = min(block, count)
    spec = pl.BlockSpec((block, hidden), lambda i: (i, 0))
    results = pl.pallas_call(
        functools.partial(kernel, eps=eps),
        out_shape=[jax.ShapeDtypeStruct(rows[0].shape, dtype) for dtype in dtypes],
        grid=(pl.cdiv(count, block),),
        in_specs=[*[spec] * len(rows), pl.BlockSpec((1, hidden), lambda i: (0, 0))],
        out_specs=[spec] * len(dtypes),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        cost_estimate=pl.CostEstimate(
            flops=4 * rows[0].size,
            transcendentals=count,
            bytes_accessed=rows[0].size * sum(itemsizes),
        ),
        name="rms_norm" if len(inputs) == 1 else "add_rms_norm",
    )(*rows, weight.reshape(1, hidden))
    return tuple(result.reshape(shape) for result in results)


def _norm_kernel(x_ref, weight_ref, out_ref, *, eps):
    out_ref[...] = _normed(x_ref[...], weight_ref[...], eps).astype(out_ref.dtype)


def _add_norm_kernel(x_ref, residual_ref, weight_ref, out_ref, sum_ref, *, eps):
    total = x_ref[...].astype(jnp.float32) + residual_ref[...].astype(jnp.float32)
    total = total.astype(sum_ref.dtype)
    sum_ref[...] = total
    out_ref[...] = _normed(total, weight_ref[...], eps).astype(out_ref.dtype)


def _normed(x, weight, eps):
    wide = x.astype(jnp.float32)
    normed = wide * lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    # float32 arithmetic on values rounded to x's type: the product is rounded once, as it is
    # when both are of that type.
    normed = normed.astype(x.dtype).astype(jnp.float32)
    return normed * weight.astype(jnp.float32)
