"""Settings that must precede the first import of torch and jax in a test run."""

import gc
import os

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
os.environ["JAX_PLATFORMS"] = "cpu"

# Tracing allocates far more than it frees in cycles; collecting at Python's pace takes a tenth of
# the time of a run.
gc.set_threshold(100_000, 20, 20)


def pytest_collection_modifyitems(config, items):
    """Slow tests run only when a marker expression asks for them."""
    if config.option.markexpr:
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]
