"""Parity, refusals, races and compilation of `attention`."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import tpu_compiler
from harness import (
    DTYPES,
    assert_close,
    attention_reference,
    call,
    find_races,
    load,
    normal,
    ragged,
)

BACKENDS = ("tpu", "cpu")


def inputs(batch, heads, kv_heads, queries, keys, head_dim, dtype):
    return (
        normal(1, (batch, heads, queries, head_dim), dtype),
        normal(2, (batch, kv_heads, keys, head_dim), dtype),
        normal(3, (batch, kv_heads, keys, head_dim), dtype),
    )


def check(backend, shape, dtype, **options):
    q, k, v = inputs(*shape, dtype)
    scale = shape[-1] ** -0.5
    out = call("attention", backend, "attention", q, k, v, scale=scale, **options)
    assert out.dtype == dtype
    assert_close(out, attention_reference(q, k, v, scale, **options), dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("length, head_dim, dtype", ragged(full=False))
def test_ragged_lengths_agree_with_float64(backend, length, head_dim, dtype):
    check(backend, (1, 3, 1, length, length, head_dim), dtype)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("length, head_dim, dtype", ragged(full=True))
def test_ragged_lengths_of_every_head_dim_and_dtype(backend, length, head_dim, dtype):
    check(backend, (1, 3, 1, length, length, head_dim), dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape",
    [
        (2, 9, 3, 129, 129, 64),
        (1, 8, 2, 300, 300, 128),
        (1, 4, 1, 700, 700, 64),
        (1, 2, 2, 1100, 1100, 128),
        (1, 14, 2, 40, 40, 64),
        (1, 2, 1, 33, 33, 96),
        (1, 2, 1, 33, 33, 256),
    ],
)
def test_groups_and_head_dims_agree_with_float64(backend, dtype, shape):
    check(backend, shape, dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("window", [1, 5, 64, 200, 100_000])
def test_sliding_window(backend, window):
    check(backend, (1, 4, 2, 700, 700, 64), jnp.float32, window=window)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("queries, keys, window", [(5, 40, None), (1, 130, 7), (200, 901, None), (128, 1024, 300)])
def test_more_keys_than_queries_continue_a_sequence(backend, queries, keys, window):
    check(backend, (1, 4, 1, queries, keys, 64), jnp.float32, window=window)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("queries, keys", [(200, 201), (33, 7), (129, 640)])
def test_without_causal_mask(backend, queries, keys):
    check(backend, (1, 3, 1, queries, keys, 64), jnp.float32, causal=False)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [511, 512, 513, 1500, 2048, 4500])
def test_long_sequences_agree_with_float64(dtype, length):
    check("tpu", (1, 4, 1, length, length, 128), dtype)


@pytest.mark.parametrize(
    "shapes, options, message",
    [
        (((1, 2, 0, 64), (1, 2, 0, 64)), {}, "size zero"),
        (((1, 3, 4, 64), (1, 2, 4, 64)), {}, "not a multiple"),
        (((1, 2, 4, 64), (1, 2, 4, 32)), {}, "head_dim"),
        (((1, 2, 8, 64), (1, 2, 4, 64)), {}, "at least as many keys"),
        (((1, 2, 4, 64), (1, 2, 4, 64)), {"window": 0}, "at least 1"),
        (((1, 2, 4, 64), (1, 2, 4, 64)), {"window": 2, "causal": False}, "needs `causal=True`"),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_cannot_be_computed_is_refused(backend, shapes, options, message):
    q, k = jnp.zeros(shapes[0]), jnp.zeros(shapes[1])
    with pytest.raises(ValueError, match=message):
        call("attention", backend, "attention", q, k, k, scale=0.125, **options)


@pytest.mark.parametrize("backend", BACKENDS)
def test_dtypes_without_a_body_are_refused(backend):
    q = jnp.zeros((1, 1, 4, 64), jnp.float16)
    with pytest.raises(TypeError, match="float16"):
        call("attention", backend, "attention", q, q, q, scale=0.125)


@pytest.mark.parametrize("length", [200, 520])
def test_no_races_in_the_simulated_memory(length):
    q, k, v = inputs(1, 2, 1, length, length, 64, jnp.float32)
    races, out = find_races("attention", "attention", q, k, v, scale=0.125)
    assert not races
    assert_close(out, attention_reference(q, k, v, 0.125), jnp.float32)


def test_meta_tensors_get_the_shape_of_q():
    q = torch.empty(1, 9, 33, 64, device="meta", dtype=torch.bfloat16)
    k = torch.empty(1, 3, 33, 64, device="meta", dtype=torch.bfloat16)
    out = load("attention", "tpu").attention(q, k, k, scale=0.125)
    assert out.shape == q.shape and out.dtype == q.dtype


def test_the_cpu_build_runs_on_torch_tensors():
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 9, 33, 64), torch.randn(1, 3, 33, 64), torch.randn(1, 3, 33, 64)
    out = load("attention", "cpu").attention(q, k, v, scale=0.125)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=0.125, enable_gqa=True
    )
    assert np.abs((out - expected).numpy()).max() < 1e-5


COMPILED = [
    ("bfloat16", (1, 9, 3, 17, 17, 64), {}),
    ("bfloat16", (1, 9, 3, 1000, 1000, 64), {}),
    ("bfloat16", (1, 32, 8, 2048, 2048, 128), {}),
    ("float32", (1, 4, 1, 300, 300, 128), {}),
    ("bfloat16", (1, 4, 1, 700, 700, 128), {"window": 200}),
    ("bfloat16", (1, 4, 1, 200, 901, 64), {}),
]


@pytest.mark.parametrize("target", ["v5e", "v6e"])
def test_the_tpu_compiler_builds_it(target):
    tpu_compiler.assert_compiles(target, _jobs(COMPILED))


def test_the_default_beside_it_compiles_where_a_custom_call_of_xla_has_no_program():
    """Its analysis is an empty file, which once ended the job."""
    (job,) = _jobs([("bfloat16", (1, 4, 1, 1024, 1024, 64), {})])
    del job["temporary_bytes"]
    tpu_compiler.assert_compiles("v5e", [{**job, "body": "cpu"}])


@pytest.mark.slow
@pytest.mark.parametrize("target", ["v4", "v5e", "v5p", "v6e", "tpu7x"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
def test_the_tpu_compiler_builds_every_head_dim(target, dtype, head_dim):
    shapes = [(1, 8, 2, 17, 17), (1, 8, 2, 1000, 1000), (1, 8, 8, 4096, 4096)]
    tpu_compiler.assert_compiles(target, _jobs([(dtype, (*s, head_dim), {}) for s in shapes]))


def _jobs(cases):
    jobs = []
    for dtype, (batch, heads, kv_heads, queries, keys, head_dim), options in cases:
        jobs.append(
            {
                "kernel": "attention",
                "function": "attention",
                "arguments": [
                    [[batch, heads, queries, head_dim], dtype],
                    [[batch, kv_heads, keys, head_dim], dtype],
                    [[batch, kv_heads, keys, head_dim], dtype],
                ],
                "options": {"scale": head_dim**-0.5, **options},
            }
        )
        padded = [-(-length // 512) * 512 for length in (queries, keys)]
        whole = padded == [queries, keys]
        # Lengths that are no multiple of a block are padded: the inputs and the result once more,
        # where XLA chooses another layout for them twice. Nothing of [length, length].
        elements = batch * (2 * heads * padded[0] + 2 * kv_heads * padded[1]) * max(128, head_dim)
        jobs[-1]["temporary_bytes"] = 0 if whole else 2 * 4 * elements
    return jobs
