"""Rotary position embedding as an operator for torch on TPU.

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

rotary_pos_emb = register(add_op_namespace_prefix("rotary_pos_emb"), _body.rotary_pos_emb)
norm_rotary = register(add_op_namespace_prefix("norm_rotary"), _body.norm_rotary)

from . import layers  # noqa: E402  (layers call the operator)

__all__ = ["layers", "norm_rotary", "rotary_pos_emb"]
