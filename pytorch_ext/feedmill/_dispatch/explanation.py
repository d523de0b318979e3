"""The text that DataLoader.explain() returns."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from typing import Any

import torch

from feedmill._dispatch.paths import local_world_size, look, n_threads
from feedmill._dispatch.seed_warnings import kept_from_torch, without_effect
from feedmill._ops import native
from feedmill.engine.cache import parse
from feedmill.engine.devices import describe, device_of
from feedmill.iterators.collating import AHEAD_IN_PROCESSES, AHEAD_IN_THREAD, HERE, collate_place
from feedmill.iterators.deferring import is_possible, why_not, why_sent_by_torch
from feedmill.planner import seeding
from feedmill.planner.epochs import rank_to_mix_in, sampler_epoch
from feedmill.planner.files import probed
from feedmill.planner.recognise import has_default_collate, stacks_natively
from feedmill.planner.samples import Source
from feedmill.profiling.report.wording import decode_threads, usable_cpus
from feedmill.remote.by_fsspec import schemes_of
from feedmill.remote.names import is_fsspec_name, place_of
from feedmill.remote.settings import fsspec_threads
from feedmill.remote.sources import why_unreadable
from feedmill.system import peer_processes


class Explanation(str):
    """A str whose repr is the text itself: ``loader.explain()`` typed at the prompt of Python,
    IPython or a notebook shows its lines."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """For IPython, which does not ask for the repr of every class."""
        printer.text(str(self))


def explanation(loader: Any) -> str:
    """The text of explain(): the path that iter() would take now, and why."""
    support = look(loader)
    source = support.source
    options = loader._feedmill_options()
    if source is None:
        lines = ["torch's own path, because", *(f"  - {one}" for one in support.reasons)]
        lines += _deferred_lines(loader, support.reasons)
        lines += _network_lines([loader.dataset], "")
        if options.dtype is not None:
            lines.append(f"images are converted to {options.dtype} before collate_fn gets them")
        if options.memory_format is not torch.contiguous_format:
            lines.append(f"images of a batch get the strides of {options.memory_format}")
        if options.cache is not None:
            lines.append("cache= has no effect: torch's path reads files itself")
        if options.decode != "exact":
            lines.append("decode='scaled' has no effect: images are decoded exactly")
        if options.seed is not None:
            lines.append(without_effect(loader, support.path))
        if (device := device_of(loader)) is not None:
            lines.append(f"batches are copied to {device} by torch, in the consumer's stream")
        lines += _names_that_are_no_options(loader)
        return "\n".join(lines)
    if not source.plan:
        return "\n".join(_hybrid_lines(loader, source, support.reasons))
    reader = options.reader if source.arrays is None else "none: the samples are in memory"
    if source.arrays is None and "FEEDMILL_READER" in os.environ:
        reader += f", FEEDMILL_READER={os.environ['FEEDMILL_READER']} overrides it"
    lines = [
        "native path",
        f"  dataset    {source.kind}, {source.size}",
        f"  transform  {source.plan.describe()}",
        f"  threads    {decode_threads(n_threads(loader))} ({_why_threads(loader)})",
        f"  reader     {reader}",
        *_network_lines([one.dataset for one in source.base_datasets], "  network    ", True),
        *_cache_lines(loader, source),
        *_device_line(loader),
        f"  errors     {_describe_errors(loader)}",
        f"  random     {_describe_random(loader, source)}",
    ]
    notes = [*source.notes, *_notes(loader, source)]
    if source.plan.is_random and (text := kept_from_torch(loader)):
        notes.append(text)
    return "\n".join([*lines, *(f"  note       {text}" for text in notes)])


def _hybrid_lines(loader: Any, source: Source, reasons: Sequence[str]) -> list[str]:
    lines = [
        "hybrid: JPEGs are decoded natively, and the transform is called in threads, because",
        *(f"  - {one}" for one in reasons),
        f"  dataset    {source.kind}, {source.size}",
        *_network_lines([one.dataset for one in source.base_datasets], "  network    "),
        f"  threads    {n_threads(loader)} ({_why_threads(loader)})",
        "  random     the transform draws from this process's generators, in whatever order the "
        "threads run: not reproducible by a seed",
    ]
    options = loader._feedmill_options()
    if options.seed is not None:
        lines.append(f"  note       {without_effect(loader, 'hybrid')}")
    if options.cache is not None:
        lines.append("  cache      has no effect: native='hybrid' does not use it")
    if options.decode != "exact":
        lines.append("  note       decode='scaled' has no effect: images are decoded exactly")
    if (device := device_of(loader)) is not None:
        lines.append(f"  device     {device}: copied by torch, in the consumer's stream")
    lines += [f"  note       {text}" for text in _names_that_are_no_options(loader)]
    return lines


def _cache_lines(loader: Any, source: Source) -> list[str]:
    option = loader._feedmill_options().cache
    if option is None or (caches := parse(option)) is None:
        return []
    lines = []
    if caches.ram_bytes is not None:
        lines.append(f"  cache      {option.partition('+')[0]}: encoded files, over all epochs of "
                     "this loader")
    if caches.disk is not None and source.names_remote is False:
        lines.append(f"  cache      {caches.disk.path} has no effect: the disk cache is for "
                     "objects of stores and servers, and these are local files")
    elif caches.disk is not None:
        how = "asks the server about each" if caches.disk.check else (
            "objects are taken never to change under their names")
        lines.append(f"  cache      objects in {caches.disk.path}, also of later runs: {how}")
    return lines


def _network_lines(datasets: Sequence[Any], prefix: str, in_threads: bool = False) -> list[str]:
    """Lines about remote objects: those that feedmill's own datasets read, and those in the
    attribute ``paths`` of other datasets with feedmill_item.

    Args:
        in_threads: the native loader reads them; else the path's own workers or threads.
    """
    found: dict[str, str] = {}
    by_fsspec: dict[str, str] = {}
    for dataset in datasets:
        # A property would be the user's code, which explain() does not call.
        paths = getattr(dataset, "__dict__", {}).get("paths")
        if hasattr(type(dataset), "feedmill_sources"):
            paths = dataset.feedmill_sources()
        if hasattr(type(dataset), "feedmill_item") and type(paths) is list:
            for path in paths[probed(len(paths))]:
                if is_fsspec_name(path):
                    if (schemes := schemes_of(path)) not in by_fsspec:
                        by_fsspec[schemes] = why_unreadable(path)
                elif (place := place_of(path)) and place not in found:
                    found[place] = why_unreadable(path)
    names = [place for place, why in found.items() if not why]
    more = f", and {len(names) - 4} other places" if len(names) > 4 else ""
    lines = [f"{prefix}read over the network: {', '.join(names[:4])}{more}"] if names else []
    if schemes := ", ".join(one for one, why in by_fsspec.items() if not why):
        threads = f" in {fsspec_threads()} threads" if in_threads else ""
        lines.append(f"{prefix}read by fsspec ({schemes}){threads}")
    failing = {**found, **by_fsspec}.items()
    return lines + [f"{prefix}{place} can't be read: {why}" for place, why in failing if why]


def _device_line(loader: Any) -> list[str]:
    device = device_of(loader)
    return [] if device is None else [f"  device     {describe(loader, device)}"]


def _deferred_lines(loader: Any, reasons: Sequence[str]) -> list[str]:
    """Lines for explain() on torch's path, which is taken for these reasons."""
    deferred = loader._feedmill_options().deferred
    why = "deferred='off'" if deferred == "off" else why_not()
    verified = ", and each sample is verified" if deferred == "verify" else ""
    line = f"images that Pillow opens are decoded only as far as they are used{verified}"
    if why:
        line = f"images are not deferred: {'see above' if why in reasons else why}"
    if deferred == "off" or not is_possible() or not loader.num_workers:
        return [line]
    why = why_sent_by_torch()
    return [line, f"workers send batches as torch does: {why}"] if why else [line]


_COLLATE_NOTES = {
    HERE: "collate_fn is called on the thread that asks for the batch, as num_workers is 0",
    AHEAD_IN_THREAD: "collate_fn is called ahead of the batch's turn, in a thread of this process: "
    "its code draws no random number and uses no global state",
    AHEAD_IN_PROCESSES: "collate_fn is called ahead of the batch's turn, in {} worker processes "
    "that get the native samples through shared memory",
}


def _notes(loader: Any, source: Source) -> list[str]:
    """Notes for explain(): differences from torch's path that do not change a batch."""
    notes = _names_that_are_no_options(loader)
    options = loader._feedmill_options()
    if options.native == "verify":
        notes.append("every sample is made a second time by the dataset itself and compared")
    if options.decode == "scaled" and not getattr(source.plan, "decodes_scaled", False):
        notes.append("decode='scaled' has no effect: images are decoded exactly")
    place = collate_place(loader, source)
    if stacks_natively(loader, source) and not has_default_collate(loader):
        notes.append("collate_fn need not be called: native batches are what fast_collate makes")
    elif not has_default_collate(loader):
        is_here = loader._feedmill_draws_as_torch() and getattr(source.plan, "is_random", False)
        notes.append(
            "collate_fn is called on the thread that asks for the batch, with the generators of "
            "torch's worker" if is_here else _COLLATE_NOTES[place].format(loader.num_workers)
        )
    if loader.worker_init_fn is not None and loader.num_workers > 0:
        notes.append(f"worker_init_fn is {_use_of_worker_init(loader)}")
    if loader.multiprocessing_context is not None:
        is_used = place == AHEAD_IN_PROCESSES
        notes.append(
            "multiprocessing_context is used only for collate_fn's worker processes" if is_used
            else "multiprocessing_context is not used: there are no worker processes"
        )
    if not getattr(loader, "in_order", True):
        notes.append("in_order=False: batches come in order anyway")
    return notes


def _use_of_worker_init(loader: Any) -> str:
    if loader._feedmill_options().worker_init == "ignore":
        return "not called, as asked"
    if seeding.prints(loader):
        return "called for each worker, as it prints; otherwise it only seeds generators"
    return "called for a collate_fn only: it only seeds generators"


def _names_that_are_no_options(loader: Any) -> list[str]:
    """Notes about attributes of a subclass that have an option's name but another value."""
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
    usable = usable_cpus(native.usable_cpus())
    if loader.num_workers > 0:
        return f"num_workers={loader.num_workers}, {usable}"
    text = f"num_workers=0, {usable}, LOCAL_WORLD_SIZE {local_world_size()}"
    recent_peers = peer_processes.recent_peers()
    if not recent_peers:
        return text
    pids = ", ".join(str(one.pid) for one in recent_peers[:4])
    more = ", ..." if len(recent_peers) > 4 else ""
    return f"{text}, {1 + len(recent_peers)} feedmill processes: this one and pids {pids}{more}"


def _describe_errors(loader: Any) -> str:
    how = "raised unwrapped" if loader.num_workers == 0 else "raised as from a worker process"
    options = loader._feedmill_options()
    if options.on_error == "raise":
        return how
    return (
        f"on_error={options.on_error!r} for samples that can't be loaded, at most "
        f"{options.max_errors:,} per epoch; others {how}"
    )


def _describe_random(loader: Any, source: Source) -> str:
    if not loader._feedmill_draws_as_torch():
        return _describe_seed(loader)
    if not getattr(source.plan, "is_random", False):
        return "the transform draws no random numbers"
    if loader.num_workers == 0:
        return (
            "torch's: drawn from the process's own generators when a batch is requested, as "
            "torch.utils.data.DataLoader does; files are read ahead, but not decoded"
        )
    return (
        f"torch's: as {loader.num_workers} worker processes of torch draw them, from the base "
        "seed that each iter() draws; batches equal those of torch.utils.data.DataLoader"
    )


def _describe_seed(loader: Any) -> str:
    seed = loader._feedmill_options().seed
    if seed is None:
        text = "seed=None: made from the base seed that each iter() draws from torch's generator"
    elif sampler_epoch(loader) is not None:
        text = (
            f"seed={seed}, epoch from the sampler's `epoch`, now {sampler_epoch(loader)}, "
            "which set_epoch() sets"
        )
    else:
        number = loader._feedmill.epochs.next_number
        text = f"seed={seed}, epochs counted from {number} at the next iter()"
    if rank := rank_to_mix_in(loader):
        text += f"; rank {rank} is mixed in, as the sampler is no DistributedSampler"
    return text + "; the draws differ from those on torch's path"
