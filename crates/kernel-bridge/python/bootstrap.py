"""Runs once, before anything else of ours: the process as torch and JAX need it, then our package."""

import os
import sys
import types

PACKAGE = "kernel_bridge_host"


def prepare(tpu):
    """Sets what torch and JAX read when they are imported, and imports torch.

    Without a TPU, torch must not load device plug-ins by itself (torch_tpu takes seconds and can
    hang when it is touched), and JAX must not look for a TPU.
    """
    if not tpu:
        os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if not getattr(sys, "argv", None):
        sys.argv = [""]
    import torch  # noqa: F401  (a tensor cannot be wrapped before torch is imported)


def install(sources):
    """Makes the package from its sources and returns its modules by name."""
    package = types.ModuleType(PACKAGE)
    package.__path__ = []
    sys.modules[PACKAGE] = package
    modules = {}
    for name, source in sources.items():
        module = types.ModuleType(f"{PACKAGE}.{name}")
        module.__package__ = PACKAGE
        module.__file__ = f"<kernel-bridge>/{name}.py"
        sys.modules[module.__name__] = module
        setattr(package, name, module)
        exec(compile(source, module.__file__, "exec"), module.__dict__)
        modules[name] = module
    return modules
