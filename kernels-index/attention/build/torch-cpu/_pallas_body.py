"""Attention as a Pallas kernel for TPU: streaming softmax, no array of [length, length].

One grid step owns a block of queries of all heads that share a KV head, packed into the rows of
one matrix, so that K and V are read once per group. It walks the visible keys in blocks; only
blocks that the causal diagonal, a window edge or the end of the keys cuts through are masked. K
and V arrive in chunks, so any length fits into VMEM.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ._blocks import LANES, Blocks, round_up
from ._shapes import check

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
    return blocked_attention(q, k, v, None, scale=scale, causal=causal, window=window)


def blocked_attention(q, k, v, sizes, *, scale, causal=True, window=None):
    """`attention` with block sizes by name in place of those of the table; for tuning."""
    queries, (kv_heads, keys) = q.shape[2], k.shape[1:3]
    if window is not None and window >= keys:
        window = None
    call = Call(q.shape, kv_heads, keys, q.dtype, causal, window, sizes)
    # What is no multiple of a tile, or shorter than a block of keys, is padded.
    q = _pad_to(q, call.padded_queries)
    k, v = _pad_to(k, call.blocks.keys), _pad_to(v, call.blocks.keys)
    if call.transposed:
        q, k, v = q.swapaxes(2, 3), k.swapaxes(2, 3), v.swapaxes(2, 3)
    out = _pallas_call(call, q.shape, q.dtype, scale)(*[q] * call.blocks.heads, k, v)
    if call.transposed:
        out = out.swapaxes(2, 3)
    return out[:, :, :queries]


class Call:
    """What is static in one call: shapes, mask and blocks."""

    def __init__(self, q_shape, kv_heads, keys, dtype, causal, window, sizes):
        self.batch, self.heads, self.queries, self.head_dim = q_shape
        self.keys, self.causal, self.window = keys, causal, window
        # A head_dim below the lane count is kept with positions along the lanes: the layout that
        # XLA itself chooses for such an array, hence a transpose that moves nothing.
        self.transposed = self.head_dim % LANES != 0
        tile = LANES if self.transposed else 16
        self.padded_queries = round_up(self.queries, tile)
        self.blocks = Blocks(
            self.padded_queries, keys, self.heads // kv_heads, self.head_dim, dtype.itemsize, sizes
        )
        self.packs = self.heads // self.blocks.heads
        self.packs_per_kv_head = self.packs // kv_heads
        self.query_blocks = -(-self.padded_queries // self.blocks.queries)
        self.chunks = -(-keys // self.blocks.chunk)
        # Two cores share a chip of some generations. A pack of heads is the work of one of them.
        every_pack = self.batch * self.packs
        self.cores = 1
        self.packs_per_core = every_pack // self.cores
        # The diagonal then lies in one chunk, at positions known while compiling.
        self.cut_diagonal = (
            causal
            and window is None
            and self.queries == keys
            and self.blocks.part == LANES
            and self.blocks.keys % self.blocks.queries == 0
        )

    def place(self, core, pack):
        """Batch row and pack of heads of a pack of a core."""
        every = core * self.packs_per_core + pack
        return lax.div(every, self.packs), lax.rem(every, self.packs)

    def visible(self, block):
        """First key and end of the keys that any query of a block sees."""
        start = block * self.blocks.queries + (self.keys - self.queries)
        end = jnp.minimum(self.keys, start + self.blocks.queries) if self.causal else self.keys
        first = 0 if self.window is None else jnp.maximum(0, start - self.window + 1)
        return jnp.int32(first), jnp.int32(end)

    def chunk_range(self, block):
        """First and last chunk with keys that a block of queries sees."""
        first, end = self.visible(block)
        return lax.div(first, self.blocks.chunk), lax.div(end - 1, self.blocks.chunk)


def _pallas_call(call, shape, dtype, scale):
    blocks, head_dim = call.blocks, call.head_dim

    def shaped(length):
        return (1, 1, head_dim, length) if call.transposed else (1, 1, length, head_dim)

    def located(batch, head, position):
        return (batch, head, 0, position) if call.transposed else (batch, head, position, 0)

    def q_index(head, core, pack, block, chunk):
        b, p = call.place(core, pack)
        return located(b, p * blocks.heads + head, block)

    def kv_index(core, pack, block, chunk):
        b, p = call.place(core, pack)
        # Chunks that no query of the block sees are not read: the index stays where it is.
        return located(b, lax.div(p, call.packs_per_kv_head), jnp.clip(chunk, *call.chunk_range(block)))

    # Each head is an operand of its own: one contiguous transfer.
    q_specs = [
        pl.BlockSpec(shaped(blocks.queries), functools.partial(q_index, head))
        for head in range(blocks.heads)
    ]
    kv_spec = pl.BlockSpec(shaped(blocks.chunk), kv_index)
    rows = blocks.heads * blocks.queries
    pairs = call.queries * call.keys
    if call.causal:
        pairs -= call.queries * (call.queries - 1) // 2
    return pl.pallas_call(
        functools.partial(_kernel, call=call, factor=scale * math.log2(math.e)),
        out_shape=jax.ShapeDtypeStruct(shape, dtype),
        grid=(call.cores, call.packs_per_core, call.query_blocks, call.chunks),
        in_specs=[*q_specs, kv_spec, kv_spec],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        scratch_shapes=[
            pltpu.VMEM((rows, head_dim) if call.transposed else (16, LANES), dtype),
            pltpu.VMEM((rows, LANES), jnp.float32),
            pltpu.VMEM((rows, LANES), jnp.float32),
            pltpu.VMEM((rows, head_dim), jnp.float32),
            pltpu.VMEM((2, blocks.heads, *shaped(blocks.queries)[2:]), dtype),
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA,
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary", "arbitrary"),
            vmem_limit_bytes=blocks.vmem_bytes,
        ),
        cost_estimate=pl.CostEstimate(
            flops=4 * call.batch * call.heads * pairs * head_dim,
            transcendentals=call.batch * call.heads * pairs,
            bytes_accessed=2
            * call.batch
            * (call.heads * call.queries + call.packs // call.packs_per_kv_head * call.keys)
            * head_dim
            * dtype.itemsize,
        ),
        name="attention",
    )


def _pad_to(x, length):
    missing = length - x.shape[2]
    return jnp.pad(x, ((0, 0), (0, 0), (0, missing), (0, 0))) if missing > 0 else x


def _kernel(*refs, call, factor):
    blocks, keys, window = call.blocks, call.keys, call.window
    q_refs = refs[: blocks.heads]
    k_ref, v_ref, out_ref, packed_ref, max_ref, sum_ref, acc_ref, done_ref, *sent = refs[blocks.heads :]
    core, pack, block, chunk = (pl.program_id(axis) for axis in range(4))
    first_chunk, last_chunk = call.chunk_range(block)
    part_rows = blocks.heads * blocks.part
    every_part = range(blocks.parts)
    # The first query of the block sits on this key's row of the diagonal.
    start = block * blocks.queries + (keys - call.queries)
    chunk_start = chunk * blocks.chunk
    ragged = keys % blocks.keys != 0
    # f32 is computed as f32, not in the MXU's native bfloat16.
    precision = lax.Precision.HIGHEST if v_ref.dtype == jnp.float32 else None
    transfer = functools.partial(_transfer, call, core, done_ref, out_ref, sent)
    # Blocks of this core so far; two of them may be on their way to memory.
    number = pack * call.query_blocks + block

    @pl.when(chunk == first_chunk)
    def _():
        pl.when(number >= 2)(functools.partial(transfer, number - 2, "wait"))
        if call.transposed:
            # Rows in the order (part, head, query).
            for part in every_part:
                for head in range(blocks.heads):
                    piece = q_refs[head][0, 0, :, part * blocks.part : (part + 1) * blocks.part]
                    at = part * part_rows + head * blocks.part
                    packed_ref[at : at + blocks.part, :] = piece.T

    def rows_of(parts):
        return slice(parts[0] * part_rows, (parts[-1] + 1) * part_rows)

    def packed_queries(parts):
        if call.transposed:
            return packed_ref[rows_of(parts), :]
        pieces = [
            q_ref[0, 0, part * blocks.part : (part + 1) * blocks.part, :]
            for part in parts
            for q_ref in q_refs
        ]
        return jnp.concatenate(pieces, axis=0) if len(pieces) > 1 else pieces[0]

    def scores(parts, first, width):
        at = pl.ds(first, width)
        k = k_ref[0, 0, :, at] if call.transposed else k_ref[0, 0, at, :]
        # The scale and the base of exp2 folded into the smaller factor.
        k = (k.astype(jnp.float32) * factor).astype(k.dtype)
        # [head_dim, keys], as the MXU takes it.
        k = k if call.transposed else k.T
        return lax.dot_general(
            packed_queries(parts),
            k,
            (((1,), (0,)), ((), ())),
            precision=precision,
            preferred_element_type=jnp.float32,
        )

    def values(first, width, may_end):
        at = pl.ds(first, width)
        v = v_ref[0, 0, :, at] if call.transposed else v_ref[0, 0, at, :]
        if may_end:
            # Beyond the end there may be NaN, and 0 * NaN would reach the result.
            shape = (1, width) if call.transposed else (width, 1)
            axis = 1 if call.transposed else 0
            position = chunk_start + first + lax.broadcasted_iota(jnp.int32, shape, axis)
            v = jnp.where(position < keys, v, 0)
        return v

    def update(parts, s, v, fresh):
        """One step of the streaming softmax; returns maxima, sums and accumulator.

        With `fresh`, which may be traced, there is nothing before this step.
        """
        rows, width = rows_of(parts), s.shape[1]

        def unless_fresh(before, otherwise):
            return before if fresh is False else jnp.where(fresh, otherwise, before)

        top = jnp.max(s, axis=1, keepdims=True)
        if fresh is True:
            top = jnp.broadcast_to(top, (s.shape[0], LANES))
        else:
            old = unless_fresh(max_ref[rows, :], MASKED)
            top = jnp.maximum(old, top)
        p = jnp.exp2(s - jnp.tile(top, (1, width // LANES)))
        sums = p[:, :LANES]
        for lane in range(LANES, width, LANES):
            sums = sums + p[:, lane : lane + LANES]
        acc = lax.dot_general(
            p.astype(v.dtype),
            v,
            (((1,), (1 if call.transposed else 0,)), ((), ())),
            precision=precision,
            preferred_element_type=jnp.float32,
        )
        if fresh is not True:
            shrink = jnp.exp2(old - top)
            sums = sums + unless_fresh(sum_ref[rows, :], 0.0) * shrink
            acc = acc + unless_fresh(acc_ref[rows, :], 0.0) * _to_width(shrink, call.head_dim)
        return top, sums, acc

    def keep(parts, state):
        rows = rows_of(parts)
        max_ref[rows, :], sum_ref[rows, :], acc_ref[rows, :] = state

    def write(part, sums, acc):
        total = jnp.sum(sums, axis=1, keepdims=True)
        if done_ref.dtype == jnp.float32:
            out = acc / total
        else:
            # One step of Newton's method makes the unit's estimate better than bfloat16 shows.
            estimate = pl.reciprocal(total, approx=True)
            out = acc * (estimate * (2 - total * estimate))
        at = slice(part * blocks.part, (part + 1) * blocks.part)
        for head in range(blocks.heads):
            piece = out[head * blocks.part : (head + 1) * blocks.part]
            if call.transposed:
                done_ref[lax.rem(number, 2), head, :, at] = piece.T.astype(done_ref.dtype)
            else:
                done_ref[lax.rem(number, 2), head, at, :] = piece.astype(done_ref.dtype)

    def full_step(fresh, index, _):
        first = pl.multiple_of(index * blocks.keys - chunk_start, blocks.keys)
        v = values(first, blocks.keys, may_end=False)
        # The scores of a group of parts while the one before it goes through the softmax.
        groups = [every_part[at : at + blocks.together] for at in range(0, blocks.parts, blocks.together)]
        ahead = scores(groups[0], first, blocks.keys)
        for group, following in zip(groups, [*groups[1:], None]):
            s = ahead
            if following is not None:
                ahead = scores(following, first, blocks.keys)
            keep(group, update(group, s, v, fresh))

    def full_steps(first, end, fresh):
        first, end = within(first), within(end)
        begins = fresh & (first < end)
        # The first step has a body of its own, which reads nothing that is not there yet.
        pl.when(begins)(functools.partial(full_step, True, first, None))
        first = first + jnp.where(begins, 1, 0)
        lax.fori_loop(first, end, functools.partial(full_step, False), None)

    def masked_step(first_index, index, _):
        first = pl.multiple_of(index * blocks.keys - chunk_start, blocks.keys)
        v = values(first, blocks.keys, ragged)
        for part in every_part:
            s = scores([part], first, blocks.keys)
            column = index * blocks.keys + lax.broadcasted_iota(jnp.int32, s.shape, 1)
            row = start + part * blocks.part
            row = row + lax.rem(lax.broadcasted_iota(jnp.int32, s.shape, 0), blocks.part)
            seen = column < keys
            if call.causal:
                seen &= column <= row
            if window is not None:
                seen &= column > row - window
            s = jnp.where(seen, s, MASKED)
            keep([part], update([part], s, v, index == first_index))

    def cut_step(before, fresh):
        """The keys up to the diagonal, `before` of which every query of the block sees."""
        first = pl.multiple_of(start - before - chunk_start, LANES)

        def cut_scores(part):
            return scores([part], first, before + (part + 1) * LANES)

        # The scores of a part while the one before it goes through the softmax; the widest first,
        # so that the least is left when the products run out.
        ahead = cut_scores(blocks.parts - 1)
        for part in reversed(every_part):
            s, width = ahead, before + (part + 1) * LANES
            if part > 0:
                ahead = cut_scores(part - 1)
            triangle = (LANES, LANES)
            seen = lax.broadcasted_iota(jnp.int32, triangle, 1) <= lax.broadcasted_iota(
                jnp.int32, triangle, 0
            )
            last = s[:, width - LANES :].reshape(blocks.heads, LANES, LANES)
            last = jnp.where(seen[None], last, MASKED).reshape(part_rows, LANES)
            s = last if width == LANES else jnp.concatenate([s[:, : width - LANES], last], axis=1)
            _, sums, acc = update([part], s, values(first, width, ragged), fresh)
            write(part, sums, acc)

    # Blocks of keys: [first, full) cut by the window, [full, end_full) seen whole by every query,
    # [end_full, end) cut by the diagonal or the end of the keys; all within this chunk.
    first_key, end_key = call.visible(block)
    chunk_first = chunk * (blocks.chunk // blocks.keys)
    chunk_end = chunk_first + blocks.chunk // blocks.keys

    def within(index):
        return jnp.clip(index, chunk_first, chunk_end)

    first_block = lax.div(first_key, blocks.keys)
    if call.cut_diagonal:
        # The last block before the diagonal is taken together with it where both are in the chunk.
        diagonal_chunk = last_chunk * (blocks.chunk // blocks.keys)
        end_full = jnp.maximum(lax.div(jnp.maximum(start - 1, 0), blocks.keys), diagonal_chunk)
        full_steps(jnp.int32(0), end_full, chunk == 0)
        before = start - end_full * blocks.keys
        largest = min(
            blocks.keys,
            (call.query_blocks - 1) * blocks.queries,
            blocks.chunk - blocks.queries,
        )
        for size in range(0, largest + 1, blocks.queries):
            fresh = end_full == 0
            if size == 0 and call.chunks == 1:
                fresh = True
            here = (chunk == last_chunk) & (before == size)
            pl.when(here)(functools.partial(cut_step, size, fresh))
    else:
        end_full = lax.div(jnp.minimum(start + 1, keys) if call.causal else jnp.int32(keys), blocks.keys)
        full = jnp.int32(0)
        if window is not None:
            full = jnp.maximum(0, start + blocks.queries - window)
            full = jnp.minimum(lax.div(full + blocks.keys - 1, blocks.keys), end_full)
            step = functools.partial(masked_step, first_block)
            lax.fori_loop(within(first_block), within(full), step, None)
        full_steps(full, end_full, (chunk == first_chunk) & (full == first_block))
        end = lax.div(end_key + blocks.keys - 1, blocks.keys)
        step = functools.partial(masked_step, first_block)
        lax.fori_loop(within(end_full), within(end), step, None)

        @pl.when(chunk == last_chunk)
        def _():
            for part in every_part:
                rows = rows_of([part])
                write(part, sum_ref[rows, :], acc_ref[rows, :])

    @pl.when(chunk == last_chunk)
    def _():
        transfer(number, "start")
        every_block = call.packs_per_core * call.query_blocks

        @pl.when(number == every_block - 1)
        def _():
            if every_block > 1:
                transfer(number - 1, "wait")
            transfer(number, "wait")


def _transfer(call, core, done_ref, out_ref, sent, number, action):
    """Starts or awaits the way of a finished block to memory: the grid's own way of writing has one
    transfer for all heads, which takes turns where each head's is contiguous."""
    blocks = call.blocks
    pack, block = lax.div(number, call.query_blocks), lax.rem(number, call.query_blocks)
    b, p = call.place(core, pack)
    last = call.query_blocks - 1
    left = call.padded_queries - last * blocks.queries

    def all_heads(slot, length):
        at = pl.ds(pl.multiple_of(block * blocks.queries, blocks.queries), length)
        for head in range(blocks.heads):
            index = (b, p * blocks.heads + head)
            index += (slice(None), at) if call.transposed else (at, slice(None))
            source = done_ref.at[slot, head]
            if length < blocks.queries:
                source = source.at[:, :length] if call.transposed else source.at[:length]
            copy = pltpu.make_async_copy(source, out_ref.at[index], sent[slot])
            copy.start() if action == "start" else copy.wait()

    for slot in range(2):
        mine = lax.rem(number, 2) == slot
        if left == blocks.queries:
            pl.when(mine)(functools.partial(all_heads, slot, left))
        else:
            if last > 0:
                pl.when(mine & (block < last))(functools.partial(all_heads, slot, blocks.queries))
            pl.when(mine & (block == last))(functools.partial(all_heads, slot, left))


def _to_width(lanes, width):
    """A value that is equal in all lanes, [rows, 128], as [rows, width]."""
    if width <= LANES:
        return lanes[:, :width]
    if width % LANES == 0:
        return jnp.tile(lanes, (1, width // LANES))
    return jnp.broadcast_to(lanes[:, :1], (lanes.shape[0], width))
