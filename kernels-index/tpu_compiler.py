"""The real TPU compiler, on machines without a TPU: builds kernels and estimates their cost.

libtpu compiles for a topology that is only described. It runs in a child process with a time
limit: it reads its settings once, may abort the process on an operation that its cost model does
not know, and must not ask the network what machine this is.

As a program: `python tpu_compiler.py TARGET FOLDER` reads a job a line and prints an answer a line.
"""

import atexit
import functools
import glob
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading

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


class Compiler:
    """A child process that compiles for one target; it loads libtpu once for many jobs.

    A job names `kernel`, `function`, `arguments` ([shape, dtype] each) and `options`, and `body`
    "cpu" where the JAX body is meant. An answer has `temporary_bytes` or `error`, and with `profile`
    the `cycles` of every operation.
    """

    def __init__(self, target, profile=False):
        self._dump = tempfile.TemporaryDirectory()
        environment = {**os.environ, **SETTINGS}
        if profile:
            flag = f"--xla_jf_dump_static_llo_profile_to={self._dump.name}"
            environment["LIBTPU_INIT_ARGS"] = flag
        self._complaints = tempfile.TemporaryFile()
        self._child = subprocess.Popen(
            [sys.executable, __file__, target, self._dump.name],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
        )

    def compile(self, job, limit=300):
        """The answer to one job; `error` too where the compiler ends the process or needs too long."""
        timer = threading.Timer(limit, self._child.kill)
        timer.start()
        try:
            self._child.stdin.write(json.dumps(job) + "\n")
            self._child.stdin.flush()
            for line in self._child.stdout:
                if line.startswith("{"):
                    return json.loads(line)
        except BrokenPipeError:
            pass
        finally:
            timer.cancel()
        status = self._child.wait()
        self._complaints.seek(0)
        said = self._complaints.read().decode(errors="replace")[-2000:]
        return {"error": f"the compiler ended with status {status}: {said}", "ended": True}

    def close(self):
        """Ends the child."""
        self._child.stdin.close()
        self._child.stdout.close()
        self._child.wait()
        self._complaints.close()
        self._dump.cleanup()


_compilers = {}


@atexit.register
def _close_all():
    while _compilers:
        _compilers.popitem()[1].close()


def compile_job(target, job, profile=False, limit=300):
    """Compiles a job in the child for its target, which is started where there is none."""
    key = target, profile
    if key not in _compilers:
        _compilers[key] = Compiler(target, profile)
    answer = _compilers[key].compile(job, limit)
    if answer.get("ended"):
        _compilers.pop(key).close()
    return answer


def assert_compiles(target, jobs):
    """Every job compiles for the target, with no more scratch memory in HBM than it says."""
    for job in jobs:
        answer = compile_job(target, job)
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

    for line in sys.stdin:
        job = json.loads(line)
        function = harness.body(job["kernel"], job.get("body", "tpu"), job["function"])
        function = functools.partial(function, **job["options"])
        try:
            compiled = compile_one(function, job["arguments"], target)
            answer = {"temporary_bytes": compiled.memory_analysis().temp_size_in_bytes}
        except Exception as error:  # noqa: BLE001  (whatever the compiler says is the answer)
            answer = {"error": str(error)[:2000]}
        print(json.dumps({**answer, "cycles": read_cycles(dump)}), flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
