"""Rotary position embedding as a Pallas kernel for TPU: one read and one write of q and k."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ._shapes import check, check_norm

LANES = 128
# Bytes of x, as float32, per grid step.
BLOCK_BYTES = 1 << 19


def rotary_pos_emb(
    q: jax.Array,
    k: jax.Array,
    cos: jax.Array,
    sin: jax.Array,
    unsqueeze_dim: int = 1,
    interleaved: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Rotates the first R dimensions of q [B, H, T, D] and k [B, K, T, D] by cos, sin [B, T, R].

    Dimension i turns with dimension i + R/2, or with `interleaved` 2i with 2i + 1; those from R on
    pass through. `unsqueeze_dim` 2 takes q and k as [B, T, heads, D]. Computed in float32, rounded
    once.
    """
    check(q, k, cos, sin, unsqueeze_dim)
    return _both(q, k, None, None, cos, sin, unsqueeze_dim, interleaved, 0.0)


def norm_rotary(
    q: jax.Array,
    k: jax.Array,
    q_weight: jax.Array,
    k_weight: jax.Array,
    cos: jax.Array,
    sin: jax.Array,
    *,
    eps: float,
    unsqueeze_dim: int = 1,
) -> tuple[jax.Array, jax.Array]:
    """RMSNorm of each head of q and k with weights [D], then `rotary_pos_emb` in halves.

    One read and one write of q and k, where the norms apart read and write them once more.
    """
    check(q, k, cos, sin, unsqueeze_dim)
    check_norm(q, k, q_weight, k_weight, eps)
    return _both(q, k, q_weight, k_weight, cos, sin, unsqueeze_dim, False, eps)


def _both(q, k, q_weight, k_weight, cos, sin, unsqueeze_dim, interleaved, eps):
    half = sin.shape[-1] // 2
    if interleaved:
        # Angle i belongs to the pair (2i, 2i + 1); cos and sin hold the angles twice, in halves.
        cos, sin = (jnp.repeat(angle[..., :half], 2, axis=-1) for angle in (cos, sin))
        sin = sin * jnp.where(jnp.arange(2 * half) % 2 == 0, -1, 1).astype(sin.dtype)
    else:
        # The sign of the rotation folded into sin: x * cos + swap_halves(x) * sin.
        sin = jnp.concatenate([-sin[..., :half], sin[..., half:]], axis=-1)
    if unsqueeze_dim == 2:
        q, k = q.swapaxes(1, 2), k.swapaxes(1, 2)
    q = _rotate(q, q_weight, cos, sin, interleaved, eps)
    k = _rotate(k, k_weight, cos, sin, interleaved, eps)
    if unsqueeze_dim == 2:
        q, k = q.swapaxes(1, 2), k.swapaxes(1, 2)
    return q, k


def _rotate(x, weight, cos, sin, interleaved, eps):
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
    weights = [] if weight is None else [weight.reshape(1, head_dim)]
    weight_specs = [pl.BlockSpec((1, head_dim), lambda b, i, h: (0, 0)) for _ in weights]
    return pl.pallas_call(
        functools.partial(_kernel, interleaved=interleaved, eps=eps),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        # Heads innermost: the angles of a block of positions are read once for all of them.
        grid=(batch, pl.cdiv(length, block), heads // together),
        in_specs=[x_spec, angle_spec, angle_spec, *weight_specs],
        out_specs=x_spec,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel")
        ),
        cost_estimate=pl.CostEstimate(
            flops=3 * x.size, transcendentals=0, bytes_accessed=2 * x.size * x.dtype.itemsize
        ),
        name="rotary_pos_emb" if weight is None else "norm_rotary",
    )(x, cos, sin, *weights)


def _kernel(x_ref, cos_ref, sin_ref, *refs, interleaved, eps):
    *weight_ref, out_ref = refs
    rotated = cos_ref.shape[-1]
    x = x_ref[0].astype(jnp.float32)
    if weight_ref:
        # As the norm and the rotation apart: rounded between them, the weight after the cast.
        normed = x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)
        normed = normed.astype(out_ref.dtype).astype(jnp.float32)
        weighted = normed * weight_ref[0][...].astype(jnp.float32)
        x = weighted.astype(out_ref.dtype).astype(jnp.float32)
    turning = x[..., :rotated]
    if interleaved:
        # The neighbour of an even dimension is the next one, that of an odd one the one before.
        even = lax.rem(lax.broadcasted_iota(jnp.int32, turning.shape, turning.ndim - 1), 2) == 0
        swapped = jnp.where(
            even, jnp.roll(turning, -1, axis=-1), jnp.roll(turning, 1, axis=-1)
        )
    else:
        swapped = jnp.concatenate(
            [turning[..., rotated // 2 :], turning[..., : rotated // 2]], axis=-1
        )
    cos = cos_ref[0].astype(jnp.float32)
    sin = sin_ref[0].astype(jnp.float32)
    turned = turning * cos + swapped * sin
    if rotated < x.shape[-1]:
        turned = jnp.concatenate([turned, x[..., rotated:]], axis=-1)
    out_ref[0] = turned.astype(out_ref.dtype)
