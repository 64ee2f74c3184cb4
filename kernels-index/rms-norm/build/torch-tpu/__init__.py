"""RMSNorm as an operator for torch on TPU, and as a layer for `kernelize`.

The TPU build runs a Pallas kernel, the CPU build a JAX function that XLA compiles.
"""

from ._host import register
from ._ops import add_op_namespace_prefix

# kernel-builder names the operator namespace `_<name>_<backend>_<id>`: the one place where the
# builds of a source differ.
if "_cpu_" in add_op_namespace_prefix(""):
    from ._jax_body import rms_norm as _body
else:
    from ._pallas_body import rms_norm as _body

rms_norm = register(add_op_namespace_prefix("rms_norm"), _body)

from . import layers  # noqa: E402  (layers call the operator)

__all__ = ["layers", "rms_norm"]
