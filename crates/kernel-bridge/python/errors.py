"""Errors that the Rust side turns into errors of its own kind."""

import inspect


class ArgumentError(TypeError):
    """An argument that an op cannot take; says which and why, without naming the op."""

    def __init__(self, parameter, problem):
        super().__init__(f"argument `{parameter}` {problem}")
        self.parameter = parameter
        self.problem = problem


class CompileRefused(RuntimeError):
    """A call that would have to be compiled, while the guard forbids it."""

    def __init__(self, reason):
        super().__init__(f"would have to be compiled ({reason})")
        self.reason = reason


def call_problem(function, arguments, keywords):
    """What is wrong with a call's arguments, as parameter and text; None where they fit.

    Asked after a TypeError, to tell a wrong call from a fault inside the kernel.
    """
    try:
        signature = inspect.signature(function)
        signature.bind(*arguments, **keywords)
    except TypeError as error:
        return "", str(error)
    except ValueError:
        return None
    return None
