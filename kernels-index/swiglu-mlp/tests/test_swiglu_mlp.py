"""Parity, refusals, races, layer contract and compilation of `swiglu_mlp` and its activations."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import tpu_compiler
from harness import DTYPES, assert_close, call, find_races, load, normal, ragged, wide

BACKENDS = ("tpu", "cpu")


def silu(x):
    return x / (1 + np.exp(-x))


def reference(x, gate, up, down):
    x, gate, up, down = map(wide, (x, gate, up, down))
    return (silu(x @ gate.T) * (x @ up.T)) @ down.T


def inputs(shape, intermediate, dtype):
    hidden = shape[-1]
    return (
        normal(1, shape, dtype),
        normal(2, (intermediate, hidden), dtype, hidden**-0.5),
        normal(3, (intermediate, hidden), dtype, hidden**-0.5),
        normal(4, (hidden, intermediate), dtype, intermediate**-0.5),
    )


def check_mlp(backend, shape, intermediate, dtype):
    arrays = inputs(shape, intermediate, dtype)
    out = call("swiglu-mlp", backend, "swiglu_mlp", *arrays)
    assert out.dtype == dtype and out.shape == shape
    assert_close(out, reference(*arrays), dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rows, hidden, dtype", ragged(full=False))
def test_ragged_row_counts_agree_with_float64(backend, rows, hidden, dtype):
    check_mlp(backend, (rows, hidden), 192, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rows, hidden, dtype", ragged(full=True))
def test_ragged_row_counts_of_every_width_and_dtype(backend, rows, hidden, dtype):
    check_mlp(backend, (rows, hidden), 192, dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape, intermediate",
    [((1, 1, 576), 1536), ((2, 17, 576), 1536), ((700, 128), 1100), ((3, 33), 40), ((1, 300, 100), 2000)],
)
def test_shapes_of_models_agree_with_float64(backend, dtype, shape, intermediate):
    check_mlp(backend, shape, intermediate, dtype)


def test_models_wider_than_vmem_are_left_to_xla():
    check_mlp("tpu", (2, 20_000), 16, jnp.float32)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(33, 256), (5, 7, 200), (2,), (700, 3072), (129, 18)])
def test_activations_agree_with_float64(backend, dtype, shape):
    x = normal(1, shape, dtype, 4.0)
    half = shape[-1] // 2
    first, second = wide(x)[..., :half], wide(x)[..., half:]
    out = call("swiglu-mlp", backend, "silu_and_mul", x)
    assert out.dtype == dtype
    assert_close(out, silu(first) * second, dtype)
    assert_close(call("swiglu-mlp", backend, "silu", x), silu(wide(x)), dtype)


@pytest.mark.parametrize("backend", BACKENDS)
def test_silu_of_large_numbers_is_finite(backend):
    x = jnp.asarray([[-1e30, -100.0, 0.0, 100.0, 1e30, -88.0]])
    out = wide(call("swiglu-mlp", backend, "silu", x))
    assert np.isfinite(out).all()
    assert_close(out[0, 1:4], [0.0, 0.0, 100.0], jnp.float32)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_cannot_be_computed_is_refused(backend):
    x, gate, up, down = inputs((2, 64), 96, jnp.float32)
    run = lambda *a: call("swiglu-mlp", backend, "swiglu_mlp", *a)
    with pytest.raises(ValueError, match="size zero"):
        run(x[:0], gate, up, down)
    with pytest.raises(ValueError, match="`down`"):
        run(x, gate, up, down.T)
    with pytest.raises(ValueError, match="differ in shape"):
        run(x, gate, up[:3], down)
    with pytest.raises(TypeError, match="bfloat16, but `x`"):
        run(x, gate.astype(jnp.bfloat16), up, down)
    with pytest.raises(ValueError, match="even last dimension"):
        call("swiglu-mlp", backend, "silu_and_mul", jnp.zeros((2, 3)))


def test_no_races_in_the_simulated_memory():
    arrays = inputs((40, 64), 300, jnp.float32)
    races, out = find_races("swiglu-mlp", "swiglu_mlp", *arrays)
    assert not races
    assert_close(out, reference(*arrays), jnp.float32)


def test_the_layer_serves_an_instance_of_transformers():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    original = LlamaMLP(LlamaConfig(hidden_size=64, intermediate_size=192))
    x = torch.randn(2, 17, 64)
    layers = load("swiglu-mlp", "cpu").layers
    with torch.no_grad():
        expected = original(x)
        out = layers.SwiGLUMLP.forward(original, x)
        activated = layers.SiluAndMul()(x)
    assert (out - expected).abs().max() < 1e-5
    halves = torch.nn.functional.silu(x[..., :32]) * x[..., 32:]
    assert (activated - halves).abs().max() < 1e-5
    assert (layers.SiLU()(x) - torch.nn.functional.silu(x)).abs().max() < 1e-5


def _jobs(cases, dtypes=("bfloat16", "float32")):
    jobs = []
    for rows, hidden, intermediate in cases:
        for dtype in dtypes:
            weight = [[intermediate, hidden], dtype]
            arguments = [[[rows, hidden], dtype], weight, weight, [[hidden, intermediate], dtype]]
            for function, given in (
                ("swiglu_mlp", arguments),
                ("silu_and_mul", [[[rows, 2 * intermediate], dtype]]),
            ):
                jobs.append(
                    {"kernel": "swiglu-mlp", "function": function, "arguments": given, "options": {}}
                )
    return jobs


@pytest.mark.parametrize("target", ["v5e", "v6e"])
def test_the_tpu_compiler_builds_it(target):
    tpu_compiler.assert_compiles(target, _jobs([(1, 576, 1536), (300, 576, 1536), (1024, 2048, 8192)]))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["v4", "v5e", "v5p", "v6e", "tpu7x"])
def test_every_tpu_generation_builds_it(target):
    cases = [(1, 4096, 14336), (512, 4096, 14336), (33, 1024, 3072), (7, 100, 1000), (2048, 8192, 28672)]
    tpu_compiler.assert_compiles(target, _jobs(cases))
