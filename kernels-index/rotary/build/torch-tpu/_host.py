"""How a JAX function becomes an operator of torch."""

import functools

import jax
import torch
from torch_tpu._internal.pallas import jax_op


def register(name, function):
    """Registers `function` as the operator `name` and returns it.

    `jax_op` alone serves tensors on a TPU. Where a build is meant for the CPU, tensors there are
    handed to XLA:CPU without a copy and the result comes back the same way.
    """
    operator = jax_op(name, function)
    if "_cpu_" in name and hasattr(operator, "register_kernel"):
        operator.register_kernel("cpu")(_on_cpu(function))
    return operator


def _on_cpu(function):
    @functools.wraps(function)
    def call(*arguments, **options):
        arguments = [_to_jax(argument) for argument in arguments]
        options = {name: _to_jax(option) for name, option in options.items()}
        static = tuple(name for name, option in options.items() if not _is_array(option))
        positions = tuple(i for i, argument in enumerate(arguments) if not _is_array(argument))
        results = _compiled(function, positions, static)(*arguments, **options)
        # XLA:CPU runs asynchronously on memory that torch may change once this returns.
        jax.block_until_ready(results)
        return jax.tree.map(torch.from_dlpack, results)

    return call


@functools.cache
def _compiled(function, positions, names):
    return jax.jit(function, static_argnums=positions, static_argnames=names)


def _is_array(value):
    return isinstance(value, jax.Array)


def _to_jax(value):
    if not isinstance(value, torch.Tensor):
        return value
    if value.dtype in (torch.int64, torch.float64):
        raise TypeError(f"{value.dtype} is not supported: JAX would narrow it to 32 bits")
    return jax.dlpack.from_dlpack(value.detach().contiguous())
