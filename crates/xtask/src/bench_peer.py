"""Runs the benchmark script of a kernel in the runner of the `kernels` library, again and again in one
process, and prints what it would report: the mean, and the reference that it times once."""

import contextlib
import json
import os
import pathlib
import sys

import torch

folder, workload, repetitions, iterations = pathlib.Path(sys.argv[1]), *sys.argv[2:3], *map(int, sys.argv[3:5])

# The runner takes the backend from the build of torch; here it shall be the CPU.
torch.version.cuda = None
with contextlib.suppress(AttributeError):
    del torch.backends.tpu

from kernels.cli import benchmark  # noqa: E402

classes = benchmark.discover_benchmark_classes(next((folder / "benchmarks").glob("benchmark*.py")), folder)
only = {f"benchmark_{workload}"}
for cls in classes:
    for name in [name for name in dir(cls) if name.startswith("benchmark_") and name not in only]:
        delattr(cls, name)
for _ in range(repetitions):
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        results, _ = benchmark.run_benchmark_class(
            classes[0], iterations=iterations, warmup=10, repo_id=str(folder), is_local=True, revision=""
        )
    timing = results[workload]
    print(json.dumps({"time": timing.mean_ms / 1e3, "ratio": timing.mean_ms / timing.ref_mean_ms}), flush=True)
