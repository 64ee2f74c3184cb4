"""`jax_op` for payloads: the decorator of torch_tpu, whose ops run on CPU tensors too.

torch_tpu's own op runs on TPU tensors only. Ours looks at the tensors it is called with: on the CPU
it calls the JAX function compiled by XLA:CPU (Pallas bodies in interpret mode), elsewhere it hands
over to torch_tpu's op, where torch_tpu is in use. Nothing is registered with torch's dispatcher for
the CPU: that would cost more than a small kernel, and two versions of a kernel could not both
have their op.
"""

import inspect
import threading
import time

import jax
import torch

from . import compiles, exchange, interpret, signature
from .errors import ArgumentError

_MISSING = inspect.Parameter.empty
_NO_TENSOR = object()


class Host:
    """The decorators that a payload gets: with torch_tpu behind them or not."""

    def __init__(self, use_torch_tpu):
        self.real_jax_op = self.real_custom_jax_kernel = None
        if use_torch_tpu:
            from torch_tpu._internal.pallas import custom_jax_kernel, jax_op

            self.real_jax_op, self.real_custom_jax_kernel = jax_op, custom_jax_kernel

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
        """torch_tpu's `jax_op`, for one payload."""
        signature.check_name(name)

        def decorate(function):
            checked = signature.read(function)
            device_op = None
            if self.real_jax_op is not None:
                # torch knows one op of a name; two versions of a kernel bring two.
                namespace, op = name.split("::")
                device_op = self.real_jax_op(
                    f"{namespace}_{payload.suffix}::{op}",
                    function,
                    donate_argnums=donate_argnums,
                    mesh=mesh,
                    input_partition_specs=input_partition_specs,
                    output_partition_specs=output_partition_specs,
                )
            made = JaxOp(payload.name, name, function, checked, donate_argnums, device_op)
            made.needs_mesh = mesh is not None
            payload.ops[name] = made
            return made

        return decorate if fn is None else decorate(fn)

    def custom_jax_kernel(
        self,
        payload,
        jax_fn=None,
        name=None,
        static_argnums=(),
        donate_argnums=None,
        input_output_aliases=None,
        mesh=None,
        input_partition_specs=None,
        output_partition_specs=None,
        *,
        static_argnames=(),
        warn_deprecated=True,
    ):
        """The older, deprecated decorator: what is static is said by the caller, not by annotations."""

        def decorate(function):
            title = name or getattr(function, "__name__", "kernel")
            device_op = None
            if self.real_custom_jax_kernel is not None:
                device_op = self.real_custom_jax_kernel(
                    function,
                    title,
                    static_argnums,
                    donate_argnums,
                    input_output_aliases,
                    mesh,
                    input_partition_specs,
                    output_partition_specs,
                    static_argnames=static_argnames,
                    warn_deprecated=False,
                )
            donated = list(input_output_aliases) if input_output_aliases else donate_argnums
            checked = inspect.signature(inspect.unwrap(function))
            static = (frozenset(static_argnums), frozenset(static_argnames))
            made = JaxOp(payload.name, title, function, checked, donated, device_op, static)
            made.needs_mesh = mesh is not None
            made.copied_back = dict(input_output_aliases or {})
            return made

        return decorate if jax_fn is None else decorate(jax_fn)


class JaxOp:
    """A JAX function that is called with torch tensors."""

    def __init__(self, payload, name, function, checked, donate_argnums, device_op, static=None):
        self.payload = payload
        self._qualname = name
        self._namespace, _, self._name = name.rpartition("::")
        self.__name__ = self._name
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self.__signature__ = checked
        self.needs_mesh = False
        self.copied_back = {}
        self._device_op = device_op
        self._cpu_kernel = None
        kinds = inspect.Parameter
        kept = [
            parameter
            for parameter in checked.parameters.values()
            if parameter.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
        ]
        self._parameters = [
            signature.Parameter(
                parameter,
                None if static is None else index in static[0] or parameter.name in static[1],
            )
            for index, parameter in enumerate(kept)
        ]
        self._positional = sum(parameter.kind is not kinds.KEYWORD_ONLY for parameter in kept)
        self._donated = tuple(donate_argnums or ())
        if self._donated:
            compiles.watch.donates()
        self._site = compiles.Site(payload, name, self._parameters)
        self._compiled = {}
        self._lock = threading.Lock()

    def __repr__(self):
        return f"<op {self._qualname}{self.__signature__}>"

    @property
    def default(self):
        """`torch.ops.namespace.op.default` is the op itself: it has one overload."""
        return self

    def __call__(self, *arguments, **keywords):
        values = self._bind(arguments, keywords)
        if self._cpu_kernel is not None and all(t.is_cpu for v in values for t in _tensors(v)):
            return self._cpu_kernel(*arguments, **keywords)
        arrays, plan = [], []
        for parameter, value in zip(self._parameters, values):
            if not parameter.is_tensor:
                plan.append(parameter.static(value))
            elif isinstance(value, torch.Tensor):
                if not value.is_cpu:
                    return self._elsewhere(values, arguments, keywords)
                if parameter.sequence is not None:
                    raise ArgumentError(parameter.name, "is a tensor, expected a list of tensors")
                arrays.append(exchange.to_jax(value, parameter.name))
                plan.append((value.dtype, value.shape))
            elif value is None:
                plan.append(_NO_TENSOR)
            else:
                for item in self._items(parameter, value):
                    if isinstance(item, torch.Tensor) and not item.is_cpu:
                        return self._elsewhere(values, arguments, keywords)
                plan.append(self._sequence(parameter, value, arrays))
        # Static values are equal only where they are of one type: `static` made them the parameter's.
        key = tuple(plan)
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compile(key, arrays)
        result = exchange.to_torch(compiled(*arrays), arrays)
        if self._donated:
            self._take_over(values, result)
        return result

    def _bind(self, arguments, keywords):
        """Values in the order of the parameters, with defaults filled in."""
        count = len(arguments)
        if count > self._positional:
            raise ArgumentError(
                f"{count}", f"is one too many: the op takes {self._positional} positional arguments"
            )
        values = list(arguments)
        used = 0
        for parameter in self._parameters[count:]:
            name = parameter.name
            if name in keywords:
                values.append(keywords[name])
                used += 1
            elif parameter.default is not _MISSING:
                values.append(parameter.default)
            else:
                raise ArgumentError(name, "is missing")
        if used != len(keywords):
            given = {parameter.name for parameter in self._parameters[:count]}
            known = ", ".join(parameter.name for parameter in self._parameters)
            for name in keywords:
                if name in given:
                    raise ArgumentError(name, "is given twice")
                if name not in (p.name for p in self._parameters):
                    raise ArgumentError(name, f"is not a parameter of the op; it has: {known}")
        return values

    @staticmethod
    def _items(parameter, value):
        if parameter.sequence is not None and not isinstance(value, (list, tuple)):
            raise ArgumentError(parameter.name, f"is {type(value).__name__}, expected a list of tensors")
        if not isinstance(value, (list, tuple)):
            raise ArgumentError(parameter.name, f"is {type(value).__name__}, expected a tensor")
        return value

    @staticmethod
    def _sequence(parameter, value, arrays):
        """Imports a list of tensors; the plan of it says which items there are."""
        parts = []
        for index, item in enumerate(value):
            if item is None:
                parts.append(_NO_TENSOR)
            elif isinstance(item, torch.Tensor):
                arrays.append(exchange.to_jax(item, f"{parameter.name}[{index}]"))
                parts.append((item.dtype, item.shape))
            else:
                raise ArgumentError(
                    f"{parameter.name}[{index}]", f"is {type(item).__name__}, expected a tensor"
                )
        return _Sequence(parts)

    def _function_of(self, plan):
        """The function with everything static filled in, of arrays alone."""

        def body(*arrays):
            left = iter(arrays)
            positional, named = [], {}
            for index, (parameter, part) in enumerate(zip(self._parameters, plan)):
                if not parameter.is_tensor:
                    value = part
                elif part is _NO_TENSOR:
                    value = None
                elif isinstance(part, _Sequence):
                    items = [None if item is _NO_TENSOR else next(left) for item in part]
                    value = tuple(items) if parameter.sequence is tuple else items
                else:
                    value = next(left)
                if index < self._positional:
                    positional.append(value)
                else:
                    named[parameter.name] = value
            return self.__wrapped__(*positional, **named)

        # XLA names the module after it; profiles and dumps show the op.
        body.__name__ = body.__qualname__ = self._name or self._qualname
        return body

    def _compile(self, plan, arrays):
        if self.needs_mesh:
            raise RuntimeError("the op is made for a mesh of TPUs and cannot run on a CPU")
        with self._lock:
            if plan in self._compiled:
                return self._compiled[plan]
            self._site.ask(plan)
            found = compiles.found_on_disk()
            compiled, traced, built, interpreted = _compile(self._function_of(plan), arrays)
            cached = compiles.found_on_disk() > found
            self._site.record(plan, arrays, traced, built, interpreted, "jax", cached)
            self._compiled[plan] = compiled
            return compiled

    def _elsewhere(self, values, arguments, keywords):
        """A call with tensors that are not on the CPU."""
        tensors = [item for value in values for item in _tensors(value)]
        devices = sorted({str(tensor.device) for tensor in tensors})
        if len(devices) > 1:
            raise RuntimeError(f"the tensors are on several devices: {', '.join(devices)}")
        if self._device_op is not None:
            return self._device_op(*arguments, **keywords)
        if devices == ["meta"]:
            return self._shapes(values)
        raise RuntimeError(f"the tensors are on {devices[0]}, and torch_tpu is not in use")

    def _traceable(self, values):
        """The function of arrays that a call means, and their shapes and types; nothing computed."""
        arrays, plan = [], []

        def structure(tensor):
            dtype = exchange.NARROWED.get(tensor.dtype, tensor.dtype)
            arrays.append(jax.ShapeDtypeStruct(tuple(tensor.shape), exchange.SAME[dtype]))
            return (tensor.dtype, tensor.shape)

        for parameter, value in zip(self._parameters, values):
            if not parameter.is_tensor:
                plan.append(parameter.static(value))
            elif value is None:
                plan.append(_NO_TENSOR)
            elif isinstance(value, torch.Tensor):
                plan.append(structure(value))
            else:
                plan.append(
                    _Sequence(_NO_TENSOR if item is None else structure(item) for item in value)
                )
        return self._function_of(plan), arrays

    def _shapes(self, values):
        """What the op returns for meta tensors."""
        function, arrays = self._traceable(values)
        shapes = jax.eval_shape(function, *arrays)
        return jax.tree_util.tree_map(
            lambda leaf: torch.empty(
                leaf.shape, dtype=exchange.TORCH_TYPES[leaf.dtype], device="meta"
            ),
            shapes,
        )

    def _take_over(self, values, result):
        """Marks donated tensors as gone; an alias of the older decorator is copied back first."""
        results = list(_tensors(result))
        for index in self._donated:
            if index >= len(values):
                continue
            for tensor in _tensors(values[index]):
                if index in self.copied_back:
                    tensor.copy_(results[self.copied_back[index]])
                else:
                    exchange.mark_donated(tensor, self._qualname)

    def register_kernel(self, device_types=None, func=None, /):
        """As torch's custom ops have it: a body for a device.

        One for the CPU is used, unless it only wraps the op's own JAX function: that is what this
        class does itself, faster.
        """
        devices = [device_types] if isinstance(device_types, str) else device_types

        def register(body):
            for_cpu = devices is None or "cpu" in devices
            if for_cpu and inspect.unwrap(body) is not inspect.unwrap(self.__wrapped__):
                self._cpu_kernel = body
            others = None if devices is None else [d for d in devices if d != "cpu"]
            if self._device_op is not None and others != []:
                self._device_op.register_kernel(others)(body)
            return body

        return register if func is None else register(func)

    def register_fake(self, func, /):
        """Shapes come from tracing; torch_tpu's op is told."""
        if self._device_op is not None:
            self._device_op.register_fake(func)
        return func

    def register_autograd(self, backward, /, **keywords):
        """Payloads run for inference here; torch_tpu's op is told."""
        if self._device_op is not None:
            self._device_op.register_autograd(backward, **keywords)


class _Sequence(tuple):
    """The plan of a list of tensors."""

    __slots__ = ()


def _tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _compile(function, arrays):
    """Traces and compiles for the CPU: the executable, both durations, and whether Pallas interprets."""
    start = time.perf_counter()
    traced = jax.jit(function).trace(*arrays)
    middle = time.perf_counter()
    with interpret.compiling() as pallas:
        try:
            compiled = traced.lower().compile()
        except NotImplementedError:
            if not pallas.any:
                raise
            compiled = None
    if compiled is None:
        # Semaphores, DMAs between cores and the like exist in the simulated TPU only.
        with interpret.compiling(interpret.simulated_tpu()):
            compiled = jax.jit(function).trace(*arrays).lower().compile()
    return compiled, middle - start, time.perf_counter() - middle, pallas.any
