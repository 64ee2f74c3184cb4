"""The gated MLP as one Pallas kernel for TPU: the activations between the products stay in VMEM.

A grid step takes a block of rows and a block of the intermediate dimension: gate and up for it,
the activation, and its share of down, added to an accumulator. Weights are read once per block of
rows, so a decode step reads each of them once.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from . import _jax_body
from ._shapes import check_activation, check_mlp

LANES = 128
# What one grid step may hold. The smallest VMEM of a TPU (v4) is 16 MiB, which is also the limit
# that the compiler sets itself unless told otherwise.
VMEM_BYTES = 11 << 20
# Rows per step, largest first: more rows read the weights less often.
ROW_BLOCKS = (512, 256, 128, 64, 32, 16)
INTERMEDIATE_BLOCKS = (1024, 512, 256, 128)
# Bytes of float32 per grid step of the activations.
ACTIVATION_BYTES = 1 << 19


def swiglu_mlp(x: jax.Array, gate: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """down(silu(gate(x)) * up(x)) for x [..., h]; weights [out, in]: gate, up [I, h], down [o, I]."""
    check_mlp(x, gate, up, down)
    hidden, (intermediate, outputs) = x.shape[-1], (gate.shape[0], down.shape[0])
    rows = x.reshape(-1, hidden)
    count = rows.shape[0]
    blocks = _blocks(count, hidden, intermediate, outputs, x.dtype.itemsize)
    if blocks is None:
        # Wider than VMEM holds: XLA's own products, which cut every dimension.
        return _jax_body.swiglu_mlp(x, gate, up, down)
    row_block, block = blocks
    out = pl.pallas_call(
        functools.partial(_mlp_kernel, block=block, intermediate=intermediate),
        out_shape=jax.ShapeDtypeStruct((count, outputs), x.dtype),
        grid=(pl.cdiv(count, row_block), pl.cdiv(intermediate, block)),
        in_specs=[
            pl.BlockSpec((row_block, hidden), lambda i, j: (i, 0)),
            pl.BlockSpec((block, hidden), lambda i, j: (j, 0)),
            pl.BlockSpec((block, hidden), lambda i, j: (j, 0)),
            pl.BlockSpec((outputs, block), lambda i, j: (0, j)),
        ],
        out_specs=pl.BlockSpec((row_block, outputs), lambda i, j: (i, 0)),
        scratch_shapes=[pltpu.VMEM((row_block, outputs), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        cost_estimate=pl.CostEstimate(
            flops=2 * count * intermediate * (2 * hidden + outputs),
            transcendentals=count * intermediate,
            bytes_accessed=(x.size + count * outputs + gate.size + up.size + down.size)
            * x.dtype.itemsize,
        ),
        name="swiglu_mlp",
    )(rows, gate, up, down)
    return out.reshape(*x.shape[:-1], outputs)


def silu_and_mul(x: jax.Array) -> jax.Array:
    """silu(first half) * second half of the last dimension: x [..., 2d] to [..., d]."""
    check_activation(x, halves=True)
    width = x.shape[-1] // 2
    rows = x.reshape(-1, 2 * width)
    if width % LANES == 0:
        first = second = rows
        offset = 1
    else:
        # A half that ends within a register of lanes is cut by XLA.
        first, second = rows[:, :width], rows[:, width:]
        offset = 0
    out = _elementwise(_silu_and_mul_kernel, (first, second), (0, offset), width)
    return out.reshape(*x.shape[:-1], width)


def silu(x: jax.Array) -> jax.Array:
    """x * sigmoid(x), computed in float32."""
    check_activation(x, halves=False)
    rows = x.reshape(-1, x.shape[-1])
    return _elementwise(_silu_kernel, (rows,), (0,), x.shape[-1]).reshape(x.shape)


def _elementwise(kernel, inputs, offsets, width):
    """A kernel over blocks of [rows, width]; input n begins at column offsets[n] * width."""
    count, dtype = inputs[0].shape[0], inputs[0].dtype
    row_bytes = 4 * -(-width // LANES) * LANES
    # Ragged last blocks are harmless: elements do not meet.
    block = min(count, max(16, ACTIVATION_BYTES // row_bytes // 16 * 16))
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((count, width), dtype),
        grid=(pl.cdiv(count, block),),
        in_specs=[
            pl.BlockSpec((block, width), lambda i, offset=offset: (i, offset)) for offset in offsets
        ],
        out_specs=pl.BlockSpec((block, width), lambda i: (i, 0)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        cost_estimate=pl.CostEstimate(
            flops=3 * count * width,
            transcendentals=count * width,
            bytes_accessed=(len(inputs) + 1) * count * width * dtype.itemsize,
        ),
        name=kernel.__name__.strip("_"),
    )(*inputs)


def _silu_and_mul_kernel(first_ref, second_ref, out_ref):
    second = second_ref[...].astype(jnp.float32)
    out_ref[...] = (_silu(first_ref[...].astype(jnp.float32)) * second).astype(out_ref.dtype)


def _silu_kernel(x_ref, out_ref):
    out_ref[...] = _silu(x_ref[...].astype(jnp.float32)).astype(out_ref.dtype)


def _silu(x):
    # tanh is one instruction of the transcendental unit, an exact division is many.
    half = 0.5 * x
    return half * jnp.tanh(half) + half


def _mlp_kernel(x_ref, gate_ref, up_ref, down_ref, out_ref, acc_ref, *, block, intermediate):
    j = pl.program_id(1)
    precision = lax.Precision.HIGHEST if x_ref.dtype == jnp.float32 else None

    def multiply(x, weight):
        return lax.dot_general(
            x,
            weight,
            (((1,), (1,)), ((), ())),
            precision=precision,
            preferred_element_type=jnp.float32,
        )

    @pl.when(j == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    x = x_ref[...]
    activated = _silu(multiply(x, gate_ref[...])) * multiply(x, up_ref[...])
    down = down_ref[...]
    if intermediate % block != 0:
        # Beyond the end there may be NaN on both sides of the product.
        left = intermediate - j * block
        activated = jnp.where(
            lax.broadcasted_iota(jnp.int32, activated.shape, 1) < left, activated, 0
        )
        down = jnp.where(lax.broadcasted_iota(jnp.int32, (1, block), 1) < left, down, 0)
    acc_ref[...] += multiply(activated.astype(x.dtype), down)

    @pl.when(j == pl.num_programs(1) - 1)
    def _():
        out_ref[...] = acc_ref[...].astype(out_ref.dtype)


def _blocks(count, hidden, intermediate, outputs, itemsize):
    """(rows, intermediate) per step that fit VMEM, or None where not even the smallest does."""
    for rows in ROW_BLOCKS:
        if rows > max(16, 1 << (count - 1).bit_length()):
            continue
        rows = min(rows, count)
        for block in INTERMEDIATE_BLOCKS:
            if block > max(LANES, 1 << (intermediate - 1).bit_length()):
                continue
            block = min(block, intermediate)
            if _held(rows, block, hidden, outputs, itemsize) <= VMEM_BYTES:
                return rows, block
    return None


def _held(rows, block, hidden, outputs, itemsize):
    """Bytes in VMEM for one step: what streams in and out twice, the rest once."""
    rows = -(-rows // 16) * 16
    streamed = rows * (hidden + outputs) + block * (2 * hidden + outputs)
    return 2 * itemsize * streamed + 4 * rows * (outputs + 3 * block)
