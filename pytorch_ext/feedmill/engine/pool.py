"""The pool of native loaders (engines) of one DataLoader."""

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
from feedmill.planner.raw_files import RawPlan
from feedmill.profiling.counting import collectives
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
from feedmill.remote.by_fsspec import read_or_why
from feedmill.system import peer_processes

_ALL = 1 << 63  # greater than any step number


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
        seek_index=config.seek_index,
        reader=config.reader,
        max_image_pixels=plan.max_image_pixels,
        sample_records=config.sample_records,
        alloc=config.alloc,
        cache=config.cache,
        disk_cache=config.disk_cache,
        remote=config.remote,
        read=read_or_why if config.fsspec_threads else None,
        read_threads=config.fsspec_threads,
        raw=(plan.header, plan.body_bytes) if isinstance(plan, RawPlan) else None,
        arrays=None if arrays is None else arrays.specs,
        image=None if arrays is None else arrays.image,
        owners=None if arrays is None else arrays.owners,
        device=config.device,
        rejected_formats=plan.rejected_formats,
        decodes_scaled=plan.decodes_scaled,
        float_resize=plan.float_resize,
        views=[
            (one.ops, one.value_table, one.resize_order, one.float_resize)
            for one in plan.more_views
        ],
        views_have_files=plan.views_have_files,
    )


class _FitsError(Exception):
    """Ends the opening of a native loader after its check of the budget has passed."""


def budget_refusal(config: Config) -> str | None:
    """Why the memory budget of a config is too small for a native loader; None: it suffices.

    Allocates almost nothing: the native loader checks the budget before it allocates a batch.
    """

    def refuse(_n_bytes: int) -> Any:
        raise _FitsError

    try:
        open_native(replace(config, alloc=refuse, device=None)).close()
    except native.BudgetError as error:
        return str(error)
    except Exception:  # _FitsError, or an error that opening it later will raise again
        pass
    return None


class _Snapshot(NamedTuple):
    """Counters and records of a native loader."""

    counters: dict[str, Any]
    steps: np.ndarray
    slow_samples: list[SlowSample]


class _Entry(Source):
    """A native loader, and its counters, which outlive it."""

    __slots__ = ("config", "handle", "idle", "last", "last_samples")

    def __init__(self, config: Config | None, handle: Any) -> None:
        super().__init__()
        self.config = config  # None: merged from several closed ones
        self.handle = handle
        self.idle = False
        self.last: _Snapshot | None = None  # taken when it was closed; None: it is open
        # (number of the first one, records) of samples that were not logged when it was closed.
        self.last_samples = (0, np.empty(0, SAMPLE_DTYPE))

    def read(self) -> _Snapshot:
        """Counters and records as of now. Thread-safe."""
        if self.last is None:
            try:
                handle = self.handle
                return _Snapshot(handle.stats(), native_steps(handle), slow_samples_of(handle))
            except ValueError:  # closed by another thread or the garbage collector
                pass
        assert self.last is not None
        return self.last

    def counters(self) -> dict[str, Any]:
        """The counters without the records, which are a few megabytes."""
        if self.last is None:
            try:
                counters: dict[str, Any] = self.handle.stats()
                return counters
            except ValueError:
                pass
        assert self.last is not None
        return self.last.counters

    def slow_samples(self) -> list[SlowSample]:
        """The slowest samples, without counters and steps."""
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
        """Whether all records of this closed native loader are in the log."""
        assert self.last is not None
        return not len(self.unlogged_steps()) and not len(self.unlogged_samples()[1])

    def unlogged_steps(self) -> np.ndarray:
        if self.last is None:
            try:
                return native_steps(self.handle, self.logged_steps)
            except ValueError:  # closed by another thread
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
    """Keeps one idle native loader for the next epoch, and the counters of all native loaders.

    Thread-safe. Pickles and copies as an empty pool. The garbage collector may call release() at
    any point of the other methods; so release() takes no lock, and changes only the released entry.
    """

    def __init__(self) -> None:
        self.gpu = GpuStalls()
        self._pid = os.getpid()
        # Held while the list is replaced or an idle entry is acquired. Re-entrant for signal
        # handlers.
        self._lock = threading.RLock()
        # All native loaders ever opened; each one's counters are in here exactly once at any time.
        # The list is replaced, never modified, so that readers need no lock.
        self._entries: list[_Entry] = []
        self._diagnosing = threading.RLock()
        self._diagnostic: list[tuple[Config, Any]] = []

    def __reduce__(self) -> tuple[type[EnginePool], tuple[()]]:
        return (EnginePool, ())

    def acquire(self, config: Config, *, at_least: bool = False) -> tuple[Config, Any]:
        """Returns a native loader for a config, the idle one if it matches, and its own config. The
        caller must release() the native loader.

        Args:
            config: the config.
            at_least: a native loader with a larger batch size matches, too.
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
        # Close these before opening another one: together they might exceed the memory.
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
        """Stops a native loader and keeps it for the next epoch, or closes it. Does not raise."""
        if handle.pid != os.getpid():
            return
        peer_processes.end(id(handle))
        entry = next(entry for entry in self._entries if entry.handle is handle)
        try:
            handle.stop()
        except Exception:  # it can't be stopped, as reads hang in the kernel
            entry.close()
            return
        if any(other.idle for other in self._entries):
            entry.close()
        else:
            entry.idle = True

    def fits(self, config: Config) -> bool:
        """Whether a native loader with this config is open, with any allocator."""
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
        """A small native loader for diagnostics: one thread, batch size 1; not in the counters.
        Used by one thread at a time; others wait."""
        self._forget_after_fork()
        config = Config(plan, n_samples, 1, n_threads=1, prefetch_batches=1, arrays=arrays)
        with self._diagnosing:
            if not self._diagnostic or self._diagnostic[0][0] != config:
                self._diagnostic = [(config, open_native(config))]
            yield self._diagnostic[0][1]

    def counters(self) -> dict[str, Any]:
        """The summed counters of this pool's native loaders in this process."""
        self._forget_after_fork()
        counters = sum_counters([entry.counters() for entry in self._entries])
        return {**counters, **self.gpu.counters()}

    def steps(self) -> np.ndarray:
        """The latest step records of all native loaders, one loader after the other."""
        self._forget_after_fork()
        steps = _join_steps([entry.read().steps for entry in self._entries])
        self.gpu.fill(steps)
        collectives.fill(steps)
        return steps

    def slow_samples(self) -> list[SlowSample]:
        """The slowest samples of all native loaders, each index once."""
        self._forget_after_fork()
        return join_slow_samples(entry.slow_samples() for entry in self._entries)

    def sources(self) -> list[Source]:
        self._forget_after_fork()
        return list(self._entries)

    def _with_closed_merged(self) -> list[_Entry]:
        """The entries, with the closed ones merged into one to keep the list short. Entries with
        records that are not logged yet stay separate."""
        closed = [
            entry
            for entry in self._entries
            if entry.last is not None and (entry.is_logged or not self.are_logged)
        ]
        if len(closed) < 2:
            return self._entries
        merged = _Entry(None, None)
        snapshots = [entry.last for entry in closed if entry.last is not None]
        merged.last = _Snapshot(
            sum_counters([one.counters for one in snapshots]),
            _join_steps([one.steps for one in snapshots]),
            join_slow_samples(one.slow_samples for one in snapshots),
        )
        merged.logged_steps = _ALL
        return [merged, *(entry for entry in self._entries if entry not in closed)]

    def forget(self) -> None:
        EnginePool.__init__(self)

    def _forget_after_fork(self) -> None:
        """Empties the pool in a forked child, where the parent's native loaders have no threads."""
        if self._pid != os.getpid():
            self.forget()


def _join_steps(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, STEP_DTYPE), *parts])[-KEPT_STEPS:]
