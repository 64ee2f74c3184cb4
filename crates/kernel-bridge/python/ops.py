"""`jax_op` for payloads: the decorator of torch_tpu, running on CPU tensors too.

torch_tpu's own op only runs on TPU tensors. Ours looks at the tensors it is called with: on the CPU it
calls the JAX function compiled by XLA:CPU (Pallas bodies in interpret mode), elsewhere it hands
over to torch_tpu's op, where torch_tpu is installed and asked for. Nothing is registered with
torch's dispatcher for the CPU, which would cost more than a small kernel.
"""

import functools
import inspect
import time

import jax
import torch

from . import exchange, interpret, signature

#: One entry for each compile: op, shapes, seconds, and whether a Pallas body was interpreted.
compiles = []


class Host:
    """Which decorators a payload gets: with torch_tpu behind them or not."""

    def __init__(self, use_torch_tpu):
        self.real = None
        if use_torch_tpu:
            from torch_tpu._internal.pallas import jax_op as real

            self.real = real

    def jax_op(
        self,
        payload,
        name,
        fn=None,
        /,
        *,
        donate_argnums=None,
        mesh=None,
        input_partition_specs=None,
        output_partition_specs=None,
    ):
        """torch_tpu's decorator, for the payload with the given module name."""
        specs = {
            "mesh": mesh,
            "input_partition_specs": input_partition_specs,
            "output_partition_specs": output_partition_specs,
        }
        signature.check_name(name)

        def decorate(function):
            checked = signature.read(function)
            device_op = None
            if self.real is not None:
                # Two versions of a kernel register the same name; torch allows it once.
                namespace, op = name.split("::")
                own = f"{namespace}_{payload.rsplit('_', 1)[-1]}::{op}"
                device_op = self.real(own, function, donate_argnums=donate_argnums, **specs)
            return JaxOp(name, function, checked, donate_argnums, device_op)

        return decorate if fn is None else decorate(fn)

    def custom_jax_kernel(
        self,
        payload,
        fn,
        name=None,
        donate_argnums=None,
        static_argnums=None,
        static_argnames=None,
        **_,
    ):
        """The older, deprecated decorator: static arguments are named by the caller."""
        return JaxOp(
            name or getattr(fn, "__name__", "kernel"),
            fn,
            inspect.signature(inspect.unwrap(fn)),
            donate_argnums,
            None,
            static=(tuple(static_argnums or ()), tuple(static_argnames or ())),
        )


class JaxOp:
    """A JAX function that is called with torch tensors."""

    def __init__(self, name, function, checked, donate_argnums, device_op, static=None):
        self._qualname = name
        self.__name__ = name.rsplit("::", 1)[-1]
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self.__signature__ = checked
        self._device_op = device_op
        self._donated = tuple(donate_argnums or ())
        self._names = list(checked.parameters)
        positions, names = static if static is not None else signature.static_parameters(checked)
        self._static_positions = frozenset(positions)
        self._static_names = frozenset(names)
        self._jitted = jax.jit(
            self._counted(function), static_argnums=tuple(positions), static_argnames=tuple(names)
        )

    def __repr__(self):
        return f"<op {self._qualname}{self.__signature__}>"

    def _counted(self, function):
        """The function as jax traces it: each trace is a compile, and is recorded."""

        @functools.wraps(function)
        def traced(*arguments, **keywords):
            start = time.perf_counter()
            with interpret.pallas_calls() as interpreted:
                result = function(*arguments, **keywords)
            leaves = jax.tree_util.tree_leaves((arguments, keywords))
            shapes = [
                f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves if hasattr(leaf, "shape")
            ]
            compiles.append((self._qualname, shapes, time.perf_counter() - start, bool(interpreted)))
            return result

        return traced

    def __call__(self, *arguments, **keywords):
        if self._device_op is not None and _elsewhere(arguments, keywords):
            return self._device_op(*arguments, **keywords)
        positional = [
            _static(value)
            if index in self._static_positions
            else self._import(value, index, None)
            for index, value in enumerate(arguments)
        ]
        named = {
            name: _static(value) if name in self._static_names else self._import(value, None, name)
            for name, value in keywords.items()
        }
        result = self._jitted(*positional, **named)
        for index in self._donated:
            if index < len(arguments) and isinstance(arguments[index], torch.Tensor):
                setattr(arguments[index], exchange.DONATED, self._qualname)
        return exchange.to_torch(result)

    def _import(self, value, index, name):
        if isinstance(value, torch.Tensor):
            if value.device.type != "cpu":
                raise RuntimeError(
                    f"`{self._qualname}` got a tensor on {value.device}, and torch_tpu is not in use"
                )
            return exchange.to_jax(value, lambda: self._describe(index, name))
        if isinstance(value, (list, tuple)):
            return type(value)(self._import(item, index, name) for item in value)
        if value is None or isinstance(value, jax.Array):
            return value
        raise TypeError(
            f"{self._describe(index, name)} wants a tensor, got {type(value).__name__}"
        )

    def _describe(self, index, name):
        if name is None and index is not None and index < len(self._names):
            name = self._names[index]
        return f"argument `{name}` of `{self._qualname}`"

    def register_kernel(self, *_, **__):
        """Accepted for payloads that bring a CPU body of their own; ours runs on the CPU as it is."""
        return lambda function: function

    register_fake = register_kernel


def _static(value):
    if isinstance(value, torch.dtype):
        return exchange.DTYPES.get(value, value)
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, torch.Tensor):
        raise TypeError("a static argument cannot be a tensor")
    return value


def _elsewhere(arguments, keywords):
    values = (*arguments, *keywords.values())
    return any(isinstance(v, torch.Tensor) and v.device.type not in ("cpu", "meta") for v in values)
