"""Layer classes of a kernel, called with a stand-in for the module that they would be grafted on.

A layer brings a `forward` and nothing else; its `self` is the model's module. Here that is a
[`Proxy`] with the attributes that the Rust side offers, sharing memory with its weights.
"""

import inspect

import torch

from . import exchange

#: What a layer class may define besides `forward`.
ALLOWED = {"can_torch_compile", "has_backward", "forward"}
_IGNORED = {
    "__module__",
    "__qualname__",
    "__doc__",
    "__annotations__",
    "__static_attributes__",
    "__firstlineno__",
}

ACTIVATIONS = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_pytorch_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}


def find(module, name):
    """The checked layer class `name` of a kernel."""
    layers = getattr(module, "layers", None)
    if layers is None:
        raise AttributeError("the kernel has no `layers`")
    layer = getattr(layers, name, None)
    if layer is None:
        known = sorted(
            key for key, value in vars(layers).items()
            if isinstance(value, type) and issubclass(value, torch.nn.Module)
        )
        raise AttributeError(f"the kernel has no layer `{name}` (it has: {', '.join(known) or 'none'})")
    if not (isinstance(layer, type) and issubclass(layer, torch.nn.Module)):
        raise TypeError(f"layer `{name}` is not a subclass of torch.nn.Module")
    own = {
        member
        for base in layer.__mro__[: layer.__mro__.index(torch.nn.Module)]
        for member in vars(base)
    }
    if "__init__" in own:
        raise TypeError(f"layer `{name}` defines `__init__`, but it is never constructed")
    extra = sorted(own - ALLOWED - _IGNORED)
    if extra:
        raise TypeError(f"layer `{name}` has members that would not be there: {', '.join(extra)}")
    return layer


def parameters(layer):
    """Names of the parameters of a layer's `forward`, without `self`."""
    return list(inspect.signature(layer.forward).parameters)[1:]


class Proxy:
    """Stands in for a module: attributes, and a call where it is a linear map."""

    def __init__(self, owner, attributes):
        self.__dict__.update(attributes)
        self.__dict__["_owner"] = owner

    def __getattr__(self, name):
        known = ", ".join(sorted(k for k in self.__dict__ if k != "_owner"))
        raise AttributeError(f"the layer reads `{self._owner}.{name}`; the model offers: {known}")

    def __call__(self, x):
        return torch.nn.functional.linear(x, self.weight, self.__dict__.get("bias"))


def proxy(owner, attributes):
    """A proxy whose tensors keep their memory as long as it lives."""
    for value in attributes.values():
        if isinstance(value, torch.Tensor):
            exchange.mark_constant(value)
    return Proxy(owner, attributes)


def call(layer, module, *arguments):
    """`layer.forward` with the proxy as `self`, without gradients."""
    with torch.no_grad():
        return layer.forward(module, *arguments)
