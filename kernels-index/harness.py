"""What the tests of all kernels share: loading a build, running a TPU body on the CPU, comparing.

The tests load `build/`, the very files that are published, not their source.
"""

import contextlib
import functools
import importlib
import importlib.util
import json
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

INDEX = pathlib.Path(__file__).parent
# Largest error against the float64 reference that rounding explains, relative to the result's scale.
TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2}
DTYPES = (jnp.float32, jnp.bfloat16)
# An interpreted kernel is compiled for one call, so that optimising it costs more than it saves.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
# Lengths around every block edge that a kernel has below 256.
RAGGED = (*range(1, 34), 127, 128, 129)
# Those of them at the edge of a tile; for what is not worth every length.
EDGES = (1, 2, 7, 8, 9, 16, 17, 33, 127, 128, 129)
HEAD_DIMS = (64, 128)


def ragged(full):
    """(length, head_dim, dtype) for parametrize: each length once with the pairs of head_dim and
    dtype taking turns, or with `full` every combination."""
    pairs = [(head_dim, dtype) for head_dim in HEAD_DIMS for dtype in DTYPES]
    if full:
        return [(length, *pair) for length in RAGGED for pair in pairs]
    return [(length, *pairs[i % len(pairs)]) for i, length in enumerate(RAGGED)]


@functools.cache
def load(name, backend):
    """The module of a build, loaded as the `kernels` library loads it."""
    directory = INDEX / name / "build" / f"torch-{backend}"
    identifier = json.loads((directory / "metadata.json").read_text())["id"]
    spec = importlib.util.spec_from_file_location(
        identifier, directory / "__init__.py", submodule_search_locations=[str(directory)]
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[identifier] = module
    spec.loader.exec_module(module)
    return module


def body(name, backend, function):
    """The JAX function behind an operator; `backend` "peer" takes one of `peers` instead."""
    if backend == "peer":
        return getattr(importlib.import_module("peers"), function)
    module = load(name, backend)
    file = "_jax_body" if backend == "cpu" else "_pallas_body"
    return getattr(sys.modules[f"{module.__name__}.{file}"], function)


@contextlib.contextmanager
def interpreted(mode=True):
    """Pallas calls run on the CPU; `mode` may be InterpretParams for the exact simulation."""
    real = pl.pallas_call
    pl.pallas_call = functools.partial(real, interpret=mode)
    try:
        yield
    finally:
        pl.pallas_call = real


def call(name, backend, function, *arrays, **static):
    """Runs a body on the CPU: the JAX one compiled, the Pallas one interpreted."""
    run = functools.partial(body(name, backend, function), **static)
    with interpreted():
        return jax.jit(run, compiler_options=QUICK if backend == "tpu" else None)(*arrays)


def find_races(name, function, *arrays, **static):
    """Runs a Pallas body under the simulation of the TPU's memory; True if accesses race."""
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call as simulation

    with interpreted(pltpu.InterpretParams(detect_races=True, out_of_bounds_reads="uninitialized")):
        result = jax.jit(functools.partial(body(name, "tpu", function), **static))(*arrays)
        jax.block_until_ready(result)
    return simulation.races.races_found, result


def normal(seed, shape, dtype, scale=1.0):
    """Normal numbers of a fixed seed; made by numpy, for which no shape is compiled."""
    numbers = np.random.default_rng(seed).standard_normal(shape, np.float32) * np.float32(scale)
    return jnp.asarray(numbers.astype(dtype))


def wide(array):
    """An array as float64."""
    return np.asarray(array, np.float64)


def assert_close(result, expected, dtype):
    """The error is within what rounding to `dtype` explains; NaN never is."""
    result, expected = wide(result), wide(expected)
    assert result.shape == expected.shape
    bound = TOLERANCE[jnp.dtype(dtype).name] * max(1.0, np.abs(expected).max())
    error = np.abs(result - expected).max()
    assert error <= bound, f"error {error:.3e} above {bound:.3e}"


def attention_reference(q, k, v, scale, causal=True, window=None):
    """Attention in float64 with the whole matrix of scores."""
    q, k, v = wide(q), wide(k), wide(v)
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = q @ k.swapaxes(-1, -2) * scale
    queries, keys = scores.shape[-2:]
    row, column = np.arange(queries)[:, None] + keys - queries, np.arange(keys)
    if causal:
        scores = np.where(column <= row, scores, -np.inf)
    if window is not None:
        scores = np.where(column > row - window, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v
