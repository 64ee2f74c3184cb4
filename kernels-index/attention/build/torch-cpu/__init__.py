"""Causal attention over whole sequences (prefill) as one operator for torch on TPU.

The TPU build runs a Pallas kernel, the CPU build a JAX function that XLA compiles.
"""

from ._host import register
from ._ops import add_op_namespace_prefix
from ._transformers import interface

# kernel-builder names the operator namespace `_<name>_<backend>_<id>`: the one place where the
# builds of a source differ.
if "_cpu_" in add_op_namespace_prefix(""):
    from ._jax_body import attention as _body
else:
    from ._pallas_body import attention as _body

attention = register(add_op_namespace_prefix("attention"), _body)

# What transformers looks for where `attn_implementation` names a kernel.
flash_attn_forward = interface(attention)
supports_flash_attn = True

__all__ = ["attention", "flash_attn_forward", "supports_flash_attn"]
