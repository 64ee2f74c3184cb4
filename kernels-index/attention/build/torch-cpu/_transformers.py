"""The attention interface of transformers, as a function of a kernel from the Hub."""

import torch

from ._shapes import DTYPES, HEAD_DIMS


def interface(attention):
    """`flash_attn_forward` over an operator `attention`.

    transformers gives no mask where causality alone decides; what needs more (padding, a static
    cache that is partly filled, dropout, gradients, a type or head_dim that no test covers) goes
    through torch's scaled dot product attention.
    """
    dtypes = {getattr(torch, dtype.__name__) for dtype in DTYPES}

    def flash_attn_forward(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        dropout: float = 0.0,
        scaling: float | None = None,
        sliding_window: int | None = None,
        is_causal: bool | None = None,
        **_: object,
    ) -> tuple[torch.Tensor, None]:
        """query [B, H, T, D], key and value [B, K, S, D] to [B, T, H, D]; there are no weights."""
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        wanted = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
        served = (
            attention_mask is None
            and dropout == 0.0
            and not wanted
            and query.dtype in dtypes
            and query.shape[-1] in HEAD_DIMS
            and (not causal or key.shape[2] >= query.shape[2])
        )
        if served:
            window = sliding_window if causal else None
            out = attention(query, key, value, scale=scale, causal=causal, window=window)
        else:
            out = torch.nn.functional.scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask=attention_mask,
                dropout_p=dropout,
                scale=scale,
                is_causal=causal and attention_mask is None and query.shape[2] > 1,
                enable_gqa=query.shape[1] != key.shape[1],
            )
        return out.transpose(1, 2).contiguous(), None

    return flash_attn_forward
