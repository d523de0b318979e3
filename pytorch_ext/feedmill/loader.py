"""feedmill.DataLoader: torch's DataLoader with a native path."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, Sampler

from feedmill._dispatch.explanation import Explanation
from feedmill._dispatch.options import OPTIONS, Options, is_int, names_taken, options_among
from feedmill._dispatch.paths import LoaderState, around, choose, explanation, make_iterator
from feedmill.engine.devices import check_device
from feedmill.integrations.accelerate import note_read
from feedmill.iterators.bad_samples import MAX_ERRORS
from feedmill.iterators.replay import Replay, costs
from feedmill.iterators.single_samples import draws_of_item, fetch_one
from feedmill.planner.epochs import Epoch, samplers_of
from feedmill.planner.samples import Item
from feedmill.profiling.counting.records import KEPT_STEPS
from feedmill.profiling.report.stats import Stats, sum_counters
from feedmill.profiling.report.targets import Limits

_WORD64, _WORD32 = (1 << 64) - 1, (1 << 32) - 1
_T_co = TypeVar("_T_co", covariant=True)


class _MadeWhenAsked:
    """The attribute _feedmill of a loader whose class has left out our constructor."""

    def __get__(self, loader: Any, kind: type | None = None) -> Any:
        return self if loader is None else vars(loader).setdefault("_feedmill", LoaderState())


class DataLoader(TorchDataLoader[_T_co]):
    """Loads batches of images natively, in place of ``torch.utils.data.DataLoader``.

    All of torch's arguments mean what they mean there. Natively, reading, decoding, transforming
    and batching happen in threads of this process, with the pixels that torchvision gives for the
    same random draws, bit for bit. That is taken where both are recognised:

    - the dataset: torchvision's ImageFolder, or DatasetFolder with the default loader; Subset and
      ConcatDataset of them, also nested; and any dataset with a method
      ``feedmill_item(index) -> (path or encoded bytes, target)`` beside its ``transform``, whose
      ``dataset[index]`` is then ``(transform(the image as RGB), target)``; in place of the path
      may stand ``(path, offset, bytes)``, a part of a file that stays open, or an exception, where
      it is known that there is no image: on_error has the say about it; in memory, and Subsets
      of them: torchvision's CIFAR10, CIFAR100, MNIST, FashionMNIST, KMNIST, EMNIST and SVHN, and
      torch's TensorDataset, whatever its tensors' shapes and types, with rows that are contiguous;
    - the transform: Resize, CenterCrop, RandomResizedCrop (any filter), RandomHorizontalFlip,
      ToTensor, PILToTensor, ToImage, ConvertImageDtype, ToDtype and Normalize, as
      torchvision.transforms or its v2 has them, alone or in Compose or nn.Sequential; it must lead
      from a PIL image to a tensor of one size, torch.uint8, float32, float16 or bfloat16.

    Everything else takes torch's own path; ``explain()`` says which it is and why. Dataset and
    transforms are looked at anew at every iter(), so they may be changed between epochs.

    Batches are ``[images, targets]``: images (n, 3, height, width) of the transform's type, or that
    of ``dtype``, with the strides of ``memory_format`` (torch's single samples of PILToTensor and
    ToImage are views with other strides); targets as torch's default_collate makes them, for
    ImageFolder (n,) torch.int64. They belong to the caller for as long as he likes.

    A dataset in memory is never copied as a whole: threads read its memory, ahead of a batch's
    turn, and a TensorDataset's batch has no images, but its tensors' rows. Where torch knows that
    one of those tensors was changed in place since its rows were read, they are read again at the
    batch's turn, as without workers. Changes of another kind (through NumPy, of images, of a
    Subset's indices) may or may not show in the epoch that runs; what iter() finds counts for it.
    Memory must not be taken away from a tensor meanwhile (Tensor.resize_()).

    feedmill_item is asked when an index is pulled, in this process and ahead of the batch's turn;
    it must draw no random number and not depend on when it is called.

    A collate_fn of the script's own gets the same list of samples as from torch, whose images lie
    in the native batch: one that is kept keeps the memory of all; clone() it. With num_workers=0 it
    is called on the thread that asks for the batch, and called again for its batch if a Ctrl-C
    interrupts it. With num_workers > 0 it is called ahead of the batch's turn. Where its bytecode
    shows that it draws no random number, uses no global state and changes nothing in place, that is
    in a thread of this process, and a torch.stack() of all samples is the batch itself, not a copy.
    Any other function is called in num_workers worker processes, with torch's seeds and
    get_worker_info(), started as torch starts them; they get the samples through shared memory, and
    the targets pickled. explain() says which it is.

    Args:
        num_workers: natively the number of decode threads, at most the usable CPUs. 0, the
            default: as many as `threads` says; errors then come raw, as from torch without workers.
        multiprocessing_context: accepted; natively there are no processes.
        in_order: natively batches are always in order.
        timeout: natively the clock starts at the request and starts anew when a batch's worth of
            samples has been finished behind it, as torch's does when any worker's batch arrives.
        worker_init_fn: means torch's path, unless num_workers is 0, or it is one that is known to
            seed random generators only, or worker_init="ignore".
        native: "auto" (default): natively where that can be, else torch's path. Which it is follows
            from dataset, transform and options, and stays so from epoch to epoch where the
            transform draws random numbers, which differ between the paths. Where it draws none,
            torch's workers take over from an epoch of which most samples went through Pillow.
            "hybrid": as "auto", and where only the transform stands in the way, as a lambda or one
            of another library does, images are decoded natively and the transform is called in
            threads of this process, sample by sample; see below.
            "require": RuntimeError with all reasons where it can't, here and at iter().
            "verify": as "require", and every sample is made a second time by the dataset and the
            transform objects themselves, with the native draws fed in; VerificationError at the
            first one that differs. As slow as torch without workers.
            "off": torch's path.
        seed: key of the random draws. None (default): that of torch, different in every epoch and
            run unless torch is seeded. An int: the draws of an image depend on the seed, the
            epoch's number, the image's index and how often the index came before in the epoch,
            and on nothing else. The epoch's number is ``sampler.epoch`` where the sampler has
            one, else it counts iter() calls from 0 or from what set_epoch() set. A UserWarning
            tells of a sampler's epoch that has not moved since the latest one. On torch's path and
            with native="hybrid" a seed has no effect, and a UserWarning says so.
        threads: decode threads, 1 to 1,024, in place of what num_workers gives. Default None: as
            num_workers says; where that is 0, the usable CPUs (affinity and quota) divided by the
            processes that share them, less one, at least 1. Those are LOCAL_WORLD_SIZE, or as many
            processes of this user as are seen with feedmill on the same CPUs, this one included,
            if they are more. Seen are live ones whose loaders decode or did so in the latest ten
            minutes; loaders of one process count once, killed processes not at all. It is looked
            at anew at every iter(); numbers that were given are never changed.
        memory_budget: bytes for batches, read buffers and scratch; progressive JPEGs, interlaced
            PNGs and WebPs take up to 80 MiB more a thread, kept until it waits for work, that of
            JPEGs until 8 other images have come; libwebp takes some more of its own. Default
            None: a quarter of the memory that the process may use. Where three batches do not fit,
            native="auto" takes torch's path and "require" raises ValueError at iter().
        reader: "uring", "pread", or "auto" (default): io_uring where it can be had. The
            environment's FEEDMILL_READER overrides it.
        worker_init: "fallback" (default): a worker_init_fn means torch's path. "ignore": it is
            not called natively, where there are no Python workers.
        dtype: torch.float32, torch.float16 or torch.bfloat16: the image of every sample is what
            ``.to(dtype)`` makes of the transform's result, before collate_fn gets it. Default None:
            the transform's result.
        memory_format: torch.channels_last: the batch's images, still (n, 3, height, width), have
            such strides, and so do those of the samples that a collate_fn of the script's own
            gets. Default torch.contiguous_format: as torch.
        log: file to which every step is appended, with what it waited for, and every second what
            process and host did: JSON lines, described in feedmill.profiling.log. "{pid}" and
            "{rank}" in its name are replaced. It is written at the end of a step, by the thread
            that iterates: each second, at the end of an epoch and of the process. A process that is
            killed loses the last second. OSError at iter() where it can't be written to; if the
            disk is full later, a warning, and training goes on. Default None: the file that the
            environment's FEEDMILL_LOG names, if any. Worker processes of torch's path write none.
        log_samples: whether the log has a line for every sample, too, for ``feedmill trace``; some
            3 us and 400 bytes each. Takes 9 MB of the memory_budget, or more for large batches.
            Default False; where FEEDMILL_LOG is in force, FEEDMILL_LOG_SAMPLES=1 asks for it.

        cache: such as "ram:8GiB": natively up to so many bytes of encoded files stay in memory,
            beside memory_budget, for as long as this loader, over all its epochs. First come, first
            kept: each later epoch reads only what did not fit, in whatever order; the hit rate is
            the share that fits. (A page cache drops what was used longest ago, which is what a
            shuffled epoch is about to ask for.) Encoded, not decoded: a photograph's pixels take
            five times the bytes. Files are known by their paths: one that changes meanwhile is not
            read again, as only a look at the storage could tell. Only files that are decoded
            natively are kept. ValueError at iter() where it is more than the process's memory.
            Default None: nothing is kept.

        on_error: what becomes of a sample whose file is missing, unreadable or damaged, or which
            a transform refuses. stats().sample_errors lists all of them.
            "raise" (default): its batch raises, and the iterator goes on with the next one.
            "replace": another sample of this rank's epoch, with its target and draws of its own;
            which one depends on seed, epoch, index and the sampler's indices alone. Where the
            sampler does not tell those (one of the script's own), another of the same batch.
            "zero": an image of zeros, with the target.
            "skip": the batch is shorter. ValueError under a DistributedSampler, whose ranks would
            fall out of step. A batch of which nothing is left raises.
            All but "raise" ask for the native path: RuntimeError where it can't be taken.
        max_errors: so many samples of an epoch at most; those that follow raise. Default 100.

        device: "cuda", "cuda:1" or the like, or a torch.device of such a name: batches come as
            tensors on that GPU, "cuda" being the current one at iter(). Natively they are copied
            ahead, by a stream of the loader's own, and images of float types cross the bus as
            bytes, of which the GPU makes the same values, bit for bit; explain() says why where
            that can't be. All else that a batch holds, and batches of torch's path, torch copies
            in the consumer's stream (pin_memory=True has torch's pinning thread do its part
            there). Tensors belong to the stream that is current at next(), and may be used there
            and dropped at any time; for another stream, call record_stream() as for any tensor.
            RuntimeError here and at iter() where there is no such GPU, and at next() while a CUDA
            graph is being captured. draws(), fetch() and native="verify" work on the CPU.
            Default None, or "cpu": CPU tensors.

        torch_arguments: keyword arguments of a newer torch, for its own constructor, which refuses
            those that it does not know.

    The options from native to device are attributes too: on a feedmill.DataLoader itself, setting
    one counts from the next iter() on (on torch's path not for persistent workers that are
    running); on an object of a subclass these names are the subclass's own to use, and its options
    stay what the constructor got.

    dtype and memory_format hold on torch's path as well. A sample's image is the sample itself or,
    of a tuple or list, its first element: a tensor (channels, height, width) of torch.uint8 or a
    floating-point type; TypeError at the batch's turn where a sample has none. With batch_size=None
    it may be a batch (n, channels, height, width) already. The batch's images are what collate_fn
    returns or, of a tuple or list, its first element, if that is a tensor of four dimensions;
    anything else keeps its strides.

    native="hybrid": the transform gets the PIL image that it gets from torch, with the same pixels
    and ``info`` (EXIF, ICC profile, resolution); JPEGs are decoded natively, other files by Pillow.
    It is called from as many threads at once as there are decode threads: it must bear that.
    Threads help as far as it releases Python's lock, as numpy, OpenCV and torch do in long
    operations; stats().decode.hybrid_transform_ns is its time. It pays where decoding is a large
    part of a sample's cost and there is one worker or none: with one worker a crop, flip and
    normalization ran 1.25 times as fast as in torch's, DINO's eight augmented crops 1.03 times.
    With two, threads wait for the lock around each short call: 1.00 and 0.85 times; torch's path is
    then the better one (benchmarks/results/hybrid.md). Order, targets and errors are torch's.
    Random numbers are not: they come from this process's generators (torch's, random's, numpy's or
    the transform's own), in whatever order the threads ask, mixed with what the script draws
    meanwhile; neither seed= nor torch.manual_seed() reproduces them, there is no
    get_worker_info(), and draws() and fetch() know nothing of such epochs.
    A collate_fn that is not proved runs there on the thread that asks for the batch, with the
    global generators of torch, random and numpy set to those of the worker that torch would have
    taken: what another thread draws just then comes from those, too.

    Raises:
        ValueError, TypeError: as torch's constructor, and for a value outside of what is named
            above.
        RuntimeError: native="require" or "verify", and it can't be.

    One thread at a time may iterate; stats() and report() may be called from any. A loader can be
    pickled, and used after a fork in both processes.
    """

    _feedmill: LoaderState = _MadeWhenAsked()  # type: ignore[assignment]

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

    def __init__(
        self,
        dataset: Dataset[_T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[Any] | Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
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
        worker_init: str = "fallback",
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format = torch.contiguous_format,
        log: str | os.PathLike[str] | None = None,
        log_samples: bool = False,
        cache: str | None = None,
        on_error: str = "raise",
        max_errors: int = MAX_ERRORS,
        device: str | torch.device | None = None,
        **torch_arguments: Any,
    ) -> None:
        options = Options(
            native=native,
            seed=seed,
            threads=threads,
            memory_budget=memory_budget,
            reader=reader,
            worker_init=worker_init,
            dtype=dtype,
            memory_format=memory_format,
            log=log,
            log_samples=log_samples,
            cache=cache,
            on_error=on_error,
            max_errors=max_errors,
            device=device,
        )
        options.check()
        check_device(device)
        self._feedmill = LoaderState(options=options)
        self._feedmill_show(options)
        # Older versions of torch lack these two: they refuse what is more than the default.
        newer = {"pin_memory_device": (pin_memory_device, ""), "in_order": (in_order, True)}
        known = inspect.signature(TorchDataLoader.__init__).parameters
        for name, (value, default) in newer.items():
            if name in known or value != default:
                torch_arguments[name] = value
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
            **torch_arguments,
        )
        if native in ("require", "verify") or on_error != "raise":
            choose(self)

    def _feedmill_show(self, options: Options) -> None:
        """Sets the attributes of the options, but for names that a subclass uses for itself."""
        taken = names_taken(self, DataLoader)
        shown = {name: value for name, value in options.values().items() if name not in taken}
        vars(self).update(shown)

    def _feedmill_options(self) -> Options:
        """The options in force. The attributes may have been set to anything: see Options.check().
        """
        given = self._feedmill.options
        if given is None:
            return _default_options()
        return options_among(vars(self), given) if type(self) is DataLoader else given

    def _get_iterator(self) -> Any:
        return make_iterator(self)

    @TorchDataLoader.multiprocessing_context.getter  # type: ignore[attr-defined, untyped-decorator]
    def multiprocessing_context(self) -> Any:
        """As torch's; Accelerate reads it when it is about to build this loader anew."""
        note_read(self)
        return TorchDataLoader.multiprocessing_context.fget(self)  # type: ignore[attr-defined]

    def _feedmill_anew(self, *args: Any, **kwargs: Any) -> DataLoader[Any]:
        """A DataLoader of these arguments of torch's and of this one's own options."""
        make: Callable[..., DataLoader[Any]] = DataLoader
        loader = make(*args, **kwargs, **self._feedmill_options().values())
        loader._feedmill.epochs.next_number = self._feedmill.epochs.next_number
        return loader

    def __getstate__(self) -> dict[str, Any]:
        """A copy counts for itself, and so does a pickled one."""
        state = dict(vars(self))
        if self._feedmill.options is None:
            state.pop("_feedmill", None)
        else:
            state["_feedmill"] = LoaderState(
                self._feedmill.epochs.next_number, self._feedmill_options()
            )
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes the state of torch's DataLoader, too, which `feedmill run` may have replaced."""
        inside = state.get("_feedmill") or LoaderState()
        if inside.options is None:
            inside.options = _default_options()
        vars(self).update({**state, "_feedmill": inside})
        self._feedmill_show(inside.options)

    def set_epoch(self, epoch: int) -> None:
        """Numbers the next iter()'s epoch; the following ones count on from there.

        With seed=int the number is part of the random draws: a resumed run sets it. With seed=None
        it is the epoch's name for draws() and fetch(). Passed on to the sampler where that has a
        set_epoch(), as DistributedSampler does.

        Args:
            epoch: from 0.
        """
        if not is_int(epoch, 0, _WORD64):
            raise ValueError(f"epoch is {epoch!r}; it must be an int from 0")
        self._feedmill.epochs.next_number = epoch
        for sampler in samplers_of(self):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)

    # ---- what happened ---------------------------------------------------------------------------

    def stats(self) -> Stats:
        """Counters since this DataLoader was made, over all of its iterators."""
        inside = self._feedmill
        accounts = (inside.handles, inside.torch_counters)
        counters = sum_counters(
            [one.counters() for one in accounts] + [inside.python_counters.counters()]
        )
        steps = np.concatenate([one.steps() for one in accounts])
        steps = steps[np.argsort(steps["request_ns"], kind="stable")][-KEPT_STEPS:]
        n_bad, sample_errors = inside.sample_errors.all()
        times: dict[str, Any] = inside.clock.counters()
        return Stats.from_flat(
            {**counters, **times, "path": inside.path, "bad_samples": n_bad},
            reasons=inside.reasons,
            steps=steps,
            slow_samples=tuple(inside.handles.slow_samples()),
            sample_errors=sample_errors,
            system=inside.recorder.system,
        )

    def report(
        self,
        *,
        wait_ms: float = Limits.wait_ms,
        gpu: float = Limits.gpu,
        cpu: tuple[float, float] = Limits.cpu,
    ) -> str:
        """stats() as text for a person: a sentence that says what to do; the targets, met or
        missed; problems with diagnosis and remedy; the numbers behind all that; and what the loader
        costs, if there was a replay().

        Args:
            wait_ms, gpu, cpu: targets, as of feedmill.Stats.report().
        """
        stats = self.stats()
        text = stats.report(wait_ms=wait_ms, gpu=gpu, cpu=cpu, around=around(self, stats))
        return "\n".join([text, *costs(stats.steps, self._feedmill.replay_counters.steps())])

    def replay(self, n: int, steps: int | None = None) -> Replay:
        """Ready batches, used over and over: an iterable like this loader that costs nothing.

            for images, targets in loader.replay(8):
                ...

        Trains at the speed of the training loop alone. What is left of a step's time, against that
        of a loop over the loader itself, is what the loader costs: report() says so. Both loops
        must do the same work; the first step of each is left out.

        Args:
            n: batches to keep, from 1: those that an epoch begins with. They stay in memory for as
                long as the result, which takes them at its first iter().
            steps: how many an iteration has. Default None: len() of the loader.

        Raises:
            ValueError: n or steps is not an int from 1.

        Described further at feedmill.iterators.replay.Replay.
        """
        return Replay(self, n, steps)

    def explain(self) -> Explanation:
        """Returns a text of several lines: the path that iter() would take now, each reason why it
        is not the native one, and which threads, reader and random numbers it would use.

        Prints nothing: a script says ``print(loader.explain())``. At the prompt of Python, IPython
        or a notebook, ``loader.explain()`` alone shows the lines.
        """
        return Explanation(explanation(self))

    # ---- diagnostics -----------------------------------------------------------------------------

    def draws(
        self, index: int, epoch: int, occurrence: int = 0
    ) -> list[tuple[str, dict[str, Any]]]:
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
        ran, item = _find(self, index, epoch)
        occurrence = _occurrence(occurrence)
        source = ran.source
        if source.copies:
            return []
        handles = self._feedmill.handles
        with handles.diagnostic(source.native_plan, source.n_samples, source.arrays) as handle:
            return draws_of_item(handle, ran.key, ran.word, item, occurrence)

    def fetch(self, index: int, epoch: int, occurrence: int = 0) -> tuple[torch.Tensor, Any]:
        """Diagnostic: one sample as the loader delivers it: (image (3, height, width), target).

        After the epoch has run, exactly what was delivered in it. Slow: opens the file anew.
        Arguments and errors as for draws().
        """
        ran, item = _find(self, index, epoch)
        occurrence = _occurrence(occurrence)
        source = ran.source
        if source.copies:
            sample: tuple[torch.Tensor, Any] = source.sample(item)
            return sample
        handles = self._feedmill.handles
        with handles.diagnostic(source.native_plan, source.n_samples, source.arrays) as handle:
            image = fetch_one(handle, ran.key, ran.word, source, item, occurrence)
        return image, item.target


# ---- helpers -------------------------------------------------------------------------------------


def _default_options() -> Options:
    """Those that the constructor has where none is given."""
    parameters = inspect.signature(DataLoader.__init__).parameters
    return Options(**{name: parameters[name].default for name in OPTIONS})


def _find(loader: DataLoader[Any], index: int, epoch: int) -> tuple[Epoch, Item]:
    """An epoch, and a sample as it was in it."""
    ran = loader._feedmill.epochs.find(loader, epoch)
    source = ran.source
    if not is_int(index, -source.n_samples, source.n_samples - 1):
        raise ValueError(f"index is {index!r}; the dataset has {source.n_samples} samples")
    return ran, source.item(index % source.n_samples)


def _occurrence(value: Any) -> int:
    if not is_int(value, 0, _WORD32):
        raise ValueError(f"occurrence is {value!r}; it must be an int from 0")
    occurrence: int = value
    return occurrence
