"""The builds in the hands of `kernels` and `transformers`: `kernelize`, and an attention function.

transformers marks its layers and loads attention kernels only for the releases of `kernels` that it
was made for; the tests do both in its place, so that they run with the ones that are installed.
"""

import pytest
import torch
from harness import INDEX, load


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    # The library takes the backend from the build of torch; here it shall be the CPU.
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.delattr(torch.backends, "tpu", raising=False)


def model():
    """A small Qwen3 with random weights, grouped queries and norms of q and k."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=100,
        hidden_size=96,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
    )
    return Qwen3ForCausalLM(config).eval()


def test_kernelize_puts_the_layers_into_a_model_and_its_logits_stay(monkeypatch):
    from kernels import LocalLayerRepository, Mode, kernelize, use_kernel_mapping
    from transformers.models.qwen3 import modeling_qwen3

    layers = {"RMSNorm": "rms-norm", "SwiGLUMLP": "swiglu-mlp"}
    for name, marked in (("RMSNorm", "Qwen3RMSNorm"), ("SwiGLUMLP", "Qwen3MLP")):
        original = getattr(modeling_qwen3, marked)
        monkeypatch.setattr(original, "kernel_layer_name", name, raising=False)
    plain = model()
    ids = torch.randint(0, 100, (2, 17))
    with torch.no_grad():
        expected = plain(ids).logits
    mapping = {
        layer: {"cpu": LocalLayerRepository(repo_path=INDEX / folder, layer_name=layer)}
        for layer, folder in layers.items()
    }
    before = {name: module.forward for name, module in plain.named_modules()}
    with use_kernel_mapping(mapping, inherit_mapping=False):
        plain = kernelize(plain, mode=Mode.INFERENCE, device="cpu", use_fallback=False)
    replaced = [
        name for name, module in plain.named_modules() if module.forward != before[name]
    ]
    assert sum("norm" in name for name in replaced) == 2 * 4 + 1
    assert sum(name.endswith("mlp") for name in replaced) == 2
    with torch.no_grad():
        logits = plain(ids).logits
    assert (logits - expected).abs().max() < 1e-4


@pytest.mark.parametrize("padded", [False, True])
def test_a_model_takes_the_attention_function(padded):
    """Without padding the kernel itself runs; with it, what it has for a mask."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    name = "index_attention"
    function = load("attention", "cpu").flash_attn_forward
    ALL_ATTENTION_FUNCTIONS.register(name, function)
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    ids = torch.randint(1, 100, (2, 17))
    mask = torch.ones_like(ids)
    if padded:
        mask[0, :5] = 0
    plain = model()
    with torch.no_grad():
        expected = plain(ids, attention_mask=mask).logits
        plain.config._attn_implementation = name
        logits = plain(ids, attention_mask=mask).logits
    assert (logits - expected)[mask.bool()].abs().max() < 1e-4


def test_attention_for_transformers_runs_the_kernel_where_it_can():
    module = load("attention", "cpu")
    assert module.supports_flash_attn
    q, k, v = torch.randn(1, 4, 9, 64), torch.randn(1, 2, 12, 64), torch.randn(1, 2, 12, 64)
    host = torch.nn.Module()
    host.is_causal = True
    out, weights = module.flash_attn_forward(host, q, k, v, None, scaling=0.125)
    assert weights is None and out.shape == (1, 9, 4, 64)
    assert torch.equal(out.transpose(1, 2), module.attention(q, k, v, scale=0.125))
    # Gradients and types that no body takes go through torch.
    q.requires_grad_()
    out, _ = module.flash_attn_forward(host, q, k[:, :, :9], v[:, :, :9], None, scaling=0.125)
    out.sum().backward()
    assert q.grad is not None
    half = [x.detach().half() for x in (q, k[:, :, :9], v[:, :, :9])]
    assert module.flash_attn_forward(host, *half, None, scaling=0.125)[0].dtype == torch.float16
