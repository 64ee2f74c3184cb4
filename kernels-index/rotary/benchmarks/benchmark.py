"""`kernels benchmark` of `rotary_pos_emb` against the sequence of torch ops that transformers runs.

The runner compares one tensor, so q and k are joined; inputs are small enough for bfloat16 to meet
its absolute tolerance of 1e-2.
"""

import torch
from kernels.benchmark import Benchmark


def tensor(shape, dtype, device):
    """Numbers of a tenth of the normal spread, made on the CPU so that every device gets the same."""
    return (torch.randn(shape) * 0.1).to(dtype).to(device)


def finished(result, device):
    """The runner waits for no TPU, so wait here until the result is there."""
    if device == "tpu":
        torch.tpu.synchronize()
    return result


def turned(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Rotary(Benchmark):
    """A decode step and prompts; 9 heads over 3, and 32 over 8."""

    seed = 42

    def prepare(self, heads, kv_heads, length, head_dim, dtype):
        self.q = tensor((1, heads, length, head_dim), dtype, self.device)
        self.k = tensor((1, kv_heads, length, head_dim), dtype, self.device)
        frequency = 10_000.0 ** (-torch.arange(0, head_dim, 2) / head_dim)
        angle = torch.arange(length)[:, None] * frequency
        angle = torch.cat((angle, angle), dim=-1)[None]
        self.cos = angle.cos().to(dtype).to(self.device)
        self.sin = angle.sin().to(dtype).to(self.device)

    def run(self):
        q, k = self.kernel.rotary_pos_emb(self.q, self.k, self.cos, self.sin)
        self.out = finished(torch.cat((q, k), dim=1), self.device)

    def reference(self):
        cos, sin = self.cos[:, None], self.sin[:, None]
        q, k = turned(self.q, cos, sin), turned(self.k, cos, sin)
        return finished(torch.cat((q, k), dim=1), self.device)

    def setup_decode_f32(self):
        self.prepare(9, 3, 1, 64, torch.float32)

    def setup_prompt_f32(self):
        self.prepare(9, 3, 512, 64, torch.float32)

    def setup_prompt_bf16(self):
        self.prepare(9, 3, 512, 64, torch.bfloat16)

    def setup_large_bf16(self):
        self.prepare(32, 8, 1024, 128, torch.bfloat16)

    def benchmark_decode_f32(self):
        self.run()

    def benchmark_prompt_f32(self):
        self.run()

    def benchmark_prompt_bf16(self):
        self.run()

    def benchmark_large_bf16(self):
        self.run()

    def verify_decode_f32(self):
        return self.reference()

    def verify_prompt_f32(self):
        return self.reference()

    def verify_prompt_bf16(self):
        return self.reference()

    def verify_large_bf16(self):
        return self.reference()
