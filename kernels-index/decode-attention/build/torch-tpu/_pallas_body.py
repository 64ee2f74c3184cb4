"""Decode attention as a Pallas kernel for TPU.

Decoding is bound by the bytes of the cache, so the kernel reads only blocks that hold something:
`lengths` is known before the grid runs (scalar prefetch) and steps the block index past nothing.
The query heads that share a KV head are rows of one matrix, so each byte is read once.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ._shapes import check

LANES = 128
# K (and V) read per grid step: enough to hide what a step costs, by the compiler's estimates.
BLOCK_BYTES = 1 << 20
# Entries of a head per step: the granularity in which the filled part of the cache is read.
LARGEST_BLOCK = 2048
# Far below any score, yet finite, so that no row becomes NaN.
MASKED = -1e30


def decode_attention(
    q: jax.Array,
    k_cache: jax.Array,
    v_cache: jax.Array,
    lengths: jax.Array,
    *,
    scale: float,
    window: int | None = None,
) -> jax.Array:
    """softmax(q k^T * scale) v for q [B, H, 1, D] over caches [B, K, C, D], where K divides H.

    `lengths` [B], int32: entries filled in each sequence, the current token included; what lies
    beyond is never used. With `window`, only the last `window` entries count. A sequence of
    length 0 gives zeros.
    """
    check(q, k_cache, v_cache, lengths, scale, window)
    batch, heads, _, head_dim = q.shape
    kv_heads, capacity = k_cache.shape[1:3]
    group = heads // kv_heads
    # 16 rows fill a tile of bfloat16 (and the MXU's smallest left side).
    rows = -(-group // 16) * 16
    packed = q.reshape(batch, kv_heads, group, head_dim)
    packed = jnp.pad(packed, ((0, 0), (0, 0), (0, rows - group), (0, 0)))
    packed = (packed.astype(jnp.float32) * (scale * math.log2(math.e))).astype(q.dtype)
    # A head_dim below the lane count is stored with the cache's entries along the lanes: the
    # layout XLA itself prefers, hence a transpose that moves nothing.
    entries_last = head_dim % LANES != 0
    if entries_last:
        k_cache, v_cache = k_cache.swapaxes(2, 3), v_cache.swapaxes(2, 3)
    block = _block_entries(capacity)
    heads_per_step = _heads_per_step(kv_heads, capacity, block, head_dim, q.dtype.itemsize)
    lengths = jnp.clip(lengths, 0, capacity)

    def kv_index(b, h, j, lengths):
        first, last = _block_range(lengths[b], block, window)
        j = jnp.clip(j, first, last)
        return (b, h, 0, j) if entries_last else (b, h, j, 0)

    kv_shape = (head_dim, block) if entries_last else (block, head_dim)
    kv_spec = pl.BlockSpec((1, heads_per_step, *kv_shape), kv_index)
    q_spec = pl.BlockSpec((1, heads_per_step, rows, head_dim), lambda b, h, j, lengths: (b, h, 0, 0))
    out = pl.pallas_call(
        functools.partial(
            _kernel, block=block, capacity=capacity, window=window, entries_last=entries_last
        ),
        out_shape=jax.ShapeDtypeStruct(packed.shape, q.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(batch, kv_heads // heads_per_step, pl.cdiv(capacity, block)),
            in_specs=[q_spec, kv_spec, kv_spec],
            out_specs=q_spec,
            scratch_shapes=[
                pltpu.VMEM((heads_per_step, rows, LANES), jnp.float32),
                pltpu.VMEM((heads_per_step, rows, LANES), jnp.float32),
                pltpu.VMEM((heads_per_step, rows, head_dim), jnp.float32),
            ],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
        cost_estimate=pl.CostEstimate(
            flops=4 * batch * heads * capacity * head_dim,
            transcendentals=batch * heads * capacity,
            bytes_accessed=(k_cache.size + v_cache.size + 2 * q.size) * q.dtype.itemsize,
        ),
        name="decode_attention",
    )(lengths, packed, k_cache, v_cache)
    return out[:, :, :group].reshape(q.shape)


def _block_entries(capacity):
    """Entries per block: all of a small cache, otherwise a power of two."""
    if capacity <= LARGEST_BLOCK:
        return capacity
    return LARGEST_BLOCK


def _heads_per_step(kv_heads, capacity, block, head_dim, itemsize):
    """KV heads per step: several where the blocks of one head are small."""
    # Narrower heads still take whole lane rows or sublane tiles in VMEM.
    bytes_per_head = block * head_dim * itemsize
    fitting = max(1, BLOCK_BYTES // bytes_per_head)
    if block < capacity:
        return 1
    return max(n for n in range(1, kv_heads + 1) if kv_heads % n == 0 and n <= fitting)


def _block_range(length, block, window):
    """First and last block of the cache that hold an entry which counts."""
    last = lax.div(jnp.maximum(length, 1) - 1, block)
    if window is None:
        return 0, last
    return lax.div(jnp.maximum(length - window, 0), block), last


def _kernel(lengths_ref, q_ref, k_ref, v_ref, out_ref, max_ref, sum_ref, acc_ref, *, block,
            capacity, window, entries_last):
    j = pl.program_id(2)
    length = lengths_ref[pl.program_id(0)]
    first, last = _block_range(length, block, window)
    heads, rows, head_dim = q_ref.shape[1:]
    precision = lax.Precision.HIGHEST if q_ref.dtype == jnp.float32 else None

    @pl.when(j == 0)
    def _():
        max_ref[...] = jnp.full_like(max_ref, MASKED)
        sum_ref[...] = jnp.zeros_like(sum_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    def one_head(head, checked):
        q, k, v = q_ref[0, head], k_ref[0, head], v_ref[0, head]
        # The dimension that is summed over: head_dim for scores, entries for the result.
        contract = (((1,), (0 if entries_last else 1,)), ((), ()))
        s = lax.dot_general(
            q, k, contract, precision=precision, preferred_element_type=jnp.float32
        )
        if checked:
            position = j * block + lax.broadcasted_iota(jnp.int32, s.shape, 1)
            seen = position < length
            if window is not None:
                seen &= position >= length - window
            s = jnp.where(seen, s, MASKED)
            # What lies beyond the length may be NaN, and 0 * NaN would reach the result.
            axis = 1 if entries_last else 0
            shape = (1, block) if entries_last else (block, 1)
            position = j * block + lax.broadcasted_iota(jnp.int32, shape, axis)
            v = jnp.where(position < length, v, 0)
        old = max_ref[head]
        new = jnp.maximum(old, jnp.max(s, axis=1, keepdims=True))
        p = jnp.exp2(s - new[:, :1])
        shrink = jnp.exp2(old - new)
        contract = (((1,), (1 if entries_last else 0,)), ((), ()))
        product = lax.dot_general(
            p.astype(v.dtype), v, contract, precision=precision, preferred_element_type=jnp.float32
        )
        max_ref[head] = new
        sum_ref[head] = sum_ref[head] * shrink + jnp.sum(p, axis=1, keepdims=True)
        acc_ref[head] = acc_ref[head] * shrink[:, :1] + product

    whole = (j + 1) * block <= length
    if window is not None:
        whole &= j * block >= length - window

    @pl.when(whole & (j >= first))
    def _():
        for head in range(heads):
            one_head(head, checked=False)

    @pl.when(jnp.logical_not(whole) & (j >= first) & (j <= last) & (length > 0))
    def _():
        for head in range(heads):
            one_head(head, checked=True)

    @pl.when(j == pl.num_programs(2) - 1)
    def _():
        total = sum_ref[...][:, :, :1]
        out = acc_ref[...] / jnp.where(total > 0, total, 1)
        out_ref[0] = out.astype(out_ref.dtype)
