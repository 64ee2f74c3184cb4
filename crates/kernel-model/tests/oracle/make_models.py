"""Writes tiny random models of many configurations, each with what transformers gives for it.

Usage: python make_models.py DIRECTORY

Every model gets a directory with config.json (the spelling of transformers 5), config_v4.json
(that of older files), model.safetensors, and expected.safetensors:

  input_ids [1, T], prefill_logits [1, T, V], generated_ids [1, N], decode_logits [1, N - 1, V]
  left.* the same for a left-padded batch, with left.attention_mask [B, T]
"""

import copy
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

ABSENT = "absent"
TOKENS = 21
NEW = 7
LENGTHS = [21, 1, 13]

BASE = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "head_dim": 16,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}

# name: (model type, fields over BASE, rope parameters)
CASES = {
    "llama-default": ("llama", {}, {}),
    "llama-theta": ("llama", {}, {"rope_theta": 500000.0}),
    "llama-linear": ("llama", {}, {"rope_type": "linear", "factor": 2.5}),
    "llama-llama3": ("llama", {}, LLAMA3 | {"rope_theta": 500000.0}),
    "llama-llama3-blend": ("llama", {}, LLAMA3 | {"factor": 32.0, "rope_theta": 100.0}),
    "llama-yarn": ("llama", {}, YARN),
    "llama-yarn-attention-factor": ("llama", {}, YARN | {"attention_factor": 1.7}),
    "llama-yarn-mscale": ("llama", {}, YARN | {"mscale": 0.7, "mscale_all_dim": 1.3}),
    "llama-yarn-one-mscale": ("llama", {}, YARN | {"mscale": 0.7}),
    "llama-yarn-untruncated": ("llama", {}, YARN | {"truncate": False, "beta_fast": 8, "beta_slow": 2}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}, {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}, {}),
    "llama-multi-head": ("llama", {"num_key_value_heads": 6}, {}),
    "llama-one-shared-head": ("llama", {"num_key_value_heads": 1}, {}),
    "llama-no-head-dim": ("llama", {"head_dim": ABSENT}, {}),
    "llama-gelu": ("llama", {"hidden_act": "gelu"}, {}),
    "llama-gelu-tanh": ("llama", {"hidden_act": "gelu_pytorch_tanh"}, {}),
    "llama-gelu-new": ("llama", {"hidden_act": "gelu_new"}, {}),
    "llama-relu": ("llama", {"hidden_act": "relu"}, {}),
    "llama-large-eps": ("llama", {"rms_norm_eps": 0.1}, {}),
    "mistral-window": ("mistral", {"sliding_window": 5}, {}),
    "mistral-no-window": ("mistral", {"sliding_window": None}, {}),
    # A window of one is left out: the cache of transformers then keeps everything it should drop.
    "mistral-window-of-two": ("mistral", {"sliding_window": 2}, {}),
    "mistral-yarn": ("mistral", {"sliding_window": None}, YARN | {"beta_fast": 32.0}),
    "qwen2-plain": ("qwen2", {"head_dim": ABSENT}, {}),
    "qwen2-tied": ("qwen2", {"head_dim": ABSENT, "tie_word_embeddings": True}, {}),
    "qwen2-window-from-layer": (
        "qwen2",
        {"head_dim": ABSENT, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
        {},
    ),
    "qwen2-window-by-type": (
        "qwen2",
        {
            "head_dim": ABSENT,
            "use_sliding_window": True,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        {},
    ),
    "qwen2-window-unused": ("qwen2", {"head_dim": ABSENT, "sliding_window": 4, "max_window_layers": 0}, {}),
    "qwen2-yarn": ("qwen2", {"head_dim": ABSENT}, YARN),
    "qwen3-plain": ("qwen3", {}, {}),
    "qwen3-biases": ("qwen3", {"attention_bias": True}, {}),
    "qwen3-window": (
        "qwen3",
        {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 2},
        {},
    ),
    "qwen3-tied-llama3": ("qwen3", {"tie_word_embeddings": True}, LLAMA3),
    "glm-plain": ("glm", {}, {}),
    "glm-no-biases": ("glm", {"attention_bias": False}, {}),
    "glm-quarter": ("glm", {}, {"partial_rotary_factor": 0.25}),
    "glm-whole": ("glm", {}, {"partial_rotary_factor": 1.0}),
    "glm-yarn": ("glm", {}, YARN),
    "glm4-plain": ("glm4", {}, {}),
    "glm4-no-biases": ("glm4", {"attention_bias": False}, {}),
    "glm4-tied": ("glm4", {"tie_word_embeddings": True}, {}),
    "glm4-whole": ("glm4", {}, {"partial_rotary_factor": 1.0}),
}


def older_spelling(config: dict) -> dict:
    """Rope parameters as files on the Hub spell them."""
    older = copy.deepcopy(config)
    rope = older.pop("rope_parameters")
    older["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        older["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    kind = rope.pop("rope_type")
    older["rope_scaling"] = None if kind == "default" else {"type": kind, **rope}
    older["torch_dtype"] = older.pop("dtype", "float32")
    return older


@torch.no_grad()
def run(model, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    logits = model(ids, attention_mask=mask, position_ids=positions(mask)).logits
    answer = model.generate(
        ids,
        attention_mask=mask,
        do_sample=False,
        max_new_tokens=NEW,
        min_new_tokens=NEW,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "prefill_logits": logits.contiguous(),
        "generated_ids": answer.sequences[:, ids.shape[1] :].contiguous(),
        "decode_logits": torch.stack(answer.logits[1:], 1).contiguous(),
    }


def positions(mask: torch.Tensor) -> torch.Tensor:
    return (mask.cumsum(-1) - 1).clamp(min=0)


def main(directory: Path) -> None:
    # Tiny models: threads would only wait for each other.
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    for seed, (name, (kind, fields, rope)) in enumerate(CASES.items()):
        torch.manual_seed(seed)
        rope = {"rope_type": "default", "rope_theta": 10000.0} | rope
        fields = {key: value for key, value in (BASE | fields).items() if value != ABSENT}
        config = AutoConfig.for_model(kind, **fields, rope_parameters=rope)
        model = AutoModelForCausalLM.from_config(config).eval()
        for parameter in model.parameters():
            # Norm weights and biases too, so that one that is forgotten shows.
            if parameter.dim() == 1:
                parameter.data.add_(torch.randn_like(parameter) * 0.2)
        target = directory / name
        model.save_pretrained(target)
        saved = json.loads((target / "config.json").read_text())
        (target / "config_v4.json").write_text(json.dumps(older_spelling(saved)))

        ids = torch.randint(1, 96, (1, TOKENS))
        expected = run(model, ids, torch.ones_like(ids))
        mask = torch.tensor([[int(n >= TOKENS - length) for n in range(TOKENS)] for length in LENGTHS])
        left = torch.randint(1, 96, mask.shape) * mask
        expected |= {f"left.{key}": value for key, value in run(model, left, mask).items()}
        save_file(expected, target / "expected.safetensors")
    print(len(CASES))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
