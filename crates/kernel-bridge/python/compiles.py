"""Compiles: each is counted, explained by what is new about the call, and may be forbidden."""

import threading

import jax

from .errors import CompileRefused

#: One tuple for each compile, oldest first: payload, op, shapes, statics, reason, seconds of tracing,
#: seconds of XLA, whether Pallas was interpreted, the path ("jax" or "pjrt"), whether the machine
#: code came from the cache on disk.
done = []

#: The Rust side's `Watch`, set when the bridge starts.
watch = None

_found = threading.local()


def _listen(event, **_):
    if event == "/jax/compilation_cache/cache_hits":
        _found.count = found_on_disk() + 1


jax.monitoring.register_event_listener(_listen)


def found_on_disk():
    """How many programs JAX has read from its cache on this thread so far."""
    return getattr(_found, "count", 0)


class Site:
    """What is about to be compiled: an op and the plan of a call."""

    def __init__(self, payload, op, parameters):
        self.payload = payload
        self.op = op
        self.parameters = parameters
        self._plans = []

    def ask(self, plan):
        """Raises where the guard forbids it; else the reason, for `record`."""
        reason = _reason(self.parameters, self._plans, plan)
        if not watch.may_compile(self.payload, self.op, reason):
            raise CompileRefused(reason)
        return reason

    def record(self, plan, arrays, traced, built, interpreted, path, cached):
        """Counts a compile that was done."""
        reason = _reason(self.parameters, self._plans, plan)
        if plan not in self._plans:
            self._plans.append(plan)
        shapes = [f"{array.dtype}{list(array.shape)}" for array in arrays]
        statics = [
            f"{parameter.name}={part!r}"
            for parameter, part in zip(self.parameters, plan)
            if not parameter.is_tensor
        ]
        done.append(
            (self.payload, self.op, shapes, statics, reason, traced, built, interpreted, path, cached)
        )


def _reason(parameters, earlier, plan):
    """Why there is nothing compiled for this plan: what differs from the most similar one."""
    if not earlier:
        return "first call"
    if plan in earlier:
        return "another path"
    nearest = min(
        (
            [i for i, (new, old) in enumerate(zip(plan, other)) if new != old]
            for other in reversed(earlier)
        ),
        key=len,
    )
    other = next(
        other
        for other in reversed(earlier)
        if [i for i, (new, old) in enumerate(zip(plan, other)) if new != old] == nearest
    )
    return ", ".join(
        f"`{parameters[i].name}` is {_spell(plan[i])}, was {_spell(other[i])}" for i in nearest
    )


def _spell(part):
    """A part of a plan as a reader would write it."""
    if isinstance(part, tuple) and len(part) == 2 and hasattr(part[0], "is_floating_point"):
        dtype, shape = part
        return f"{str(dtype).removeprefix('torch.')}{list(shape)}"
    return repr(part)
