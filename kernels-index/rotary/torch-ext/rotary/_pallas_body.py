"""Rotary position embedding as a Pallas kernel for TPU: one read and one write of q and k."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ._shapes import check

LANES = 128
# Bytes of x, as float32, per grid step.
BLOCK_BYTES = 1 << 19


def rotary_pos_emb(
    q: jax.Array, k: jax.Array, cos: jax.Array, sin: jax.Array, unsqueeze_dim: int = 1
) -> tuple[jax.Array, jax.Array]:
    """Rotates the first R dimensions of q [B, H, T, D] and k [B, K, T, D] by cos, sin [B, T, R].

    Dimension i turns with dimension i + R/2; those from R on pass through. `unsqueeze_dim` 2 takes
    q and k as [B, T, heads, D]. Computed in float32, rounded once.
    """
    check(q, k, cos, sin, unsqueeze_dim)
    # The sign of the rotation folded into sin: x * cos + swap_halves(x) * sin.
    half = sin.shape[-1] // 2
    sin = jnp.concatenate([-sin[..., :half], sin[..., half:]], axis=-1)
    if unsqueeze_dim == 2:
        q, k = q.swapaxes(1, 2), k.swapaxes(1, 2)
    q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
    if unsqueeze_dim == 2:
        q, k = q.swapaxes(1, 2), k.swapaxes(1, 2)
    return q, k


def _rotate(x, cos, sin):
    batch, heads, length, head_dim = x.shape
    rotated = cos.shape[-1]
    row_bytes = 4 * -(-head_dim // LANES) * LANES
    block = min(length, max(16, BLOCK_BYTES // row_bytes // 16 * 16))
    # Short sequences (a decode step) take all heads that fit at once.
    fitting = max(1, BLOCK_BYTES // (row_bytes * -(-block // 8) * 8)) if block == length else 1
    together = max(n for n in range(1, heads + 1) if heads % n == 0 and n <= fitting)
    shared = cos.shape[0] == 1
    x_spec = pl.BlockSpec((1, together, block, head_dim), lambda b, i, h: (b, h, i, 0))
    angle_spec = pl.BlockSpec((1, block, rotated), lambda b, i, h: (0 if shared else b, i, 0))
    return pl.pallas_call(
        _kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        # Heads innermost: the angles of a block of positions are read once for all of them.
        grid=(batch, pl.cdiv(length, block), heads // together),
        in_specs=[x_spec, angle_spec, angle_spec],
        out_specs=x_spec,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel")
        ),
        cost_estimate=pl.CostEstimate(
            flops=3 * x.size, transcendentals=0, bytes_accessed=2 * x.size * x.dtype.itemsize
        ),
        name="rotary_pos_emb",
    )(x, cos, sin)


def _kernel(x_ref, cos_ref, sin_ref, out_ref):
    rotated = cos_ref.shape[-1]
    x = x_ref[0].astype(jnp.float32)
    turning = x[..., :rotated]
    swapped = jnp.concatenate(
        [turning[..., rotated // 2 :], turning[..., : rotated // 2]], axis=-1
    )
    cos = cos_ref[0].astype(jnp.float32)
    sin = sin_ref[0].astype(jnp.float32)
    turned = turning * cos + swapped * sin
    if rotated < x.shape[-1]:
        turned = jnp.concatenate([turned, x[..., rotated:]], axis=-1)
    out_ref[0] = turned.astype(out_ref.dtype)
