"""Layers that `kernels.kernelize` puts in place of those of transformers."""

import torch

from . import silu, silu_and_mul, swiglu_mlp


class SwiGLUMLP(torch.nn.Module):
    """Reads `gate_proj`, `up_proj` and `down_proj` (bias-free) of the MLP that it replaces.

    The activation is SiLU; a host must not put this in place of an MLP with another `act_fn`.
    """

    can_torch_compile = True
    has_backward = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return swiglu_mlp(x, self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight)


class SiluAndMul(torch.nn.Module):
    """silu of the first half of the last dimension times the second half."""

    can_torch_compile = True
    has_backward = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return silu_and_mul(x)


class SiLU(torch.nn.Module):
    """The activation alone."""

    can_torch_compile = True
    has_backward = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return silu(x)
