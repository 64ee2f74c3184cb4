"""Parity, refusals, races, layer contract and compilation of `rms_norm`."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import tpu_compiler
from harness import DTYPES, EDGES, assert_close, call, find_races, load, normal, ragged, wide

BACKENDS = ("tpu", "cpu")


def reference(x, weight, eps):
    x = wide(x)
    return wide(weight) * x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)


def check(backend, shape, dtype, weight_dtype=None, eps=1e-6):
    x, weight = normal(1, shape, dtype, 3.0), normal(2, shape[-1:], weight_dtype or dtype)
    out = call("rms-norm", backend, "rms_norm", x, weight, eps=eps)
    assert out.dtype == jnp.promote_types(dtype, weight_dtype or dtype)
    assert_close(out, reference(x, weight, eps), dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rows, width, dtype", ragged(full=False))
def test_ragged_row_counts_agree_with_float64(backend, rows, width, dtype):
    check(backend, (rows, width), dtype)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rows, width, dtype", ragged(full=True))
def test_ragged_row_counts_of_every_head_dim_and_dtype(backend, rows, width, dtype):
    """The last dimension of a q or k norm is head_dim."""
    check(backend, (rows, width), dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(576,), (2, 17, 576), (1, 33, 9, 64), (700, 1000), (1, 129, 4096)])
def test_shapes_of_models_agree_with_float64(backend, dtype, shape):
    check(backend, shape, dtype, eps=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("width", EDGES)
def test_ragged_widths_agree_with_float64(backend, width):
    check(backend, (5, width), jnp.float32)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_weight_multiplies_after_the_cast_as_in_transformers(backend):
    x, weight = normal(1, (17, 576), jnp.bfloat16, 3.0), normal(2, (576,), jnp.bfloat16)
    out = call("rms-norm", backend, "rms_norm", x, weight, eps=1e-6)
    tensor, scale = torch.from_dlpack(x), torch.from_dlpack(weight)
    wide_tensor = tensor.float()
    normed = wide_tensor * torch.rsqrt(wide_tensor.pow(2).mean(-1, keepdim=True) + 1e-6)
    expected = scale * normed.to(torch.bfloat16)
    differing = (torch.from_dlpack(out) != expected).float().mean()
    # rsqrt differs in its last bit between libraries, which now and then crosses a rounding edge.
    assert differing < 0.01


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_float32_weight_gives_float32_as_in_torch(backend):
    check(backend, (17, 128), jnp.bfloat16, jnp.float32)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(576,), (2, 17, 576), (700, 1000)])
def test_the_norm_of_a_sum_comes_with_the_sum(backend, dtype, shape):
    x, residual = normal(1, shape, dtype), normal(2, shape, dtype, 3.0)
    weight = normal(3, shape[-1:], dtype)
    normed, total = call("rms-norm", backend, "add_rms_norm", x, residual, weight, eps=1e-6)
    assert normed.dtype == total.dtype == dtype
    assert_close(total, wide(x) + wide(residual), dtype)
    assert_close(normed, reference(total, weight, 1e-6), dtype)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_cannot_be_computed_is_refused(backend):
    run = lambda x, weight, eps=1e-6: call("rms-norm", backend, "rms_norm", x, weight, eps=eps)
    with pytest.raises(ValueError, match="size zero"):
        run(jnp.zeros((0, 64)), jnp.zeros(64))
    with pytest.raises(ValueError, match="does not fit"):
        run(jnp.zeros((2, 64)), jnp.zeros(32))
    with pytest.raises(TypeError, match="float16"):
        run(jnp.zeros((2, 64), jnp.float16), jnp.zeros(64))
    with pytest.raises(ValueError, match="`eps`"):
        run(jnp.zeros((2, 64)), jnp.zeros(64), eps=-1.0)
    x, weight = jnp.zeros((2, 64)), jnp.zeros(64)
    with pytest.raises(ValueError, match="`residual`"):
        call("rms-norm", backend, "add_rms_norm", x, x[:1], weight, eps=1e-6)


def test_no_races_in_the_simulated_memory():
    x, weight = normal(1, (700, 1000), jnp.float32), normal(2, (1000,), jnp.float32)
    races, out = find_races("rms-norm", "rms_norm", x, weight, eps=1e-6)
    assert not races
    assert_close(out, reference(x, weight, 1e-6), jnp.float32)


def test_the_layer_serves_an_instance_of_transformers():
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    original = LlamaRMSNorm(576, eps=1e-5)
    torch.nn.init.normal_(original.weight)
    x = torch.randn(2, 17, 576)
    with torch.no_grad():
        expected = original(x)
        out = load("rms-norm", "cpu").layers.RMSNorm.forward(original, x)
    assert (out - expected).abs().max() < 1e-5


def _jobs(shapes, dtypes=("bfloat16", "float32")):
    return [
        {
            "kernel": "rms-norm",
            "function": "rms_norm",
            "arguments": [[list(shape), dtype], [[shape[-1]], dtype]],
            "options": {"eps": 1e-6},
            "temporary_bytes": 0,
        }
        for shape in shapes
        for dtype in dtypes
    ]


@pytest.mark.parametrize("target", ["v5e", "v6e"])
def test_the_tpu_compiler_builds_it(target):
    tpu_compiler.assert_compiles(target, _jobs([(1, 576), (17, 576), (512, 4096), (1, 700, 8, 128)]))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["v4", "v5e", "v5p", "v6e", "tpu7x"])
def test_every_tpu_generation_builds_it(target):
    tpu_compiler.assert_compiles(target, _jobs([(1, 1, 1024), (33, 16, 64), (4096, 8192), (7, 16384)]))
