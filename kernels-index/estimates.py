"""Writes ESTIMATES.md: what the TPU compiler's cost model says of the kernels. No TPU is involved.

Run from this folder: `python estimates.py`. Each kernel, and XLA's own code for the same operation,
is compiled by libtpu for a described v5e and v6e; the cycles are those of the compiler's static
profile, summed over all operations of the program.
"""

import datetime
import functools
import importlib.metadata
import pathlib

import tpu_compiler

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
        "flops": 4 * heads * pairs * head_dim,
        "bytes": 2 * (heads + kv_heads) * length * head_dim * WIDTH[dtype],
    }


def decode_attention(batch, heads, kv_heads, capacity, head_dim, dtype="bfloat16"):
    """One token over a full cache."""
    kv = [[batch, kv_heads, capacity, head_dim], dtype]
    return {
        "kernel": "decode-attention",
        "function": "decode_attention",
        "label": f"B {batch}, H/K {heads}/{kv_heads}, C {capacity}, D {head_dim}, full",
        "dtype": dtype,
        "arguments": [[[batch, heads, 1, head_dim], dtype], kv, kv, [[batch], "int32"]],
        "options": {"scale": head_dim**-0.5},
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
    attention(9, 3, 512, 64),
    attention(4, 1, 1024, 64),
    attention(4, 1, 1024, 128),
    attention(4, 1, 2048, 128),
    decode_attention(1, 9, 3, 2048, 64),
    decode_attention(1, 32, 8, 2048, 128),
    decode_attention(8, 32, 8, 2048, 128),
    swiglu_mlp(16, 576, 1536),
    swiglu_mlp(512, 576, 1536),
    swiglu_mlp(512, 2048, 8192),
    silu_and_mul(1024, 4096),
    rms_norm(512, 576),
    rms_norm(512, 4096),
    rotary_pos_emb(9, 3, 512, 64),
    rotary_pos_emb(32, 8, 1024, 128),
]

HEAD = """# Estimates by the TPU compiler

**These are estimates made while compiling, not measurements: no TPU was used.** Written by
`estimates.py`; do not edit. {versions}, {date}.

Method: libtpu compiles the Pallas kernel, and for comparison XLA's own code for the same function (the
JAX body of the CPU build), for a described device, in a process of its own. The figures are the cycles of
the compiler's static profile (`--xla_jf_dump_static_llo_profile_to`), summed over all operations of the
program, copies and relayouts around the kernel included.

- The **floor** is the larger of the flops over the MXU's peak and the bytes that must be read and written
  over the peak of HBM ({peaks}). The model counts waiting for a transfer but no sharing of
  bandwidth, so a figure below its floor cannot be true: there the floor is the better figure, and no ratio
  is given. The floor takes no account of a head_dim of 64, which fills only a part of the MXU.
- "not modelled": it compiles, but the model ends the process on an operation that it does not know.
- `decode_attention` reads its lengths from memory, which the model does not know: its rows mean a full
  cache, and the floor counts all of it.
- Only figures of one device beside each other mean something, and they mean little where both arms are
  near the floor: such an operation is bound by memory.

"""


def cell(answer):
    """The cycles of an answer as text; None where there are none."""
    if "error" in answer:
        return "not modelled" if answer.get("ended") else "does not compile", None
    cycles = sum(answer["cycles"].values())
    return (f"{cycles:,}", cycles) if cycles else ("not modelled", None)


def row(target, case):
    """One row of the table of a target."""
    flops, bandwidth = PEAKS[target]
    floor = max(case["flops"] / flops, case["bytes"] / bandwidth)
    ask = functools.partial(tpu_compiler.compile_job, target, profile=True, limit=180)
    kernel, kernel_cycles = cell(ask({**case, "body": "tpu"}))
    default, default_cycles = cell(ask({**case, "body": "cpu"}))
    modelled = (c is not None and c >= floor for c in (kernel_cycles, default_cycles))
    ratio = f"{kernel_cycles / default_cycles:.2f}" if all(modelled) else "-"
    cells = (case["function"], case["label"], case["dtype"], f"{floor:,.0f}", kernel, default, ratio)
    return "| " + " | ".join(cells) + " |\n"


def main():
    """Compiles every case for every target and writes the tables."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "libtpu"))
    peaks = "; ".join(f"{t}: {f:,} flops and {b} bytes a cycle" for t, (f, b) in PEAKS.items())
    text = HEAD.format(versions=versions, date=datetime.date.today(), peaks=peaks)
    for target in PEAKS:
        text += f"## {target}\n\n"
        text += "| op | shape | dtype | floor | kernel | XLA | kernel / XLA |\n"
        text += "| --- | --- | --- | ---: | ---: | ---: | ---: |\n"
        for case in CASES:
            line = row(target, case)
            print(target, line, end="", flush=True)
            text += line
        text += "\n"
    (pathlib.Path(__file__).parent / "ESTIMATES.md").write_text(text.rstrip("\n") + "\n")


if __name__ == "__main__":
    main()
