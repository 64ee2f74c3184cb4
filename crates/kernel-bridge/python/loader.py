"""Python modules from verified bytes, under names of our own.

A payload becomes the package `kernel_payload_<hash>`. Its source comes from the bytes that were
checked and from nowhere else: a name that is not among them does not exist, so neither a changed
file nor bytecode on disk can run.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import linecache
import sys
import threading

from . import facade

#: What each payload was loaded from, by module name.
_payloads = {}
_locks = {}
_locks_lock = threading.Lock()


class Payload:
    """The files of one payload and what its imports are answered with."""

    def __init__(self, name, kernel_id, kernel_name, files, path, dependencies, host):
        self.name = name
        self.id = kernel_id
        self.suffix = name.rpartition("_")[2]
        self.files = files
        self.path = path
        self.dependencies = dependencies
        #: Ops that its decorators made, by `namespace::op`.
        self.ops = {}
        # Older builds keep the package in a folder of the kernel's name.
        legacy = kernel_name.replace("-", "_")
        self.base = ""
        if "__init__.py" not in files and f"{legacy}/__init__.py" in files:
            self.base = f"{legacy}/"
        self.imports = facade.Imports(self, host)

    def find(self, fullname):
        """File and kind (whether a package) of a module of this payload, or None."""
        base = self.base + "/".join(fullname.split(".")[1:])
        package = f"{base.rstrip('/')}/__init__.py".lstrip("/")
        if package in self.files:
            return package, True
        if f"{base}.py" in self.files:
            return f"{base}.py", False
        return None

    def is_folder(self, fullname):
        """Whether a module name is a folder with files in it, a namespace package."""
        base = self.base + "/".join(fullname.split(".")[1:]) + "/"
        return any(name.startswith(base) for name in self.files)

    def missing(self, fullname):
        """The error for a module that the payload does not have."""
        short = fullname.partition(".")[2]
        if not short:
            return ModuleNotFoundError("the kernel has no `__init__.py`", name=fullname)
        stem = self.base + short.replace(".", "/")
        for name in self.files:
            if name.startswith(f"{stem}.") and name.endswith((".so", ".pyd", ".dylib")):
                return ImportError(
                    f"`{name}` is a compiled extension; kernels made of Python files alone are loaded here",
                    name=fullname,
                )
        return ModuleNotFoundError(f"the kernel has no module `{short}`", name=fullname)

    def dependency(self, repository):
        """The module of a direct dependency: what `kernels.get_kernel_dep` returns."""
        if repository not in self.dependencies:
            known = ", ".join(sorted(self.dependencies)) or "none"
            raise RuntimeError(
                f"`{repository}` is not among the kernel-depends of this kernel (it has: {known})"
            )
        return self.dependencies[repository]


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules of payloads, and nothing else."""

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
            raise payload.missing(fullname)
        file, package = found
        spec = importlib.machinery.ModuleSpec(
            fullname, _Loader(payload, file), origin=f"{payload.path}/{file}", is_package=package
        )
        spec.has_location = True
        if package:
            spec.submodule_search_locations = []
        return spec


class _Loader(importlib.abc.InspectLoader):
    """Runs one file of a payload from memory."""

    def __init__(self, payload, file):
        self.payload = payload
        self.file = file

    def create_module(self, spec):
        return None

    def get_source(self, fullname):
        return importlib.util.decode_source(self.payload.files[self.file])

    def get_data(self, path):
        """A data file of the payload, for `pkgutil.get_data`; verified like its code."""
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
        module.__dict__["__builtins__"] = self.payload.imports.builtins(source)
        exec(code, module.__dict__)


def load(name, kernel_id, kernel_name, files, path, dependencies, host):
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
        _payloads[name] = Payload(name, kernel_id, kernel_name, files, path, dependencies, host)
        try:
            return importlib.import_module(name)
        except BaseException:
            _forget(name)
            raise


def _forget(name):
    for module in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
        del sys.modules[module]
    del _payloads[name]
