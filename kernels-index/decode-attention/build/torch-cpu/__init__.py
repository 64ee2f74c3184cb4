"""Attention of one new token per sequence over a static KV cache, as an operator for torch on TPU.

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

decode_attention = register(add_op_namespace_prefix("decode_attention"), _body.decode_attention)
decode_attention_int8 = register(
    add_op_namespace_prefix("decode_attention_int8"), _body.decode_attention_int8
)

__all__ = ["decode_attention", "decode_attention_int8"]
