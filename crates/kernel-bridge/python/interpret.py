"""Pallas on a CPU: while the bridge compiles an op, Pallas calls run in interpret mode.

Kernels are published without an interpret flag, because on a TPU they have none, and they import
`pallas_call` in many ways. So the switch is not in that function but where JAX lowers its primitive for
CPUs, which without the flag is an error anyway. It acts only inside `compiling`, on the thread that
is in it; other users of Pallas in the process keep what JAX gives them.
"""

import contextlib
import threading

from jax._src.pallas import pallas_call as _implementation
from jax.interpreters import mlir

_state = threading.local()


class Interpreted:
    """What happened to Pallas calls while an op was compiled."""

    def __init__(self, mode):
        #: `True`, JAX's plain interpreter, or `InterpretParams`, the simulated TPU.
        self.mode = mode
        #: Whether there was a Pallas call.
        self.any = False


@contextlib.contextmanager
def compiling(mode=True):
    """Within it, on this thread, Pallas calls for CPUs are lowered to their interpreter."""
    before = getattr(_state, "current", None)
    _state.current = Interpreted(mode)
    try:
        yield _state.current
    finally:
        _state.current = before


def simulated_tpu():
    """The mode that simulates memories, semaphores and DMAs of a TPU: slow, but takes more kernels."""
    from jax.experimental.pallas import tpu

    return tpu.InterpretParams()


def _lower(context, *nodes, interpret, **parameters):
    current = getattr(_state, "current", None)
    if current is not None:
        current.any = True
        interpret = interpret or current.mode
    return _implementation._pallas_call_lowering(
        context, *nodes, interpret=interpret, **parameters
    )


mlir.register_lowering(_implementation.pallas_call_p, _lower, platform="cpu", cacheable=False)
