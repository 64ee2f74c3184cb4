"""Parity, refusals, races and compilation of `decode_attention`."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import tpu_compiler
from harness import (
    DTYPES,
    EDGES,
    RAGGED,
    assert_close,
    attention_reference,
    call,
    find_races,
    load,
    normal,
    wide,
)

BACKENDS = ("tpu", "cpu")


def inputs(batch, heads, kv_heads, capacity, head_dim, dtype, lengths):
    """Caches whose entries beyond the length are NaN: a kernel must not let them through."""
    q = normal(1, (batch, heads, 1, head_dim), dtype)
    k = normal(2, (batch, kv_heads, capacity, head_dim), dtype)
    v = normal(3, (batch, kv_heads, capacity, head_dim), dtype)
    beyond = np.arange(capacity) >= np.asarray(lengths)[:, None]
    k, v = (np.where(beyond[:, None, :, None], jnp.nan, np.asarray(x)) for x in (k, v))
    return q, jnp.asarray(k, dtype), jnp.asarray(v, dtype), jnp.asarray(lengths, jnp.int32)


def reference(q, k, v, lengths, scale, window=None):
    """Each sequence on its own, cut to what it holds."""
    rows = []
    for row, length in enumerate(np.asarray(lengths)):
        length = min(int(length), k.shape[2])
        if length == 0:
            rows.append(np.zeros(q.shape[1:]))
            continue
        start = 0 if window is None else max(0, length - window)
        keys, values = k[row : row + 1, :, start:length], v[row : row + 1, :, start:length]
        rows.append(attention_reference(q[row : row + 1], keys, values, scale)[0])
    return np.stack(rows)


def check(backend, shape, lengths, dtype, **options):
    arrays = inputs(*shape, dtype, lengths)
    scale = shape[-1] ** -0.5
    out = call("decode-attention", backend, "decode_attention", *arrays, scale=scale, **options)
    assert out.dtype == dtype
    assert_close(out, reference(*arrays, scale, **options), dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_every_ragged_length_agrees_with_float64(backend, dtype, head_dim):
    """One call with a batch of all lengths; lengths are data, so nothing is compiled again."""
    check(backend, (len(RAGGED), 3, 1, 160, head_dim), RAGGED, dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("capacity", EDGES)
def test_ragged_capacities_agree_with_float64(backend, capacity):
    check(backend, (2, 3, 1, capacity, 64), [capacity, max(1, capacity // 2)], jnp.float32)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "shape, window",
    [
        ((2, 9, 3, 300, 64), None),
        ((2, 9, 3, 300, 64), 100),
        ((2, 4, 1, 2500, 128), None),
        ((2, 4, 1, 2500, 128), 100),
        ((2, 4, 1, 5000, 128), 3000),
        ((2, 4, 1, 2500, 64), 100),
        ((2, 8, 2, 2048, 128), None),
        ((2, 32, 1, 129, 64), 100),
        ((2, 2, 1, 33, 96), None),
    ],
)
def test_groups_and_capacities_agree_with_float64(backend, shape, window):
    lengths = [shape[3], shape[3] - 20]
    check(backend, shape, lengths, jnp.float32, window=window)
    check(backend, shape, lengths, jnp.bfloat16, window=window)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_sequence_gives_zeros_and_a_length_beyond_the_cache_is_the_cache(backend):
    check(backend, (3, 4, 2, 33, 64), [0, 7, 1000], jnp.float32)


def quantized(x):
    """An array as int8 and what an entry is worth, [B, K, 1, C]."""
    x = wide(x)
    scales = np.abs(x).max(axis=-1, keepdims=True).astype(np.float32) / 127
    return jnp.asarray(np.round(x / scales), jnp.int8), jnp.asarray(scales.swapaxes(2, 3))


def int8_inputs(shape, dtype, lengths):
    """Arguments whose scales beyond the length are NaN, and what their caches are worth, so that no
    rounding to int8 is part of a difference."""
    batch, heads, kv_heads, capacity, head_dim = shape
    q = normal(1, (batch, heads, 1, head_dim), dtype)
    full = [normal(seed, (batch, kv_heads, capacity, head_dim), jnp.float32) for seed in (2, 3)]
    (k, k_scales), (v, v_scales) = (quantized(x) for x in full)
    worth = [
        wide(x) * wide(scales).swapaxes(2, 3) for x, scales in ((k, k_scales), (v, v_scales))
    ]
    beyond = (np.arange(capacity) >= np.asarray(lengths)[:, None])[:, None, None]
    k_scales, v_scales = (
        jnp.asarray(np.where(beyond, np.nan, scales), jnp.float32) for scales in (k_scales, v_scales)
    )
    return (q, k, v, k_scales, v_scales, jnp.asarray(lengths, jnp.int32)), worth


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape, window", [((3, 8, 2, 300, 64), None), ((3, 4, 2, 5000, 128), 100)])
def test_int8_caches_agree_with_float64(backend, dtype, shape, window):
    arrays, worth = int8_inputs(shape, dtype, [shape[3], shape[3] - 20, 0])
    options = {"scale": shape[-1] ** -0.5, "window": window}
    out = call("decode-attention", backend, "decode_attention_int8", *arrays, **options)
    assert out.dtype == dtype
    expected = reference(arrays[0], *worth, arrays[-1], options["scale"], window)
    assert_close(out, expected, dtype)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_cannot_be_computed_is_refused(backend):
    q, k, v, lengths = inputs(2, 4, 2, 16, 64, jnp.float32, [3, 4])
    run = lambda *a, **o: call("decode-attention", backend, "decode_attention", *a, scale=0.1, **o)
    with pytest.raises(ValueError, match="size zero"):
        run(q, k[:, :, :0], v[:, :, :0], lengths)
    with pytest.raises(ValueError, match="`lengths` must be int32"):
        run(q, k, v, lengths.astype(jnp.float32))
    with pytest.raises(ValueError, match=r"shape \(2,\)"):
        run(q, k, v, lengths[:1])
    with pytest.raises(ValueError, match="heads, 1, head_dim"):
        run(jnp.tile(q, (1, 1, 2, 1)), k, v, lengths)
    with pytest.raises(ValueError, match="not a multiple"):
        run(q[:, :3], k, v, lengths)
    with pytest.raises(ValueError, match="at least 1"):
        run(q, k, v, lengths, window=0)


def test_no_races_in_the_simulated_memory():
    arrays = inputs(2, 4, 2, 40, 64, jnp.float32, [40, 7])
    races, out = find_races("decode-attention", "decode_attention", *arrays, scale=0.125)
    assert not races
    assert_close(out, reference(*arrays, 0.125), jnp.float32)


def test_no_races_with_int8_caches():
    arrays, worth = int8_inputs((2, 4, 2, 40, 64), jnp.float32, [40, 7])
    races, out = find_races("decode-attention", "decode_attention_int8", *arrays, scale=0.125)
    assert not races
    assert_close(out, reference(arrays[0], *worth, arrays[-1], 0.125), jnp.float32)


@pytest.mark.parametrize("filled", [2500, 2048, 700])
def test_the_form_that_estimates_are_made_of_computes_the_same(filled):
    *caches, lengths = inputs(2, 4, 1, 2500, 128, jnp.bfloat16, [filled, filled])
    name, options = "filled_decode_attention", {"filled": filled, "scale": 0.1}
    estimated = call("decode-attention", "tpu", name, *caches, **options)
    offered = call("decode-attention", "tpu", "decode_attention", *caches, lengths, scale=0.1)
    assert np.array_equal(wide(estimated), wide(offered))


def test_the_cpu_build_runs_on_torch_tensors():
    q, k, v, lengths = inputs(2, 9, 3, 40, 64, jnp.float32, [40, 7])
    tensors = [torch.from_dlpack(array) for array in (q, k, v, lengths)]
    out = load("decode-attention", "cpu").decode_attention(*tensors, scale=0.125)
    assert np.abs(out.numpy() - reference(q, k, v, lengths, 0.125)).max() < 1e-5
    assert np.isfinite(wide(out)).all()


def _jobs(shapes, dtypes=("bfloat16", "float32")):
    return [
        {
            "kernel": "decode-attention",
            "function": "decode_attention",
            "arguments": [
                [[batch, heads, 1, head_dim], dtype],
                [[batch, kv_heads, capacity, head_dim], dtype],
                [[batch, kv_heads, capacity, head_dim], dtype],
                [[batch], "int32"],
            ],
            "options": {"scale": head_dim**-0.5},
        }
        for batch, heads, kv_heads, capacity, head_dim in shapes
        for dtype in dtypes
    ]


def _int8_jobs(shapes):
    """The jobs for int8 caches."""
    jobs = _jobs(shapes)
    for job in jobs:
        q, k, v, lengths = job["arguments"]
        scales = [[k[0][0], k[0][1], 1, k[0][2]], "float32"]
        job["function"] = "decode_attention_int8"
        job["arguments"] = [q, [k[0], "int8"], [v[0], "int8"], scales, scales, lengths]
    return jobs


@pytest.mark.parametrize("target", ["v5e", "v6e"])
def test_the_tpu_compiler_builds_it(target):
    shapes = [(1, 9, 3, 300, 64), (1, 32, 8, 2048, 128), (8, 32, 8, 8192, 64), (2, 4, 1, 2500, 128)]
    tpu_compiler.assert_compiles(target, _jobs(shapes))
    tpu_compiler.assert_compiles(target, _int8_jobs(shapes[:2]))


@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_cache_is_not_copied(head_dim):
    """A relayout of the caches would need as much scratch memory as they have."""
    jobs = _jobs([(1, 32, 8, 8192, head_dim)], ["bfloat16"])
    for job in jobs:
        job["temporary_bytes"] = 1 << 20
    tpu_compiler.assert_compiles("v5e", jobs)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["v4", "v5e", "v5p", "v6e", "tpu7x"])
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
def test_the_tpu_compiler_builds_every_head_dim(target, head_dim):
    shapes = [(1, 8, 2, 17, head_dim), (32, 32, 8, 8192, head_dim), (1, 7, 1, 1000, head_dim)]
    tpu_compiler.assert_compiles(target, _jobs(shapes))
    tpu_compiler.assert_compiles(target, _int8_jobs(shapes))
