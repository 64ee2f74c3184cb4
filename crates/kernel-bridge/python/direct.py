"""What the Rust side asks once so that it can call an op by itself from then on.

A call of an op with tensors and plain values comes down to one compiled function of arrays. `prepare`
binds the call to the op's parameters and says which of the call's values are the arrays; the Rust
side keeps that by types, shapes and plain values, and later calls of the same kind need no Python
of ours (JAX) or none at all (PJRT).
"""

import ast
import importlib
import inspect
import textwrap
import time
import types

import jax
import torch

from . import exchange, interpret, ops


class _Slot:
    """Stands for one of a call's values while they are bound."""

    __slots__ = ("index",)

    def __init__(self, index):
        self.index = index


def candidate(function):
    """Whether a kernel's function is an op that may be called directly."""
    return (
        isinstance(function, ops.JaxOp)
        and function._cpu_kernel is None
        and not function._donated
        and not function.needs_mesh
    )


class Prepared:
    """A call of one kind: the op, its static values, and its arrays' types and shapes."""

    def __init__(self, op, plan, inputs, arrays):
        self.op = op
        self.plan = plan
        #: For each array of the compiled function, the index of the call's value.
        self.inputs = inputs
        self.arrays = arrays
        self.interpreted = False
        self.traced = 0.0

    def compiled(self):
        """The function as JAX compiled it, of arrays; None where its result is no plain tensors."""
        compiled = self.op._compiled.get(self.plan) or self.op._compile(self.plan, self.arrays)
        return compiled if _is_flat(compiled.out_tree) else None

    def export(self):
        """The function as StableHLO for the CPU; None where that does not say all of it.

        Effects (callbacks, the simulated TPU) need Python at run time, and custom calls need what
        jaxlib registers.
        """
        self.op._site.ask(self.plan)
        start = time.perf_counter()
        structures = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in self.arrays]
        with interpret.compiling() as pallas:
            try:
                function = jax.jit(self.op._function_of(self.plan))
                exported = jax.export.export(function, platforms=["cpu"])(*structures)
            except (NotImplementedError, ValueError):
                return None
        self.interpreted = pallas.any
        self.traced = time.perf_counter() - start
        has_effects = exported.ordered_effects or exported.unordered_effects
        takes_all = exported.module_kept_var_idx == tuple(range(len(structures)))
        if has_effects or not takes_all or not _is_flat(exported.out_tree):
            return None
        if "stablehlo.custom_call" in exported.mlir_module():
            return None
        return _without_locations(exported.mlir_module_serialized)

    def record(self, compile_seconds, cached):
        """Counts the compile that the Rust side did."""
        self.op._site.record(
            self.plan, self.arrays, self.traced, compile_seconds, self.interpreted, "pjrt", cached
        )


def prepare(op, arguments, keywords):
    """The call of this kind; None where only the op itself can do it."""
    if not candidate(op):
        return None
    values = [*arguments, *keywords.values()]
    slots = [_Slot(index) for index in range(len(values))]
    names = dict(zip(keywords, slots[len(arguments) :]))
    bound = op._bind(slots[: len(arguments)], names)
    plan, inputs, arrays = [], [], []
    for parameter, slot in zip(op._parameters, bound):
        index = slot.index if isinstance(slot, _Slot) else None
        value = slot if index is None else values[index]
        if not parameter.is_tensor:
            plan.append(parameter.static(value))
        elif value is None:
            plan.append(ops._NO_TENSOR)
        elif isinstance(value, torch.Tensor) and index is not None and parameter.sequence is None:
            if value.dtype not in exchange.SAME:
                return None
            arrays.append(exchange.to_jax(value, parameter.name))
            inputs.append(index)
            plan.append((value.dtype, value.shape))
        else:
            return None
    if not inputs:
        return None
    return Prepared(op, tuple(plan), inputs, arrays)


def _without_locations(code):
    """StableHLO without names of files and lines: its digest is that of what it computes."""
    try:
        from jax._src.export._export import _module_to_bytecode
        from jax._src.interpreters import mlir
        from jax._src.lib import _jax
        from jaxlib.mlir import passmanager

        with mlir.make_ir_context():
            module = _jax.mlir.deserialize_portable_artifact(code)
            passmanager.PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)
            return _module_to_bytecode(module)
    except Exception:  # private functions that have moved: a cache that finds less, nothing worse
        return code


def _is_flat(tree):
    """Whether a result is an array, or a plain tuple or list of arrays."""
    skeleton = jax.tree_util.tree_unflatten(tree, [0] * tree.num_leaves)
    if isinstance(skeleton, (tuple, list)):
        return bool(skeleton) and all(item == 0 for item in skeleton)
    return skeleton == 0


def single_call(forward):
    """A layer's `forward` that only calls an op: the op, and what each of its arguments is.

    Arguments come as pairs: `("argument", index, default)` for a parameter of `forward`,
    `("attribute", "a.b")` for what it reads of `self`, `("value", constant)`. None for every other
    `forward`: it may look at its tensors and do one thing or another.
    """
    if not isinstance(forward, types.FunctionType) or hasattr(forward, "__wrapped__"):
        return None
    try:
        function = ast.parse(textwrap.dedent(inspect.getsource(forward))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    if not isinstance(function, ast.FunctionDef) or function.decorator_list:
        return None
    *before, last = function.body
    call = last.value if isinstance(last, ast.Return) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return None
    op = forward.__globals__.get(call.func.id)
    for statement in before:
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if isinstance(statement, ast.ImportFrom) and statement.level:
            op = _imported(forward, statement, call.func.id) or op
        elif not is_text:
            return None
    parameters = list(inspect.signature(forward).parameters.values())
    plain = inspect.Parameter.POSITIONAL_OR_KEYWORD
    if not candidate(op) or any(parameter.kind is not plain for parameter in parameters):
        return None
    names = [parameter.name for parameter in parameters]
    if call.func.id in names:
        return None

    def source(node):
        if isinstance(node, ast.Constant):
            return ("value", node.value)
        if isinstance(node, ast.Name) and node.id in names[1:]:
            index = names.index(node.id)
            default = parameters[index].default
            return ("argument", index - 1, () if default is inspect.Parameter.empty else (default,))
        path = []
        while isinstance(node, ast.Attribute):
            path.append(node.attr)
            node = node.value
        if path and isinstance(node, ast.Name) and node.id == names[0]:
            return ("attribute", ".".join(reversed(path)))
        raise ValueError

    try:
        positional = [source(node) for node in call.args]
        named = [(keyword.arg, source(keyword.value)) for keyword in call.keywords]
    except ValueError:
        return None
    if any(name is None for name, _ in named):
        return None
    return op, positional, named


def _imported(forward, statement, name):
    """What a relative import within `forward` binds a name to; None where it is another name."""
    for alias in statement.names:
        if (alias.asname or alias.name) == name:
            relative = "." * statement.level + (statement.module or "")
            module = importlib.import_module(relative, forward.__globals__["__package__"])
            return getattr(module, alias.name, None)
    return None


#: Import of a capsule, export of an array, and the device, for the Rust side; None without them.
CAPSULES = exchange.CAPSULES
