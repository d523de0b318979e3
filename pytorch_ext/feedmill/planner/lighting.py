"""Recognises AlexNet's noise of colors: a class Lighting that scripts copy from each other.

It adds to each pixel the eigenvectors of the colors of ImageNet's pixels, each by its eigenvalue
and a random number of torch's (Krizhevsky, Sutskever and Hinton, "ImageNet Classification with Deep
Convolutional Neural Networks", 2012, section 4.1). The method is known by the hash of its body.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch

from feedmill.planner import fingerprints
from feedmill.planner.attributes import ABSENT, NotUnderstood, attribute, of_class
from feedmill.planner.plan import KINDS, Op

# Hashes of its versions' bodies, which make the same results.
_BODIES = frozenset({
    "59e0a5fa29d1a4bd", "94d121620efe3105", "00b0257592fc6472", "629b75acd15495ae",
})
_MEANINGS = {"torch": "torch"}
# What it calls, as it was when this module was imported.
_CALLED = [
    (name, getattr(torch.Tensor, name))
    for name in ("__add__", "add", "clone", "expand", "expand_as", "mul", "new", "normal_",
                 "resize_", "squeeze", "sum", "type_as", "view")
]


@dataclass(frozen=True)
class Lighting:
    """An object of such a class, in the place of a transform.

    Attributes:
        transform: the object.
        deviation: standard deviation of the three random numbers.
        eigenvectors: a matrix, by row, whose columns they are.
        eigenvalues: one for each of them.
    """

    transform: Any
    deviation: float
    eigenvectors: tuple[float, ...]
    eigenvalues: tuple[float, ...]

    def op(self) -> Op:
        """The op, of an image that Normalize does not follow."""
        return Op(KINDS["Lighting"], values=(
            self.deviation, *self.eigenvectors, *self.eigenvalues, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0,
        ))

    def with_numbers(self, image: torch.Tensor, numbers: Sequence[float]) -> torch.Tensor:
        """What the object returns for an image if it draws these numbers."""
        factors = torch.tensor(numbers, dtype=torch.float32)
        vectors = torch.tensor(self.eigenvectors, dtype=torch.float32).view(3, 3)
        values = torch.tensor(self.eigenvalues, dtype=torch.float32)
        shift = vectors.mul(factors.expand(3, 3)).mul(values.expand(3, 3)).sum(1)
        return image.add(shift.view(3, 1, 1).expand_as(image))


def with_normalize(op: Op, mean: Sequence[float], std: Sequence[float]) -> Op:
    """A Lighting's op, of an image that a Normalize follows."""
    return op._replace(values=(*op.values[:13], *mean, *std))


def lighting_of(transform: Any) -> Lighting | None:
    """None: it is something else, or does something else than the native code. Runs none of its
    code."""
    kind = type(transform)
    method = of_class(kind, "__call__")
    if type(kind) is not type or type(method) is not FunctionType:
        return None
    if not fingerprints.has_known_body(method, _BODIES, _MEANINGS):
        return None
    if any(getattr(torch.Tensor, name, ABSENT) is not value for name, value in _CALLED):
        return None
    if method.__code__.co_varnames[:2] != ("self", "img") or method.__code__.co_argcount != 2:
        return None
    try:
        deviation = attribute(transform, "alphastd")
        eigenvectors = _numbers(attribute(transform, "eigvec"), (3, 3))
        eigenvalues = _numbers(attribute(transform, "eigval"), (3,))
    except NotUnderstood:
        return None
    is_number = type(deviation) in (int, float) and math.isfinite(deviation)
    if not is_number or deviation <= 0 or eigenvectors is None or eigenvalues is None:
        return None
    return Lighting(transform, float(deviation), eigenvectors, eigenvalues)


def _numbers(tensor: Any, shape: tuple[int, ...]) -> tuple[float, ...] | None:
    """A float32 tensor's values; None if it is something else."""
    if type(tensor) is not torch.Tensor or tensor.dtype is not torch.float32:
        return None
    if tensor.shape != shape or tensor.device.type != "cpu" or tensor.requires_grad:
        return None
    return tuple(tensor.flatten().tolist()) if bool(torch.isfinite(tensor).all()) else None
