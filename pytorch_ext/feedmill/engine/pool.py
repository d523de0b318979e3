"""The native loaders that stand behind one DataLoader."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from feedmill._ops import native
from feedmill.engine.config import Config
from feedmill.planner.arrays import Arrays
from feedmill.planner.plan import Plan
from feedmill.planner.raw_files import PlainPlan
from feedmill.profiling.counting.accounts import Account, Source
from feedmill.profiling.counting.gpu_stalls import GpuStalls
from feedmill.profiling.counting.records import (
    KEPT_STEPS,
    SAMPLE_DTYPE,
    STEP_DTYPE,
    native_samples,
    native_steps,
)
from feedmill.profiling.report.stats import (
    SlowSample,
    join_slow_samples,
    slow_samples_of,
    sum_counters,
)
from feedmill.system import peer_processes

_ALL = 1 << 63  # above every step's number


def open_native(config: Config) -> Any:
    """Opens a native loader (``_native.Loader``)."""
    plan, arrays = config.plan, config.arrays
    return native.Loader(
        ops=plan.ops,
        dtype=plan.dtype,
        value_table=plan.value_table,
        resize_order=plan.resize_order,
        layout=plan.layout,
        n_samples=config.n_samples,
        batch_size=config.batch_size,
        n_threads=config.n_threads,
        prefetch_batches=config.prefetch_batches,
        memory_budget_bytes=config.memory_budget or 0,
        reader=config.reader,
        max_image_pixels=plan.max_image_pixels,
        sample_records=config.sample_records,
        alloc=config.alloc,
        cache=config.cache,
        plain=(plan.header, plan.body_bytes) if isinstance(plan, PlainPlan) else None,
        arrays=None if arrays is None else arrays.specs,
        image=None if arrays is None else arrays.image,
        owners=None if arrays is None else arrays.owners,
        device=config.device,
        rejected_formats=plan.rejected_formats,
    )


class _FitsError(Exception):
    """The budget was found sufficient; what comes behind the check is not wanted."""


def budget_refusal(config: Config) -> str | None:
    """Why the native loader will refuse this config's memory budget; None: it will not.

    Takes no memory worth mention: the budget is checked before the first slot is allocated.
    """

    def refuse(_n_bytes: int) -> Any:
        raise _FitsError

    try:
        open_native(replace(config, alloc=refuse, device=None)).close()
    except native.BudgetError as error:
        return str(error)
    except Exception:  # _FitsError, or something that opening it in earnest will raise again
        pass
    return None


class _Known(NamedTuple):
    """What a native loader tells."""

    counters: dict[str, Any]
    steps: np.ndarray
    slow_samples: list[SlowSample]


class _Entry(Source):
    """A native loader from open to close, and its counters for ever."""

    __slots__ = ("config", "handle", "idle", "last", "last_samples")

    def __init__(self, config: Config | None, handle: Any) -> None:
        super().__init__()
        self.config = config  # None: it stands for several that are closed
        self.handle = handle
        self.idle = False
        self.last: _Known | None = None  # as it was at the close; None: it is open
        # Samples that were not in the log then, and the number of the first one.
        self.last_samples = (0, np.empty(0, SAMPLE_DTYPE))

    def read(self) -> _Known:
        """Everything as of now."""
        if self.last is None:
            try:
                handle = self.handle
                return _Known(handle.stats(), native_steps(handle), slow_samples_of(handle))
            except ValueError:  # closed meanwhile, by another thread or the garbage collector
                pass
        assert self.last is not None
        return self.last

    def counters(self) -> dict[str, Any]:
        """The counters alone: step records are a few megabytes."""
        if self.last is None:
            try:
                counters: dict[str, Any] = self.handle.stats()
                return counters
            except ValueError:
                pass
        assert self.last is not None
        return self.last.counters

    def slow_samples(self) -> list[SlowSample]:
        """Those alone."""
        if self.last is None:
            try:
                return slow_samples_of(self.handle)
            except ValueError:
                pass
        assert self.last is not None
        return self.last.slow_samples

    def close(self) -> None:
        self.last_samples = self.unlogged_samples()
        self.last = self.read()
        self.handle.close()

    @property
    def is_final(self) -> bool:
        return self.idle or self.last is not None

    @property
    def is_logged(self) -> bool:
        """Of a closed one: whether all of it is in the log."""
        assert self.last is not None
        return not len(self.unlogged_steps()) and not len(self.unlogged_samples()[1])

    def unlogged_steps(self) -> np.ndarray:
        if self.last is None:
            try:
                return native_steps(self.handle, self.logged_steps)
            except ValueError:  # closed meanwhile
                pass
        assert self.last is not None
        steps = self.last.steps
        return steps[steps["step"] >= self.logged_steps]

    def unlogged_samples(self) -> tuple[int, np.ndarray]:
        if self.last is None and self.config is not None and self.config.sample_records:
            try:
                return native_samples(self.handle, self.logged_samples)
            except ValueError:
                pass
        first, samples = self.last_samples
        n_logged = max(0, self.logged_samples - first)
        return first + n_logged, samples[n_logged:]


class EnginePool(Account):
    """Keeps one idle native loader for the next epoch, and the counters of all.

    Pickles and copies as an empty one. May be used from several threads. The garbage collector may
    call release() in the middle of any of this: it waits for no lock, and changes nothing but the
    entry that is released.
    """

    def __init__(self) -> None:
        self.gpu = GpuStalls()
        self._pid = os.getpid()
        # Held while the list is replaced or an idle entry taken; re-entrant, for signal handlers.
        self._lock = threading.RLock()
        # Every native loader since the start, so that its counters are in here exactly once at any
        # moment. The list is never changed, but replaced: readers go on with the one they have.
        self._entries: list[_Entry] = []
        self._diagnosing = threading.RLock()
        self._diagnostic: list[tuple[Config, Any]] = []

    def __reduce__(self) -> tuple[type[EnginePool], tuple[()]]:
        return (EnginePool, ())

    def acquire(self, config: Config, *, at_least: bool = False) -> tuple[Config, Any]:
        """A native loader for this config, the idle one if it fits, and the config that it was
        opened with. The caller must release() both.

        Args:
            at_least: a loader with a larger batch size will do.
        """
        self._forget_after_fork()
        with self._lock:
            found: tuple[Config, Any] | None = None
            others = []
            for entry in self._entries:
                opened_with = entry.config
                if not entry.idle or opened_with is None:
                    continue
                size = opened_with.batch_size
                larger = at_least and size > config.batch_size
                if found is None and opened_with == (
                    replace(config, batch_size=size) if larger else config
                ):
                    found = opened_with, entry.handle
                else:
                    others.append(entry)
                entry.idle = False
        # Before another one is opened: together they might be more than the memory allows.
        for entry in others:
            entry.close()
        if found is None:
            found = config, open_native(config)
            entry = _Entry(*found)
            with self._lock:
                self._entries = [*self._with_closed_merged(), entry]
        found_config, handle = found
        try:
            peer_processes.begin(id(handle), found_config.n_threads)
        except BaseException:  # a Ctrl-C
            self.release(handle)
            raise
        return found_config, handle

    def release(self, handle: Any) -> None:
        """Gives a native loader back: it stops, and waits for the next epoch. Does not raise."""
        if handle.pid != os.getpid():
            return
        peer_processes.end(id(handle))
        entry = next(entry for entry in self._entries if entry.handle is handle)
        try:
            handle.stop()
        except Exception:  # reads are stuck in the kernel: it can't be used again
            entry.close()
            return
        if any(other.idle for other in self._entries):
            entry.close()
        else:
            entry.idle = True

    def fits(self, config: Config) -> bool:
        """Whether a native loader with such a config is open, whatever allocates its slots."""
        self._forget_after_fork()
        return any(
            entry.last is None
            and entry.config is not None
            and replace(entry.config, alloc=config.alloc) == config
            for entry in self._entries
        )

    @contextmanager
    def diagnostic(
        self, plan: Plan, n_samples: int, arrays: Arrays | None = None
    ) -> Iterator[Any]:
        """A small native loader beside the others: one thread, batches of one. Not counted.
        For one thread at a time; others wait."""
        self._forget_after_fork()
        config = Config(plan, n_samples, 1, n_threads=1, prefetch_batches=1, arrays=arrays)
        with self._diagnosing:
            if not self._diagnostic or self._diagnostic[0][0] != config:
                self._diagnostic = [(config, open_native(config))]
            yield self._diagnostic[0][1]

    def counters(self) -> dict[str, Any]:
        """The counters of all native loaders of this process, summed."""
        self._forget_after_fork()
        counters = sum_counters([entry.counters() for entry in self._entries])
        return {**counters, **self.gpu.counters()}

    def steps(self) -> np.ndarray:
        """The latest step records of all native loaders, one loader after the other."""
        self._forget_after_fork()
        steps = _join_steps([entry.read().steps for entry in self._entries])
        self.gpu.fill(steps)
        return steps

    def slow_samples(self) -> list[SlowSample]:
        """The slowest samples of all native loaders, each index once."""
        self._forget_after_fork()
        return join_slow_samples(entry.slow_samples() for entry in self._entries)

    def sources(self) -> list[Source]:
        self._forget_after_fork()
        return list(self._entries)

    def _with_closed_merged(self) -> list[_Entry]:
        """The same counters with one entry for all closed ones, so that the list stays short. What
        a log still lacks stays apart."""
        closed = [
            entry
            for entry in self._entries
            if entry.last is not None and (entry.is_logged or not self.are_logged)
        ]
        if len(closed) < 2:
            return self._entries
        merged = _Entry(None, None)
        known = [entry.last for entry in closed if entry.last is not None]
        merged.last = _Known(
            sum_counters([one.counters for one in known]),
            _join_steps([one.steps for one in known]),
            join_slow_samples(one.slow_samples for one in known),
        )
        merged.logged_steps = _ALL
        return [merged, *(entry for entry in self._entries if entry not in closed)]

    def forget(self) -> None:
        EnginePool.__init__(self)

    def _forget_after_fork(self) -> None:
        """A child has none of its parent's threads: its native loaders are of no use there."""
        if self._pid != os.getpid():
            self.forget()


def _join_steps(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, STEP_DTYPE), *parts])[-KEPT_STEPS:]
