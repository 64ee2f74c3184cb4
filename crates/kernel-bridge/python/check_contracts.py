"""What each op promises; the classes have the methods that `check_attention` describes."""

import jax
import jax.numpy as jnp
import torch

from . import layers
from .check_attention import Attention, DecodeAttention, Rotary
from .check_case import Case, wide, with_value

EPSILON = 1e-5


class RmsNorm:
    """Layer `RMSNorm` with `weight` and `variance_epsilon`, or `rms_norm(x [R, H], weight [H], *, eps)`."""

    tensors = ("x", "weight")
    statics = ("eps",)
    optional = {}
    heads_dimension = {}

    def case(self, sizes, source):
        x, weight = source.normal(1, sizes["R"], sizes["H"]), source.normal(sizes["H"])
        return Case(sizes, [x, weight], {"eps": EPSILON}, {"weight": weight, "variance_epsilon": EPSILON})

    def value(self, case, eps=EPSILON, shift=0.0, mean=False):
        x, weight = wide(*case.tensors)
        if mean:
            x = x - x.mean(-1, keepdim=True)
        normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        return [normed.to(case.tensors[0].dtype).double() * (weight + shift)]

    def mistakes(self, case):
        yield "multiplies by 1 + weight, as Gemma's norm does", self.value(case, shift=1.0)
        yield "subtracts the mean, as LayerNorm does", self.value(case, mean=True)
        yield "leaves out `weight`", [
            value / case.tensors[1].double() for value in self.value(case)
        ]

    def default(self, case):
        x, weight = case.tensors
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON)
        return [weight * normed.to(x.dtype)]

    def poisons(self, case):
        x, weight = case.tensors
        for name, value in (("NaN", torch.nan), ("infinity", torch.inf)):
            yield f"{name} in one row", False, Case(
                case.sizes, [with_value(x, (0, x.shape[1] // 2, 1), value), weight], case.statics, case.attributes)

    def xla(self, case):
        def rms_norm(x, weight):
            wide = x.astype(jnp.float32)
            normed = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + EPSILON)
            return weight * normed.astype(x.dtype)

        return rms_norm


class _GatedMlp:
    """Layer with `gate_proj`, `up_proj`, `down_proj`, or `f(x [R, H], gate, up [I, H], down [H, I])`."""

    tensors = ("x", "gate", "up", "down")
    statics = ()
    optional = {}
    heads_dimension = {}

    def __init__(self, name, activation, other, xla):
        self._name, self._activation, self._other, self._xla = name, activation, other, xla

    def case(self, sizes, source):
        r, h, i = (sizes[name] for name in "RHI")
        x = source.normal(1, r, h)
        # Scaled so that a layer's output has the size of its input.
        gate, up = source.normal(i, h, scale=h**-0.5), source.normal(i, h, scale=h**-0.5)
        down = source.normal(h, i, scale=i**-0.5)
        children = {"gate_proj": {"weight": gate}, "up_proj": {"weight": up}, "down_proj": {"weight": down}}
        return Case(sizes, [x, gate, up, down], {}, {**children, "act_fn": layers.ACTIVATIONS[self._name]})

    def value(self, case, activation=None, swap=False):
        x, gate, up, down = wide(*case.tensors)
        if swap:
            gate, up = up, gate
        return [((activation or self._activation)(x @ gate.T) * (x @ up.T)) @ down.T]

    def mistakes(self, case):
        yield "swaps gate and up", self.value(case, swap=True)
        yield f"computes {self._other[0]}", self.value(case, activation=self._other[1])

    def default(self, case):
        x, gate, up, down = case.tensors
        linear = torch.nn.functional.linear
        return [linear(self._activation(linear(x, gate)) * linear(x, up), down)]

    def poisons(self, case):
        x = case.tensors[0]
        yield "NaN in one row", False, Case(
            case.sizes, [with_value(x, (0, x.shape[1] // 2, 0), torch.nan), *case.tensors[1:]], {}, case.attributes)

    def xla(self, case):
        def mlp(x, gate, up, down):
            return (self._xla(x @ gate.T) * (x @ up.T)) @ down.T

        return mlp


class _Elementwise:
    """Layers `SiluAndMul` ([R, 2I] to [R, I]) and `SiLU`."""

    tensors = ("x",)
    statics = ()
    optional = {}
    heads_dimension = {}

    def __init__(self, gated):
        self._gated = gated

    def case(self, sizes, source):
        return Case(sizes, [source.normal(1, sizes["R"], sizes["I"] * (2 if self._gated else 1))])

    def value(self, case, swap=False, activation=torch.nn.functional.silu):
        (x,) = wide(*case.tensors)
        if not self._gated:
            return [activation(x)]
        first, second = x.chunk(2, -1)
        return [activation(second) * first if swap else activation(first) * second]

    def mistakes(self, case):
        if self._gated:
            yield "applies SiLU to the second half", self.value(case, swap=True)
        yield "computes GELU", self.value(case, activation=torch.nn.functional.gelu)

    def default(self, case):
        (x,) = case.tensors
        if not self._gated:
            return [torch.nn.functional.silu(x)]
        first, second = x.chunk(2, -1)
        return [torch.nn.functional.silu(first) * second]

    def poisons(self, case):
        (x,) = case.tensors
        yield "NaN in one element", False, Case(case.sizes, [with_value(x, (0, x.shape[1] // 2, 0), torch.nan)])

    def xla(self, case):
        def activation(x):
            if not self._gated:
                return jax.nn.silu(x)
            first, second = jnp.split(x, 2, -1)
            return jax.nn.silu(first) * second

        return activation


def _gelu_tanh(x):
    return torch.nn.functional.gelu(x, approximate="tanh")


CONTRACTS = {
    "attention": Attention(),
    "decode_attention": DecodeAttention(),
    "RMSNorm": RmsNorm(),
    "SwiGLUMLP": _GatedMlp("silu", torch.nn.functional.silu, ("GELU", torch.nn.functional.gelu), jax.nn.silu),
    "GeGLUMLP": _GatedMlp(
        "gelu_pytorch_tanh", _gelu_tanh, ("SiLU", torch.nn.functional.silu), jax.nn.gelu
    ),
    "SiluAndMul": _Elementwise(gated=True),
    "SiLU": _Elementwise(gated=False),
    "rotary_pos_emb": Rotary(),
}
#: Functions that do an op where a kernel has no layer of its name.
FUNCTIONS = {
    "RMSNorm": "rms_norm",
    "SwiGLUMLP": "swiglu_mlp",
    "GeGLUMLP": "geglu_mlp",
    "SiluAndMul": "silu_and_mul",
    "SiLU": "silu",
}
