"""SiLU that never ends compiling, and SiluAndMul that takes the process with it."""

import os

import jax
from torch_tpu._internal.pallas import jax_op


def _endless(x: jax.Array) -> jax.Array:
    while True:
        x = jax.nn.silu(x) if x is None else x


def _abort(x: jax.Array) -> jax.Array:
    os.abort()


silu = jax_op("stuck::silu", _endless)
silu_and_mul = jax_op("stuck::silu_and_mul", _abort)
