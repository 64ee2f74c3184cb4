"""Writes the model directories of `cargo xtask speed`, each in the dtype that it is measured in.

Usage: python make_speed_models.py SMOLLM2 DIRECTORY

SmolLM2 is copied; the larger model is a Llama of 1.04 billion random parameters.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM


def main(smollm2: str, directory: Path) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32768,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    makers = {
        "SmolLM2-135M": lambda: AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.bfloat16),
        "random-1B": lambda: LlamaForCausalLM(config),
    }
    for name, make in makers.items():
        if (directory / f"{name}-bfloat16").exists():
            continue
        print(f"writing {name}", flush=True)
        model = make()
        # Rounded first: both directories hold the same numbers.
        for dtype in (torch.float32, torch.bfloat16):
            model.to(torch.bfloat16).to(dtype).save_pretrained(
                directory / f"{name}-{str(dtype).removeprefix('torch.')}"
            )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
