"""The function `rotary_pos_emb` in the form in which `kernels.kernelize` attaches it."""

import torch

from . import rotary_pos_emb as _rotary_pos_emb


class rotary_pos_emb(torch.nn.Module):  # noqa: N801  (the name that transformers maps)
    """Called as transformers' `apply_rotary_pos_emb`; holds nothing."""

    can_torch_compile = True
    has_backward = False

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        unsqueeze_dim: int = 1,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return _rotary_pos_emb(q, k, cos, sin, unsqueeze_dim)
