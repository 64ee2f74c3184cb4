"""Measures a model with transformers on the CPU and prints one line of JSON.

Usage: python measure_transformers.py MODEL DTYPE THREADS PROMPT_TOKENS NEW_TOKENS

The figures and the way they are taken are those of crates/kernel-model/examples/measure.rs.
"""

import json
import sys
import time

import torch

RUNS = 3


def main(directory: str, dtype: str, threads: int, prompt: int, new: int) -> None:
    torch.set_num_threads(threads)
    from transformers import AutoModelForCausalLM

    # What is imported on first use belongs to the program, not to the model.
    import transformers.models.llama.modeling_llama  # noqa: F401

    started = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype))
    model.eval()
    load = time.perf_counter() - started

    def generate(length: int, tokens: int) -> float:
        ids = torch.tensor([[(n * 7919 + 11) % model.config.vocab_size for n in range(length)]])
        began = time.perf_counter()
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            pad_token_id=0,
        )
        return time.perf_counter() - began

    with torch.inference_mode():
        generate(16, 1)
        first_token = time.perf_counter() - started
        prefill = min(generate(prompt, 1) for _ in range(RUNS)) / prompt
        # The first token comes from the prompt.
        decode = min(generate(16, new) - generate(16, 1) for _ in range(RUNS)) / (new - 1)

    with open("/proc/self/status") as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024
    print(
        json.dumps(
            {
                "load_s": load,
                "first_token_s": first_token,
                "prefill_tokens_per_s": 1 / prefill,
                "decode_tokens_per_s": 1 / decode,
                "peak_resident_bytes": peak,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]))
