"""What the ops on heads promise: attention over a prompt, over a cache, and the rotary embedding.

Each class has the arguments of the op (`case`), its value in float64 (`value`), the usual mistakes
(`mistakes`), inputs that are not finite (`poisons`), the default op in torch (`default`) and as XLA compiles
it for a TPU (`xla`).
"""

import jax
import jax.numpy as jnp
import torch

from .check_case import Case, wide, with_value


def _repeat(q, k, v):
    group = q.shape[1] // k.shape[1]
    return k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)


class Attention:
    """`attention(q [B, H, T, D], k, v [B, K, T, D], *, scale, causal, window) -> [B, H, T, D]`."""

    tensors = ("q", "k", "v")
    statics = ("scale", "causal", "window")
    #: Statics that some model needs; a function without one serves fewer models.
    optional = {"window": "sliding windows"}
    heads_dimension = {0: 1, 1: 1, 2: 1}

    def case(self, sizes, source, window=None):
        b, h, k, t, d = (sizes[name] for name in "BHKTD")
        shapes = (b, h, t, d), (b, k, t, d), (b, k, t, d)
        statics = {"scale": d**-0.5, "causal": True, "window": window}
        return Case(sizes, [source.normal(*shape) for shape in shapes], statics)

    def value(self, case, causal=True, scale=True, repeat=_repeat):
        q, k, v = wide(*case.tensors)
        k, v = repeat(q, k, v)
        scores = q @ k.mT * (case.statics["scale"] if scale else 1.0)
        row, column = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
        seen = column <= row if causal else torch.ones(len(row), len(column), dtype=torch.bool)
        if causal and case.statics["window"] is not None:
            seen &= column > row - case.statics["window"]
        return [_weighted(scores, seen, v)]

    def mistakes(self, case):
        yield "is attention without the causal mask", self.value(case, causal=False)
        yield "ignores `scale`", self.value(case, scale=False)
        if case.statics["window"] is not None:
            yield "ignores `window`", self.value(Case(case.sizes, case.tensors, {**case.statics, "window": None}))
        if 1 < case.sizes["K"] < case.sizes["H"]:
            tiled = lambda q, k, v: tuple(x.repeat(1, q.shape[1] // k.shape[1], 1, 1) for x in (k, v))  # noqa: E731
            yield "gives query head h the key/value head h % K, not h // (H / K)", self.value(case, repeat=tiled)

    def default(self, case):
        q, k, v = case.tensors
        if case.statics["window"] is None:
            return [torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=case.statics["scale"], enable_gqa=True)]
        row, column = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
        seen = (column <= row) & (column > row - case.statics["window"])
        return [torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, scale=case.statics["scale"], enable_gqa=True)]

    def poisons(self, case):
        q, k, v = case.tensors
        last = q.shape[2] - 1
        yield "NaN in one query row", False, Case(case.sizes, [with_value(q, (0, 0, last // 2, 0), torch.nan), k, v], case.statics)
        yield "NaN in the last key", False, Case(case.sizes, [q, with_value(k, (0, 0, last, 0), torch.nan), v], case.statics)
        yield "infinity in the last value", False, Case(case.sizes, [q, k, with_value(v, (0, 0, last, 0), torch.inf)], case.statics)

    def xla(self, case):
        window, scale = case.statics["window"], case.statics["scale"]

        def attention(q, k, v):
            b, h, t, d = q.shape
            packed = q.reshape(b, k.shape[1], h // k.shape[1], t, d)
            scores = jnp.einsum("bkgtd,bksd->bkgts", packed, k, preferred_element_type=jnp.float32) * scale
            row, column = jnp.arange(t)[:, None], jnp.arange(k.shape[2])
            seen = column <= row if window is None else (column <= row) & (column > row - window)
            weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1).astype(v.dtype)
            return jnp.einsum("bkgts,bksd->bkgtd", weights, v).reshape(q.shape)

        return attention


class DecodeAttention:
    """`decode_attention(q [B, H, 1, D], k_cache, v_cache [B, K, C, D], lengths [B], *, scale, window)`."""

    tensors = ("q", "k_cache", "v_cache", "lengths")
    statics = ("scale", "window")
    optional = {"window": "sliding windows"}
    heads_dimension = {0: 1, 1: 1, 2: 1}

    def case(self, sizes, source, window=None):
        b, h, k, c, filled, d = (sizes[name] for name in "BHKCLD")
        # Rows of a batch are filled to different lengths, the last one to `L`.
        lengths = [max(1, filled - row * (filled // b)) for row in reversed(range(b))]
        tensors = [source.normal(b, h, 1, d), source.normal(b, k, c, d), source.normal(b, k, c, d)]
        if not source.meta:
            # Columns beyond a row's length hold whatever was there before.
            for row, length in enumerate(lengths):
                for cache in tensors[1:]:
                    cache[row, :, length:] *= 8
        return Case(sizes, [*tensors, source.lengths(lengths)], {"scale": d**-0.5, "window": window})

    def value(self, case, scale=True, offset=0, masked=True):
        q, k, v = wide(*case.tensors[:3])
        k, v = _repeat(q, k, v)
        scores = q @ k.mT * (case.statics["scale"] if scale else 1.0)
        lengths = case.tensors[3].long()[:, None, None, None] + offset
        column = torch.arange(k.shape[2])
        seen = column < lengths if masked else (column >= 0).expand(scores.shape)
        if masked and case.statics["window"] is not None:
            seen = seen & (column >= lengths - case.statics["window"])
        return [_weighted(scores, seen, v)]

    def mistakes(self, case):
        yield "reads one entry too many", self.value(case, offset=1)
        yield "reads the whole cache and not the first `lengths` entries", self.value(case, masked=False)
        if case.tensors[3].min() > 1:
            yield "leaves out the newest entry", self.value(case, offset=-1)
        yield "ignores `scale`", self.value(case, scale=False)

    def default(self, case):
        q, k, v, lengths = case.tensors
        column = torch.arange(k.shape[2])
        seen = column < lengths.long()[:, None, None, None]
        if case.statics["window"] is not None:
            seen &= column >= lengths.long()[:, None, None, None] - case.statics["window"]
        return [torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, scale=case.statics["scale"], enable_gqa=True)]

    def poisons(self, case):
        q, k, v, lengths = case.tensors
        if (lengths < k.shape[2]).any():
            row = int((lengths < k.shape[2]).nonzero()[0, 0])
            beyond = (row, 0, int(lengths[row]), 0)
            yield "NaN in the unfilled part of the keys", True, Case(
                case.sizes, [q, with_value(k, beyond, torch.nan), v, lengths], case.statics)
            yield "NaN in the unfilled part of the values", True, Case(
                case.sizes, [q, k, with_value(v, beyond, torch.nan), lengths], case.statics)
        yield "NaN in one query row", False, Case(
            case.sizes, [with_value(q, (0, 0, 0, 0), torch.nan), k, v, lengths], case.statics)

    def xla(self, case):
        window, scale = case.statics["window"], case.statics["scale"]

        def decode_attention(q, k, v, lengths):
            b, h, _, d = q.shape
            packed = q.reshape(b, k.shape[1], h // k.shape[1], d)
            scores = jnp.einsum("bkgd,bkcd->bkgc", packed, k, preferred_element_type=jnp.float32) * scale
            column, limit = jnp.arange(k.shape[2]), lengths[:, None, None, None]
            seen = column < limit if window is None else (column < limit) & (column >= limit - window)
            weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1).astype(v.dtype)
            return jnp.einsum("bkgc,bkcd->bkgd", weights, v).reshape(q.shape)

        return decode_attention


class Rotary:
    """`rotary_pos_emb(q [B, H, T, D], k [B, K, T, D], cos, sin [B, T, D])`, in the layout of halves."""

    tensors = ("q", "k", "cos", "sin")
    statics = ()
    optional = {}
    heads_dimension = {0: 1, 1: 1}

    def case(self, sizes, source):
        b, h, k, t, d = (sizes[name] for name in "BHKTD")
        tensors = [source.normal(b, h, t, d), source.normal(b, k, t, d), *source.angles(b, t, d)]
        return Case(sizes, tensors)

    def value(self, case, turn=None):
        q, k, cos, sin = wide(*case.tensors)
        turn = turn or _turn_halves
        return [x * cos[:, None] + turn(x) * sin[:, None] for x in (q, k)]

    def mistakes(self, case):
        q, k, cos, sin = wide(*case.tensors)
        half = cos.shape[-1] // 2
        cos, sin = (x[:, None, :, :half].repeat_interleave(2, -1) for x in (cos, sin))
        yield "pairs neighbouring dimensions and not the halves of a head", [
            x * cos + _turn_neighbours(x) * sin for x in (q, k)
        ]
        yield "turns the other way", self.value(case, turn=lambda x: -_turn_halves(x))

    def default(self, case):
        q, k, cos, sin = case.tensors
        return [x * cos[:, None] + _turn_halves(x) * sin[:, None] for x in (q, k)]

    def poisons(self, case):
        q = case.tensors[0]
        yield "NaN in one query row", False, Case(
            case.sizes, [with_value(q, (0, 0, q.shape[2] // 2, 0), torch.nan), *case.tensors[1:]])

    def xla(self, case):
        def rotary(q, k, cos, sin):
            cos, sin = cos[:, None], sin[:, None]

            def turned(x):
                first, second = jnp.split(x, 2, -1)
                return x * cos + jnp.concatenate([-second, first], -1) * sin

            return turned(q), turned(k)

        return rotary


def _turn_halves(x):
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def _turn_neighbours(x):
    return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)


def _weighted(scores, seen, v):
    """softmax over what is seen, times v; what is not seen has no influence, be it NaN or not."""
    weights = torch.softmax(scores.masked_fill(~seen, -torch.inf), -1)
    out = weights @ v.nan_to_num(0.0, 0.0, 0.0)
    if bool(torch.isfinite(v).all()):
        return out
    reached = seen.expand(weights.shape).double() @ (~torch.isfinite(v)).double() > 0
    return torch.where(reached, torch.nan, out)
