"""`kernels benchmark` of the gated MLP and of its activation against torch's ops."""

import torch
from kernels.benchmark import Benchmark


def tensor(shape, dtype, device, scale):
    """Normal numbers times `scale`, made on the CPU so that every device gets the same."""
    return (torch.randn(shape) * scale).to(dtype).to(device)


def finished(result, device):
    """The runner waits for no TPU, so wait here until the result is there."""
    if device == "tpu":
        torch.tpu.synchronize()
    return result


class SwiGLUMLP(Benchmark):
    """A decode step and a prompt of a 135M model."""

    seed = 42

    def prepare(self, rows, hidden, intermediate, dtype):
        self.x = tensor((1, rows, hidden), dtype, self.device, 1.0)
        self.gate = tensor((intermediate, hidden), dtype, self.device, hidden**-0.5)
        self.up = tensor((intermediate, hidden), dtype, self.device, hidden**-0.5)
        # Small results, so that bfloat16 meets the runner's absolute tolerance of 1e-2.
        self.down = tensor((hidden, intermediate), dtype, self.device, 0.2 * intermediate**-0.5)

    def run(self):
        self.out = finished(
            self.kernel.swiglu_mlp(self.x, self.gate, self.up, self.down), self.device
        )

    def reference(self):
        linear = torch.nn.functional.linear
        activated = torch.nn.functional.silu(linear(self.x, self.gate)) * linear(self.x, self.up)
        return finished(linear(activated, self.down), self.device)

    def setup_decode_f32(self):
        self.prepare(1, 576, 1536, torch.float32)

    def setup_decode_bf16(self):
        self.prepare(1, 576, 1536, torch.bfloat16)

    def setup_prompt_f32(self):
        self.prepare(128, 576, 1536, torch.float32)

    def benchmark_decode_f32(self):
        self.run()

    def benchmark_decode_bf16(self):
        self.run()

    def benchmark_prompt_f32(self):
        self.run()

    def verify_decode_f32(self):
        return self.reference()

    def verify_decode_bf16(self):
        return self.reference()

    def verify_prompt_f32(self):
        return self.reference()


class SiluAndMul(Benchmark):
    """The activation alone, on gate and up side by side."""

    seed = 42

    def setup(self):
        self.x = tensor((1, 512, 3072), torch.float32, self.device, 1.0)

    def benchmark_prompt_f32(self):
        self.out = finished(self.kernel.silu_and_mul(self.x), self.device)

    def verify_prompt_f32(self):
        first, second = self.x.chunk(2, dim=-1)
        return finished(torch.nn.functional.silu(first) * second, self.device)
