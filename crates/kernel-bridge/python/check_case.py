"""A call of an op for `check`: sizes, tensors, statics, and how their values are made.

Sizes have one letter each: B batch, H query heads, K key/value heads, T tokens, C entries of a cache, L of
which are filled, D head dimension, R rows, I inner width of an MLP (where H is the width of the rows).
"""

import jax
import torch

from . import exchange

#: Base of the rotary angles.
_THETA = 10_000.0


class Case:
    """One call: positional tensors, static keywords, and what a layer finds on its `self`."""

    def __init__(self, sizes, tensors, statics=None, attributes=None):
        self.sizes = sizes
        self.tensors = tensors
        self.statics = statics or {}
        self.attributes = attributes or {}


class Source:
    """Makes tensors: random ones of a seed, or ones without memory."""

    def __init__(self, dtype, seed=0, meta=False):
        self.dtype = getattr(torch, dtype)
        self.meta = meta
        self._random = torch.Generator().manual_seed(seed)

    def normal(self, *shape, scale=1.0):
        if self.meta:
            return torch.empty(shape, dtype=self.dtype, device="meta")
        return (torch.randn(shape, generator=self._random) * scale).to(self.dtype)

    def lengths(self, values):
        if self.meta:
            return torch.empty(len(values), dtype=torch.int32, device="meta")
        return torch.tensor(values, dtype=torch.int32)

    def angles(self, batch, tokens, width):
        """cos and sin [B, T, D] of the positions, as a model's rotary embedding gives them."""
        if self.meta:
            empty = torch.empty(batch, tokens, width, dtype=self.dtype, device="meta")
            return empty, torch.empty_like(empty)
        frequency = _THETA ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
        angle = torch.arange(tokens, dtype=torch.float32)[:, None] * frequency
        angle = torch.cat([angle, angle], -1).expand(batch, -1, -1)
        return angle.cos().to(self.dtype), angle.sin().to(self.dtype)


def wide(*tensors):
    return [tensor.double() for tensor in tensors]


def with_value(tensor, index, value):
    """A copy with one element replaced."""
    copy = tensor.clone()
    copy[index] = value
    return copy


def structures(case):
    """Shapes and types of a case's tensors, for compiling."""
    return [
        jax.ShapeDtypeStruct(tuple(t.shape), exchange.SAME[exchange.NARROWED.get(t.dtype, t.dtype)])
        for t in case.tensors
    ]
