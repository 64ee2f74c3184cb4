"""`kernels benchmark` of `rms_norm` against the sequence of torch ops that transformers runs.

Weights are small enough for bfloat16 to meet the runner's absolute tolerance of 1e-2.
"""

import torch
from kernels.benchmark import Benchmark


def finished(result, device):
    """The runner waits for no TPU, so wait here until the result is there."""
    if device == "tpu":
        torch.tpu.synchronize()
    return result


class RMSNorm(Benchmark):
    """A decode step and prompts, at widths of a 135M and of an 8B model."""

    seed = 42
    eps = 1e-5

    def prepare(self, rows, hidden, dtype):
        self.x = torch.randn(1, rows, hidden).to(dtype).to(self.device)
        self.weight = (0.1 + 0.02 * torch.randn(hidden)).to(dtype).to(self.device)

    def run(self):
        self.out = finished(self.kernel.rms_norm(self.x, self.weight, eps=self.eps), self.device)

    def reference(self):
        x = self.x.float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return finished(self.weight * x.to(self.x.dtype), self.device)

    def setup_decode_f32(self):
        self.prepare(1, 576, torch.float32)

    def setup_prompt_f32(self):
        self.prepare(512, 576, torch.float32)

    def setup_large_f32(self):
        self.prepare(512, 4096, torch.float32)

    def setup_large_bf16(self):
        self.prepare(512, 4096, torch.bfloat16)

    def benchmark_decode_f32(self):
        self.run()

    def benchmark_prompt_f32(self):
        self.run()

    def benchmark_large_f32(self):
        self.run()

    def benchmark_large_bf16(self):
        self.run()

    def verify_decode_f32(self):
        return self.reference()

    def verify_prompt_f32(self):
        return self.reference()

    def verify_large_f32(self):
        return self.reference()

    def verify_large_bf16(self):
        return self.reference()
