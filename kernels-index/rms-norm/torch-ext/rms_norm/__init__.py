"""RMSNorm as an operator for torch on TPU, and as a layer for `kernelize`.

The TPU build runs a Pallas kernel, the CPU build a JAX function that XLA compiles.
"""

from ._host import register
from ._ops import add_op_namespace_prefix

# kernel-builder names the operator namespace `_<name>_<backend>_<id>`: the one place where the
# builds of a source differ.
if "_cpu_" in add_op_namespace_prefix(""):
    from . import _jax_body as _body
else:
    from . import _pallas_body as _body

rms_norm = register(add_op_namespace_prefix("rms_norm"), _body.rms_norm)
add_rms_norm = register(add_op_namespace_prefix("add_rms_norm"), _body.add_rms_norm)

from . import layers  # noqa: E402  (layers call the operator)

__all__ = ["add_rms_norm", "layers", "rms_norm"]
