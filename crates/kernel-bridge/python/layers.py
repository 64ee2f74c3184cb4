"""Layer classes of a kernel, called with a stand-in for the module that they would be grafted on.

A layer brings a `forward` and nothing else; its `self` is the model's module. Here that is a `Proxy`
with the attributes that the Rust side offers, sharing memory with its weights.
"""

import inspect

import torch

from . import exchange

#: What a layer class may have beyond `torch.nn.Module`: two flags, both plain values.
FLAGS = {"can_torch_compile", "has_backward"}

#: Activations by the name that `hidden_act` of a model's config gives them.
ACTIVATIONS = {
    "silu": torch.nn.functional.silu,
    "swish": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_pytorch_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "gelu_new": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "relu": torch.nn.functional.relu,
}


def find(module, name):
    """The checked layer class `name` of a kernel: the rules of the `kernels` library."""
    layers = getattr(module, "layers", None)
    if layers is None:
        raise AttributeError("the kernel has no `layers`")
    layer = getattr(layers, name, None)
    if layer is None:
        known = sorted(
            key
            for key, value in vars(layers).items()
            if isinstance(value, type) and issubclass(value, torch.nn.Module)
        )
        raise AttributeError(f"the kernel has no layer `{name}` (it has: {', '.join(known) or 'none'})")
    if not (isinstance(layer, type) and issubclass(layer, torch.nn.Module)):
        raise TypeError(f"layer `{name}` is not a subclass of torch.nn.Module")
    if layer.__init__ is not torch.nn.Module.__init__:
        raise TypeError(f"layer `{name}` defines `__init__`, but it is never constructed")
    known = {member for member, _ in inspect.getmembers(torch.nn.Module)}
    extra = sorted({member for member, _ in inspect.getmembers(layer)} - known - FLAGS)
    if extra:
        raise TypeError(f"layer `{name}` has members that would be left behind: {', '.join(extra)}")
    if layer.forward is torch.nn.Module.forward:
        raise TypeError(f"layer `{name}` has no `forward`")
    return layer


def flags(layer):
    """`can_torch_compile` and `has_backward`, with the library's defaults."""
    return bool(getattr(layer, "can_torch_compile", False)), bool(getattr(layer, "has_backward", True))


class Proxy:
    """Stands in for a module: attributes, and a call where it is a linear map."""

    def __init__(self, owner, attributes):
        self.__dict__["training"] = False
        self.__dict__.update(attributes)
        self.__dict__["_owner"] = owner

    def __getattr__(self, name):
        # Called for what is not there only.
        known = ", ".join(sorted(k for k in self.__dict__ if k not in ("_owner", "training")))
        raise AttributeError(
            f"`forward` reads `{self._owner}.{name}`, and the model offers: {known or 'nothing'}"
        )

    def __call__(self, x):
        return torch.nn.functional.linear(x, self.weight, self.__dict__.get("bias"))


def proxy(owner, attributes):
    """A proxy; its tensors keep their memory as long as they live."""
    for value in attributes.values():
        if isinstance(value, torch.Tensor):
            exchange.mark_constant(value)
    return Proxy(owner, attributes)
