"""Functions of Python's module random, of numpy.random and of torch that draw numbers from the
generators of the process, as the native path draws them, too."""

from __future__ import annotations

import functools
import random
from fractions import Fraction
from types import BuiltinFunctionType, MethodType
from typing import Any

import numpy as np

from feedmill._internals import TORCH_FUNCTIONS
from feedmill.planner.untouched import is_original

# How a number in [0, 1) is drawn: by random.random(), by numpy.random.rand(), by NumPy's code for
# uniform(), where that rounds the sum only, or by torch.rand(1), with which Python or torch
# computes. As value 5 of a RandomApply, see fm_op.
PYTHON, NUMPY, NUMPY_ROUNDED_ONCE, TORCH, TORCH_TENSOR = range(5)

# Python's functions that call others of the generator, by name.
_CALLED = {
    "random": (),
    "uniform": ("random",),
    "randint": ("randrange", "_randbelow", "getrandbits"),
    "randrange": ("_randbelow", "getrandbits"),
    "choice": ("_randbelow", "getrandbits"),
}
_OF_NUMPY = ("rand", "random", "random_sample", "uniform", "randint", "choice")
_OF_TORCH = ("rand", "bernoulli")
_IN_PYTHON = {"randrange": "randrange", "_randbelow": "_randbelow_with_getrandbits"}


def drawing_function(function: Any) -> str:
    """The name of a function that draws numbers, such as "random.uniform" or "numpy.rand"; "": it
    is another one."""
    name = getattr(function, "__name__", "") if type(function) in _KINDS else ""
    if name in _CALLED and is_of_python(function, name):
        return f"random.{name}"
    if name in _OF_NUMPY and is_of_numpy(function, name):
        return f"numpy.{name}"
    if name in _OF_TORCH and function.__qualname__ == f"{TORCH_FUNCTIONS}.{name}":
        return f"torch.{name}"
    return ""


_KINDS = (BuiltinFunctionType, MethodType)


def is_of_python(function: Any, name: str) -> bool:
    """Whether a function is the one of Python's module random."""
    owner = getattr(function, "__self__", None)
    if type(owner) is not random.Random or owner is not getattr(random, "_inst", None):
        return False
    if name == "random":
        # It is written in C.
        return type(function) is BuiltinFunctionType and function.__name__ == name
    return (
        type(function) is MethodType
        and not any(map(_is_replaced, _CALLED.get(name, ("random",))))
        and is_original(function.__func__, "random", f"Random.{name}")
    )


def _is_replaced(name: str) -> bool:
    """Whether a method of Python's generator, which its others call, is not Python's own."""
    of_class = vars(random.Random).get(name)
    if name in vars(random._inst):
        return True
    if name in _IN_PYTHON:
        return not is_original(of_class, "random", f"Random.{_IN_PYTHON[name]}")
    return of_class is not None  # it is written in C, in the base class


# In NumPy 1.24 and newer a function around the generator, not a method of it.
_NUMPYS_SEED = np.random.seed


def is_of_numpy(function: Any, *names: str) -> bool:
    """Whether a function is one of NumPy's global generator."""
    kind = np.random.RandomState
    if function is _NUMPYS_SEED and type(function) is type(vars(kind).get("seed")):
        return "seed" in names
    if type(function) not in _KINDS:
        return False
    owner = function.__self__
    if type(owner) is not kind or owner is not np.random.mtrand._rand:
        return False
    # What type of method it is depends on the compiler that NumPy was made with.
    made = getattr(function, "__func__", vars(kind).get(function.__name__))
    return function.__name__ in names and made is vars(kind).get(function.__name__)


@functools.cache
def numpys_uniform() -> int | None:
    """How the installed NumPy computes numpy.random.uniform(): NUMPY or NUMPY_ROUNDED_ONCE, which
    depends on its compiler and the CPU that it was built for; None: in another way."""
    return way_of(np.random.RandomState)


def way_of(kind: Any) -> int | None:
    """As numpys_uniform(), for generators of a class."""
    drawing, following = kind(_SEED), kind(_SEED)
    ways = {NUMPY, NUMPY_ROUNDED_ONCE}
    for number in range(_N_TRIALS):
        low, width = number / 7 - 9, (number % 11 + 1) / 3
        got, share = drawing.uniform(low, low + width), following.random_sample()
        width = (low + width) - low
        exact = Fraction(low) + Fraction(width) * Fraction(share)
        results = {NUMPY: low + width * share, NUMPY_ROUNDED_ONCE: float(exact)}
        ways &= {way for way, result in results.items() if result == got}
    return ways.pop() if len(ways) == 1 else None


_SEED = 77
_N_TRIALS = 100
