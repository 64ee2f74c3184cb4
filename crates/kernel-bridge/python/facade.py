"""What a payload gets when it imports torch_tpu, kernels, or itself by its id.

Answers are given to the modules of one payload only, by their own `__import__`: sys.modules stays as
the user made it, an installed torch_tpu is not touched, and two payloads with one id never meet.
"""

import builtins
import importlib
import sys
import types

import torch

#: Names under which torch_tpu has offered its decorators.
PALLAS = (
    "torch_tpu.pallas",
    "torch_tpu._internal.pallas",
    "torch_tpu._internal.pallas.pallas",
    "torch.tpu.pallas",
)


class Imports:
    """The `__import__` of one payload and what it answers with."""

    def __init__(self, payload, host):
        self.payload = payload
        pallas = _pallas(payload, host)
        internal = _module("torch_tpu._internal", pallas=pallas)
        torch_tpu = _module("torch_tpu", _internal=internal, pallas=pallas)
        self.torch = _Torch(payload, _module("torch.tpu", pallas=pallas))
        self.answers = {
            "torch_tpu": torch_tpu,
            "torch_tpu._internal": internal,
            "torch.tpu": self.torch.tpu,
            "kernels": _Kernels(payload),
            **dict.fromkeys(PALLAS, pallas),
        }
        #: Top-level names of the answers, for `import a.b.c` without `from`.
        self.tops = {
            "torch_tpu": torch_tpu,
            "torch": self.torch,
            "kernels": self.answers["kernels"],
        }

    def builtins(self, source):
        """The `__builtins__` of a module with this source.

        torch itself is stood in for only where a module reads `torch.tpu` or `torch.ops`, because
        an attribute of the real module is found faster.
        """
        wants_torch = "torch.tpu" in source or "torch.ops" in source or "from torch import" in source
        return dict(vars(builtins), __import__=self.with_torch if wants_torch else self.plain)

    def with_torch(self, name, globals=None, locals=None, fromlist=(), level=0):
        """As `plain`, with our own `torch`."""
        if level == 0 and (name == "torch" or (name.startswith("torch.") and not fromlist)):
            if name not in self.answers:
                builtins.__import__(name, globals, locals, fromlist, level)
            return self.torch
        return self.plain(name, globals, locals, fromlist, level)

    def plain(self, name, globals=None, locals=None, fromlist=(), level=0):
        """The payload's `__import__`."""
        if level == 0:
            if name in self.answers:
                return self.answers[name] if fromlist else self.tops[name.partition(".")[0]]
            own = self._own_name(name)
            if own is not None:
                module = importlib.import_module(own)
                return module if fromlist else sys.modules[self.payload.name]
        return builtins.__import__(name, globals, locals, fromlist, level)

    def _own_name(self, name):
        """Our name of a module that the payload imports by its own id, as the Python library allows.

        A module of the standard library goes before a kernel that calls itself by its name.
        """
        top, _, rest = name.partition(".")
        if top != self.payload.id or top in sys.stdlib_module_names:
            return None
        own = f"{self.payload.name}.{rest}" if rest else self.payload.name
        return own if self.payload.find(own) is not None else None


def _pallas(payload, host):
    """The module with the decorators, which remember for which payload they work."""

    def jax_op(*arguments, **keywords):
        return host.jax_op(payload, *arguments, **keywords)

    def custom_jax_kernel(*arguments, **keywords):
        return host.custom_jax_kernel(payload, *arguments, **keywords)

    pallas = _module(
        "torch_tpu._internal.pallas", jax_op=jax_op, custom_jax_kernel=custom_jax_kernel
    )
    pallas.pallas = pallas
    return pallas


def _module(name, **attributes):
    module = types.ModuleType(name)
    vars(module).update(attributes)
    return module


class _Torch(types.ModuleType):
    """torch, with `torch.tpu` and with the payload's ops in `torch.ops`."""

    def __init__(self, payload, tpu):
        super().__init__("torch")
        vars(self).update(vars(torch))
        self.tpu = tpu
        self.ops = _Ops(payload)

    def __getattr__(self, name):
        return getattr(torch, name)


class _Ops:
    """`torch.ops`: namespaces in which the payload's own ops come first."""

    def __init__(self, payload):
        self._payload = payload

    def __getattr__(self, name):
        if name in ("load_library", "import_module", "loaded_libraries"):
            return getattr(torch.ops, name)
        return _Namespace(self._payload, name)


class _Namespace:
    """`torch.ops.namespace`; ops are looked up when they are used, since they are made later."""

    def __init__(self, payload, name):
        self._payload = payload
        self._name = name

    def __getattr__(self, op):
        own = self._payload.ops.get(f"{self._name}::{op}")
        return own if own is not None else getattr(getattr(torch.ops, self._name), op)


class _Kernels(types.ModuleType):
    """The module `kernels`: the payload's dependencies, else the installed library."""

    def __init__(self, payload):
        super().__init__("kernels")
        self.get_kernel_dep = payload.dependency

    def __getattr__(self, name):
        return getattr(importlib.import_module("kernels"), name)
