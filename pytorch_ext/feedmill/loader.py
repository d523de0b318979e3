"""feedmill.DataLoader: torch's DataLoader with a native path."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DistributedSampler, Sampler
from torch.utils.data import DataLoader as TorchDataLoader

from feedmill._ops import native as native_module
from feedmill.handles import Config, Handles, budget_refusal
from feedmill.iterator import NativeDataLoaderIter, native_config
from feedmill.recognise import OP_NAMES, Plan, pillow_version, recognise
from feedmill.replay import Replay, check_regular, name_sample, write_sample
from feedmill.stats import KEPT_STEPS, OFF, Stats, sum_counters
from feedmill.torch_path import TorchCounters, count_steps

_NATIVE = ("auto", "require", "off")
_READERS = ("auto", "uring", "pread")
_MAX_THREADS = 1024
_KEPT_EPOCHS = 1000  # that draws() and fetch() know with seed=None
_WORD64, _WORD32 = (1 << 64) - 1, (1 << 32) - 1
# What torch's constructor takes; older versions lack some of the arguments.
_TORCH_ARGUMENTS = frozenset(inspect.signature(TorchDataLoader.__init__).parameters)


@dataclass(frozen=True)
class _Epoch:
    """The random key of an epoch, and what ran in it."""

    key: int
    word: int
    plan: Plan
    replay: Replay


class DataLoader(TorchDataLoader):
    """Loads batches of images natively, in place of ``torch.utils.data.DataLoader``.

    All of torch's arguments mean what they mean there. A dataset that is torchvision's ImageFolder
    with a ``transforms.Compose`` of Resize, CenterCrop, RandomResizedCrop, RandomHorizontalFlip,
    PILToTensor or ToTensor, ConvertImageDtype and Normalize runs natively: reading, decoding,
    transforming and batching happen in threads of this process, with the pixels that torchvision
    gives for the same random draws, bit for bit. Everything else takes torch's own path;
    ``explain()`` says which it is and why. Dataset and transforms are looked at anew at every
    iter(), so they may be changed between epochs.

    Batches are ``[images, targets]``: images (n, 3, height, width), torch.uint8 or torch.float32;
    targets as torch's default_collate makes them, for ImageFolder (n,) torch.int64. They belong to
    the caller for as long as he likes.

    Args:
        num_workers: natively the number of decode threads, at most the usable CPUs. 0, the
            default: the usable CPUs divided by LOCAL_WORLD_SIZE, less one, at least 1; errors then
            come raw, as from torch without workers.
        multiprocessing_context: accepted; natively there are no processes.
        in_order: natively batches are always in order.
        timeout: natively the clock starts at the request and starts anew when a batch's worth of
            samples has been finished behind it, as torch's does when any worker's batch arrives.
        native: "auto" (default): natively where the dataset is recognised, else torch's path.
            "require": RuntimeError with all reasons where it is not, here and at iter().
            "off": torch's path.
        seed: key of the random draws. None (default): that of torch, different in every epoch and
            run unless torch is seeded. An int: the draws of an image depend on the seed, the
            epoch's number, the image's index and how often the index came before in the epoch,
            and on nothing else. The epoch's number is ``sampler.epoch`` where the sampler has
            one, else it counts iter() calls from 0 or from what set_epoch() set.
        threads: decode threads, 1 to 1,024, in place of what num_workers gives. Default None.
        memory_budget: bytes for batches, read buffers and scratch; progressive images take up to
            80 MiB more a thread while they are decoded. Default None: a quarter of
            the memory that the process may use. Where three batches do not fit, native="auto"
            takes torch's path and "require" raises ValueError at iter().
        reader: "uring", "pread", or "auto" (default): io_uring where it can be had. The
            environment's FEEDMILL_READER overrides it.

    The last five are attributes too; a change counts from the next iter() on.

    Raises:
        ValueError, TypeError: as torch's constructor, and for a value outside of what is named
            above.
        RuntimeError: native="require", and it can't be.

    One thread at a time may iterate; stats() and report() may be called from any. A loader can be
    pickled, and used after a fork in both processes.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler | Iterable | None = None,
        batch_sampler: Sampler | Iterable | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        native: str = "auto",
        seed: int | None = None,
        threads: int | None = None,
        memory_budget: int | None = None,
        reader: str = "auto",
    ) -> None:
        self.native = native
        self.seed = seed
        self.threads = threads
        self.memory_budget = memory_budget
        self.reader = reader
        self._check_options()
        self._handles = Handles()
        self._torch_counters = TorchCounters()
        self._path = "none"
        self._reasons: tuple[str, ...] = ()
        self._next_epoch = 0
        self._epochs: dict[int, _Epoch] = {}
        self._fitting: Config | None = None  # the latest that the memory budget allowed
        newer = {"pin_memory_device": (pin_memory_device, ""), "in_order": (in_order, True)}
        for name, (value, default) in newer.items():
            if name not in _TORCH_ARGUMENTS and value != default:
                raise TypeError(f"torch {torch.__version__}'s DataLoader has no argument {name}")
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            **{name: value for name, (value, _) in newer.items() if name in _TORCH_ARGUMENTS},
        )
        if native == "require":
            self._plan_or_reasons()

    # ---- options ---------------------------------------------------------------------------------

    def _check_options(self) -> None:
        """Attributes may have been set to anything since the constructor looked at them."""
        for name, allowed in (("native", _NATIVE), ("reader", _READERS)):
            value = getattr(self, name)
            if type(value) is not str or value not in allowed:
                names = ", ".join(repr(one) for one in allowed)
                raise ValueError(f"{name} is {value!r}; it must be one of {names}")
        if self.seed is not None and type(self.seed) is not int:
            raise ValueError(f"seed is {self.seed!r}; it must be an int or None")
        if self.threads is not None and not _is_int(self.threads, 1, _MAX_THREADS):
            raise ValueError(
                f"threads is {self.threads!r}; it must be an int from 1 to {_MAX_THREADS} or None"
            )
        if self.memory_budget is not None and not _is_int(self.memory_budget, 1, _WORD64):
            raise ValueError(
                f"memory_budget is {self.memory_budget!r}; it must be a number of bytes (an int "
                "above 0) or None"
            )

    def _plan_or_reasons(self) -> Plan | list[str]:
        """The plan for the native path, or why not. RuntimeError if it is required."""
        plan = self._look()
        if isinstance(plan, list) and self.native == "require":
            reasons = "".join(f"\n  - {reason}" for reason in plan)
            raise RuntimeError(f"native='require', but the native path can't be taken:{reasons}")
        return plan

    def _look(self) -> Plan | list[str]:
        """The plan for the native path as everything is now, or why not."""
        self._check_options()
        if self.native == "off":
            return [OFF]
        plan = recognise(self)
        if isinstance(plan, Plan) and self.native == "auto":
            refusal = self._budget_refusal(plan)
            return [refusal] if refusal else plan
        return plan

    def _budget_refusal(self, plan: Plan) -> str | None:
        """Asked before an iterator draws a random number: torch's path must find them untouched."""
        config = native_config(self, plan)
        if config == self._fitting or self._handles.fits(config):
            return None
        refusal = budget_refusal(config)
        if refusal is None:
            self._fitting = config
        return refusal

    def _n_threads(self) -> int:
        if self.threads is not None:
            return self.threads
        usable = native_module.usable_cpus()
        if self.num_workers > 0:
            return max(1, min(self.num_workers, usable))
        return max(1, usable // _local_world_size() - 1)

    # ---- iteration -------------------------------------------------------------------------------

    def _get_iterator(self) -> Any:
        plan = self._plan_or_reasons()
        if isinstance(plan, list):
            return self._torch_iterator(plan)
        return self._native_iterator(plan)

    def _native_iterator(self, plan: Plan) -> Any:
        if self.num_workers > 0:
            self.check_worker_number_rationality()
        return NativeDataLoaderIter(self, plan)

    def _torch_iterator(self, reasons: list[str]) -> Any:
        self._path, self._reasons = "torch", tuple(reasons)
        return count_steps(super()._get_iterator(), self._torch_counters)

    def _begin_epoch(self, plan: Plan, base_seed: int, n_under_seed: int) -> tuple[int, int]:
        """The (key, epoch word) of an epoch that begins natively.

        Args:
            base_seed: what this iter() drew, as torch would for its workers.
            n_under_seed: epochs that ran under it before (persistent workers draw it once).
        """
        self._path, self._reasons = "native", ()
        number = self._next_epoch
        if self.seed is None:
            key, word = self._mix_rank(base_seed), n_under_seed
        else:
            sampler_epoch = self._sampler_epoch()
            number = number if sampler_epoch is None else sampler_epoch
            key, word = self._mix_rank(self.seed), number & _WORD32
        self._next_epoch = number + 1
        self._keep_epoch(number, _Epoch(key, word, plan, self._replay()))
        return key, word

    def _keep_epoch(self, number: int, epoch: _Epoch) -> None:
        latest = next(reversed(self._epochs.values()), None)
        if latest is not None and (latest.plan, latest.replay) == (epoch.plan, epoch.replay):
            epoch = replace(epoch, plan=latest.plan, replay=latest.replay)  # kept in memory once
        self._epochs.pop(number, None)
        self._epochs[number] = epoch
        while len(self._epochs) > _KEPT_EPOCHS:
            del self._epochs[next(iter(self._epochs))]

    def _replay(self) -> Replay:
        return Replay(self.dataset.loader, self.dataset.transform.transforms)

    def _samplers(self) -> list[Any]:
        inner = getattr(self.batch_sampler, "sampler", None)
        return [one for one in (self.sampler, self.batch_sampler, inner) if one is not None]

    def _sampler_epoch(self) -> int | None:
        for sampler in self._samplers():
            epoch = getattr(sampler, "epoch", None)
            if type(epoch) is int:
                return epoch
        return None

    def _rank(self) -> int:
        """This process's rank where its sampler may draw what another rank's draws, else 0."""
        distributed = torch.distributed
        if not distributed.is_available() or not distributed.is_initialized():
            return 0
        if any(isinstance(sampler, DistributedSampler) for sampler in self._samplers()):
            return 0
        return distributed.get_rank()

    def _mix_rank(self, key: int) -> int:
        rank = self._rank()
        return key & _WORD64 if rank == 0 else _mix64((key ^ _mix64(rank)) & _WORD64)

    def set_epoch(self, epoch: int) -> None:
        """Numbers the next iter()'s epoch; the following ones count on from there.

        With seed=int the number is part of the random draws: a resumed run sets it. With seed=None
        it is the epoch's name for draws() and fetch(). Passed on to the sampler where that has a
        set_epoch(), as DistributedSampler does.

        Args:
            epoch: from 0.
        """
        if not _is_int(epoch, 0, _WORD64):
            raise ValueError(f"epoch is {epoch!r}; it must be an int from 0")
        self._next_epoch = epoch
        for sampler in self._samplers():
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)

    # ---- what happened ---------------------------------------------------------------------------

    def stats(self) -> Stats:
        """Counters since this DataLoader was made, over all of its iterators."""
        counters = sum_counters([self._handles.counters(), self._torch_counters.counters()])
        steps = np.concatenate([self._handles.steps(), self._torch_counters.steps()])
        steps = steps[np.argsort(steps["request_ns"], kind="stable")][-KEPT_STEPS:]
        return Stats(path=self._path, reasons=self._reasons, steps=steps, **counters)

    def report(self) -> str:
        """stats() as text for a person; the first line is the verdict."""
        return self.stats().report()

    def explain(self) -> str:
        """Text: the path that iter() would take now, each reason why not the native one, and what
        threads, reader and random numbers will be."""
        plan = self._look()
        if isinstance(plan, list):
            return "\n".join(["torch's own path, because", *(f"  - {one}" for one in plan)])
        lines = [
            "native path",
            f"  dataset    ImageFolder, {len(self.dataset.samples):,} samples",
            f"  transform  {_describe(plan)}",
            f"  threads    {self._n_threads()} decode threads ({self._why_threads()})",
            f"  reader     {self.reader}"
            + (f", FEEDMILL_READER={os.environ['FEEDMILL_READER']} overrides it"
               if "FEEDMILL_READER" in os.environ else ""),
            f"  errors     {'raw' if self.num_workers == 0 else 'as from a worker process'}",
            f"  random     {self._describe_seed()}",
        ]
        notes = [
            (self.multiprocessing_context is not None,
             "multiprocessing_context is not used: there are no worker processes"),
            (not getattr(self, "in_order", True), "in_order=False: batches come in order anyway"),
        ]
        return "\n".join(lines + [f"  note       {text}" for holds, text in notes if holds])

    def _why_threads(self) -> str:
        if self.threads is not None:
            return "threads="
        usable = native_module.usable_cpus()
        if self.num_workers > 0:
            return f"num_workers={self.num_workers}, {usable} usable CPUs"
        return f"num_workers=0, {usable} usable CPUs, LOCAL_WORLD_SIZE {_local_world_size()}"

    def _describe_seed(self) -> str:
        if self.seed is None:
            text = "seed=None: keyed by the base_seed that each iter() draws from torch's generator"
        elif self._sampler_epoch() is not None:
            text = f"seed={self.seed}, epoch from the sampler's `epoch`"
        else:
            text = f"seed={self.seed}, epochs counted from {self._next_epoch} at the next iter()"
        if self._rank():
            text += f"; rank {self._rank()} is mixed in, as the sampler is no DistributedSampler"
        return text + "; torch's own augmentation stream can't be reproduced"

    # ---- diagnostics -----------------------------------------------------------------------------

    def draws(self, index: int, epoch: int, occurrence: int = 0) -> list[tuple[str, dict]]:
        """Diagnostic: the random draws of a sample, for each geometric transform in order.

        Such as ``("RandomResizedCrop", {"top": 3, "left": 0, "height": 90, "width": 120})``,
        ``("RandomHorizontalFlip", {"flip": True})``; in pixels of the image that the transform
        gets. Opens the file for its size.

        Args:
            index: dataset index.
            epoch: the epoch's number. With seed=None native iter() calls count from 0, or from
                what set_epoch() set, and the last 1,000 are known; with seed=int any number, as
                described there.
            occurrence: how often the index came before in that epoch.

        Raises:
            ValueError: seed=None and the epoch is not known, or bad arguments.
            RuntimeError: the dataset is not recognised.
            OSError and others: as Pillow, if it does not take the file.
        """
        from PIL import Image

        position, path, _ = self._sample(index)
        ran = self._epoch(epoch)
        handle = self._handles.diagnostic(ran.plan, len(self.dataset.samples))
        check_regular(path)
        with Image.open(path) as image:
            width, height = image.size
        draws = handle.draws(ran.key, ran.word, position, _occurrence(occurrence), width, height)
        return [(OP_NAMES[draw[0]], _draw_values(draw)) for draw in draws]

    def fetch(self, index: int, epoch: int, occurrence: int = 0) -> tuple[torch.Tensor, Any]:
        """Diagnostic: one sample as the loader delivers it: (image (3, height, width), target).

        After the epoch has run, exactly what was delivered in it. Slow: opens the file anew.
        Arguments and errors as for draws().
        """
        position, path, target = self._sample(index)
        occurrence = _occurrence(occurrence)
        ran = self._epoch(epoch)
        handle = self._handles.diagnostic(ran.plan, len(self.dataset.samples))
        handle.start(ran.key, ran.word)
        try:
            # The native loader counts how often an index came; only the last one matters.
            for _ in range(occurrence):
                handle.submit([position], [path])
                if handle.next(-1)[0] == native_module.FALLBACK:
                    handle.fallback_done(False)
                    handle.next(-1)
            handle.submit([position], [path])
            return self._finish_fetch(handle, ran, position, path), target
        finally:
            handle.stop()

    def _finish_fetch(self, handle: Any, ran: _Epoch, index: int, path: Any) -> torch.Tensor:
        outcome, payload, _ = handle.next(-1)
        if outcome == native_module.FALLBACK:
            _, occurrence, _, _, _, out, _ = handle.fallback()
            try:
                image = ran.replay(
                    path,
                    lambda width, height: handle.draws(
                        ran.key, ran.word, index, occurrence, width, height
                    ),
                )
                write_sample(image, out, handle.out_shape, ran.plan.dtype)
            except Exception as error:
                name_sample(error, index, path)
                raise
            handle.fallback_done(True)
            outcome, payload, _ = handle.next(-1)
        if outcome != native_module.OK:
            raise RuntimeError(f"sample {index} could not be loaded: {payload}")
        return torch.from_dlpack(payload)[0].clone()

    def _sample(self, index: int) -> tuple[int, Any, Any]:
        samples = getattr(self.dataset, "samples", ())
        n_samples = len(samples)
        if not _is_int(index, -n_samples, n_samples - 1):
            raise ValueError(f"index is {index!r}; the dataset has {n_samples} samples")
        return (index % n_samples, *samples[index])

    def _epoch(self, number: int) -> _Epoch:
        if not _is_int(number, 0, _WORD64):
            raise ValueError(f"epoch is {number!r}; it must be an int from 0")
        if number in self._epochs:
            return self._epochs[number]
        if self.seed is None:
            raise ValueError(
                f"epoch {number} has not run or is forgotten (known: {_ranges(self._epochs)}), and "
                "with seed=None its draws can't be told: give the DataLoader a seed"
            )
        plan = recognise(self)
        if isinstance(plan, list):
            raise RuntimeError(f"not on the native path: {'; '.join(plan)}")
        return _Epoch(self._mix_rank(self.seed), number & _WORD32, plan, self._replay())


# ---- helpers -------------------------------------------------------------------------------------


def _is_int(value: Any, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def _ranges(numbers: Iterable[int]) -> str:
    """Text such as "0 to 3, 7"; "none" if there are none."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts = [f"{first} to {last}" if first < last else str(first) for first, last in ranges]
    if len(texts) > 10:
        texts[5:-5] = ["..."]
    return ", ".join(texts) or "none"


def _occurrence(value: Any) -> int:
    if not _is_int(value, 0, _WORD32):
        raise ValueError(f"occurrence is {value!r}; it must be an int from 0")
    return value


def _local_world_size() -> int:
    """Processes that share this host, as torchrun says."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, int(text)) if text.isdecimal() else 1


def _mix64(value: int) -> int:
    """SplitMix64's finaliser: neighbouring values come out unrelated."""
    value = (value + 0x9E3779B97F4A7C15) & _WORD64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _WORD64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _WORD64
    return value ^ (value >> 31)


def _draw_values(draw: tuple[int, int, int, int, int, bool]) -> dict[str, Any]:
    kind, top, left, height, width, flip = draw
    name = OP_NAMES[kind]
    if name == "RandomHorizontalFlip":
        return {"flip": flip}
    if name == "Resize":
        return {"height": height, "width": width}
    return {"top": top, "left": left, "height": height, "width": width}


def _describe(plan: Plan) -> str:
    names = []
    for kind, height, width, max_size, *_ in plan.ops:
        size = f"({height}, {width})" if width else f"({height})" if height else ""
        names.append(OP_NAMES[kind] + size + (f" up to {max_size}" if max_size else ""))
    return (
        f"{' -> '.join([*names, plan.dtype])}; pixels as of Pillow {pillow_version()} (resize order "
        f"{plan.resize_order})"
    )
