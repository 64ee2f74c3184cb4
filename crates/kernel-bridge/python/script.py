"""Benchmark scripts that kernels ship, in a namespace where `kernels.benchmark` is this module.

A script holds subclasses of `Benchmark` with methods `benchmark_<workload>`, and to each of them, where
it has them, `setup_<workload>` and `verify_<workload>`. Setting up, running and checking happen here;
timing does not.
"""

import builtins
import random
import types

import torch


class Benchmark:
    """What scripts derive from; the attributes are those of the `kernels` library."""

    seed = None
    device = "cpu"

    def __init__(self):
        self.kernel = None
        self.out = None

    def setup(self):
        pass


def _imports():
    """`__import__` under which `kernels.benchmark` leads here; all else is what it was."""
    package = types.ModuleType("kernels")
    package.benchmark = types.ModuleType("kernels.benchmark")
    package.benchmark.Benchmark = Benchmark

    def find(name, globals=None, locals=None, fromlist=(), level=0):
        if level == 0 and name in ("kernels", "kernels.benchmark"):
            return package.benchmark if fromlist and name != "kernels" else package
        return builtins.__import__(name, globals, locals, fromlist, level)

    return find


class Workload:
    """One `benchmark_` method of one class."""

    def __init__(self, kind, workload, kernel):
        self.name = f"{kind.__name__}.{workload}"
        self.has_reference = callable(getattr(kind, f"verify_{workload}", None))
        self._kind, self._workload, self._kernel = kind, workload, kernel
        self.run = self.reference = None

    def prepare(self, seed):
        """Makes the inputs; `seed` is added to the script's own."""
        instance = self._kind()
        instance.kernel, instance.device = self._kernel, "cpu"
        seed += instance.seed or 0
        torch.manual_seed(seed)
        random.seed(seed)
        getattr(instance, f"setup_{self._workload}", instance.setup)()
        self._instance = instance
        self.run = getattr(instance, f"benchmark_{self._workload}")
        self.reference = getattr(instance, f"verify_{self._workload}", None)

    def output(self):
        return self._instance.out


def load(source, path, kernel):
    """The workloads of a script, in the order of the names of classes and methods."""
    namespace = {
        "__name__": "benchmark_script",
        "__file__": path,
        "__builtins__": {**vars(builtins), "__import__": _imports()},
    }
    exec(compile(source, path, "exec"), namespace)
    kinds = [
        value
        for _, value in sorted(namespace.items())
        if isinstance(value, type) and issubclass(value, Benchmark) and value is not Benchmark
    ]
    prefix = "benchmark_"
    workloads = [
        Workload(kind, name.removeprefix(prefix), kernel)
        for kind in kinds
        for name in dir(kind)
        if name.startswith(prefix) and callable(getattr(kind, name))
    ]
    if not workloads:
        raise ValueError("no class derives from kernels.benchmark.Benchmark and has a benchmark_ method")
    return workloads
