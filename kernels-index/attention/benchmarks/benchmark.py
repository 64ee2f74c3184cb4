"""`kernels benchmark` of `attention` against torch's scaled dot product attention.

Inputs are small enough for bfloat16 to meet the runner's absolute tolerance of 1e-2.
"""

import torch
from kernels.benchmark import Benchmark


def tensor(shape, dtype, device):
    """Numbers of a quarter of the normal spread, made on the CPU so that every device gets the same."""
    return (torch.randn(shape) * 0.25).to(dtype).to(device)


def finished(result, device):
    """The runner waits for no TPU, so wait here until the result is there."""
    if device == "tpu":
        torch.tpu.synchronize()
    return result


class Attention(Benchmark):
    """Causal attention over a prompt; shapes of a 135M model (9 heads, 3 KV heads) and an 8B model."""

    seed = 42

    def prepare(self, heads, kv_heads, length, head_dim, dtype):
        self.q = tensor((1, heads, length, head_dim), dtype, self.device)
        self.k = tensor((1, kv_heads, length, head_dim), dtype, self.device)
        self.v = tensor((1, kv_heads, length, head_dim), dtype, self.device)
        self.scale = head_dim**-0.5

    def run(self):
        out = self.kernel.attention(self.q, self.k, self.v, scale=self.scale)
        self.out = finished(out, self.device)

    def reference(self):
        out = torch.nn.functional.scaled_dot_product_attention(
            self.q, self.k, self.v, is_causal=True, scale=self.scale, enable_gqa=True
        )
        return finished(out, self.device)

    def setup_small_f32(self):
        self.prepare(9, 3, 129, 64, torch.float32)

    def setup_small_bf16(self):
        self.prepare(9, 3, 129, 64, torch.bfloat16)

    def setup_prompt_f32(self):
        self.prepare(9, 3, 1024, 64, torch.float32)

    def setup_large_bf16(self):
        self.prepare(32, 8, 1024, 128, torch.bfloat16)

    def benchmark_small_f32(self):
        self.run()

    def benchmark_small_bf16(self):
        self.run()

    def benchmark_prompt_f32(self):
        self.run()

    def benchmark_large_bf16(self):
        self.run()

    def verify_small_f32(self):
        return self.reference()

    def verify_small_bf16(self):
        return self.reference()

    def verify_prompt_f32(self):
        return self.reference()

    def verify_large_bf16(self):
        return self.reference()
