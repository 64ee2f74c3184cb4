"""Decode attention as a Pallas kernel for TPU.

Decoding is bound by the bytes of the cache, so the kernel reads only blocks that hold something:
`lengths` is known before the grid runs (scalar prefetch) and steps the block index past nothing.
The query heads that share a KV head are rows of one matrix, so each byte is read once. Several
heads are read at the same time, each in one contiguous transfer, which hides what a transfer costs
before its first byte. A block that is filled to its end needs no masks, and goes without.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ._shapes import check, check_int8

LANES = 128
# One transfer of K or V: enough to outweigh its fixed cost, small enough that a short sequence
# reads little beyond its end. By the compiler's estimates.
TRANSFER_BYTES = 1 << 19
# Transfers of K (and of V) per grid step.
STREAMS = 4
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
    return _run(q, k_cache, v_cache, (), lengths, scale, window)


def decode_attention_int8(
    q: jax.Array,
    k_cache: jax.Array,
    v_cache: jax.Array,
    k_scales: jax.Array,
    v_scales: jax.Array,
    lengths: jax.Array,
    *,
    scale: float,
    window: int | None = None,
) -> jax.Array:
    """`decode_attention` over int8 caches [B, K, C, D] whose entries are worth their scale times
    as much: k_scales and v_scales [B, K, 1, C], float32."""
    check_int8(q, k_cache, v_cache, k_scales, v_scales, lengths, scale, window)
    return _run(q, k_cache, v_cache, (k_scales, v_scales), lengths, scale, window)


def filled_decode_attention(
    q: jax.Array, k_cache: jax.Array, v_cache: jax.Array, *, filled: int, scale: float
) -> jax.Array:
    """`decode_attention` for a length that is known while compiling, the same in every sequence.

    Not an operator: the compiler's cost model knows no lengths in memory, so estimates are made
    of this form.
    """
    return _run(q, k_cache, v_cache, (), filled, scale, None)


def _run(q, k_cache, v_cache, scales, lengths, scale, window):
    batch, heads, _, head_dim = q.shape
    kv_heads, capacity = k_cache.shape[1:3]
    # A head_dim below the lane count is stored with the cache's entries along the lanes: the
    # layout XLA itself prefers, hence a transpose that moves nothing.
    entries_last = head_dim % LANES != 0
    if entries_last:
        k_cache, v_cache = k_cache.swapaxes(2, 3), v_cache.swapaxes(2, 3)
    # In the width of q, which int8 is widened to before it is used.
    plan = Plan(kv_heads, capacity, head_dim, q.dtype.itemsize)
    heads_per_step = plan.streams * plan.heads
    group = heads // kv_heads
    # 16 rows fill a tile of bfloat16 (and the MXU's smallest left side).
    rows = -(-group // 16) * 16

    static_length = lengths if isinstance(lengths, int) else None
    prefetched = () if static_length is not None else (lengths,)

    def located(stream, entries_last, b, h, j, *lengths):
        length = lengths[0][b] if lengths else static_length
        first, last = _block_range(length, plan.entries, capacity, window)
        # Blocks that hold nothing are not read: the index stays where it is.
        j = jnp.clip(j, first, last)
        h = h * plan.streams + stream
        return (b, h, 0, j) if entries_last else (b, h, j, 0)

    def streamed(shape, entries_last):
        return [
            pl.BlockSpec((1, plan.heads, *shape), functools.partial(located, stream, entries_last))
            for stream in range(plan.streams)
        ]

    kv_shape = (head_dim, plan.entries) if entries_last else (plan.entries, head_dim)
    kv_specs = streamed(kv_shape, entries_last)
    scale_specs = streamed((1, plan.entries), True)
    q_spec = pl.BlockSpec((1, heads, head_dim), lambda b, h, j, *lengths: (b, 0, 0))
    arrays = (k_cache, v_cache, *scales)
    out = pl.pallas_call(
        functools.partial(
            _kernel,
            static_length=static_length,
            plan=plan,
            capacity=capacity,
            group=group,
            window=window,
            entries_last=entries_last,
            factor=scale * math.log2(math.e),
        ),
        out_shape=jax.ShapeDtypeStruct((batch, heads, head_dim), q.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(prefetched),
            grid=(batch, kv_heads // heads_per_step, pl.cdiv(capacity, plan.entries)),
            in_specs=[q_spec, *kv_specs, *kv_specs, *[s for _ in scales for s in scale_specs]],
            out_specs=q_spec,
            scratch_shapes=[
                pltpu.VMEM((kv_heads, rows, head_dim), q.dtype),
                pltpu.VMEM((kv_heads, rows, head_dim), jnp.float32),
                pltpu.VMEM((heads_per_step, rows, LANES), jnp.float32),
                pltpu.VMEM((heads_per_step, rows, LANES), jnp.float32),
                pltpu.VMEM((heads_per_step, rows, head_dim), jnp.float32),
            ],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary")
        ),
        cost_estimate=pl.CostEstimate(
            flops=4 * batch * heads * capacity * head_dim,
            transcendentals=batch * heads * capacity,
            bytes_accessed=sum(x.size * x.dtype.itemsize for x in (q, q, *arrays)),
        ),
        name="decode_attention",
    )(
        *prefetched,
        q.reshape(batch, heads, head_dim),
        *[a for a in arrays for _ in range(plan.streams)],
    )
    return out.reshape(q.shape)


class Plan:
    """How the caches are read: `streams` transfers at a time, each of `entries` of `heads`."""

    def __init__(self, kv_heads, capacity, head_dim, itemsize):
        entries = LANES
        while 2 * entries * head_dim * itemsize <= TRANSFER_BYTES:
            entries *= 2
        self.entries = min(entries, capacity)
        self.heads = 1
        if self.entries == capacity:
            # Whole heads lie side by side.
            fitting = max(1, TRANSFER_BYTES // (capacity * head_dim * itemsize))
            self.heads = _divisor(kv_heads, fitting)
        self.streams = _divisor(kv_heads // self.heads, STREAMS)


def _divisor(number, largest):
    """The largest divisor of `number` up to `largest`."""
    return max(n for n in range(1, min(number, largest) + 1) if number % n == 0)


def _block_range(length, block, capacity, window):
    """First and last block of the cache that hold an entry which counts."""
    length = jnp.clip(length, 0, capacity)
    last = lax.div(jnp.maximum(length, 1) - 1, block)
    if window is None:
        return 0, last
    return lax.div(jnp.maximum(length - window, 0), block), last


def _kernel(*refs, static_length, plan, capacity, group, window, entries_last, factor):
    streams, block = plan.streams, plan.entries
    if static_length is None:
        lengths_ref, *refs = refs
        length = lengths_ref[pl.program_id(0)]
    else:
        length = static_length
    q_ref, *inputs, out_ref, packed_ref, done_ref, max_ref, sum_ref, acc_ref = refs
    k_refs, v_refs, *scale_refs = (
        inputs[at : at + streams] for at in range(0, len(inputs), streams)
    )
    h, j = pl.program_id(1), pl.program_id(2)
    length = jnp.clip(length, 0, capacity)
    first, last = _block_range(length, block, capacity, window)
    every_head = [(stream, head) for stream in range(streams) for head in range(plan.heads)]
    # f32 is computed as f32, not in the MXU's native bfloat16.
    precision = lax.Precision.HIGHEST if q_ref.dtype == jnp.float32 else None

    kv_heads = packed_ref.shape[0]

    @pl.when((h == 0) & (j == 0))
    def _():
        q = q_ref[0].astype(jnp.float32) * factor
        empty = jnp.zeros((packed_ref.shape[1] - group, q.shape[1]), jnp.float32)
        for head in range(kv_heads):
            rows = q[head * group : (head + 1) * group]
            rows = jnp.concatenate([rows, empty], axis=0) if empty.size else rows
            packed_ref[head] = rows.astype(packed_ref.dtype)

    @pl.when(j == 0)
    def _():
        max_ref[...] = jnp.full_like(max_ref, MASKED)
        sum_ref[...] = jnp.zeros_like(sum_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    def kv_head(index):
        return h * len(every_head) + index

    def one_head(index, masked):
        stream, head = every_head[index]
        q = packed_ref[kv_head(index)]
        k, v = (ref[stream][0, head].astype(q_ref.dtype) for ref in (k_refs, v_refs))
        # The dimension that is summed over: head_dim for scores, entries for the result.
        contract = (((1,), (0 if entries_last else 1,)), ((), ()))
        s = lax.dot_general(
            q, k, contract, precision=precision, preferred_element_type=jnp.float32
        )
        if scale_refs:
            s = s * scale_refs[0][stream][0, head]
        if masked:
            position = j * block + lax.broadcasted_iota(jnp.int32, s.shape, 1)
            seen = position < length
            if window is not None:
                seen &= position >= length - window
            s = jnp.where(seen, s, MASKED)
            # What lies beyond the length may be NaN, and 0 * NaN would reach the result.
            shape = (1, block) if entries_last else (block, 1)
            position = j * block + lax.broadcasted_iota(jnp.int32, shape, 1 if entries_last else 0)
            v = jnp.where(position < length, v, 0)
        old = max_ref[index]
        new = jnp.maximum(old, jnp.max(s, axis=1, keepdims=True))
        p = jnp.exp2(s - new[:, :1])
        shrink = jnp.exp2(old - new)
        weights = p
        if scale_refs:
            weights = p * scale_refs[1][stream][0, head]
            if masked:
                weights = jnp.where(seen, weights, 0)
        contract = (((1,), (1 if entries_last else 0,)), ((), ()))
        product = lax.dot_general(
            weights.astype(v.dtype), v, contract, precision=precision, preferred_element_type=jnp.float32
        )
        max_ref[index] = new
        sum_ref[index] = sum_ref[index] * shrink + jnp.sum(p, axis=1, keepdims=True)
        acc_ref[index] = acc_ref[index] * shrink[:, :1] + product

    def all_heads(masked):
        for index in range(len(every_head)):
            one_head(index, masked)

    counts = (j >= first) & (j <= last) & (length > 0)
    whole = (j + 1) * block <= length
    if window is not None:
        whole &= j * block >= length - window
    pl.when(counts & whole)(functools.partial(all_heads, False))
    pl.when(counts & jnp.logical_not(whole))(functools.partial(all_heads, True))

    @pl.when(j == pl.num_programs(2) - 1)
    def _():
        for index in range(len(every_head)):
            total = sum_ref[index][:, :1]
            done_ref[kv_head(index)] = acc_ref[index] / jnp.where(total > 0, total, 1)

    @pl.when((h == pl.num_programs(1) - 1) & (j == pl.num_programs(2) - 1))
    def _():
        heads = [done_ref[head, :group, :] for head in range(kv_heads)]
        out_ref[0] = jnp.concatenate(heads, axis=0).astype(out_ref.dtype)
