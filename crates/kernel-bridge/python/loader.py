"""Python modules from verified bytes, under names of our own.

A payload becomes the package `kernel_payload_<hash>`. Its source comes from the bytes that were
checked and from nowhere else: a name that is not among them does not exist, so neither a changed
file nor bytecode on disk can run. Nothing of the user's or of the standard library is replaced,
because imports that a payload makes of torch_tpu and kernels are answered by the payload's own
`__import__`, not by entries in sys.modules.
"""

import builtins
import importlib
import importlib.abc
import importlib.machinery
import linecache
import sys
import threading
import types

PREFIX = "kernel_payload_"

#: What each payload was loaded from, by module name.
_payloads = {}
_locks = {}
_locks_lock = threading.Lock()


class Payload:
    """The files of one payload and what its imports are answered with."""

    def __init__(self, name, files, path, dependencies, host):
        self.name = name
        self.files = files
        self.path = path
        self.dependencies = dependencies
        self.host = host
        self.loading = False
        self.builtins = dict(vars(builtins), __import__=self.import_module)
        self.facades = self._facades()

    def find(self, fullname):
        """Path and kind of a module of this payload, or None."""
        parts = fullname.split(".")[1:]
        base = "/".join(parts)
        package = f"{base}/__init__.py" if base else "__init__.py"
        if package in self.files:
            return package, True
        if base and f"{base}.py" in self.files:
            return f"{base}.py", False
        return None

    def is_folder(self, fullname):
        """Whether a module name is a folder with files in it, a namespace package."""
        base = "/".join(fullname.split(".")[1:]) + "/"
        return any(name.startswith(base) for name in self.files)

    def _facades(self):
        host, name = self.host, self.name
        pallas = types.SimpleNamespace(
            jax_op=lambda *a, **k: host.jax_op(name, *a, **k),
            custom_jax_kernel=lambda *a, **k: host.custom_jax_kernel(name, *a, **k),
        )
        pallas.pallas = pallas
        internal = types.SimpleNamespace(pallas=pallas)
        torch_tpu = types.SimpleNamespace(_internal=internal, pallas=pallas)
        return {
            "torch_tpu": torch_tpu,
            "torch_tpu._internal": internal,
            "torch_tpu._internal.pallas": pallas,
            "torch_tpu._internal.pallas.pallas": pallas,
            "torch_tpu.pallas": pallas,
            "torch.tpu.pallas": pallas,
            "kernels": _Kernels(self),
        }

    def import_module(self, name, globals=None, locals=None, fromlist=(), level=0):
        """The payload's own `__import__`."""
        if level == 0 and name in self.facades:
            if fromlist or "." not in name:
                return self.facades[name]
            if name.startswith("torch_tpu"):
                return self.facades["torch_tpu"]
        return builtins.__import__(name, globals, locals, fromlist, level)

    def dependency(self, repository):
        """The module of a direct dependency, for `get_kernel_dep`."""
        if repository not in self.dependencies:
            known = ", ".join(sorted(self.dependencies)) or "none"
            raise RuntimeError(
                f"`{repository}` is not among the kernel-depends of this kernel (it has: {known})"
            )
        return self.dependencies[repository]


class _Kernels:
    """The module `kernels` as a payload sees it: its dependencies, else the installed library."""

    def __init__(self, payload):
        self._payload = payload

    def get_kernel_dep(self, repository):
        """The module of a kernel that this one depends on."""
        return self._payload.dependency(repository)

    def __getattr__(self, name):
        return getattr(importlib.import_module("kernels"), name)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        root = fullname.partition(".")[0]
        payload = _payloads.get(root)
        if payload is None:
            return None
        found = payload.find(fullname)
        if found is None:
            if fullname != root and payload.is_folder(fullname):
                spec = importlib.machinery.ModuleSpec(fullname, None, is_package=True)
                spec.submodule_search_locations = []
                return spec
            # Not a miss for others to try: nothing outside the verified bytes belongs here.
            raise ModuleNotFoundError(
                f"the kernel has no module `{fullname.partition('.')[2]}`", name=fullname
            )
        file, package = found
        loader = _Loader(payload, file)
        spec = importlib.machinery.ModuleSpec(
            fullname, loader, origin=f"{payload.path}/{file}", is_package=package
        )
        spec.has_location = True
        if package:
            spec.submodule_search_locations = []
        return spec


class _Loader(importlib.abc.InspectLoader):
    def __init__(self, payload, file):
        self.payload = payload
        self.file = file

    def create_module(self, spec):
        return None

    def get_source(self, fullname):
        return self.payload.files[self.file].decode("utf-8")

    def get_data(self, path):
        prefix = f"{self.payload.path}/"
        name = path[len(prefix) :] if path.startswith(prefix) else path
        if name not in self.payload.files:
            raise FileNotFoundError(f"the kernel has no file `{name}`")
        return self.payload.files[name]

    def exec_module(self, module):
        origin = f"{self.payload.path}/{self.file}"
        source = self.get_source(module.__name__)
        # Tracebacks show the verified text, not what lies on disk by then.
        linecache.cache[origin] = (len(source), None, source.splitlines(True), origin)
        code = compile(source, origin, "exec", dont_inherit=True)
        module.__dict__["__builtins__"] = self.payload.builtins
        exec(code, module.__dict__)


def load(name, files, path, dependencies, host):
    """The module of a payload; loaded once however many threads ask.

    `name` starts with `kernel_payload_`; `files` maps relative paths to verified bytes;
    `dependencies` maps repository ids to modules. A failed load leaves nothing behind.
    """
    with _locks_lock:
        lock = _locks.setdefault(name, threading.RLock())
    with lock:
        if name in sys.modules:
            return sys.modules[name]
        if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
            sys.meta_path.insert(0, _Finder())
        _payloads[name] = Payload(name, files, path, dependencies, host)
        try:
            return importlib.import_module(name)
        except BaseException:
            for module in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
                del sys.modules[module]
            del _payloads[name]
            raise
