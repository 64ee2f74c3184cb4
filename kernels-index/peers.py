"""The kernels that ours are compared with: those that ship inside jax, with their best blocks."""

import jax
from jax.experimental.pallas.ops.tpu import flash_attention


def jax_flash_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, *, scale: float, block_q: int, block_k: int
) -> jax.Array:
    """jax's flash attention, causal; k and v have as many heads as q, for it groups none."""
    blocks = flash_attention.BlockSizes(
        block_q=block_q, block_k_major=block_k, block_k=block_k, block_b=1
    )
    return flash_attention.flash_attention(
        q, k, v, causal=True, sm_scale=scale, block_sizes=blocks
    )
