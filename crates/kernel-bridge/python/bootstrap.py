"""Runs once, before anything else of ours: the process as torch and JAX need it, then our package."""

import os
import sys
import types

PACKAGE = "kernel_bridge_host"


def prepare(tpu, cache):
    """Sets what torch and JAX read when they are imported, and imports both.

    `cache` is the folder for JAX's compile cache, or None.

    Without a TPU, torch must not load device plug-ins by itself (torch_tpu takes seconds, and hangs
    when its runtime is touched), and JAX must not look for a TPU. Both are set, not proposed: a value
    left over in the user's shell would otherwise hang the process.
    """
    if not tpu:
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        os.environ["JAX_PLATFORMS"] = "cpu"
    elif cache is not None:
        # torch_tpu's own cache of compiled programs, below the user's folder rather than a shared one.
        os.environ.setdefault("TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT", os.path.join(cache, "torch_tpu"))
    # An embedded interpreter has no arguments; libraries that look at them expect a list.
    if not getattr(sys, "argv", None):
        sys.argv = [""]
    # Before anything wraps a tensor: torch's Python type does not exist until then.
    import torch  # noqa: F401
    import jax

    # XLA would otherwise still read an input after the caller got its result and wrote to the
    # input. It holds for clients made later, so it comes before the first JAX array.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    # What the user chose by JAX's own variable stays.
    if cache is not None and jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", cache)
        # By default JAX keeps only what took a second or more.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


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
