"""Parity, refusals, races and compilation of `rotary_pos_emb`."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import tpu_compiler
from harness import DTYPES, assert_close, call, find_races, load, normal, ragged, wide

BACKENDS = ("tpu", "cpu")


def angles(batch, length, rotated, dtype):
    """cos and sin as a model makes them, with positions that differ between sequences."""
    frequency = 10_000.0 ** (-np.arange(0, rotated, 2) / rotated)
    position = np.arange(length)[None, :, None] + 3 * np.arange(batch)[:, None, None]
    angle = np.concatenate([position * frequency] * 2, axis=-1)
    return jnp.asarray(np.cos(angle), dtype), jnp.asarray(np.sin(angle), dtype)


def reference(x, cos, sin, unsqueeze_dim):
    x, cos, sin = wide(x), wide(cos), wide(sin)
    rotated = cos.shape[-1]
    cos, sin = np.expand_dims(cos, unsqueeze_dim), np.expand_dims(sin, unsqueeze_dim)
    turning, rest = x[..., :rotated], x[..., rotated:]
    half = rotated // 2
    swapped = np.concatenate([-turning[..., half:], turning[..., :half]], axis=-1)
    return np.concatenate([turning * cos + swapped * sin, rest], axis=-1)


def check(backend, shape, dtype, rotated=None, unsqueeze_dim=1, shared=False):
    batch, heads, kv_heads, length, head_dim = shape
    q = normal(1, (batch, heads, length, head_dim), dtype)
    k = normal(2, (batch, kv_heads, length, head_dim), dtype)
    if unsqueeze_dim == 2:
        q, k = q.swapaxes(1, 2), k.swapaxes(1, 2)
    cos, sin = angles(1 if shared else batch, length, rotated or head_dim, dtype)
    out = call("rotary", backend, "rotary_pos_emb", q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)
    for turned, x in zip(out, (q, k), strict=True):
        assert turned.dtype == dtype
        assert_close(turned, reference(x, cos, sin, unsqueeze_dim), dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("length, head_dim, dtype", ragged(full=False))
def test_ragged_lengths_agree_with_float64(backend, length, head_dim, dtype):
    check(backend, (2, 3, 1, length, head_dim), dtype)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("length, head_dim, dtype", ragged(full=True))
def test_ragged_lengths_of_every_head_dim_and_dtype(backend, length, head_dim, dtype):
    check(backend, (2, 3, 1, length, head_dim), dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 9, 3, 33, 64), (1, 8, 2, 1100, 128), (3, 4, 4, 1, 96)])
def test_shapes_of_models_agree_with_float64(backend, dtype, shape):
    check(backend, shape, dtype)
    check(backend, shape, dtype, unsqueeze_dim=2)
    check(backend, shape, dtype, shared=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rotated", [2, 16, 32, 64, 128])
def test_dimensions_beyond_the_rotated_ones_pass_through(backend, rotated):
    check(backend, (1, 4, 2, 40, 128), jnp.bfloat16, rotated=rotated)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype, rotated", [(jnp.float32, 64), (jnp.bfloat16, 128)])
def test_interleaved_pairs_turn_as_in_glm(backend, dtype, rotated):
    from transformers.models.glm4.modeling_glm4 import apply_rotary_pos_emb

    q, k = normal(1, (2, 4, 33, 128), dtype), normal(2, (2, 2, 33, 128), dtype)
    cos, sin = angles(2, 33, rotated, dtype)
    out = call("rotary", backend, "rotary_pos_emb", q, k, cos, sin, interleaved=True)
    expected = apply_rotary_pos_emb(*(torch.tensor(wide(x)) for x in (q, k, cos, sin)))
    for turned, right in zip(out, expected, strict=True):
        assert_close(turned, right, dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("unsqueeze_dim", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_and_rotation_in_one_are_the_norm_and_the_rotation(backend, unsqueeze_dim, dtype):
    q, k = normal(1, (2, 4, 33, 128), dtype, 3.0), normal(2, (2, 2, 33, 128), dtype, 3.0)
    if unsqueeze_dim == 2:
        q, k = q.swapaxes(1, 2), k.swapaxes(1, 2)
    weights = normal(3, (128,), dtype), normal(4, (128,), dtype)
    cos, sin = angles(2, 33, 128, dtype)
    options = {"eps": 1e-6, "unsqueeze_dim": unsqueeze_dim}
    out = call("rotary", backend, "norm_rotary", q, k, *weights, cos, sin, **options)
    for turned, x, weight in zip(out, (q, k), weights, strict=True):
        normed = wide(x) / np.sqrt((wide(x) ** 2).mean(axis=-1, keepdims=True) + 1e-6)
        expected = reference(normed * wide(weight), cos, sin, unsqueeze_dim)
        assert turned.dtype == dtype
        assert_close(turned, expected, dtype)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_cannot_be_computed_is_refused(backend):
    q, cos = jnp.zeros((1, 2, 5, 64)), jnp.zeros((1, 5, 64))
    run = lambda q, cos, **o: call("rotary", backend, "rotary_pos_emb", q, q, cos, cos, **o)
    with pytest.raises(ValueError, match="size zero"):
        run(q[:, :, :0], cos[:, :0])
    with pytest.raises(ValueError, match="does not fit"):
        run(q, cos[:, :4])
    with pytest.raises(ValueError, match="even last dimension of at most 64"):
        run(q, cos[..., :63])
    with pytest.raises(ValueError, match="`unsqueeze_dim` must be 1 or 2"):
        run(q, cos, unsqueeze_dim=0)
    with pytest.raises(TypeError, match="float16"):
        run(q.astype(jnp.float16), cos)


def test_no_races_in_the_simulated_memory():
    q, k = normal(1, (1, 2, 1100, 64), jnp.float32), normal(2, (1, 1, 1100, 64), jnp.float32)
    cos, sin = angles(1, 1100, 64, jnp.float32)
    races, out = find_races("rotary", "rotary_pos_emb", q, k, cos, sin)
    assert not races
    assert_close(out[0], reference(q, cos, sin, 1), jnp.float32)


def test_the_cpu_build_agrees_with_transformers():
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    q, k = torch.randn(2, 9, 17, 64), torch.randn(2, 3, 17, 64)
    cos, sin = (torch.from_dlpack(array) for array in angles(2, 17, 64, jnp.float32))
    expected = apply_rotary_pos_emb(q, k, cos, sin)
    module = load("rotary", "cpu")
    for out in (module.rotary_pos_emb(q, k, cos, sin), module.layers.rotary_pos_emb()(q, k, cos, sin)):
        for result, reference_result in zip(out, expected, strict=True):
            assert (result - reference_result).abs().max() < 1e-5


def _jobs(cases, dtypes=("bfloat16", "float32")):
    return [
        {
            "kernel": "rotary",
            "function": "rotary_pos_emb",
            "arguments": [
                [[batch, heads, length, head_dim], dtype],
                [[batch, kv_heads, length, head_dim], dtype],
                [[batch, length, rotated], dtype],
                [[batch, length, rotated], dtype],
            ],
            "options": {},
        }
        for batch, heads, kv_heads, length, head_dim, rotated in cases
        for dtype in dtypes
    ]


@pytest.mark.parametrize("target", ["v5e", "v6e"])
def test_the_tpu_compiler_builds_it(target):
    cases = [
        (1, 9, 3, 1, 64, 64),
        (1, 9, 3, 300, 64, 64),
        (2, 32, 8, 2048, 128, 128),
        (1, 32, 2, 129, 128, 64),
    ]
    tpu_compiler.assert_compiles(target, _jobs(cases))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["v4", "v5e", "v5p", "v6e", "tpu7x"])
def test_every_tpu_generation_builds_it(target):
    cases = [(1, 8, 2, 700, 96, 96), (1, 8, 2, 33, 256, 64), (8, 8, 2, 1, 80, 32)]
    tpu_compiler.assert_compiles(target, _jobs(cases))
