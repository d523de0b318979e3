"""The options that feedmill.DataLoader adds to torch's: their values, and checks of them."""

from __future__ import annotations

import contextlib
import operator
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from feedmill.engine.cache import FORM, parse
from feedmill.engine.devices import as_device
from feedmill.iterators.bad_samples import POLICIES
from feedmill.planner.formats import IMAGE_DTYPES, MEMORY_FORMATS

_CHOICES = {
    "native": ("auto", "hybrid", "require", "verify", "off"),
    "reader": ("auto", "uring", "pread"),
    "worker_init": ("fallback", "ignore"),
    "on_error": POLICIES,
    "deferred": ("auto", "off", "verify"),
    "decode": ("exact", "scaled"),
    "rng": ("auto", "feedmill", "torch"),
}
_FORMATS = {"dtype": (None, *IMAGE_DTYPES), "memory_format": MEMORY_FORMATS}
_MAX_THREADS = 1024
_WORD64 = (1 << 64) - 1


@dataclass(frozen=True)
class Options:
    """The arguments of feedmill.DataLoader's constructor beside torch's; described there.

    The constructor and DataLoader's attributes declare them again, for editors and type checkers.
    """

    native: str
    seed: int | None
    threads: int | None
    memory_budget: int | None
    seek_index: int | str | os.PathLike[str] | None
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
    deferred: str
    decode: str
    rng: str

    def values(self) -> dict[str, Any]:
        """The values by name, as keyword arguments for the constructor."""
        return {name: getattr(self, name) for name in OPTIONS}

    @property
    def draws_as_torch(self) -> bool:
        """Whether native batches have the random numbers of torch's workers: by default, unless an
        option is given that is about feedmill's own, or that torch's DataLoader has no equal of."""
        if self.rng != "auto":
            return self.rng == "torch"
        return (
            self.seed is None
            and self.on_error == "raise"
            and self.native != "hybrid"
            and self.worker_init == "fallback"
        )

    def check(self) -> None:
        """Raises ValueError for a value that feedmill.DataLoader does not allow."""
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if type(value) is not str or value not in allowed:
                raise _invalid(name, value, f"one of {', '.join(map(repr, allowed))}")
        for name, formats in _FORMATS.items():
            value = getattr(self, name)
            if not any(value is one for one in formats):
                raise _invalid(name, value, f"one of {', '.join(map(str, formats))}")
        if self.seed is not None and type(self.seed) is not int:
            raise _invalid("seed", self.seed, "an int or None")
        if self.rng == "torch":
            self._check_torch_rng()
        if self.threads is not None and not is_int(self.threads, 1, _MAX_THREADS):
            raise _invalid("threads", self.threads, f"an int from 1 to {_MAX_THREADS} or None")
        if self.memory_budget is not None and not is_int(self.memory_budget, 1, _WORD64):
            allowed_text = "a number of bytes (an int above 0) or None"
            raise _invalid("memory_budget", self.memory_budget, allowed_text)
        self._check_seek_index()
        if self.log is not None and not _is_path(self.log):
            raise _invalid("log", self.log, "a file's path or None")
        if self.cache is not None and parse(self.cache) is None:
            raise _invalid("cache", self.cache, FORM)
        as_device(self.device)
        if not is_int(self.max_errors, 0, _WORD64):
            raise _invalid("max_errors", self.max_errors, "an int from 0")
        if type(self.log_samples) is not bool:
            raise _invalid("log_samples", self.log_samples, "True or False")

    def _check_seek_index(self) -> None:
        value = self.seek_index
        if value is None or is_int(value, 0, _WORD64):
            return
        # "1GiB" is the form of `cache`, and hardly meant as a file's name.
        is_size = isinstance(value, str) and re.fullmatch(r"(ram:)?[\d.]+ *[kKMGT]?i?B?", value)
        if not _is_path(value) or is_size:
            allowed_text = "a number of bytes (an int from 0), a file's path or None"
            raise _invalid("seek_index", value, allowed_text)

    def _check_torch_rng(self) -> None:
        if self.seed is not None:
            raise ValueError(
                "seed= keys feedmill's own random numbers, and rng='torch' takes those of torch's "
                "workers, which follow from torch's seed: pass only one of them"
            )
        if self.on_error != "raise":
            raise ValueError(
                f"on_error={self.on_error!r} goes on after a sample that torch's worker raises an "
                "error for, so that there are no random numbers of torch's for what follows; with "
                "rng='torch' it must be 'raise'"
            )


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike) and value != ""


OPTIONS = tuple(field.name for field in fields(Options))
_all_options = operator.itemgetter(*OPTIONS)


def options_among(values: Mapping[str, Any], defaults: Options) -> Options:
    """The options among a loader's attributes; ``defaults`` gives those that are missing there."""
    # Called several times an epoch, and mostly nobody has changed an attribute.
    with contextlib.suppress(KeyError):
        if all(map(operator.is_, _all_options(values), _all_options(vars(defaults)))):
            return defaults
    return Options(**{name: values.get(name, getattr(defaults, name)) for name in OPTIONS})


def names_taken(loader: Any, base: type) -> set[str]:
    """Names of options that a subclass of ``base`` uses for itself: defined in a class body, or
    already set on the object."""
    taken = set(vars(loader))
    for kind in type(loader).__mro__:
        if kind is base:
            break
        taken |= vars(kind).keys()
    return taken.intersection(OPTIONS)


def is_int(value: Any, low: int, high: int) -> bool:
    """Whether a value is an int from ``low`` to ``high``, and no instance of a subclass (bool)."""
    return type(value) is int and low <= value <= high


def _invalid(name: str, value: Any, allowed: str) -> ValueError:
    return ValueError(f"{name} is {value!r}; it must be {allowed}")
