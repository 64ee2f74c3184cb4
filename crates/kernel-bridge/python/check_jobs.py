"""The jobs of `check`: what a kernel offers, whether it is right, whether accesses race, what it costs.

Each runs in a process of its own (`check_server`). A kernel is loaded and called here by the very code that
runs it in a model.
"""

import base64
import contextlib
import inspect
import warnings

import jax
import torch
from jax.experimental.pallas import tpu as pltpu

from . import check_compiler, check_inspect, compiles, interpret, layers, loader, ops
from .check_case import Case, Source, structures
from .check_contracts import CONTRACTS, FUNCTIONS

#: Largest error against float64 that rounding explains, relative to the largest value (at least 1).
TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 2e-3}
#: How much worse than the default op a kernel may be where the default op itself is beyond that.
_WORSE = 4.0
#: An interpreted kernel is compiled for one call, so that optimising it costs more than it saves.
_QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


class _Watch:
    """Stands in for the Rust side's: here every compile is wanted."""

    def may_compile(self, payload, op, reason):
        return True

    def donates(self):
        pass


def run(job, payloads, part):
    """Does one job; `part` takes what is known before its end."""
    compiles.watch = _Watch()
    return JOBS[job["job"]](job, payloads, part)


def load(payloads):
    """The module of the last payload; those before it are its dependencies."""
    host = ops.Host(False)
    modules = {}
    for payload in payloads:
        files = {name: base64.b64decode(text) for name, text in payload["files"].items()}
        dependencies = {repository: modules[name] for repository, name in payload["dependencies"].items()}
        modules[payload["name"]] = loader.load(
            payload["name"], payload["id"], payload["title"], files, payload["path"], dependencies, host
        )
    return modules[payloads[-1]["name"]]


class Target:
    """A kernel's function or layer for an op, called with the cases of the op's contract."""

    def __init__(self, module, op, symbol):
        self.contract = CONTRACTS[op]
        self.layer = self.function = None
        name = symbol or op
        if _has_layer(module, name):
            self.layer = layers.find(module, name.removeprefix("layers."))
            self.callable = self.layer.forward
        else:
            function = getattr(module, name, None)
            if function is None and symbol is None:
                name = FUNCTIONS.get(op, name)
                function = getattr(module, name, None)
            if function is None:
                raise AttributeError(f"the kernel has neither a function nor a layer `{name}`")
            if not callable(function):
                raise TypeError(f"`{name}` of the kernel cannot be called")
            self.callable = self.function = function
        self.name = name

    @property
    def taken(self):
        """Names of the parameters, without `self`."""
        names = list(inspect.signature(self.callable).parameters)
        return names[1:] if self.layer is not None else names

    def __call__(self, case):
        """The result as a list of tensors."""
        with torch.no_grad():
            if self.layer is not None:
                result = self.layer.forward(_proxy(self.name, case.attributes), case.tensors[0])
            else:
                taken = self.taken
                statics = {name: value for name, value in case.statics.items() if name in taken}
                result = self.function(*case.tensors, **statics)
        return list(result) if isinstance(result, (tuple, list)) else [result]


def _has_layer(module, name):
    if name.startswith("layers."):
        return True
    return isinstance(getattr(getattr(module, "layers", None), name, None), type)


def _proxy(owner, attributes):
    return layers.proxy(owner, {
        name: _proxy(f"{owner}.{name}", value) if isinstance(value, dict) else value
        for name, value in attributes.items()
    })


def signature(job, payloads, part):
    """Which ops the kernel offers, and whether their signatures keep the contract."""
    module = load(payloads)
    if job["op"]:
        names = [(job["op"], job["symbol"])]
    else:
        names = [(op, None) for op in CONTRACTS if _offers(module, op)]
    return {
        "ops": [_judge_signature(module, op, symbol) for op, symbol in names],
        "callables": sorted(
            name for name, value in vars(module).items()
            if not name.startswith("_") and callable(value) and not inspect.isclass(value)
        ),
    }


def _offers(module, op):
    function = getattr(module, op, None)
    return _has_layer(module, op) or callable(function) or callable(getattr(module, FUNCTIONS.get(op, ""), None))


def _judge_signature(module, op, symbol):
    target = Target(module, op, symbol)
    contract, problems, notes = target.contract, [], []
    parameters = list(inspect.signature(target.callable).parameters.values())
    if target.layer is not None:
        if len(parameters) != 2:
            taken = ", ".join(p.name for p in parameters[1:])
            problems.append(f"`forward` takes ({taken}), expected one tensor")
    else:
        problems += _judge_function(target, parameters, contract)
        notes += [
            f"it takes no `{name}`, so models with {what} keep the default op"
            for name, what in contract.optional.items()
            if name not in target.taken
        ]
    return {
        "op": op,
        "symbol": target.name,
        "kind": "layer" if target.layer is not None else "function",
        "parameters": target.taken,
        "problems": problems,
        "notes": notes,
    }


def _judge_function(target, parameters, contract):
    kinds = inspect.Parameter
    positional = [p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    tensors, statics = contract.tensors, contract.statics
    expected = ", ".join(tensors)
    if len(positional) < len(tensors):
        yield f"it takes {len(positional)} positional arguments, expected {len(tensors)} tensors: {expected}"
    for parameter in parameters:
        named = parameter.name in statics or parameter in positional[: len(tensors)]
        variable = parameter.kind in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
        if not named and not variable and parameter.default is kinds.empty:
            yield f"it needs `{parameter.name}`, which no model gives"
    own = getattr(target.function, "_parameters", None)
    if own is None:
        return
    for parameter, tensor in zip(own, tensors):
        if not parameter.is_tensor:
            yield (
                f"`{parameter.name}` is static (annotated as {_name(parameter.annotation)}), expected a tensor: "
                "every new value of it would be a new compile"
            )
    for parameter in own[len(tensors):]:
        if parameter.is_tensor and not parameter.optional:
            yield f"`{parameter.name}` is a tensor, expected a static value"


def _name(annotation):
    return getattr(annotation, "__name__", str(annotation))


def parity(job, payloads, part):
    """The kernel on each case against float64; a part for each case."""
    target = Target(load(payloads), job["op"], job["symbol"])
    for index, wanted in enumerate(job["cases"]):
        extra = {"window": wanted["window"]} if wanted.get("window") else {}
        source = Source(wanted["dtype"], wanted.get("seed", 0))
        case = target.contract.case(wanted["sizes"], source, **extra)
        if wanted.get("poison"):
            for name, strict, poisoned in target.contract.poisons(case):
                answer = _compare(target, poisoned, wanted["dtype"], poison=True, strict=strict)
                part({"case": index, "poison": name, **answer})
        else:
            part({"case": index, "poison": None, **_compare(target, case, wanted["dtype"])})
    return {"compiles": _compiles()}


def _compare(target, case, dtype, poison=False, strict=False):
    """How far the kernel's result lies from the value in float64, and why. A value that is not finite may
    reach what it reaches in the default op, unless the contract is `strict`."""
    contract, explain = target.contract, not poison
    before = [tensor.clone() for tensor in case.tensors]
    with warnings.catch_warnings(record=True) as warned, _interpreting(True, _QUICK):
        warnings.simplefilter("always")
        try:
            result = target(case)
        except Exception as error:
            from .check_server import describe

            layout = _layout(target, case, dtype) if explain else None
            return {"failure": describe(error, [_folder(target)]), "explanation": layout, "ok": False}
    expected, default_result = contract.value(case), contract.default(case)
    tolerance = TOLERANCE[dtype]
    default = max(_error(ours, theirs) for ours, theirs in zip(default_result, expected))
    if poison and not strict:
        expected = [
            torch.where(torch.isfinite(ours.double()), theirs, torch.nan)
            for ours, theirs in zip(default_result, expected)
        ]
    answer = {
        "tolerance": max(tolerance, _WORSE * default) if explain else tolerance,
        "default_error": default,
        "interpreted": _interpreted(),
        "changed_inputs": [
            name for name, old, new in zip(contract.tensors, before, case.tensors) if not _same(old, new)
        ],
        "truncated": sorted({str(w.message).split(",")[0] for w in warned if "is not available" in str(w.message)}),
    }
    wrong = _wrong_form(result, case, expected)
    if wrong:
        return {**answer, "ok": False, "form": wrong, "explanation": _layout(target, case, dtype) if explain else None}
    answer["error"] = max(_error(got, want) for got, want in zip(result, expected))
    answer["spread"], answer["lost"] = _misplaced(result, expected)
    answer["ok"] = answer["error"] <= answer["tolerance"] and not answer["spread"]
    if explain and not answer["ok"]:
        answer["explanation"] = _explain(contract, case, result, answer["tolerance"]) or _layout(target, case, dtype)
    return answer


def _folder(target):
    code = getattr(inspect.unwrap(target.callable), "__code__", None)
    return code.co_filename.rpartition("/")[0] if code is not None else ""


def _wrong_form(result, case, expected):
    """What is wrong with number, shape or type of the results; None where they fit."""
    dtype = case.tensors[0].dtype
    if len(result) != len(expected):
        return f"returned {len(result)} tensors, expected {len(expected)}"
    for got, want in zip(result, expected):
        if not isinstance(got, torch.Tensor):
            return f"returned {type(got).__name__}, expected a tensor"
        if got.shape != want.shape:
            return f"returned {list(got.shape)}, expected {list(want.shape)}"
        if got.dtype != dtype:
            return f"returned {_dtype(got.dtype)}, expected {_dtype(dtype)}"
    return None


def _dtype(dtype):
    return str(dtype).removeprefix("torch.")


def _same(old, new):
    return torch.equal(old.nan_to_num(0.5), new.nan_to_num(0.5))


def _error(got, want):
    """Largest deviation where both are finite, relative to the largest value, at least 1."""
    got, finite = got.double(), torch.isfinite(want)
    finite &= torch.isfinite(got)
    if not finite.any():
        return 0.0
    scale = max(1.0, float(want[finite].abs().max()))
    return float((got - want)[finite].abs().max()) / scale


def _misplaced(result, expected):
    """How many values are not finite where they should be, and the other way round."""
    spread = lost = 0
    for got, want in zip(result, expected):
        ours, theirs = ~torch.isfinite(got.double()), ~torch.isfinite(want)
        spread += int((ours & ~theirs).sum())
        lost += int((theirs & ~ours).sum())
    return spread, lost


def _fits(got, want, tolerance):
    return (
        len(got) == len(want)
        and all(g.shape == w.shape for g, w in zip(got, want))
        and all(_error(g, w) <= tolerance for g, w in zip(got, want))
        and _misplaced(got, want) == (0, 0)
    )


def _explain(contract, case, result, tolerance):
    """The usual mistake that gives just this result, in words."""
    for text, value in contract.mistakes(case):
        if _fits(result, value, tolerance):
            return f"the result is right for a kernel that {text}"
    return None


def _layout(target, case, dtype):
    """Whether the kernel is right with heads and tokens the other way round."""
    contract = target.contract
    if not contract.heads_dimension:
        return None
    turned = [
        tensor.transpose(1, 2).contiguous() if index in contract.heads_dimension else tensor
        for index, tensor in enumerate(case.tensors)
    ]
    try:
        with _interpreting(True, _QUICK):
            result = target(Case(case.sizes, turned, case.statics, case.attributes))
    except Exception:
        return None
    expected = contract.value(case)
    for back, where in ((True, "inputs and results"), (False, "inputs")):
        fitted = [t.transpose(1, 2) if back and isinstance(t, torch.Tensor) and t.dim() == 4 else t for t in result]
        if all(isinstance(t, torch.Tensor) for t in fitted) and _fits(fitted, expected, TOLERANCE[dtype]):
            return f"the kernel is right for {where} [B, T, H, D]; the op's layout is [B, H, T, D]"
    return None


@contextlib.contextmanager
def _interpreting(mode, options=None):
    """Within it, ops are compiled for the CPU with Pallas calls in this interpret mode."""
    before = ops._compile

    def compile_once(function, arrays):
        with interpret.compiling(mode) as pallas:
            try:
                compiled = jax.jit(function, compiler_options=options).trace(*arrays).lower().compile()
            except NotImplementedError:
                if not pallas.any:
                    raise
                compiled = None
        if compiled is None:
            # Semaphores, DMAs and the like exist in the simulated TPU only.
            with pltpu.force_tpu_interpret_mode():
                compiled = jax.jit(function).trace(*arrays).lower().compile()
        return compiled, 0.0, 0.0, pallas.any

    ops._compile = compile_once
    try:
        yield
    finally:
        ops._compile = before


def _compiles():
    return len(compiles.done)


def _interpreted():
    """Whether any compile of this process has interpreted a Pallas call."""
    return any(interpreted for *_, interpreted, _path, _cached in compiles.done)


def races(job, payloads, part):
    """Runs the kernel in the simulated memory of a TPU, which sees accesses that race."""
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call as simulation

    target = Target(load(payloads), job["op"], job["symbol"])
    case = target.contract.case(job["sizes"], Source(job["dtype"]))
    mode = pltpu.InterpretParams(
        detect_races=True, out_of_bounds_reads="uninitialized", num_cores_or_threads=job.get("cores", 1)
    )
    simulation.races = None
    with pltpu.force_tpu_interpret_mode(mode), _interpreting(None):
        result = target(case)
    if simulation.races is None:
        return {"simulated": False}
    expected = target.contract.value(case)
    spread, _ = _misplaced(result, expected)
    return {
        "simulated": True,
        "found": bool(simulation.races.races_found),
        "error": max(_error(got, want) for got, want in zip(result, expected)),
        "tolerance": TOLERANCE[job["dtype"]],
        "uninitialized": spread,
    }


def build(job, payloads, part):
    """Compiles the kernel, or the default op, for a TPU; one entry for each JAX function it launches."""
    contract = CONTRACTS[job["op"]]
    extra = {"window": job["window"]} if job.get("window") else {}
    case = contract.case(job["sizes"], Source(job["dtype"], meta=True), **extra)
    outside = []
    if job["arm"] == "default":
        launches = [(job["op"], contract.xla(case), structures(case))]
    else:
        target = Target(load(payloads), job["op"], job["symbol"])
        launches, outside = _launches(target, case)
    return {"launches": _compile_all(launches, job, part), "torch_ops": outside}


def function(job, payloads, part):
    """Compiles one function of the kernel for a TPU, at shapes and options of the caller's: no contract."""
    target = getattr(load(payloads), job["function"])
    tensors = [
        torch.empty(shape, dtype=getattr(torch, dtype), device="meta") for shape, dtype in job["arguments"]
    ]
    launches, outside = _launches(lambda _: target(*tensors, **job["options"]), None)
    return {"launches": _compile_all(launches, job, part), "torch_ops": outside}


def _compile_all(launches, job, part):
    dumps = check_compiler.Dumps(job["profile"])
    built = []
    for name, function, arrays in launches:
        inspected = check_inspect.inspect(function, arrays)
        part({"stage": "compile", "name": name})
        built.append({"name": name, **inspected, **check_compiler.measure(function, arrays, job["target"], dumps)})
    dumps.close()
    return built


def _launches(target, case):
    """What the kernel would launch on a TPU: JAX functions with the shapes of their arguments, and torch
    ops around them."""
    launched = []
    original = ops.JaxOp._shapes

    def recorded(op, values):
        function, arrays = op._traceable(values)
        launched.append((op._name, function, arrays))
        with torch.utils._python_dispatch._disable_current_modes():
            return original(op, values)

    mode = check_inspect.TorchOps()
    ops.JaxOp._shapes = recorded
    try:
        with mode:
            target(case)
    finally:
        ops.JaxOp._shapes = original
    return launched, mode.names()


JOBS = {"signature": signature, "parity": parity, "races": races, "build": build, "function": function}
