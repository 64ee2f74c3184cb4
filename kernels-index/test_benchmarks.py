"""The benchmark scripts run in the runner of the `kernels` library, and their results agree."""

import pathlib

import pytest
import torch
from harness import INDEX

SCRIPTS = sorted(INDEX.glob("*/benchmarks/benchmark*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.parts[-3])
def test_a_benchmark_runs_and_its_results_agree(script, monkeypatch):
    from kernels.cli.benchmark import run_benchmark_script

    # The runner takes the backend from the build of torch; here it shall be the CPU.
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.delattr(torch.backends, "tpu", raising=False)
    folder = pathlib.Path(script).parents[1]
    results, _ = run_benchmark_script(
        script, iterations=1, warmup=0, cwd=folder, repo_id=str(folder), is_local=True, revision=""
    )
    assert results
    assert all(timing.verified for timing in results.values())
