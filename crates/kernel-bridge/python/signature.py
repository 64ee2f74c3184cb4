"""Which functions `jax_op` takes, and which values: the rules of torch_tpu 0.2.0.

A kernel that passes here must pass on a TPU, so the rules are as strict as the original's and the
texts say what its texts say; a test compares the two decorators. Tensors may be plain, optional, or
in lists and homogeneous tuples; everything else is static: a new value of it means a new compile.
"""

import collections.abc
import enum
import functools
import inspect
import types
import typing
from typing import Union

import jax
import numpy as np
import torch

from . import exchange
from .errors import ArgumentError

TENSORS = (jax.Array, torch.Tensor)
NUMBERS = {int, float, bool}
_PLAIN = (bool, float, int, str, np.dtype, torch.device, torch.dtype, jax.Device, torch.types.Number)
_UNIONS = (Union, types.UnionType)
_SEQUENCES = (list, collections.abc.Sequence)
_MISSING = inspect.Parameter.empty


def check_name(name):
    """An op's name is `namespace::op`."""
    if "::" not in name:
        raise ValueError(f"Op name {name} does not contain a namespace.")
    if len(name.split("::")) != 2:
        raise ValueError(f"Op name {name} must have exactly one '::' separator.")


def read(function):
    """The checked parameters of a function for `jax_op`, with those that a partial has bound left out."""
    signature = inspect.signature(inspect.unwrap(function), eval_str=True)
    bound = _bound_names(function)
    parameters = list(signature.parameters.values())
    for parameter in parameters:
        if parameter.annotation is _MISSING:
            raise ValueError(f"Missing argument type annotation for JAX function: {signature}.")
    wrong = [
        index
        for index, parameter in enumerate(parameters)
        if parameter.name not in bound and not _argument_fits(parameter.annotation)
    ]
    result_fits = _result_fits(signature.return_annotation)
    if wrong or not result_fits:
        reasons = [f"Arguments at indices {wrong} are invalid."] if wrong else []
        if not result_fits:
            reasons.append("The return annotation is invalid.")
        raise ValueError(
            f"Invalid signature for JAX function: {signature}. {' '.join(reasons)} "
            "Only jax.Arrays and POD types are supported."
        )
    return signature.replace(parameters=[p for p in parameters if p.name not in bound])


class Parameter:
    """A parameter of an op, prepared for calls."""

    __slots__ = ("name", "default", "annotation", "is_tensor", "sequence", "optional", "convert")

    def __init__(self, parameter, is_static=None):
        self.name = parameter.name
        self.default = parameter.default
        self.annotation = parameter.annotation
        underlying, self.optional = _without_none(self.annotation)
        self.is_tensor = is_tensor(self.annotation) if is_static is None else not is_static
        #: `tuple` or `list` where the function takes several tensors.
        origin = typing.get_origin(underlying)
        self.sequence = None
        if self.is_tensor and underlying not in TENSORS and underlying is not _MISSING:
            self.sequence = tuple if origin is tuple else list
        self.convert = None if self.is_tensor else _converter(underlying)

    def static(self, value):
        """The value of a static argument as the JAX function gets it, hashable."""
        if isinstance(value, torch.Tensor):
            raise ArgumentError(self.name, "is static and cannot be a tensor")
        if value is None:
            if self.optional or self.annotation is _MISSING or self.default is None:
                return None
            raise ArgumentError(self.name, f"is None, expected {describe(self.annotation)}")
        try:
            return self.convert(value)
        except (TypeError, ValueError):
            raise ArgumentError(
                self.name,
                f"is {value!r} of type {type(value).__name__}, expected {describe(self.annotation)}",
            ) from None


def describe(annotation):
    """An annotation as a reader would write it."""
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def is_tensor(annotation):
    """Whether an annotation speaks of tensors: one, an optional one, or a sequence of them."""
    underlying, _ = _without_none(annotation)
    if underlying in TENSORS:
        return True
    element = _element(underlying)
    return element is not None and _without_none(element)[0] in TENSORS


def _converter(annotation):
    """From what a caller gives to what a static parameter of this type holds; raises TypeError."""
    annotation = _plain(annotation)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return functools.partial(_enum_member, annotation)
    element = _element(annotation)
    if element is not None:
        convert = _converter(_without_none(element)[0])
        return lambda value: tuple(convert(item) for item in _sequence(value))
    if annotation is bool:
        return _boolean
    if annotation is float:
        return lambda value: float(_number(value))
    if annotation is int:
        return _integer
    if annotation is str:
        return _text
    return _hashable


def _boolean(value):
    # torch's schemas take any integer for a bool.
    if isinstance(value, int):
        return bool(value)
    raise TypeError


def _integer(value):
    if isinstance(value, int):
        return int(value)
    raise TypeError


def _number(value):
    if isinstance(value, (int, float)):
        return value
    raise TypeError


def _text(value):
    if isinstance(value, enum.Enum) and isinstance(value.value, str):
        return value.value
    if isinstance(value, str):
        return value
    raise TypeError


def _sequence(value):
    if isinstance(value, (list, tuple)):
        return value
    raise TypeError


def _enum_member(members, value):
    if isinstance(value, members):
        return value
    try:
        return members(value)
    except ValueError:
        if isinstance(value, str) and value in members.__members__:
            return members[value]
        raise


def _hashable(value):
    """dtypes as JAX spells them, sequences as tuples."""
    if isinstance(value, torch.dtype):
        if value in exchange.SAME:
            return exchange.SAME[value]
        return np.dtype(str(value).removeprefix("torch."))
    if isinstance(value, (list, tuple)):
        return tuple(_hashable(item) for item in value)
    hash(value)
    return value


def _bound_names(function):
    """Parameters that a functools.partial has filled in by name: they are free of the rules."""
    names = set()
    while True:
        if isinstance(function, functools.partial):
            names.update(function.keywords)
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        else:
            return names


def _plain(annotation):
    while typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    return annotation


def _is_union(annotation):
    return typing.get_origin(annotation) in _UNIONS


def _without_none(annotation):
    """An annotation without `None`, and whether it had it."""
    annotation = _plain(annotation)
    if not _is_union(annotation):
        return annotation, False
    members = [_plain(member) for member in typing.get_args(annotation)]
    others = [member for member in members if member is not types.NoneType]
    if not others:
        return types.NoneType, True
    joined = others[0] if len(others) == 1 else Union[tuple(others)]
    return joined, len(others) < len(members)


def _element(annotation):
    """The type of the items of a homogeneous sequence, else None."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in _SEQUENCES:
        return arguments[0] if len(arguments) == 1 else None
    if origin is tuple and arguments:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return arguments[0]
        if all(argument == arguments[0] for argument in arguments):
            return arguments[0]
    return None


def _is_int(annotation):
    """A subclass of int that is neither bool nor an enum."""
    return (
        isinstance(annotation, type)
        and issubclass(annotation, int)
        and not issubclass(annotation, (bool, enum.Enum))
    )


def _argument_fits(annotation):
    underlying, _ = _without_none(annotation)
    if _base_fits(underlying):
        return True
    element = _element(underlying)
    return element is not None and _element_fits(element)


def _base_fits(annotation):
    annotation = _plain(annotation)
    if annotation in TENSORS or annotation in _PLAIN:
        return True
    if isinstance(annotation, type) and issubclass(annotation, (np.dtype, np.generic, enum.Enum)):
        return True
    members = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return bool(members) and all(isinstance(m, (int, float, str, enum.Enum)) for m in members)
    if not _is_union(annotation):
        return False
    classes = [member for member in members if isinstance(member, type)]
    return (
        set(members) <= NUMBERS
        or (len(classes) == len(members) and all(issubclass(c, str) for c in classes))
        or (
            len(classes) == len(members)
            and all(issubclass(c, int) and not issubclass(c, bool) for c in classes)
        )
        or all(
            member in (torch.dtype, np.dtype)
            or (isinstance(member, type) and issubclass(member, (np.dtype, np.generic)))
            for member in members
        )
        or all(member in (torch.device, jax.Device) for member in members)
    )


def _element_fits(annotation):
    underlying, optional = _without_none(annotation)
    if underlying in TENSORS:
        return True
    if optional:
        return False
    if underlying in NUMBERS or underlying == torch.types.Number or _is_int(underlying):
        return True
    return _is_union(underlying) and set(typing.get_args(underlying)) <= NUMBERS


def _result_fits(annotation):
    if annotation is None or annotation is types.NoneType:
        return True
    underlying, optional = _without_none(annotation)
    if optional:
        return _result_fits(underlying)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is None or origin in _UNIONS:
        return (
            annotation in (*TENSORS, *NUMBERS, torch.types.Number)
            or _is_int(annotation)
            or (_is_union(annotation) and set(arguments) <= NUMBERS)
        )
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _result_fits(arguments[0])
    if origin is tuple or origin in _SEQUENCES:
        return all(_result_fits(argument) for argument in arguments)
    return False
