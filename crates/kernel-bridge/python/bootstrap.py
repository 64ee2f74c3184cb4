"""Runs once, before anything else of ours: the process as torch and JAX need it, then our package."""

import os
import sys
import types

PACKAGE = "kernel_bridge_host"


def prepare(tpu):
    """Sets what torch and JAX read when they are imported, and imports both.

    Without a TPU, torch must not load device plug-ins by itself (torch_tpu takes seconds, and hangs
    when its runtime is touched), and JAX must not look for a TPU. Both are set, not proposed: a value
    left over in the user's shell would otherwise hang the process.
    """
    if not tpu:
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        os.environ["JAX_PLATFORMS"] = "cpu"
    # An embedded interpreter has no arguments; libraries that look at them expect a list.
    if not getattr(sys, "argv", None):
        sys.argv = [""]
    # Before anything wraps a tensor: torch's Python type does not exist until then.
    import torch  # noqa: F401
    import jax

    # XLA would otherwise still read an input after the caller got its result and wrote to the
    # input. It holds for clients made later, so it comes before the first JAX array.
    jax.config.update("jax_cpu_enable_async_dispatch", False)


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
