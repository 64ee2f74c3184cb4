"""What the TPU compiler's cost model says of the kernels. No TPU is involved.

`cargo xtask kernels estimates`, or from this folder `python estimates.py`, brings `estimates.json`
up to date and writes ESTIMATES.md from it. Each kernel and its peers are compiled by libtpu for a
described v5e and v6e; the cycles are those of the compiler's static profile, summed over all
operations of the program. A figure is kept while the code that it was made of stays the same.
"""

import argparse
import functools
import hashlib
import importlib.metadata
import json
import pathlib

import tpu_compiler

HERE = pathlib.Path(__file__).parent
DATA = HERE / "estimates.json"

# Peak of one chip in flops and HBM bytes a cycle, from the published figures and the clock.
PEAKS = {"v5e": (131_072, 546), "v6e": (524_288, 937)}
WIDTH = {"bfloat16": 2, "float32": 4}


def attention(heads, kv_heads, length, head_dim, dtype="bfloat16"):
    """Causal attention over one prompt."""
    pairs = length * (length + 1) // 2
    kv = [[1, kv_heads, length, head_dim], dtype]
    q = [[1, heads, length, head_dim], dtype]
    return {
        "kernel": "attention",
        "function": "attention",
        "label": f"H/K {heads}/{kv_heads}, T {length}, D {head_dim}",
        "dtype": dtype,
        "arguments": [q, kv, kv],
        "options": {"scale": head_dim**-0.5},
        "default_loops": True,
        "flops": 4 * heads * pairs * head_dim,
        # jax's kernel groups no heads: it gets K and V as often as there are query heads.
        "peers": {
            f"jax flash {block_q}/{block_k}": {
                "function": "jax_flash_attention",
                "arguments": [q, q, q],
                "options": {"scale": head_dim**-0.5, "block_q": block_q, "block_k": block_k},
            }
            for block_q, block_k in ((512, 512), (512, 1024))
        },
        "bytes": 2 * (heads + kv_heads) * length * head_dim * WIDTH[dtype],
    }


def decode_attention(batch, heads, kv_heads, capacity, head_dim, dtype="bfloat16"):
    """One token over a full cache."""
    q, kv = [[batch, heads, 1, head_dim], dtype], [[batch, kv_heads, capacity, head_dim], dtype]
    return {
        "kernel": "decode-attention",
        "function": "decode_attention",
        "label": f"B {batch}, H/K {heads}/{kv_heads}, C {capacity}, D {head_dim}, full",
        "dtype": dtype,
        "arguments": [q, kv, kv, [[batch], "int32"]],
        "options": {"scale": head_dim**-0.5},
        # The model knows no lengths in memory; see HEAD.
        "modelled": {
            "function": "filled_decode_attention",
            "arguments": [q, kv, kv],
            "options": {"scale": head_dim**-0.5, "filled": capacity},
            "body": "inner",
        },
        "flops": 4 * batch * heads * capacity * head_dim,
        "bytes": 2 * batch * kv_heads * capacity * head_dim * WIDTH[dtype],
    }


def swiglu_mlp(rows, hidden, intermediate, dtype="bfloat16"):
    """The gated MLP."""
    weight = [[intermediate, hidden], dtype]
    return {
        "kernel": "swiglu-mlp",
        "function": "swiglu_mlp",
        "label": f"rows {rows}, hidden {hidden}, intermediate {intermediate}",
        "dtype": dtype,
        "arguments": [[[rows, hidden], dtype], weight, weight, [[hidden, intermediate], dtype]],
        "options": {},
        "flops": 6 * rows * hidden * intermediate,
        "bytes": (3 * hidden * intermediate + 2 * rows * hidden) * WIDTH[dtype],
    }


def silu_and_mul(rows, width, dtype="bfloat16"):
    """The activation on gate and up side by side."""
    return {
        "kernel": "swiglu-mlp",
        "function": "silu_and_mul",
        "label": f"rows {rows}, 2 x {width}",
        "dtype": dtype,
        "arguments": [[[rows, 2 * width], dtype]],
        "options": {},
        "flops": 0,
        "bytes": 3 * rows * width * WIDTH[dtype],
    }


def rms_norm(rows, hidden, dtype="bfloat16"):
    """The norm of whole rows."""
    return {
        "kernel": "rms-norm",
        "function": "rms_norm",
        "label": f"rows {rows}, hidden {hidden}",
        "dtype": dtype,
        "arguments": [[[rows, hidden], dtype], [[hidden], dtype]],
        "options": {"eps": 1e-6},
        "flops": 0,
        "bytes": 2 * rows * hidden * WIDTH[dtype],
    }


def add_rms_norm(rows, hidden, dtype="bfloat16"):
    """The sum with a residual and its norm."""
    case = rms_norm(rows, hidden, dtype)
    x, weight = case["arguments"]
    return {**case, "function": "add_rms_norm", "arguments": [x, x, weight], "bytes": 2 * case["bytes"]}


def rotary_pos_emb(heads, kv_heads, length, head_dim, dtype="bfloat16"):
    """The rotary embedding of q and k."""
    angles = [[1, length, head_dim], dtype]
    q, k = [[1, heads, length, head_dim], dtype], [[1, kv_heads, length, head_dim], dtype]
    return {
        "kernel": "rotary",
        "function": "rotary_pos_emb",
        "label": f"H/K {heads}/{kv_heads}, T {length}, D {head_dim}",
        "dtype": dtype,
        "arguments": [q, k, angles, angles],
        "options": {},
        "flops": 0,
        "bytes": (2 * (heads + kv_heads) + 2) * length * head_dim * WIDTH[dtype],
    }


CASES = [
    *[attention(4, 1, length, head_dim) for length in (1024, 2048, 4096) for head_dim in (128, 64)],
    attention(8, 2, 1024, 128),
    *[
        decode_attention(batch, 32, 8, capacity, head_dim)
        for capacity in (2048, 8192)
        for batch in (1, 8, 32)
        for head_dim in (128, 64)
    ],
    rms_norm(512, 4096),
    add_rms_norm(512, 4096),
    silu_and_mul(1024, 4096),
    swiglu_mlp(16, 2048, 8192),
    swiglu_mlp(512, 2048, 8192),
    rotary_pos_emb(32, 8, 1024, 128),
]

HEAD = """# Estimates by the TPU compiler

**These are estimates made while compiling, not measurements: no TPU was used.** Written by
`cargo xtask kernels estimates` from `estimates.json`; do not edit. {versions}.

Method: libtpu compiles the Pallas kernel, XLA's own code for the same function (the JAX body of the CPU
build), and where there is one the kernel that ships inside jax with the better of two block sizes, for a
described device, in a process of its own. The figures are the cycles of the compiler's static profile
(`--xla_jf_dump_static_llo_profile_to`), summed over all operations of the program, copies and relayouts
around the kernel included.

- The **floor** is the larger of the flops over the MXU's peak and the bytes that must be read and written
  over the peak of HBM ({peaks}). The model counts waiting for a transfer but no sharing of
  bandwidth, so a figure below its floor cannot be true: there the floor is the better figure, and no ratio
  is given. The floor takes no account of a head_dim of 64, which fills only a part of the MXU (half of it on
  v5e, a quarter on v6e, where 128 fills half).
- **floor / kernel** is the share of the peak that the kernel reaches by this model; 1 where the model lies
  below the floor.
- "not modelled": it compiles, but the model ends the process on an operation that it does not know.
- XLA's code for `attention` loops over blocks of queries. Its figures grow with the length where the work grows
  with its square, so the model cannot have counted every turn: they are too low, and no ratio is given.
- `decode_attention` reads its lengths from memory, which the model does not know. Its rows are of the same
  kernel with a length known while compiling, that of a full cache, and the floor counts all of it. The lengths
  cost one more short transfer at the start.
- Only figures of one device beside each other mean something, and they mean little where both arms are
  near the floor: such an operation is bound by memory.

"""


def code_of(case, body):
    """A digest of what a figure depends on: the job, the code, the compiler."""
    digest = hashlib.sha256(json.dumps(case, sort_keys=True).encode())
    folder = HERE / case["kernel"] / "build" / ("torch-cpu" if body == "cpu" else "torch-tpu")
    files = ["_jax_body.py"] if body == "cpu" else ["_pallas_body.py", "_blocks.py"]
    for path in [HERE / "peers.py"] if body == "peer" else [folder / file for file in files]:
        digest.update(path.read_bytes() if path.exists() else b"")
    for package in ("jax", "libtpu"):
        digest.update(importlib.metadata.version(package).encode())
    return digest.hexdigest()[:16]


def jobs(case):
    """(arm, job) of everything that is compiled for a case."""
    job = {key: case[key] for key in ("kernel", "function", "arguments", "options")}
    yield "kernel", {**job, "body": "tpu", **case.get("modelled", {})}
    yield "XLA", {**job, "body": "cpu"}
    for name, peer in case.get("peers", {}).items():
        yield name, {**job, **peer, "body": "peer"}


def update(data, targets, only):
    """Compiles what has no figure yet or other code than its figure was made of."""
    for target in targets:
        for case in CASES:
            for arm, job in jobs(case):
                key = " | ".join((target, case["function"], case["label"], case["dtype"], arm))
                code = code_of(job, job["body"])
                if data.get(key, {}).get("code") == code or (only and only not in key):
                    continue
                answer = tpu_compiler.compile_job(target, job, profile=True, limit=900)
                cycles = sum(answer.get("cycles", {}).values()) or None
                data[key] = {"code": code, "cycles": cycles}
                if cycles is None:
                    data[key]["reason"] = reason(answer)
                print(key, data[key].get("cycles") or data[key]["reason"], flush=True)
                save(data, targets)


def reason(answer):
    """Why there are no cycles."""
    if "error" in answer and not answer.get("ended"):
        return "does not compile"
    return "not modelled"


def save(data, targets):
    """Adds the figures of these targets to the file, where a run for others may be writing, too."""
    found = json.loads(DATA.read_text()) if DATA.exists() else {}
    mine = {key: value for key, value in data.items() if key.split(" | ")[0] in targets}
    text = json.dumps({**found, **mine}, indent=1, sort_keys=True)
    DATA.write_text(text + "\n")


def row(target, case, data):
    """One row of the table of a target; None while nothing is known of the kernel."""
    flops, bandwidth = PEAKS[target]
    floor = max(case["flops"] / flops, case["bytes"] / bandwidth)
    known = {}
    for arm, _ in jobs(case):
        key = " | ".join((target, case["function"], case["label"], case["dtype"], arm))
        known[arm] = data.get(key, {})
    if "code" not in known["kernel"]:
        return None
    kernel, default = known.pop("kernel"), known.pop("XLA")
    measured = [(peer["cycles"], name) for name, peer in known.items() if peer.get("cycles")]
    best = min(measured, default=None)
    share = "-"
    if kernel.get("cycles"):
        share = f"{min(1, floor / kernel['cycles']):.2f}"

    def ratio(cycles):
        modelled = (c is not None and c >= floor for c in (kernel.get("cycles"), cycles))
        return f"{kernel['cycles'] / cycles:.2f}" if all(modelled) else "-"

    def text(figure):
        return f"{figure['cycles']:,}" if figure.get("cycles") else figure.get("reason", "-")

    cells = (
        case["function"],
        case["label"],
        f"{floor:,.0f}",
        text(kernel),
        share,
        text(default),
        "-" if case.get("default_loops") else ratio(default.get("cycles")),
        f"{best[0]:,} ({best[1]})" if best else "-",
        ratio(best[0]) if best else "-",
    )
    return "| " + " | ".join(cells) + " |\n"


def write_tables(data):
    """ESTIMATES.md from the figures."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "libtpu"))
    peaks = "; ".join(f"{t}: {f:,} flops and {b} bytes a cycle" for t, (f, b) in PEAKS.items())
    text = HEAD.format(versions=versions, peaks=peaks)
    for target in PEAKS:
        text += f"## {target}, bfloat16\n\n"
        text += "| op | shape | floor | kernel | floor / kernel | XLA | kernel / XLA | peer | kernel / peer |\n"
        text += "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        rows = (row(target, case, data) for case in CASES)
        text += "".join(line for line in rows if line) + "\n"
    (HERE / "ESTIMATES.md").write_text(text.rstrip("\n") + "\n")


def main():
    """Brings the figures up to date and writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", choices=PEAKS, action="append", help="only for this generation")
    parser.add_argument("--only", help="only figures whose name holds this text")
    parser.add_argument("--no-compile", action="store_true", help="only write the tables anew")
    arguments = parser.parse_args()
    if not arguments.no_compile:
        data = json.loads(DATA.read_text()) if DATA.exists() else {}
        update(data, arguments.target or list(PEAKS), arguments.only)
    write_tables(json.loads(DATA.read_text()))


if __name__ == "__main__":
    main()
