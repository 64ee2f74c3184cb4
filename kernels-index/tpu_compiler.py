"""The real TPU compiler for the tests: builds kernels and estimates their cost, without a TPU.

The compiler is driven by the code behind `kernel-cli check` (`crates/kernel-bridge/python`): one process
for each build of a kernel, which forks for every job, because the compiler may abort its process.
"""

import atexit
import base64
import json
import pathlib
import re
import subprocess
import sys

INDEX = pathlib.Path(__file__).parent
PYTHON = INDEX.parent / "crates" / "kernel-bridge" / "python"
#: Modules in the order in which they import each other, as the bridge embeds them.
MODULES = re.findall(r'"\.\./python/(\w+)\.py"', (PYTHON.parent / "src" / "python.rs").read_text())
MODULES.remove("bootstrap")
MEMORY = 8 << 30


class Compiler:
    """A child process for one build of a kernel.

    A job names `kernel`, `function`, `arguments` ([shape, dtype] each) and `options`, and a `body`:
    "tpu" (meant where none is named) and "cpu" are the operators of that build, "inner" any function
    of the TPU build's `_pallas_body`, and "peer" one of `peers`. An answer has `temporary_bytes` or
    `error`, and with `profile` the `cycles` of every operation.
    """

    def __init__(self, name, body):
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-B", "-c", (PYTHON / "check_start.py").read_text()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        sources = {module: (PYTHON / f"{module}.py").read_text() for module in MODULES}
        bootstrap = (PYTHON / "bootstrap.py").read_text()
        self._send({"bootstrap": bootstrap, "sources": sources, "payloads": [_payload(name, body)]})
        assert "ready" in self._child.stdout.readline()

    def compile(self, job, target, profile, limit):
        """The answer to one job; `error` too where the compiler ends the process or needs too long."""
        kept = {key: job[key] for key in ("function", "arguments", "options")}
        bounds = {"limit_s": limit, "memory_bytes": MEMORY}
        self._send({"id": 0, "job": "function", **kept, "target": target, "profile": profile, **bounds})
        for line in self._child.stdout:
            answer = json.loads(line)
            if "done" in answer:
                launches = answer["done"]["launches"]
                cycles = {}
                for launch in launches:
                    cycles |= launch["cycles"] or {}
                return {"temporary_bytes": sum(l["temp_bytes"] for l in launches), "cycles": cycles}
            if "error" in answer:
                return {"error": answer["error"]["message"][:2000]}
            if "ended" in answer:
                said = answer["said"][-2000:]
                return {"error": f"the compiler ended ({answer['ended']}): {said}", "ended": True}
        raise AssertionError(f"the process of the compiler ended with status {self._child.wait()}")

    def _send(self, message):
        self._child.stdin.write(json.dumps(message) + "\n")
        self._child.stdin.flush()

    def close(self):
        """Ends the child."""
        self._child.stdin.close()
        self._child.stdout.close()
        self._child.wait()


#: The package of a payload whose operators are all functions of one module.
EXPOSED = """from torch_tpu._internal.pallas import jax_op

from . import {module} as _module


def __getattr__(name):
    return jax_op("{identifier}::" + name, getattr(_module, name))
"""


def _payload(name, body):
    """The files of a build, as the bridge hands over verified ones; those of a peer beside it."""
    if body == "peer":
        folder, identifier, paths = INDEX, "_peers", [INDEX / "peers.py"]
    else:
        folder = INDEX / name / "build" / ("torch-cpu" if body == "cpu" else "torch-tpu")
        identifier = json.loads((folder / "metadata.json").read_text())["id"]
        paths = [path for path in folder.rglob("*.py") if path.is_file()]
    files = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    exposed = {"peer": "peers", "inner": "_pallas_body"}.get(body)
    if exposed:
        identifier += "_estimated"
        files["__init__.py"] = EXPOSED.format(module=exposed, identifier=identifier).encode()
    return {
        "name": f"kernel_payload_{name.replace('-', '_')}_{body}",
        "id": identifier,
        "title": name,
        "files": {path: base64.b64encode(data).decode() for path, data in files.items()},
        "path": str(folder),
        "dependencies": {},
    }


_compilers = {}


@atexit.register
def _close_all():
    while _compilers:
        _compilers.popitem()[1].close()


def compile_job(target, job, profile=False, limit=300):
    """Compiles a job in the child for its kernel, which is started where there is none."""
    key = job["kernel"], job.get("body", "tpu")
    if key not in _compilers:
        _compilers[key] = Compiler(*key)
    return _compilers[key].compile(job, target, profile, limit)


def assert_compiles(target, jobs):
    """Every job compiles for the target, with no more scratch memory in HBM than it says."""
    for job in jobs:
        answer = compile_job(target, job)
        assert "error" not in answer, (target, job, answer["error"])
        if "temporary_bytes" in job:
            assert answer["temporary_bytes"] <= job["temporary_bytes"], (target, job, answer)
