"""The options of a feedmill.DataLoader that torch's does not have: their values, checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from feedmill.engine.cache import FORM, budget_bytes
from feedmill.engine.devices import as_device
from feedmill.iterators.bad_samples import POLICIES
from feedmill.planner.formats import IMAGE_DTYPES, MEMORY_FORMATS

_CHOICES = {
    "native": ("auto", "hybrid", "require", "verify", "off"),
    "reader": ("auto", "uring", "pread"),
    "worker_init": ("fallback", "ignore"),
    "on_error": POLICIES,
}
_FORMATS = {"dtype": (None, *IMAGE_DTYPES), "memory_format": MEMORY_FORMATS}
_MAX_THREADS = 1024
_WORD64 = (1 << 64) - 1


@dataclass(frozen=True)
class Options:
    """What feedmill.DataLoader's constructor takes beside torch's arguments, described there."""

    native: str
    seed: int | None
    threads: int | None
    memory_budget: int | None
    reader: str
    worker_init: str
    dtype: torch.dtype | None
    memory_format: torch.memory_format
    log: str | os.PathLike[str] | None
    log_samples: bool
    cache: str | None
    on_error: str
    max_errors: int
    device: str | torch.device | None

    def values(self) -> dict[str, Any]:
        """The values by name, as the constructor takes them."""
        return {name: getattr(self, name) for name in OPTIONS}

    def check(self) -> None:
        """ValueError for a value outside of what feedmill.DataLoader names."""
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if type(value) is not str or value not in allowed:
                raise _refusal(name, value, f"one of {', '.join(map(repr, allowed))}")
        for name, formats in _FORMATS.items():
            value = getattr(self, name)
            if not any(value is one for one in formats):
                raise _refusal(name, value, f"one of {', '.join(map(str, formats))}")
        if self.seed is not None and type(self.seed) is not int:
            raise _refusal("seed", self.seed, "an int or None")
        if self.threads is not None and not is_int(self.threads, 1, _MAX_THREADS):
            raise _refusal("threads", self.threads, f"an int from 1 to {_MAX_THREADS} or None")
        if self.memory_budget is not None and not is_int(self.memory_budget, 1, _WORD64):
            allowed_text = "a number of bytes (an int above 0) or None"
            raise _refusal("memory_budget", self.memory_budget, allowed_text)
        if self.log is not None and (not isinstance(self.log, str | os.PathLike) or self.log == ""):
            raise _refusal("log", self.log, "a file's name or None")
        if self.cache is not None and budget_bytes(self.cache) is None:
            raise _refusal("cache", self.cache, FORM)
        as_device(self.device)
        if not is_int(self.max_errors, 0, _WORD64):
            raise _refusal("max_errors", self.max_errors, "an int from 0")
        if type(self.log_samples) is not bool:
            raise _refusal("log_samples", self.log_samples, "True or False")


OPTIONS = tuple(field.name for field in fields(Options))


def options_among(values: Mapping[str, Any], defaults: Options) -> Options:
    """The options among a loader's attributes; one that is missing there is the default."""
    return Options(**{name: values.get(name, getattr(defaults, name)) for name in OPTIONS})


def names_taken(loader: Any, base: type) -> set[str]:
    """Names of options that a subclass of ``base`` uses for itself: defined in its body, or set on
    the object already."""
    taken = set(vars(loader))
    for kind in type(loader).__mro__:
        if kind is base:
            break
        taken |= vars(kind).keys()
    return taken.intersection(OPTIONS)


def is_int(value: Any, low: int, high: int) -> bool:
    """Whether a value is an int, no subclass, from ``low`` to ``high``."""
    return type(value) is int and low <= value <= high


def _refusal(name: str, value: Any, allowed: str) -> ValueError:
    return ValueError(f"{name} is {value!r}; it must be {allowed}")
