"""Attention as a Pallas kernel for TPU: streaming softmax, no array of [length, length].

One grid step owns a block of queries of all heads that share a KV head, packed into the rows of
one matrix, so that K and V are read once per group. It walks the visible keys in blocks; only
blocks that the causal diagonal, a window edge or the end of the keys cuts through are masked. K
and V arrive in chunks of about a megabyte, so any length fits into VMEM.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ._shapes import check

# Lanes of a vector register; row maxima are kept in all lanes, row sums as one partial sum a lane.
LANES = 128
# Keys per step of the softmax, and the most query rows (heads of the group times queries) per
# block: chosen by the compiler's estimates for v5e and v6e.
KEY_BLOCK = 512
QUERY_ROWS = 1024
# K (and V) per chunk in VMEM, each held twice while the next one is read.
CHUNK_BYTES = 1 << 20
# Far below any score, yet finite: a row that is wholly masked in one block must not become NaN.
MASKED = -1e30


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    scale: float,
    causal: bool = True,
    window: int | None = None,
) -> jax.Array:
    """softmax(q k^T * scale) v for q [B, H, T, D] and k, v [B, K, S, D], where K divides H.

    Query head h reads KV head h // (H / K). With `causal`, query i sees keys up to i + S - T;
    with `window`, only the last `window` of these.
    """
    check(q, k, v, scale, causal, window)
    batch, heads, queries, head_dim = q.shape
    kv_heads, keys = k.shape[1:3]
    if window is not None and window >= keys:
        window = None
    blocks = Blocks(queries, keys, heads // kv_heads, head_dim, q.dtype.itemsize)
    # Sequences shorter than a block are padded to it; longer ones end in a masked ragged block.
    q_padded = _pad_to(q, blocks.queries)
    k, v = _pad_to(k, blocks.keys), _pad_to(v, blocks.keys)
    packs = heads // blocks.heads
    packs_per_kv_head = packs // kv_heads

    def kv_index(b, h, i, c):
        first, last = _chunk_range(i, blocks, queries, keys, causal, window)
        # Chunks that no query of the block sees are not read: the index stays where it is.
        return b, lax.div(h, packs_per_kv_head), jnp.clip(c, first, last), 0

    q_spec = pl.BlockSpec(
        (1, blocks.heads, blocks.queries, head_dim), lambda b, h, i, c: (b, h, i, 0)
    )
    kv_spec = pl.BlockSpec((1, 1, blocks.chunk, head_dim), kv_index)
    rows = blocks.heads * blocks.queries
    pairs = queries * keys - (queries * (queries - 1) // 2 if causal else 0)
    out = pl.pallas_call(
        functools.partial(
            _kernel,
            blocks=blocks,
            queries=queries,
            keys=keys,
            factor=scale * math.log2(math.e),
            causal=causal,
            window=window,
        ),
        out_shape=jax.ShapeDtypeStruct(q_padded.shape, q.dtype),
        grid=(
            batch,
            packs,
            pl.cdiv(queries, blocks.queries),
            pl.cdiv(keys, blocks.chunk),
        ),
        in_specs=[q_spec, kv_spec, kv_spec],
        out_specs=q_spec,
        scratch_shapes=[
            pltpu.VMEM((rows, head_dim), q.dtype),
            pltpu.VMEM((rows, LANES), jnp.float32),
            pltpu.VMEM((rows, LANES), jnp.float32),
            pltpu.VMEM((rows, head_dim), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary")
        ),
        cost_estimate=pl.CostEstimate(
            flops=4 * batch * heads * pairs * head_dim,
            transcendentals=batch * heads * pairs,
            bytes_accessed=(2 * q.size + k.size + v.size) * q.dtype.itemsize,
        ),
        name="attention",
    )(q_padded, k, v)
    return out[:, :, :queries]


class Blocks:
    """Block sizes for one call; all static.

    heads: query heads per grid step, a divisor of the group.
    queries, part: queries per head and grid step, and the piece in which the diagonal is cut.
    keys, chunk: keys per softmax step, and per piece of K and V that is brought into VMEM.
    """

    def __init__(self, queries, keys, group, head_dim, itemsize):
        self.heads = max(n for n in range(1, group + 1) if group % n == 0 and n * LANES <= 1152)
        largest = LANES
        while largest < 512 and 2 * largest * self.heads <= QUERY_ROWS:
            largest *= 2
        # 16 rows are one bfloat16 tile.
        self.queries = _round_up(queries, 16) if queries < LANES else min(largest, _power(queries))
        self.part = min(self.queries, LANES)
        self.keys = min(KEY_BLOCK, _power(keys))
        largest_chunk = max(1, CHUNK_BYTES // (self.keys * head_dim * itemsize)) * self.keys
        self.chunk = min(largest_chunk, max(self.keys, keys // self.keys * self.keys))
        self.parts = self.queries // self.part


def _power(size):
    """The smallest power of two from 128 on that holds `size`."""
    return max(LANES, 1 << (size - 1).bit_length())


def _round_up(size, multiple):
    return -(-size // multiple) * multiple


def _pad_to(x, length):
    missing = length - x.shape[2]
    return jnp.pad(x, ((0, 0), (0, 0), (0, missing), (0, 0))) if missing > 0 else x


def _visible(block, blocks, queries, keys, causal, window):
    """First key and end of the keys that any query of a block sees."""
    start = block * blocks.queries + (keys - queries)
    end = jnp.minimum(keys, start + blocks.queries) if causal else keys
    first = 0 if window is None else jnp.maximum(0, start - window + 1)
    return first, end


def _chunk_range(block, blocks, queries, keys, causal, window):
    """First and last chunk with keys that a block of queries sees."""
    first, end = _visible(block, blocks, queries, keys, causal, window)
    return lax.div(jnp.int32(first), blocks.chunk), lax.div(jnp.int32(end) - 1, blocks.chunk)


def _kernel(q_ref, k_ref, v_ref, out_ref, packed_ref, max_ref, sum_ref, acc_ref, *, blocks,
            queries, keys, factor, causal, window):
    block, chunk = pl.program_id(2), pl.program_id(3)
    first_chunk, last_chunk = _chunk_range(block, blocks, queries, keys, causal, window)
    part_rows = blocks.heads * blocks.part
    head_dim = q_ref.shape[3]
    # The first query of the block sits on this key's row of the diagonal.
    start = block * blocks.queries + (keys - queries)
    chunk_start = chunk * blocks.chunk
    ragged = keys % blocks.keys != 0
    # f32 is computed as f32, not in the MXU's native bfloat16.
    precision = lax.Precision.HIGHEST if q_ref.dtype == jnp.float32 else None
    # The diagonal then lies in one block of keys, at a position known while compiling.
    cut_diagonal = (
        causal
        and window is None
        and queries == keys
        and blocks.part == LANES
        and blocks.keys % blocks.queries == 0
    )

    @pl.when(chunk == first_chunk)
    def _():
        max_ref[...] = jnp.full_like(max_ref, MASKED)
        sum_ref[...] = jnp.zeros_like(sum_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)
        # Rows in the order (part, head, query), the scale and the base of exp2 folded in.
        for part in range(blocks.parts):
            piece = q_ref[0, :, part * blocks.part : (part + 1) * blocks.part, :]
            piece = piece.reshape(part_rows, head_dim).astype(jnp.float32) * factor
            packed_ref[part * part_rows : (part + 1) * part_rows, :] = piece.astype(q_ref.dtype)

    def scores(rows, first, width):
        return lax.dot_general(
            packed_ref[rows, :],
            k_ref[0, 0, pl.ds(first, width), :],
            (((1,), (1,)), ((), ())),
            precision=precision,
            preferred_element_type=jnp.float32,
        )

    def values(first, width, may_end):
        block_of_values = v_ref[0, 0, pl.ds(first, width), :]
        if may_end:
            # Beyond the end there may be NaN, and 0 * NaN would reach the result.
            position = chunk_start + first + lax.broadcasted_iota(jnp.int32, (width, 1), 0)
            block_of_values = jnp.where(position < keys, block_of_values, 0)
        return block_of_values

    def update(rows, s, block_of_values):
        """One step of the streaming softmax; returns maximum, sums and accumulator."""
        width = s.shape[1]
        old = max_ref[rows, :]
        new = jnp.maximum(old, jnp.max(s, axis=1, keepdims=True))
        p = jnp.exp2(s - jnp.tile(new, (1, width // LANES)))
        shrink = jnp.exp2(old - new)
        sums = sum_ref[rows, :] * shrink
        for lane in range(0, width, LANES):
            sums = sums + p[:, lane : lane + LANES]
        product = jnp.dot(
            p.astype(block_of_values.dtype),
            block_of_values,
            precision=precision,
            preferred_element_type=jnp.float32,
        )
        return new, sums, acc_ref[rows, :] * _to_width(shrink, head_dim) + product

    def keep(rows, state):
        max_ref[rows, :], sum_ref[rows, :], acc_ref[rows, :] = state

    def write(part, sums, acc):
        total = jnp.sum(sums, axis=1, keepdims=True)
        out = (acc / total).astype(out_ref.dtype).reshape(blocks.heads, blocks.part, head_dim)
        out_ref[0, :, part * blocks.part : (part + 1) * blocks.part, :] = out

    def full_step(index, _):
        first = pl.multiple_of(index * blocks.keys - chunk_start, blocks.keys)
        everything = slice(None)
        keep(
            everything,
            update(everything, scores(everything, first, blocks.keys), values(first, blocks.keys, False)),
        )

    def masked_step(index, _):
        first = pl.multiple_of(index * blocks.keys - chunk_start, blocks.keys)
        value = values(first, blocks.keys, ragged)
        for part in range(blocks.parts):
            rows = slice(part * part_rows, (part + 1) * part_rows)
            s = scores(rows, first, blocks.keys)
            column = index * blocks.keys + lax.broadcasted_iota(jnp.int32, s.shape, 1)
            row = start + part * blocks.part
            row = row + lax.rem(lax.broadcasted_iota(jnp.int32, s.shape, 0), blocks.part)
            seen = column < keys
            if causal:
                seen &= column <= row
            if window is not None:
                seen &= column > row - window
            keep(rows, update(rows, jnp.where(seen, s, MASKED), value))

    def cut_step(before):
        """The block with the diagonal, `before` keys of which every query of the block sees."""
        first = pl.multiple_of(start - before - chunk_start, LANES)
        for part in range(blocks.parts):
            rows = slice(part * part_rows, (part + 1) * part_rows)
            width = before + (part + 1) * LANES
            s = scores(rows, first, width)
            triangle = (part_rows, LANES)
            column = lax.broadcasted_iota(jnp.int32, triangle, 1)
            row = lax.rem(lax.broadcasted_iota(jnp.int32, triangle, 0), LANES)
            last = jnp.where(column <= row, s[:, width - LANES :], MASKED)
            s = last if width == LANES else jnp.concatenate([s[:, : width - LANES], last], axis=1)
            _, sums, acc = update(rows, s, values(first, width, ragged))
            write(part, sums, acc)

    # Blocks of keys: [first, full) cut by the window, [full, end_full) seen whole by every query,
    # [end_full, end) cut by the diagonal or the end of the keys; all within this chunk.
    first_key, end_key = _visible(block, blocks, queries, keys, causal, window)
    chunk_first = chunk * (blocks.chunk // blocks.keys)
    chunk_end = chunk_first + blocks.chunk // blocks.keys

    def within(index):
        return jnp.clip(index, chunk_first, chunk_end)

    end_full = lax.div(jnp.minimum(start + 1, keys) if causal else jnp.int32(keys), blocks.keys)
    if window is None:
        full = jnp.int32(0)
    else:
        full = jnp.maximum(0, start + blocks.queries - window)
        full = jnp.minimum(lax.div(full + blocks.keys - 1, blocks.keys), end_full)
        lax.fori_loop(within(lax.div(jnp.int32(first_key), blocks.keys)), within(full), masked_step, None)
    lax.fori_loop(within(full), within(end_full), full_step, None)
    if cut_diagonal:
        before = start - end_full * blocks.keys
        for size in range(0, blocks.keys, blocks.queries):
            pl.when((chunk == last_chunk) & (before == size))(functools.partial(cut_step, size))
    else:
        end = lax.div(jnp.int32(end_key) + blocks.keys - 1, blocks.keys)
        lax.fori_loop(within(end_full), within(end), masked_step, None)

        @pl.when(chunk == last_chunk)
        def _():
            for part in range(blocks.parts):
                rows = slice(part * part_rows, (part + 1) * part_rows)
                write(part, sum_ref[rows, :], acc_ref[rows, :])


def _to_width(lanes, width):
    """A value that is equal in all lanes, [rows, 128], as [rows, width]."""
    if width <= LANES:
        return lanes[:, :width]
    if width % LANES == 0:
        return jnp.tile(lanes, (1, width // LANES))
    return jnp.broadcast_to(lanes[:, :1], (lanes.shape[0], width))
