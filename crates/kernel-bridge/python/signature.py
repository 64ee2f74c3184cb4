"""Which functions `jax_op` takes: the rules of torch_tpu 0.2.0, where there is none installed.

A kernel that passes here must pass on a TPU, so the rules are as strict as the original's and the
texts say what its texts say. Tensors may be plain, optional, or in lists and homogeneous tuples;
everything else is static: a new value of it means a new compile.
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

TENSORS = (jax.Array, torch.Tensor)
_PLAIN = (bool, float, int, str, np.dtype, torch.device, torch.dtype, jax.Device, torch.types.Number)


def check_name(name):
    """An op's name is `namespace::op`."""
    if "::" not in name:
        raise ValueError(f"Op name {name} does not contain a namespace.")
    if len(name.split("::")) != 2:
        raise ValueError(f"Op name {name} must have exactly one '::' separator.")


def read(function):
    """The checked signature of a function for `jax_op`."""
    signature = inspect.signature(inspect.unwrap(function), eval_str=True)
    bound = _bound_names(function)
    parameters = list(signature.parameters.values())
    for parameter in parameters:
        if parameter.annotation is inspect.Parameter.empty:
            raise ValueError(f"Missing argument type annotation for JAX function: {signature}.")
    wrong = [
        index
        for index, parameter in enumerate(parameters)
        if parameter.name not in bound and not _argument_fits(parameter)
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
    kept = [p for p in parameters if p.name not in bound]
    return signature.replace(parameters=kept)


def is_tensor(annotation):
    """Whether an annotation speaks of tensors: one, an optional one, or a sequence of them."""
    underlying, _ = _without_none(_without_extras(annotation))
    if underlying in TENSORS:
        return True
    element = _element(underlying)
    return element is not None and _without_none(element)[0] in TENSORS


def static_parameters(signature):
    """Positions and names of the static parameters."""
    parameters = list(signature.parameters.values())
    positions = [
        index
        for index, parameter in enumerate(parameters)
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY and not is_tensor(parameter.annotation)
    ]
    names = [
        parameter.name
        for parameter in parameters
        if parameter.kind is not inspect.Parameter.POSITIONAL_ONLY
        and not is_tensor(parameter.annotation)
    ]
    return positions, names


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


def _without_extras(annotation):
    if typing.get_origin(annotation) is typing.Annotated:
        return typing.get_args(annotation)[0]
    return annotation


def _is_union(annotation):
    return typing.get_origin(annotation) in (Union, types.UnionType)


def _without_none(annotation):
    if _is_union(annotation):
        others = [a for a in typing.get_args(annotation) if a is not types.NoneType]
        if len(others) < len(typing.get_args(annotation)):
            return (others[0] if len(others) == 1 else Union[tuple(others)]), True
    return annotation, False


def _element(annotation):
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (list, collections.abc.Sequence) and len(arguments) == 1:
        return arguments[0]
    if origin is tuple and arguments:
        rest = [a for a in arguments if a is not Ellipsis]
        if all(a == rest[0] for a in rest):
            return rest[0]
    return None


def _argument_fits(parameter):
    if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        return False
    underlying, _ = _without_none(_without_extras(parameter.annotation))
    if _base_fits(underlying):
        return True
    element = _element(underlying)
    return element is not None and _element_fits(element)


def _base_fits(annotation):
    if annotation in TENSORS or annotation in _PLAIN:
        return True
    if isinstance(annotation, type) and issubclass(annotation, (np.dtype, np.generic, enum.Enum)):
        return True
    if typing.get_origin(annotation) is typing.Literal:
        return all(isinstance(a, (int, float, str, enum.Enum)) for a in typing.get_args(annotation))
    if _is_union(annotation):
        arguments = typing.get_args(annotation)
        return set(arguments) <= {int, float, bool} or all(
            a in (torch.dtype, np.dtype)
            or (isinstance(a, type) and issubclass(a, (np.dtype, np.generic)))
            for a in arguments
        )
    return False


def _element_fits(annotation):
    underlying, optional = _without_none(annotation)
    if underlying in TENSORS:
        return True
    if optional:
        return False
    if underlying in (int, float, bool, torch.types.Number):
        return True
    return _is_union(underlying) and set(typing.get_args(underlying)) <= {int, float, bool}


def _result_fits(annotation):
    if annotation is None or annotation is types.NoneType:
        return True
    if annotation is inspect.Signature.empty:
        return False
    underlying, optional = _without_none(annotation)
    if optional:
        return _result_fits(underlying)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (tuple, list, collections.abc.Sequence):
        return all(_result_fits(a) for a in arguments if a is not Ellipsis)
    if _is_union(annotation):
        return set(arguments) <= {int, float, bool}
    return annotation in (*TENSORS, int, float, bool, torch.types.Number)
