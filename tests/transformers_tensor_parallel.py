"""transformers' own tensor parallelism beside ours, on the same tiny checkpoints.

    python tests/transformers_tensor_parallel.py 2 target/debug/kernel-cli

For each checkpoint: the tokens of both, the bytes of weights that the first rank holds or took, and the seconds of
loading them. A checkpoint that transformers cannot run on so many ranks says why.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GOLDENS = ROOT / "crates/kernel-model/tests/golden"
NAMES = ["glm4", "llama", "mistral", "qwen2-tied", "qwen3-tied", "qwen3-untied", "qwen3-yarn"]
PROMPT = [1, 2, 3, 4, 5]
NEW_TOKENS = 8


def as_rank(ranks):
    """Runs transformers in one rank; the first one prints a line of JSON for each checkpoint."""
    import torch
    import torch.distributed as distributed
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    first = os.environ["RANK"] == "0"
    for name in NAMES:
        answer = {"name": name}
        try:
            started = time.perf_counter()
            model = AutoModelForCausalLM.from_pretrained(
                GOLDENS / name, dtype=torch.float32, distributed_config=DistributedConfig(tp_size=ranks)
            )
            answer["load_s"] = time.perf_counter() - started
            held = {}
            for parameter in model.parameters():
                local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
                held[id(parameter)] = local.numel() * local.element_size()
            answer["bytes"] = sum(held.values())
            ids = torch.tensor([PROMPT])
            output = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=NEW_TOKENS,
                min_new_tokens=NEW_TOKENS,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
            answer["tokens"] = output[0, len(PROMPT) :].tolist()
        except Exception as error:
            answer["error"] = str(error).strip().splitlines()[0][:100]
        if first:
            print("answer " + json.dumps(answer), flush=True)
    distributed.destroy_process_group()


def of_transformers(ranks):
    output = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--local-addr=127.0.0.1",
            f"--nproc-per-node={ranks}",
            __file__,
            str(ranks),
        ],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    lines = [line for line in output.stdout.splitlines() if line.startswith("answer ")]
    if not lines:
        sys.exit(output.stderr)
    answers = [json.loads(line.removeprefix("answer ")) for line in lines]
    return {answer["name"]: answer for answer in answers}


def of_ours(command, name, ranks):
    ids = ",".join(map(str, PROMPT))
    output = subprocess.run(
        [command, "generate", "--json", "--greedy", "--ignore-eos", "--tp", str(ranks), "--kernels", "off"]
        + ["--model", str(GOLDENS / name), "--prompt-ids", ids, "--max-new-tokens", str(NEW_TOKENS)],
        capture_output=True,
        text=True,
    )
    if output.returncode != 0:
        sys.exit(f"{name}: {output.stdout}{output.stderr}")
    answer = json.loads(output.stdout)
    return answer["tokens"], answer["parallel"]["ranks"][0]


def main(ranks, command):
    theirs = of_transformers(ranks)
    differing = 0
    print(f"{'checkpoint':14} {'tokens':12} {'bytes, theirs':>14} {'ours':>8} {'load_s, theirs':>15} {'ours':>7}")
    for name in NAMES:
        their = theirs.get(name, {"error": "its process ended"})
        tokens, rank = of_ours(command, name, ranks)
        if "error" in their:
            print(f"{name:14} theirs fails: {their['error']}; ours: {rank['bytes_read']} bytes")
            continue
        same = tokens == their["tokens"]
        differing += not same
        print(
            f"{name:14} {'equal' if same else 'DIFFERENT':12} {their['bytes']:14} {rank['bytes_read']:8} "
            f"{their['load_s']:15.3f} {rank['weights_s']:7.3f}"
        )
    sys.exit(differing > 0)


if __name__ == "__main__":
    if "RANK" in os.environ:
        as_rank(int(sys.argv[1]))
    else:
        main(int(sys.argv[1]), sys.argv[2])
