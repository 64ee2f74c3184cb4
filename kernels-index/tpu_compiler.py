"""The real TPU compiler, on machines without a TPU: builds kernels and estimates their cost.

libtpu compiles for a topology that is only described. It runs in a child process with a time
limit: it reads its settings once, may abort the process on an operation that its cost model does
not know, and must not ask the network what machine this is.

As a program: `python tpu_compiler.py TARGET < jobs.json` prints one JSON line per job.
"""

import functools
import glob
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

TOPOLOGIES = {
    "v4": "v4:2x2x1",
    "v5e": "v5e:1x1",
    "v5p": "v5p:2x2x1",
    "v6e": "v6e:1x1",
    "tpu7x": "tpu7x:2x2x1",
}
SETTINGS = {
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    "JAX_PLATFORMS": "cpu",
    # Without these libtpu waits for a metadata server, or for the lock of another process.
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
}


def compile_jobs(target, jobs, profile=False, limit=300):
    """Compiles jobs for a target in a child process; one answer per job that got that far.

    A job names `kernel`, `function`, `arguments` ([shape, dtype] each) and `options`; an answer has
    `temporary_bytes` or `error`, and with `profile` the `cycles` of every operation.
    """
    with tempfile.TemporaryDirectory() as dump:
        environment = {**os.environ, **SETTINGS}
        if profile:
            environment["LIBTPU_INIT_ARGS"] = f"--xla_jf_dump_static_llo_profile_to={dump}"
        child = subprocess.run(
            [sys.executable, __file__, target, dump],
            input=json.dumps(jobs),
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    answers = [json.loads(line) for line in child.stdout.splitlines() if line.startswith("{")]
    return answers, child.stderr[-2000:]


def assert_compiles(target, jobs):
    """Every job compiles for the target, with no more scratch memory in HBM than it says."""
    answers, complaints = compile_jobs(target, jobs)
    assert len(answers) == len(jobs), complaints
    for job, answer in zip(jobs, answers, strict=True):
        assert "error" not in answer, (target, job, answer["error"])
        if "temporary_bytes" in job:
            assert answer["temporary_bytes"] <= job["temporary_bytes"], (target, job, answer)


def compile_one(function, arguments, target):
    """Compiles a JAX function for a described device; only in a process with SETTINGS."""
    import jax
    from jax.experimental import topologies

    topology = topologies.get_topology_desc(TOPOLOGIES[target], platform="tpu")
    sharding = jax.sharding.SingleDeviceSharding(topology.devices[0])
    structures = [jax.ShapeDtypeStruct(tuple(s), d, sharding=sharding) for s, d in arguments]
    return jax.jit(function, out_shardings=sharding).lower(*structures).compile()


def read_cycles(dump):
    """Estimated cycles by operation from the compiler's static profile; empties the folder."""
    cycles = {}
    for path in glob.glob(f"{dump}/*static_llo_profile*"):
        text = pathlib.Path(path).read_text(errors="replace")
        pattern = r'hlo_op_name: "([^"]+)"\s+estimated_cycles: (\d+)'
        cycles |= {name: int(count) for name, count in re.findall(pattern, text)}
        os.remove(path)
    return cycles


def _main(target, dump):
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    import harness

    for job in json.load(sys.stdin):
        function = harness.body(job["kernel"], "tpu", job["function"])
        try:
            compiled = compile_one(
                functools.partial(function, **job["options"]), job["arguments"], target
            )
            answer = {"temporary_bytes": compiled.memory_analysis().temp_size_in_bytes}
        except Exception as error:  # noqa: BLE001  (whatever the compiler says is the answer)
            answer = {"error": str(error)[:2000]}
        print(json.dumps({**answer, "cycles": read_cycles(dump)}), flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
