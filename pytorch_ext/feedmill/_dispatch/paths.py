"""Chooses a DataLoader's path (native, hybrid, torch's), and makes its iterators."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset

from feedmill._dispatch import resuming, seed_warnings
from feedmill._dispatch.options import Options
from feedmill._dispatch.seed_warnings import mostly_by_pillow
from feedmill._dispatch.torch_random import reasons_against
from feedmill._dispatch.torch_workers import needs_new_iterator
from feedmill._ops import native
from feedmill.collate.blocks import BlockPool
from feedmill.engine.cache import KeptCache
from feedmill.engine.config import Config, native_config
from feedmill.engine.devices import as_device, delivery_of
from feedmill.engine.pool import EnginePool, budget_refusal
from feedmill.iterators import bad_samples
from feedmill.iterators.deferring import (
    DeferredCounters,
    is_possible,
    make_deferring,
)
from feedmill.iterators.hybrid import HybridDataLoaderIter
from feedmill.iterators.native import NativeDataLoaderIter
from feedmill.iterators.streaming import StreamDataLoaderIter
from feedmill.planner.epochs import Epochs
from feedmill.planner.formats import formatting_collate
from feedmill.planner.progress import Progress
from feedmill.planner.recognise import has_default_collate, recognise
from feedmill.planner.sample_streams import SampleStream
from feedmill.planner.samples import Source, Support, unsupported
from feedmill.planner.sampling import never, pull_ahead_rule
from feedmill.profiling.counting.accounts import StepCounters
from feedmill.profiling.counting.sample_errors import SampleErrors
from feedmill.profiling.log.recorder import Recorder
from feedmill.profiling.report.stats import PythonCounters, Stats
from feedmill.profiling.report.verdict import OFF, ReportContext
from feedmill.profiling.watching.report_context import report_context_now
from feedmill.profiling.watching.torch_path import TorchCounters, count_steps
from feedmill.system import peer_processes
from feedmill.system.callers import caller_location
from feedmill.system.cpu_contention import decode_thread_contention, intra_op_contention
from feedmill.system.host_metrics import Clock

# Decode threads compete for CPUs if they waited for one for more than this share of their work.
_STARVED = 0.1


class LoaderState:
    """The state of a feedmill.DataLoader, in its single attribute ``_feedmill``.

    A single attribute leaves all other names to subclasses. A pickled or copied state keeps only
    the options, the number of the next epoch and a loaded state that waits for the next iter().

    Attributes:
        options: the constructor's options; None if the constructor did not run.
        engine_pool: the native loaders (engines) of this DataLoader, with their counters.
        torch_counters, python_counters: counters of torch's path, and of the Python code around the
            native loaders.
        deferred_counters: counters of deferred images on torch's path.
        replay_counters: counters of replay(), which do not count as the loader's.
        epochs: numbers and random keys of the epochs.
        clock: runs since the first iter().
        path, reasons: of the latest iter(), as in Stats.
        fitting: the latest configuration that fitted in the memory budget.
        tried_source: the samples of the latest trial for rng="torch", and why the native path can't
            draw for them, or "".
        cache: encoded files, shared by all native loaders.
        blocks, shared_blocks: memory of batches that are collated ahead of their turn, in a thread
            or in worker processes.
        sample_errors: samples that could not be loaded.
        iter_began_ns: when the latest iter() was called, on the monotonic clock.
        before_epoch: the native loaders' counters before the latest native epoch.
        sampler_epoch: the sampler's epoch when the latest native epoch began, or None.
        position: where the loader is, for state_dict().
        progress: of the epoch that runs, or is being begun.
        lent_sampler: in the place of the loader's index sampler, while torch's constructor makes an
            iterator.
        warned_of: kinds of warnings that seed_warnings.py has issued.
        loss_is_known: integrations/accelerate.py has warned that Accelerate drops this loader.
        recorder: writes the log, and samples system metrics.
    """

    progress: Progress  # of the latest epoch

    def __init__(
        self, next_epoch: int = 0, options: Options | None = None, loaded: Any = None
    ) -> None:
        self.options = options
        self.engine_pool = EnginePool()
        self.python_counters = PythonCounters()
        self.deferred_counters = DeferredCounters()
        self.torch_counters = TorchCounters(self.deferred_counters)
        self.replay_counters = StepCounters()
        self.epochs = Epochs(next_epoch)
        self.clock = Clock()
        self.path = "none"
        self.reasons: tuple[str, ...] = ()
        self.fitting: Config | None = None
        self.tried_source: tuple[Source, str] | None = None
        self.cache = KeptCache()
        self.blocks, self.shared_blocks = BlockPool(shared=False), BlockPool(shared=True)
        self.sample_errors = SampleErrors()
        self.iter_began_ns = 0
        self.before_epoch: dict[str, Any] = {}
        self.sampler_epoch: int | None = None
        self.warned_of: set[str] = set()
        self.position = resuming.Position(loaded)
        self.lent_sampler: Any = None
        self.loss_is_known = False
        self.recorder = Recorder(
            caller_location(), self.engine_pool, self.torch_counters, self.python_counters,
            self.clock,
        )

    def __reduce__(self) -> tuple[type[LoaderState], tuple[int, Options | None, Any]]:
        return (LoaderState, (self.epochs.next_number, self.options, self.position.loaded))

    def took(self, path: str, reasons: Sequence[str]) -> None:
        """Records the path that iter() chose."""
        self.path, self.reasons = path, tuple(reasons)
        self.recorder.path, self.recorder.reasons = self.path, self.reasons

    def latest_epoch(self) -> dict[str, int]:
        """The native loaders' counters since the latest native epoch began."""
        return {
            name: value - self.before_epoch.get(name, 0)
            for name, value in self.engine_pool.counters().items() if isinstance(value, int)
        }

    def begin_epoch(self, loader: Any) -> None:
        """Called at iter(), and when persistent workers begin another epoch."""
        self.clock.start()
        self.iter_began_ns = time.monotonic_ns()
        self.recorder.begin(loader._feedmill_options().log, lambda: _facts(loader))


# Arguments of torch's that the log records beside the options.
_TORCH_SETTINGS = (
    "num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "drop_last", "timeout",
)


def _facts(loader: Any) -> dict[str, Any]:
    """What the log says of a loader."""
    values = {name: getattr(loader, name, None) for name in _TORCH_SETTINGS}
    values |= loader._feedmill_options().values()
    del values["log"], values["log_samples"]
    settings = {name: _json_value(value) for name, value in values.items()}
    return {"batch_size": loader.batch_size, "settings": settings}


def _json_value(value: Any) -> Any:
    return value if isinstance(value, str | int | float | None) else str(value)


# ---- the choice ----------------------------------------------------------------------------------


def look(loader: Any) -> Support:
    """Returns the samples for the native path, or the reasons against it, as of now."""
    if loader._feedmill.options is None:
        kind = type(loader)
        name = f"{kind.__module__}.{kind.__qualname__}"
        return unsupported(f"{name} did not call the constructor of DataLoader")
    options = loader._feedmill_options()
    options.check()
    if options.native == "off":
        return unsupported(OFF)
    support = recognise(loader)
    source = support.source
    if source is not None and loader._feedmill_draws_as_torch():
        if not source.plan:
            return unsupported(*support.reasons, "rng='torch': hybrid mode draws in another order")
        if reasons := reasons_against(loader, source):
            return unsupported(*reasons)
    if source is not None and source.plan and options.native in ("auto", "hybrid"):
        if options.on_error != "raise":
            return support
        # A random transform must stay on its path where the paths' random numbers differ.
        # So must one whose generators persistent workers keep.
        is_torchs = loader._feedmill_draws_as_torch() and not loader.persistent_workers
        must_stay = source.plan.is_random and not is_torchs
        refusal = None if must_stay else mostly_by_pillow(loader)
        refusal = refusal or _budget_refusal(loader, source)
        return unsupported(refusal) if refusal else support
    return support


def choose(loader: Any) -> Support:
    """look(), with the checks of native= and on_error=.

    Raises:
        RuntimeError: an option requires the native path, and it is not possible.
        ValueError: on_error= does not go with the sampler or another option.
    """
    support = look(loader)
    if why := bad_samples.refusal(loader):
        raise ValueError(why)
    options = loader._feedmill_options()
    requirement = None
    if options.native in ("require", "verify"):
        requirement = f"native={options.native!r}"
    elif options.on_error != "raise":
        requirement = f"on_error={options.on_error!r}"
    if requirement and support.path != "native":
        reasons = "".join(f"\n  - {reason}" for reason in support.reasons)
        raise RuntimeError(f"{requirement}, but the native path can't be taken:{reasons}")
    return support


def _budget_refusal(loader: Any, source: Source) -> str | None:
    """Why the memory budget is too small for the native path; None if it suffices.

    Must be called before an iterator draws a random number: torch's path must start from the same
    state of the generator.
    """
    state = loader._feedmill
    config = _config_of(loader, source)
    if config == state.fitting or state.engine_pool.fits(config):
        return None
    refusal = budget_refusal(config)
    if refusal is None:
        state.fitting = config
    return refusal


def n_threads(loader: Any) -> int:
    """Number of decode threads on the native path. With threads=None and num_workers=0 it depends
    on the processes that use the same CPUs now."""
    threads: int | None = loader._feedmill_options().threads
    if threads is not None:
        return threads
    usable = native.usable_cpus()
    n_workers: int = loader.num_workers
    if n_workers > 0:
        return max(1, min(n_workers, usable))
    # max(), not a sum: recent_peers() finds the other ranks, too, once they decode.
    n_processes = max(local_world_size(), 1 + len(peer_processes.recent_peers()))
    return max(1, usable // n_processes - 1)


def local_world_size() -> int:
    """Number of ranks on this host, as set by torchrun; 1 by default."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, int(text)) if text.isdecimal() else 1


# ---- iterators -----------------------------------------------------------------------------------


def make_iterator(loader: Any) -> Any:
    """Makes an iterator for the path that the loader takes now."""
    return _iterator_of(loader, _begin_epoch(loader))


def _begin_epoch(loader: Any) -> Support:
    """Begins an epoch, at iter() or at a reset of persistent workers; returns choose()."""
    loader._feedmill.begin_epoch(loader)
    support = choose(loader)
    seed_warnings.warn(loader, support)
    return support


def _next_epoch(loader: Any, path: str) -> Support | None:
    """Called when persistent workers are reset: what the next epoch runs, as choose() returns it.

    None if that needs a new iterator: it takes another path than ``path``, that of the iterator
    which is reset, or begins with loaded generators. ``loader._iterator`` is then the new one,
    which DataLoader.__iter__() returns right after the reset.
    """
    support = _begin_epoch(loader)
    if support.path != path or needs_new_iterator(loader, support):
        loader._iterator = _iterator_of(loader, support)
        return None
    resuming.begin(loader, support)
    loader._feedmill.took(path, support.reasons)
    return support


def _iterator_of(loader: Any, support: Support) -> Any:
    with resuming.making_iterator(loader, support) as progress:
        if support.source is None:
            is_possible = not loader._feedmill.position.refusal
            with progress.lent_by(loader) if is_possible else nullcontext():
                iterator = torch_iterator(loader, support.reasons)
            resuming.finish(iterator, progress)
            return iterator
        if support.path == "hybrid":
            return hybrid_iterator(loader, support.source, support.reasons)
        return native_iterator(loader, support.source)


def state_dict(loader: Any) -> dict[str, Any]:
    """See DataLoader.state_dict()."""
    support = loader._feedmill.position.support
    return resuming.state_dict(loader, look(loader) if support is None else support)


def load_state_dict(loader: Any, state: Any, strict: bool, caller: str) -> None:
    """See DataLoader.load_state_dict(). ``caller``: the name of the module that calls it."""
    resuming.load_state_dict(loader, state, strict, look(loader), caller)


def run_lines(loader: Any) -> list[str]:
    """Lines of report() about the run that a loaded state began."""
    lines: list[str] = loader._feedmill.position.totals.lines(resuming.counters_of(loader))
    return lines


def hybrid_iterator(loader: Any, source: Source, reasons: Sequence[str]) -> Any:
    if loader.num_workers > 0:
        loader.check_worker_number_rationality()
    is_default = has_default_collate(loader)
    iterator = HybridDataLoaderIter(
        loader, source, n_threads(loader), is_default, _next_hybrid_epoch
    )
    loader._feedmill.took("hybrid", reasons)
    return iterator


def _next_hybrid_epoch(loader: Any) -> Source | None:
    support = _next_epoch(loader, "hybrid")
    return support.source if support is not None else None


def native_iterator(loader: Any, source: Source) -> Any:
    if loader.num_workers > 0:
        loader.check_worker_number_rationality()
    config = _config_of(loader, source)
    before = loader._feedmill.engine_pool.counters()
    kind = StreamDataLoaderIter if isinstance(source, SampleStream) else NativeDataLoaderIter
    iterator = kind(loader, source, config, _next_native_epoch)
    loader._feedmill.took("native", [])
    loader._feedmill.before_epoch = before
    return iterator


def _next_native_epoch(loader: Any) -> tuple[Source, Config] | None:
    support = _next_epoch(loader, "native")
    if support is None or support.source is None:
        return None
    loader._feedmill.before_epoch = loader._feedmill.engine_pool.counters()
    return support.source, _config_of(loader, support.source)


def _config_of(loader: Any, source: Source) -> Config:
    return native_config(loader, source, n_threads(loader))


def torch_iterator(loader: Any, reasons: Sequence[str]) -> Any:
    loader._feedmill.took("torch", reasons)
    iterator = _formatted_iterator(loader)
    state = loader._feedmill
    return count_steps(
        iterator, state.torch_counters, _next_torch_epoch, state.recorder, delivery_of(loader)
    )


def _next_torch_epoch(loader: Any) -> bool:
    if _next_epoch(loader, "torch") is None:
        return False
    loader._iterator._delivery = delivery_of(loader)
    if loader._iterator._progress is not None:
        loader._iterator._progress = loader._feedmill.progress
    return True


def _formatted_iterator(loader: Any) -> Any:
    """torch's iterator, with dtype= and memory_format= applied to its batches."""
    collate_fn = loader.collate_fn
    formatting = formatting_collate(loader, has_default_collate(loader))
    if formatting is collate_fn:
        return _plain_iterator(loader)
    # The iterator reads the attribute once, when it is made.
    loader.collate_fn = formatting
    try:
        return _plain_iterator(loader)
    finally:
        loader.collate_fn = collate_fn


def _plain_iterator(loader: Any) -> Any:
    """torch's iterator, whose dataset gets deferred images, and whose workers hand over batches in
    reused memory, unless that is switched off."""
    make_iterator = functools.partial(TorchDataLoader._get_iterator, loader)
    deferred = loader._feedmill_options().deferred
    if deferred == "off" or not is_possible():
        return make_iterator()
    if deferred == "verify" and isinstance(loader.dataset, IterableDataset):
        raise ValueError(
            "deferred='verify' makes each sample a second time, which is not possible with an "
            "IterableDataset: set deferred='auto' or 'off'"
        )
    account = loader._feedmill.deferred_counters
    return make_deferring(
        make_iterator, loader.dataset, loader.num_workers, account, deferred == "verify"
    )


# ---- report() ----------------------------------------------------------------------------------


def contention(stats: Stats) -> tuple[str, str]:
    """Texts about CPU contention with the feedmill processes that run now: (of decode threads, of
    torch's intra-op threads), each "" if there is none.

    The second text is given only if decode threads were seen waiting for a CPU.
    """
    if not stats.decode.n_threads:
        return "", ""
    n_usable = native.usable_cpus()
    me = peer_processes.this_process()
    me = replace(me, n_threads=max(stats.decode.n_threads, me.n_threads))
    texts = decode_thread_contention([me, *peer_processes.others()], me.cpus, n_usable)
    is_starved = stats.decode.starved_share > _STARVED
    intra_op_texts = intra_op_contention(me, n_usable) if is_starved else []
    return "".join(texts), "".join(intra_op_texts)


def report_context(loader: Any, stats: Stats) -> ReportContext:
    """What report() needs to know beside the counters: CPU contention, pinning, look-ahead."""
    waits_for_next = pull_ahead_rule(loader._index_sampler) is never and loader.num_workers == 0
    of_decode_threads, of_intra_op_threads = contention(stats)
    now = report_context_now(loader)
    if as_device(loader._feedmill_options().device) is not None:
        now = replace(now, pin_memory=True)  # copies to a GPU are always pinned
    return replace(
        now,
        decode_contention=of_decode_threads,
        intra_op_contention=of_intra_op_threads,
        looks_ahead=not waits_for_next,
    )
