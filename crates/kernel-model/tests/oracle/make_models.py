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
from safetensors.torch import load_file, save_file
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
ODD = {
    "vocab_size": 101,
    "hidden_size": 40,
    "intermediate_size": 50,
    "num_attention_heads": 5,
    "num_key_value_heads": 1,
    "head_dim": 24,
}
WINDOW = {"use_sliding_window": True, "sliding_window": 3}
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
} | {
    # Widths that are no multiple of a vector, and one key/value head.
    f"{kind}-odd-sizes": (kind, ODD | ({"head_dim": ABSENT} if kind == "qwen2" else {}), {})
    for kind in ("llama", "mistral", "qwen2", "qwen3", "glm", "glm4")
} | {
    "llama-mlp-bias": ("llama", {"mlp_bias": True}, {}),
    "llama-attention-bias": ("llama", {"attention_bias": True}, {}),
    "llama-yarn-whole-numbers": ("llama", {}, YARN | {"factor": 4, "beta_fast": 32, "beta_slow": 1}),
    "llama-yarn-factor-of-one": ("llama", {}, YARN | {"factor": 1.0}),
    "qwen2-window-everywhere": ("qwen2", {"head_dim": ABSENT} | WINDOW | {"max_window_layers": 0}, {}),
    "qwen2-window-nowhere": ("qwen2", {"head_dim": ABSENT} | WINDOW | {"max_window_layers": 3}, {}),
    "qwen3-window-beyond-the-prompt": (
        "qwen3",
        WINDOW | {"sliding_window": 40, "max_window_layers": 0},
        {},
    ),
    "glm-llama3-three-quarters": ("glm", {}, LLAMA3 | {"partial_rotary_factor": 0.75}),
    "glm4-linear-quarter": (
        "glm4",
        {},
        {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.25},
    ),
}

LLAMA3_UNSTATED = {key: LLAMA3[key] for key in ("rope_type", "factor", "low_freq_factor", "high_freq_factor")}

# Files as people write them. name: (model type, fields over BASE, changes of config.json)
WRITTEN = {
    "written-no-eps-nor-activation": ("llama", {}, {"rms_norm_eps": ABSENT, "hidden_act": ABSENT}),
    "written-no-eps-glm": ("glm", {}, {"rms_norm_eps": ABSENT}),
    "written-head-dim-null": ("llama", {"head_dim": 8}, {"head_dim": None}),
    "written-key-value-heads-null": ("llama", {"num_key_value_heads": 6}, {"num_key_value_heads": None}),
    "written-theta-twice": ("llama", {}, {"rope_theta": 77.0}),
    "written-whole-theta": ("llama", {}, {"rope_parameters": ABSENT, "rope_theta": 500000}),
    "written-two-types": (
        "llama",
        {},
        {
            "rope_parameters": ABSENT,
            "rope_theta": 1000.0,
            "rope_scaling": LLAMA3 | {"type": "linear"},
        },
    ),
    "written-llama3-without-length": (
        "llama",
        {},
        {"rope_parameters": ABSENT, "rope_theta": 1000.0, "rope_scaling": LLAMA3_UNSTATED},
    ),
    "written-llama3-length-at-the-top": (
        "llama",
        {},
        {
            "rope_parameters": ABSENT,
            "rope_theta": 1000.0,
            "rope_scaling": LLAMA3,
            "original_max_position_embeddings": 16,
        },
    ),
    "written-yarn-factor-null": (
        "llama",
        {},
        {"rope_parameters": ABSENT, "rope_theta": 1000.0, "rope_scaling": YARN | {"factor": None}},
    ),
    "written-scaling-null-beside-parameters": ("llama", {}, {"rope_scaling": None}),
    "written-partial-factor-at-the-top": (
        "glm",
        {},
        {
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "partial_rotary_factor": 0.25,
        },
    ),
    "written-no-partial-factor": (
        "glm4",
        {},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    ),
    "written-no-window-key": ("mistral", {"sliding_window": 4096}, {"sliding_window": ABSENT}),
    "written-layers-by-number": (
        "qwen3",
        {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
        {"layer_types": ABSENT},
    ),
    "written-bias-that-mistral-lacks": ("mistral", {}, {"attention_bias": True}),
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


def make(kind: str, fields: dict, rope: dict, target: Path, **how_to_save) -> torch.nn.Module:
    """Writes a random model in the spelling of transformers 5."""
    rope = {"rope_type": "default", "rope_theta": 10000.0} | rope
    fields = {key: value for key, value in (BASE | fields).items() if value != ABSENT}
    config = AutoConfig.for_model(kind, **fields, rope_parameters=rope)
    model = AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        # Norm weights and biases too, so that one that is forgotten shows.
        if parameter.dim() == 1:
            parameter.data.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(target, **how_to_save)
    return model


def read_config(target: Path) -> dict:
    return json.loads((target / "config.json").read_text())


def write_expected(model: torch.nn.Module, target: Path) -> None:
    vocabulary = model.config.vocab_size
    ids = torch.randint(1, vocabulary, (1, TOKENS))
    expected = run(model, ids, torch.ones_like(ids))
    mask = torch.tensor([[int(n >= TOKENS - length) for n in range(TOKENS)] for length in LENGTHS])
    left = torch.randint(1, vocabulary, mask.shape) * mask
    expected |= {f"left.{key}": value for key, value in run(model, left, mask).items()}
    save_file(expected, target / "expected.safetensors")


def make_configured(name: str, target: Path) -> None:
    model = make(*CASES[name], target)
    (target / "config_v4.json").write_text(json.dumps(older_spelling(read_config(target))))
    write_expected(model, target)


def make_written(name: str, target: Path) -> None:
    """A config.json that transformers would not write itself, but reads."""
    kind, fields, changes = WRITTEN[name]
    make(kind, fields, {}, target)
    config = {key: value for key, value in (read_config(target) | changes).items() if value != ABSENT}
    save_as_both_spellings(config, target)
    write_expected(AutoModelForCausalLM.from_pretrained(target).eval(), target)


def make_sharded(name: str, target: Path) -> None:
    kind = name.removeprefix("sharded-")
    fields = {"head_dim": ABSENT} if kind == "qwen2" else {}
    model = make(kind, fields, {}, target, max_shard_size="30KB")
    save_as_both_spellings(read_config(target), target)
    write_expected(model, target)


def make_with_stored_head(name: str, target: Path) -> None:
    """A tied model whose file holds a head as well: transformers ties them only if they are equal."""
    make("qwen3", {"tie_word_embeddings": True}, {}, target)
    tensors = load_file(target / "model.safetensors")
    head = tensors["model.embed_tokens.weight"].clone()
    tensors["lm_head.weight"] = head if name.endswith("-equal") else torch.randn_like(head) * 0.2
    # As checkpoints of old have; models compute these.
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.randn(8)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    save_as_both_spellings(read_config(target), target)
    write_expected(AutoModelForCausalLM.from_pretrained(target).eval(), target)


def save_as_both_spellings(config: dict, target: Path) -> None:
    for spelling in ("config.json", "config_v4.json"):
        (target / spelling).write_text(json.dumps(config))


MAKERS = (
    dict.fromkeys(CASES, make_configured)
    | dict.fromkeys(WRITTEN, make_written)
    | {f"sharded-{kind}": make_sharded for kind in ("llama", "qwen2", "glm4")}
    | {f"stored-head-{which}": make_with_stored_head for which in ("equal", "different")}
)


def main(directory: Path) -> None:
    # Tiny models: threads would only wait for each other.
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    for seed, (name, maker) in enumerate(MAKERS.items()):
        torch.manual_seed(seed)
        maker(name, directory / name)
    print(len(MAKERS))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
