"""What a traced function shows before it is compiled: grids, hazards, and torch ops around it."""

import jax
import numpy as np
import torch
from jax.extend import core as jax_core
from torch.utils._python_dispatch import TorchDispatchMode

#: Primitives by which a kernel's body is not a straight line: its bundles then do not tell its time.
_BRANCHES = {"while", "scan", "cond"}
#: Ops of torch that move no data.
_FREE = {"detach", "view", "_unsafe_view", "alias", "empty", "t", "transpose", "permute", "expand", "slice",
         "select", "unsqueeze", "squeeze", "split", "unbind", "empty_strided", "as_strided"}


def inspect(function, structures):
    """Grids of the Pallas calls and what may go wrong on a TPU, from the jaxpr."""
    jaxpr = jax.jit(function).trace(*structures).jaxpr
    grids, hazards = [], set()
    _walk(jaxpr.jaxpr, grids, hazards, False)
    return {"pallas": grids, "hazards": sorted(hazards)}


def _walk(jaxpr, grids, hazards, in_kernel):
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name == "pallas_call":
            grids.append(_grid(equation))
        if name == "dot_general" and _rounds(equation):
            hazards.add("f32-matmul-rounded")
        for variable in equation.outvars:
            dtype = getattr(variable.aval, "dtype", None)
            if dtype is not None and dtype in (np.dtype("float64"), np.dtype("int64"), np.dtype("uint64")):
                hazards.add("64-bit")
        for inner in _inner(equation.params):
            _walk(inner, grids, hazards, in_kernel or name == "pallas_call")


def _inner(params):
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, jax_core.ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, jax_core.Jaxpr):
                yield item


def _rounds(equation):
    """A product of f32 at default precision: the MXU of a TPU rounds its factors to bfloat16."""
    left, right = (variable.aval.dtype for variable in equation.invars[:2])
    precision = equation.params.get("precision")
    precise = precision is not None and all(
        getattr(p, "name", str(p)) in ("HIGH", "HIGHEST") for p in (precision if isinstance(precision, tuple) else (precision,))
    )
    return left == right == np.dtype("float32") and not precise


def _grid(equation):
    mapping = equation.params["grid_mapping"]
    steps = 1
    for size in mapping.grid:
        if not isinstance(size, (int, np.integer)):
            steps = None
            break
        steps *= int(size)
    names = set()
    _names(equation.params["jaxpr"], names)
    info = equation.params.get("name_and_src_info")
    return {
        "name": getattr(info, "name", None) or "pallas_call",
        "grid": [int(s) if isinstance(s, (int, np.integer)) else None for s in mapping.grid],
        "steps": steps,
        "straight": not names & _BRANCHES,
        "scalar_prefetch": bool(getattr(mapping, "num_index_operands", 0)),
    }


def _names(jaxpr, names):
    for equation in jaxpr.eqns:
        names.add(equation.primitive.name)
        for inner in _inner(equation.params):
            _names(inner, names)


class TorchOps(TorchDispatchMode):
    """Counts the ops of torch that compute or move something."""

    def __init__(self):
        super().__init__()
        self._counts = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::")
        if name not in _FREE:
            self._counts[name] = self._counts.get(name, 0) + 1
        return func(*args, **(kwargs or {}))

    def names(self):
        return [name if count == 1 else f"{name} x{count}" for name, count in sorted(self._counts.items())]
