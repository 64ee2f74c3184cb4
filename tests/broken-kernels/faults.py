"""A kernel with another fault in each of its ops; see `tests/check.rs`."""

import jax
import jax.numpy as jnp
import torch
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from torch_tpu._internal.pallas import jax_op


def _attend(q, k, v, seen, scale):
    k, v = (jnp.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = jnp.einsum("bhtd,bhsd->bhts", q, k, precision="highest") * scale
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1)
    return jnp.einsum("bhts,bhsd->bhtd", weights, v.astype(jnp.float32), precision="highest").astype(q.dtype)


def _wrong_layout(q: jax.Array, k: jax.Array, v: jax.Array, *, scale: float, causal: bool = True) -> jax.Array:
    """Right for [B, T, H, D]."""
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
    seen = jnp.tril(jnp.ones((q.shape[2], k.shape[2]), bool))
    return jnp.swapaxes(_attend(q, k, v, seen, scale), 1, 2)


def _one_too_many(
    q: jax.Array, k_cache: jax.Array, v_cache: jax.Array, lengths: jax.Array, *, scale: float, window: int | None = None
) -> jax.Array:
    seen = jnp.arange(k_cache.shape[2]) <= lengths[:, None, None, None]
    return _attend(q, k_cache, v_cache, seen, scale)


def _raises(q: jax.Array, k: jax.Array, cos: jax.Array, sin: jax.Array) -> tuple[jax.Array, jax.Array]:
    raise ValueError("this body is not written yet")


def _gemma(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    if x.dtype == jnp.bfloat16:
        raise TypeError("only float32 is supported")
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * (1 + weight)


def _reads_before_the_wait(x_ref, out_ref, buffer, semaphore):
    copy = pltpu.make_async_copy(x_ref, buffer, semaphore)
    copy.start()
    x = buffer[...]
    half = x.shape[-1] // 2
    out_ref[...] = x[..., :half] * jax.nn.sigmoid(x[..., :half]) * x[..., half:]
    copy.wait()


def _racy(x: jax.Array) -> jax.Array:
    return pl.pallas_call(
        _reads_before_the_wait,
        out_shape=jax.ShapeDtypeStruct((*x.shape[:-1], x.shape[-1] // 2), x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        scratch_shapes=[pltpu.VMEM(x.shape, x.dtype), pltpu.SemaphoreType.DMA],
    )(x)


attention = jax_op("faults::attention", _wrong_layout)
decode_attention = jax_op("faults::decode_attention", _one_too_many)
rotary_pos_emb = jax_op("faults::rotary", _raises)
_norm = jax_op("faults::norm", _gemma)
_silu_and_mul = jax_op("faults::silu_and_mul", _racy)


class layers:
    class RMSNorm(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return _norm(x, self.weight, self.variance_epsilon)

    class SiluAndMul(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return _silu_and_mul(x)

    class SiLU(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            print("hello from the kernel")
            return torch.nn.functional.silu(x)
