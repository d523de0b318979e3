"""Random numbers by which a dataset chooses the files of its samples, such as
``random.randint(0, len(self.files) - 1)``.

They are drawn when a sample is looked up, from a generator of Python's that stands for the one of
torch's worker process. That is known as long as nothing else draws from it: no transform does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from feedmill.planner.plan import KINDS
from feedmill.planner.steps import Step

# Draws a number.
Drawing = Callable[[random.Random], int]

_generator: ContextVar[random.Random | None] = ContextVar("_generator", default=None)
# What torchvision draws from Python's generator.
_OF_PYTHON = (KINDS["RandomChoice"], KINDS["RandomOrder"])


def drawing_of(
    name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> tuple[Drawing, str] | None:
    """What a call of one of Python's functions draws, and its text; None: it is another call, or
    may raise an error.

    Args:
        name: of the function, see generators.drawing_function().
    """
    if keywords or not all(type(one) is int for one in arguments):
        return None
    low, high = (0, *arguments) if len(arguments) == 1 else (*arguments, 0, 0)[:2]
    if name == "random.randint" and len(arguments) == 2 and low <= high:
        return (lambda generator: generator.randint(low, high)), f"{name}({low}, {high})"
    if name == "random.randrange" and len(arguments) in (1, 2) and low < high:
        return (lambda generator: generator.randrange(low, high)), f"{name}({low}, {high})"
    return None


def drawn_by(drawings: Iterable[Drawing]) -> list[int]:
    """The numbers for one sample.

    Raises:
        RuntimeError: the generator is not known.
    """
    generator = _generator.get()
    if generator is None:
        raise RuntimeError(
            "the dataset draws the files of its samples at random, and it is not known from which "
            "state of the generator"
        )
    return [draw(generator) for draw in drawings]


@contextmanager
def looking_up_with(generator: random.Random) -> Iterator[None]:
    """While active, this thread looks up samples with numbers of a generator."""
    token = _generator.set(generator)
    try:
        yield
    finally:
        _generator.reset(token)


def own_error(dataset: Any, index: Any, before: Any) -> None:
    """Raises what a dataset raises for an index, if anything.

    Args:
        before: the state of Python's generator before the sample.
    """
    with _calling_from(before):
        dataset[index]


@contextmanager
def _calling_from(state: Any) -> Iterator[None]:
    """While active, Python's global generator has a state of its own; what is drawn from it and
    from torch's is forgotten afterwards."""
    of_python, of_torch = random.getstate(), torch.get_rng_state()
    try:
        random.setstate(state)
        yield
    finally:
        random.setstate(of_python)
        torch.set_rng_state(of_torch)


def generator_state() -> Any:
    """The state of the generator with which this thread looks up samples; None: there is none."""
    generator = _generator.get()
    return None if generator is None else generator.getstate()


def fail_with(before: Any, items: Iterable[Any], fail: Callable[[], Any]) -> None:
    """Repeats the lookups of some samples, and then one that failed.

    Args:
        before: the state of Python's generator before the samples.
    """
    generator = random.Random()
    generator.setstate(before)
    with looking_up_with(generator):
        for item in items:
            item.base_dataset.find(item.index)
        with _calling_from(generator.getstate()):
            fail()


def draw_from_python(steps: Iterable[Step]) -> bool:
    """Whether transforms are not known to leave Python's generator alone."""
    return any(
        not step.module.startswith("torchvision.transforms.")
        or any(kind in _OF_PYTHON for kind in step.kinds)
        or draw_from_python(step.children)
        for step in steps
    )
