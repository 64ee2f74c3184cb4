"""Pallas on a CPU: while an op is traced, `pallas_call` runs in interpret mode.

Kernels are published without an interpret flag, because on a TPU they have none. The change is
undone as soon as no trace needs it, so other users of Pallas in the process see nothing of it
between traces.
"""

import contextlib
import threading

_lock = threading.Lock()
_depth = 0
_saved = []


@contextlib.contextmanager
def pallas_calls():
    """Within it, every `pallas_call` interprets; the list it yields holds the names of those made."""
    made = []
    _enter()
    _active.append(made)
    try:
        yield made
    finally:
        _active.remove(made)
        _leave()


_active = []


def _enter():
    global _depth
    with _lock:
        _depth += 1
        if _depth > 1:
            return
        from jax._src.pallas import pallas_call as implementation
        from jax.experimental import pallas

        original = pallas.pallas_call

        def interpreting(*arguments, **keywords):
            keywords["interpret"] = keywords.get("interpret") or True
            for made in _active:
                made.append(keywords.get("name") or "pallas_call")
            return original(*arguments, **keywords)

        for module in (pallas, implementation):
            if hasattr(module, "pallas_call"):
                _saved.append((module, module.pallas_call))
                module.pallas_call = interpreting


def _leave():
    global _depth
    with _lock:
        _depth -= 1
        if _depth == 0:
            while _saved:
                module, original = _saved.pop()
                module.pallas_call = original
