"""Which path a DataLoader takes, natively or torch's, and what stands behind it on each."""

from __future__ import annotations

import inspect
import os
import time
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader

from feedmill._dispatch import seed_warnings
from feedmill._dispatch.options import Options
from feedmill._dispatch.seed_warnings import kept_from_torch, mostly_by_pillow, without_effect
from feedmill._ops import native
from feedmill.collate.blocks import BlockPool
from feedmill.engine.cache import KeptCache
from feedmill.engine.config import Config, native_config
from feedmill.engine.devices import as_device, delivery_of, describe, device_of
from feedmill.engine.pool import EnginePool, budget_refusal
from feedmill.iterators import bad_samples
from feedmill.iterators.collating import AHEAD_IN_PROCESSES, AHEAD_IN_THREAD, HERE, collate_place
from feedmill.iterators.hybrid import HybridDataLoaderIter
from feedmill.iterators.native import NativeDataLoaderIter
from feedmill.planner.epochs import Epochs, rank_to_mix_in, sampler_epoch
from feedmill.planner.formats import formatting_collate
from feedmill.planner.recognise import has_default_collate, recognise
from feedmill.planner.samples import Source
from feedmill.planner.sampling import look_ahead_rule, never
from feedmill.profiling.counting.accounts import StepCounters
from feedmill.profiling.counting.sample_errors import SampleErrors
from feedmill.profiling.log.recorder import Recorder
from feedmill.profiling.report.stats import PythonCounters, Stats
from feedmill.profiling.report.verdict import OFF, ReportContext
from feedmill.profiling.watching.report_context import report_context_now
from feedmill.profiling.watching.torch_path import TorchCounters, count_steps
from feedmill.system import peer_processes
from feedmill.system.callers import place_of_caller
from feedmill.system.cpu_contention import decode_crowding, intra_op_crowding
from feedmill.system.host_metrics import Clock

# Decode threads that had no CPU for more than this share of their work had to share it.
_STARVED = 0.1


class LoaderState:
    """What a DataLoader has beside torch's attributes and its own options.

    It is one attribute, so that subclasses may name theirs as they like. Pickles and copies as a
    new one, but for the options and the number of the next epoch.

    Attributes:
        options: what the constructor got; None: it did not run.
        replay_counters: steps of replay(), which are not the loader's.
        clock: runs since the first iter().
        path, reasons: of the latest iter(), as in Stats.
        fitting: the latest configuration that the memory budget allowed.
        cache: of encoded files, for all native loaders.
        blocks, shared_blocks: memory of batches that are collated ahead of their turn, in a thread
            and in worker processes.
        sample_errors: samples that could not be loaded.
        iter_began_ns: when the latest iter() was called.
        before_epoch: the native loaders' counters before the latest native epoch.
        sampler_epoch: the epoch's number as a sampler knew it when that began, or None.
        warned_of: kinds of warnings that seed_warnings.py has given.
        loss_is_known: accelerated.py has warned that Accelerate loses the loader.
        recorder: writes the log, and samples the system.
    """

    def __init__(self, next_epoch: int = 0, options: Options | None = None) -> None:
        self.options = options
        self.handles = EnginePool()
        self.torch_counters = TorchCounters()
        self.python_counters = PythonCounters()
        self.replay_counters = StepCounters()
        self.epochs = Epochs(next_epoch)
        self.clock = Clock()
        self.path = "none"
        self.reasons: tuple[str, ...] = ()
        self.fitting: Config | None = None
        self.cache = KeptCache()
        self.blocks, self.shared_blocks = BlockPool(shared=False), BlockPool(shared=True)
        self.sample_errors = SampleErrors()
        self.iter_began_ns = 0
        self.before_epoch: dict[str, Any] = {}
        self.sampler_epoch: int | None = None
        self.warned_of: set[str] = set()
        self.loss_is_known = False
        self.recorder = Recorder(
            place_of_caller(), self.handles, self.torch_counters, self.python_counters, self.clock
        )

    def __reduce__(self) -> tuple[type[LoaderState], tuple[int, Options | None]]:
        return (LoaderState, (self.epochs.next_number, self.options))

    def took(self, path: str, reasons: list[str]) -> None:
        """Notes what iter() decided."""
        self.path, self.reasons = path, tuple(reasons)
        self.recorder.path, self.recorder.reasons = self.path, self.reasons

    def latest_epoch(self) -> dict[str, int]:
        """What the native loaders counted since the latest native epoch began."""
        return {
            name: value - self.before_epoch.get(name, 0)
            for name, value in self.handles.counters().items() if isinstance(value, int)
        }

    def begin_epoch(self, loader: Any) -> None:
        """iter() was called, or persistent workers begin another epoch."""
        self.clock.start()
        self.iter_began_ns = time.monotonic_ns()
        options = loader._feedmill_options()
        values = {name: getattr(loader, name, None) for name in _TORCH_SETTINGS} | options.values()
        del values["log"], values["log_samples"]
        settings = {name: _plain(value) for name, value in values.items()}
        self.recorder.begin(options.log, batch_size=loader.batch_size, settings=settings)


# What a log tells of a loader beside its options.
_TORCH_SETTINGS = (
    "num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "drop_last", "timeout",
)


def _plain(value: Any) -> Any:
    """For JSON."""
    return value if isinstance(value, str | int | float | None) else str(value)


# ---- the choice ----------------------------------------------------------------------------------


def look(loader: Any) -> Source | list[str]:
    """The samples for the native path as everything is now, or why not."""
    if loader._feedmill.options is None:
        kind = type(loader)
        return [f"{kind.__module__}.{kind.__qualname__} did not call the constructor of DataLoader"]
    options = loader._feedmill_options()
    options.check()
    if options.native == "off":
        return [OFF]
    source = recognise(loader)
    if isinstance(source, Source) and source.plan and options.native in ("auto", "hybrid"):
        if options.on_error != "raise":
            return source
        # Where the transform draws random numbers, they would change with the path.
        refusal = None if source.plan.is_random else mostly_by_pillow(loader)
        refusal = refusal or _budget_refusal(loader, source)
        return [refusal] if refusal else source
    return source


def choose(loader: Any) -> Source | list[str]:
    """What look() finds. RuntimeError if the native path is required, and can't be taken."""
    source = look(loader)
    if why := bad_samples.refusal(loader):
        raise ValueError(why)
    options = loader._feedmill_options()
    asks = None
    if options.native in ("require", "verify"):
        asks = f"native={options.native!r}"
    elif options.on_error != "raise":
        asks = f"on_error={options.on_error!r}"
        if not isinstance(source, list) and not source.plan:
            source = list(source.reasons)  # hybrid
    if isinstance(source, list) and asks:
        reasons = "".join(f"\n  - {reason}" for reason in source)
        raise RuntimeError(f"{asks}, but the native path can't be taken:{reasons}")
    return source


def _budget_refusal(loader: Any, source: Source) -> str | None:
    """Asked before an iterator draws a random number: torch's path must find them untouched."""
    inside = loader._feedmill
    config = native_config(loader, source, n_threads(loader))
    if config == inside.fitting or inside.handles.fits(config):
        return None
    refusal = budget_refusal(config)
    if refusal is None:
        inside.fitting = config
    return refusal


def n_threads(loader: Any) -> int:
    """Decode threads of the native path, with the processes of now on the same CPUs."""
    threads: int | None = loader._feedmill_options().threads
    if threads is not None:
        return threads
    usable = native.usable_cpus()
    n_workers: int = loader.num_workers
    if n_workers > 0:
        return max(1, min(n_workers, usable))
    # Other ranks are among the processes that are seen as soon as they decode.
    n_processes = max(_local_world_size(), 1 + len(peer_processes.sharers()))
    return max(1, usable // n_processes - 1)


def _local_world_size() -> int:
    """Processes that share this host, as torchrun says."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, int(text)) if text.isdecimal() else 1


# ---- iterators -----------------------------------------------------------------------------------


def make_iterator(loader: Any) -> Any:
    """A new iterator of the loader, on the path that it takes now."""
    return _iterator_of(loader, _begin_epoch(loader))


def _begin_epoch(loader: Any) -> Source | list[str]:
    """What runs in an epoch that iter(), or a reset of persistent workers, begins: as choose()."""
    loader._feedmill.begin_epoch(loader)
    source = choose(loader)
    seed_warnings.warn(loader, source)
    return source


def _iterator_of(loader: Any, source: Source | list[str]) -> Any:
    if isinstance(source, list):
        return torch_iterator(loader, source)
    return native_iterator(loader, source) if source.plan else hybrid_iterator(loader, source)


def hybrid_iterator(loader: Any, source: Source) -> Any:
    if loader.num_workers > 0:
        loader.check_worker_number_rationality()
    is_default = has_default_collate(loader)
    iterator = HybridDataLoaderIter(
        loader, source, n_threads(loader), is_default, _goes_on_in_hybrid
    )
    loader._feedmill.took("hybrid", source.reasons)
    return iterator


def _goes_on_in_hybrid(loader: Any) -> Source | None:
    """At a reset of a hybrid iterator with persistent workers: what the next epoch runs."""
    source = _begin_epoch(loader)
    if isinstance(source, list) or source.plan:
        loader._iterator = _iterator_of(loader, source)  # as below
        return None
    loader._feedmill.took("hybrid", source.reasons)
    return source


def native_iterator(loader: Any, source: Source) -> Any:
    if loader.num_workers > 0:
        loader.check_worker_number_rationality()
    config = native_config(loader, source, n_threads(loader))
    before = loader._feedmill.handles.counters()
    iterator = NativeDataLoaderIter(loader, source, config, _goes_on_natively)
    loader._feedmill.took("native", [])
    loader._feedmill.before_epoch = before
    return iterator


def _goes_on_natively(loader: Any) -> tuple[Source, Config] | None:
    """At a reset of a native iterator with persistent workers: what the next epoch runs."""
    source = _begin_epoch(loader)
    if isinstance(source, list) or not source.plan:
        # DataLoader.__iter__() returns this attribute right after the reset.
        loader._iterator = _iterator_of(loader, source)
        return None
    loader._feedmill.took("native", [])
    loader._feedmill.before_epoch = loader._feedmill.handles.counters()
    return source, native_config(loader, source, n_threads(loader))


def torch_iterator(loader: Any, reasons: list[str]) -> Any:
    loader._feedmill.took("torch", reasons)
    iterator = _formatted_iterator(loader)
    inside = loader._feedmill
    return count_steps(
        iterator, inside.torch_counters, _goes_on_with_torch, inside.recorder, delivery_of(loader)
    )


def _formatted_iterator(loader: Any) -> Any:
    """torch's iterator, with dtype= and memory_format= applied to what it gives."""
    collate_fn = loader.collate_fn
    formatting = formatting_collate(loader, has_default_collate(loader))
    if formatting is collate_fn:
        return TorchDataLoader._get_iterator(loader)
    # The iterator takes the function from the DataLoader when it is made, and never again.
    loader.collate_fn = formatting
    try:
        return TorchDataLoader._get_iterator(loader)
    finally:
        loader.collate_fn = collate_fn


def _goes_on_with_torch(loader: Any) -> bool:
    """At a reset of torch's persistent workers: whether they do the next epoch, too."""
    source = _begin_epoch(loader)
    if isinstance(source, list):
        loader._feedmill.took("torch", source)
        loader._iterator._delivery = delivery_of(loader)
        return True
    loader._iterator = _iterator_of(loader, source)  # as above
    return False


# ---- in words ------------------------------------------------------------------------------------


def explanation(loader: Any) -> str:
    """Text: the path that iter() would take now, and why."""
    source = look(loader)
    options = loader._feedmill_options()
    if isinstance(source, list):
        lines = ["torch's own path, because", *(f"  - {one}" for one in source)]
        if options.dtype is not None:
            lines.append(f"images are made {options.dtype} before collate_fn gets them")
        if options.memory_format is not torch.contiguous_format:
            lines.append(f"images of a batch get the strides of {options.memory_format}")
        if options.cache is not None:
            lines.append("cache= keeps nothing here: torch's path reads for itself")
        if options.seed is not None:
            lines.append(without_effect(loader, source))
        if (device := device_of(loader)) is not None:
            lines.append(f"batches are copied to {device} by torch, in the consumer's stream")
        lines += _names_that_are_no_options(loader)
        return "\n".join(lines)
    if not source.plan:
        return "\n".join(_hybrid_lines(loader, source))
    reader = options.reader if source.arrays is None else "none: the samples are in memory"
    if source.arrays is None and "FEEDMILL_READER" in os.environ:
        reader += f", FEEDMILL_READER={os.environ['FEEDMILL_READER']} overrides it"
    lines = [
        "native path",
        f"  dataset    {source.kind}, {source.n_samples:,} samples",
        f"  transform  {source.plan.describe()}",
        f"  threads    {n_threads(loader)} decode threads ({_why_threads(loader)})",
        f"  reader     {reader}",
        *_cache_line(loader),
        *_device_line(loader),
        f"  errors     {_describe_errors(loader)}",
        f"  random     {_describe_seed(loader)}",
    ]
    notes = [*source.notes, *_notes(loader)]
    if source.plan.is_random and (text := kept_from_torch(loader)):
        notes.append(text)
    return "\n".join([*lines, *(f"  note       {text}" for text in notes)])


def _hybrid_lines(loader: Any, source: Source) -> list[str]:
    lines = [
        "hybrid: JPEGs are decoded natively, and the transform called in threads, because",
        *(f"  - {one}" for one in source.reasons),
        f"  dataset    {source.kind}, {source.n_samples:,} samples",
        f"  threads    {n_threads(loader)} ({_why_threads(loader)})",
        "  random     the transform draws from this process's generators, in whatever order the "
        "threads ask: no seed fixes that",
    ]
    options = loader._feedmill_options()
    if options.seed is not None:
        lines.append(f"  note       {without_effect(loader, source)}")
    if options.cache is not None:
        lines.append("  cache      keeps nothing: the threads read for themselves")
    if (device := device_of(loader)) is not None:
        lines.append(f"  device     {device}: copied by torch, in the consumer's stream")
    lines += [f"  note       {text}" for text in _names_that_are_no_options(loader)]
    return lines


def _cache_line(loader: Any) -> list[str]:
    cache = loader._feedmill_options().cache
    if cache is None:
        return []
    return [f"  cache      {cache}: encoded files, over all epochs of this loader"]


def _device_line(loader: Any) -> list[str]:
    device = device_of(loader)
    return [] if device is None else [f"  device     {describe(loader, device)}"]


def crowding(stats: Stats) -> tuple[str, str]:
    """CPU contention with the feedmill processes that run now, as cpu_contention.py describes it:
    (of decode threads, of torch's own threads), "" where there is none.

    torch's own threads are mentioned only where the decode threads were seen to wait for a CPU.
    """
    if not stats.decode.n_threads:
        return "", ""
    n_usable = native.usable_cpus()
    me = peer_processes.myself()
    me = replace(me, n_threads=max(stats.decode.n_threads, me.n_threads))
    texts = decode_crowding([me, *peer_processes.others()], me.cpus, n_usable)
    pool = intra_op_crowding(me, n_usable) if stats.decode.starved_share > _STARVED else []
    return "".join(texts), "".join(pool)


def around(loader: Any, stats: Stats) -> ReportContext:
    """What the loader's report says beside its counters."""
    waits_for_next = look_ahead_rule(loader._index_sampler) is never and loader.num_workers == 0
    crowded, pool = crowding(stats)
    now = report_context_now(loader)
    if as_device(loader._feedmill_options().device) is not None:
        now = replace(now, pin_memory=True)  # what goes there is pinned whatever was asked for
    return replace(now, crowded=crowded, pool=pool, looks_ahead=not waits_for_next)


_COLLATE_NOTES = {
    HERE: "collate_fn is called on the thread that asks for the batch, as num_workers is 0",
    AHEAD_IN_THREAD: "collate_fn is called ahead of the batch's turn, in a thread of this process: "
    "its code draws no random number and uses no global state",
    AHEAD_IN_PROCESSES: "collate_fn is called ahead of the batch's turn, in {} worker processes "
    "that get the native samples through shared memory",
}


def _notes(loader: Any) -> list[str]:
    """What differs from torch's path without changing a batch."""
    notes = _names_that_are_no_options(loader)
    options = loader._feedmill_options()
    if options.native == "verify":
        notes.append("every sample is made a second time by the dataset itself, and compared")
    if not has_default_collate(loader):
        notes.append(_COLLATE_NOTES[collate_place(loader)].format(loader.num_workers))
    if loader.worker_init_fn is not None and loader.num_workers > 0:
        ignored = options.worker_init == "ignore"
        how = "not called, as asked" if ignored else "called for a collate_fn only"
        notes.append(f"worker_init_fn is {how}{'' if ignored else ': it only seeds generators'}")
    if loader.multiprocessing_context is not None:
        notes.append("multiprocessing_context is not used: there are no worker processes")
    if not getattr(loader, "in_order", True):
        notes.append("in_order=False: batches come in order anyway")
    return notes


def _names_that_are_no_options(loader: Any) -> list[str]:
    """For an object of a subclass: attributes that have options' names and other values."""
    notes = []
    for name, value in loader._feedmill_options().values().items():
        own = inspect.getattr_static(loader, name, value)
        if own is not value:
            notes.append(
                f"{name} is an attribute of {type(loader).__name__}'s own; the option is "
                f"{name}={value!r}, as the constructor got it"
            )
    return notes


def _why_threads(loader: Any) -> str:
    if loader._feedmill_options().threads is not None:
        return "threads="
    usable = native.usable_cpus()
    if loader.num_workers > 0:
        return f"num_workers={loader.num_workers}, {usable} usable CPUs"
    text = f"num_workers=0, {usable} usable CPUs, LOCAL_WORLD_SIZE {_local_world_size()}"
    sharers = peer_processes.sharers()
    if not sharers:
        return text
    pids = ", ".join(str(one.pid) for one in sharers[:4])
    more = ", ..." if len(sharers) > 4 else ""
    return f"{text}, {1 + len(sharers)} feedmill processes: this one and pids {pids}{more}"


def _describe_errors(loader: Any) -> str:
    how = "raw" if loader.num_workers == 0 else "as from a worker process"
    options = loader._feedmill_options()
    if options.on_error == "raise":
        return how
    return (
        f"on_error={options.on_error!r} for samples that can't be loaded, {options.max_errors:,} "
        f"an epoch at most; others {how}"
    )


def _describe_seed(loader: Any) -> str:
    seed = loader._feedmill_options().seed
    if seed is None:
        text = "seed=None: keyed by the base_seed that each iter() draws from torch's generator"
    elif sampler_epoch(loader) is not None:
        text = (
            f"seed={seed}, epoch from the sampler's `epoch`, now {sampler_epoch(loader)}, "
            "which set_epoch() moves"
        )
    else:
        number = loader._feedmill.epochs.next_number
        text = f"seed={seed}, epochs counted from {number} at the next iter()"
    if rank := rank_to_mix_in(loader):
        text += f"; rank {rank} is mixed in, as the sampler is no DistributedSampler"
    return text + "; torch's own augmentation stream can't be reproduced"
