"""`kernels benchmark` of `decode_attention` against torch's attention with a mask over the cache.

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


class DecodeAttention(Benchmark):
    """One new token over a cache that is a quarter full, and over a full one."""

    seed = 42

    def prepare(self, batch, heads, kv_heads, capacity, head_dim, dtype, filled):
        self.q = tensor((batch, heads, 1, head_dim), dtype, self.device)
        self.k = tensor((batch, kv_heads, capacity, head_dim), dtype, self.device)
        self.v = tensor((batch, kv_heads, capacity, head_dim), dtype, self.device)
        lengths = torch.full((batch,), filled, dtype=torch.int32)
        self.lengths = lengths.to(self.device)
        # What a static cache gives the default op: every entry, and which of them count.
        mask = torch.arange(capacity) < lengths[:, None]
        self.mask = mask[:, None, None, :].to(self.device)
        self.scale = head_dim**-0.5

    def run(self):
        out = self.kernel.decode_attention(
            self.q, self.k, self.v, self.lengths, scale=self.scale
        )
        self.out = finished(out, self.device)

    def reference(self):
        out = torch.nn.functional.scaled_dot_product_attention(
            self.q, self.k, self.v, attn_mask=self.mask, scale=self.scale, enable_gqa=True
        )
        return finished(out, self.device)

    def setup_quarter_full_f32(self):
        self.prepare(1, 9, 3, 2048, 64, torch.float32, 512)

    def setup_full_f32(self):
        self.prepare(1, 9, 3, 2048, 64, torch.float32, 2048)

    def setup_full_bf16(self):
        self.prepare(1, 9, 3, 2048, 64, torch.bfloat16, 2048)

    def setup_large_bf16(self):
        self.prepare(8, 32, 8, 2048, 128, torch.bfloat16, 512)

    def benchmark_quarter_full_f32(self):
        self.run()

    def benchmark_full_f32(self):
        self.run()

    def benchmark_full_bf16(self):
        self.run()

    def benchmark_large_bf16(self):
        self.run()

    def verify_quarter_full_f32(self):
        return self.reference()

    def verify_full_f32(self):
        return self.reference()

    def verify_full_bf16(self):
        return self.reference()

    def verify_large_bf16(self):
        return self.reference()
