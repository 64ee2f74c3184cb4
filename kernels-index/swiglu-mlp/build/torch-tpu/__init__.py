"""The gated MLP of Llama-like models and its activation, as operators for torch on TPU.

The TPU build runs Pallas kernels, the CPU build JAX functions that XLA compiles.
"""

from ._host import register
from ._ops import add_op_namespace_prefix

# kernel-builder names the operator namespace `_<name>_<backend>_<id>`: the one place where the
# builds of a source differ.
if "_cpu_" in add_op_namespace_prefix(""):
    from . import _jax_body as _body
else:
    from . import _pallas_body as _body

swiglu_mlp = register(add_op_namespace_prefix("swiglu_mlp"), _body.swiglu_mlp)
silu_and_mul = register(add_op_namespace_prefix("silu_and_mul"), _body.silu_and_mul)
silu = register(add_op_namespace_prefix("silu"), _body.silu)

from . import layers  # noqa: E402  (layers call the operators)

__all__ = ["layers", "silu", "silu_and_mul", "swiglu_mlp"]
