"""feedmill.DataLoader: torch's DataLoader with a native path."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, Sampler

from feedmill._dispatch.explanation import Explanation, explanation
from feedmill._dispatch.options import OPTIONS, Options, is_int, names_taken, options_among
from feedmill._dispatch.paths import (
    LoaderState,
    choose,
    load_state_dict,
    make_iterator,
    report_context,
    run_lines,
    state_dict,
)
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
from feedmill.profiling.watching.all_ranks import report_on_all_ranks

_WORD64, _WORD32 = (1 << 64) - 1, (1 << 32) - 1
_T_co = TypeVar("_T_co", covariant=True)


class _StateOnDemand:
    """Descriptor that makes the attribute _feedmill of a loader whose class did not call our
    constructor."""

    def __get__(self, loader: Any, kind: type | None = None) -> Any:
        return self if loader is None else vars(loader).setdefault("_feedmill", LoaderState())


class DataLoader(TorchDataLoader[_T_co]):
    """Drop-in replacement for ``torch.utils.data.DataLoader`` that loads image batches natively.

    All of torch's arguments keep their meaning. On the native path reading, decoding, transforming
    and batching run in threads of this process. The pixels are, bit for bit, those that torchvision
    computes from the same random draws. Order, targets and errors are torch's.

    A DataLoader takes the native path if it recognises both the dataset and the transform, else
    torch's own path. ``explain()`` says which one, and why. Dataset and transform are examined at
    every iter(), so they may change between epochs.

    The page "What runs natively" of the documentation lists datasets and transforms: torchvision's,
    timm's, those of Hugging Face and of webdataset, and your own. Transforms must lead to a tensor
    of a fixed size and of type uint8, float32, float16 or bfloat16.

    Batches are ``[images, targets]``, as from torch:

    - images: (n, 3, height, width), of the transform's type or of ``dtype``, with the strides of
      ``memory_format``. (Samples that torch makes with PILToTensor or ToImage have other strides.)
    - targets: as torch's default_collate makes them; for ImageFolder (n,) torch.int64.
    - A TensorDataset's batch is a list of its tensors' rows.

    A batch belongs to the caller, who may keep it for any time.

    Custom datasets: ``feedmill_item(index)`` returns ``(source, target)`` and states that
    ``dataset[index]`` is ``(dataset.transform(the image as RGB), target)``. ``source`` is one of

    - the file's path;
    - the encoded image as bytes;
    - ``(path, offset, n_bytes)``: a part of a file, which is kept open;
    - an exception, if it is known that there is no image: on_error decides what happens.

    It is called in this process when an index is pulled from the sampler, ahead of the batch's
    turn. It must not draw random numbers, and its result must not depend on when it is called.

    Datasets in memory are never copied as a whole: threads read the dataset's own memory, ahead of
    the batch's turn. If torch knows that a tensor was modified in place since its rows were read,
    they are read again at the batch's turn, as without workers. Other changes during an epoch
    (through NumPy, to images, to a Subset's indices) may or may not show; those made before iter()
    do. Do not free a tensor's memory while an epoch runs (Tensor.resize_()).

    collate_fn: a function of your own gets the list of samples that it gets from torch. Their
    images share the native batch's memory, so that keeping one keeps the whole batch in memory;
    clone() it instead. explain() shows where the function runs:

    - num_workers=0: on the thread that asks for the batch. If a Ctrl-C interrupts it, it is called
      again for the same batch.
    - num_workers > 0, a random transform, and torch's random numbers (the default): on the thread
      that asks for the batch, with the worker's generators.
    - Otherwise ahead of the batch's turn, in a thread of this process if its bytecode
      shows that it draws no random number, uses no global state and changes nothing in place.
      Then torch.stack() of all samples returns the native batch itself, without a copy.
    - Otherwise, any other function: in num_workers worker processes, which torch starts as
      usual, with its seeds and get_worker_info(). They get the images through shared memory, and
      the targets pickled.

    Args:
        num_workers: on the native path the number of decode threads, at most the usable CPUs. With
            0, the default, it is chosen as described at ``threads``, and errors are raised
            unwrapped, as by torch without workers.
        multiprocessing_context: used only for the worker processes of torch's path and of a
            collate_fn; decoding needs none.
        in_order: native batches always come in order.
        timeout: on the native path the clock starts at the request for a batch, and again each time
            a batch's worth of samples is finished, as torch's does when any worker delivers.
        worker_init_fn: selects torch's path, unless num_workers is 0, or the function is known to
            only seed random generators and print, or worker_init="ignore".
        native: which path to take.

            - "auto" (default): the native path where possible, else torch's. The choice follows
              from dataset, transform and options. It stays the same from epoch to epoch if the
              transform draws feedmill's own random numbers, because torch's path has others, or if
              persistent workers keep torch's. Else torch's workers take over after an epoch in
              which Pillow had to decode most samples.
            - "hybrid": as "auto"; and if only the transform is not recognised (a lambda, another
              library's), images are decoded natively and the transform is called in threads of
              this process; see below.
            - "require": RuntimeError with all reasons if the native path is not possible, raised
              here and at iter().
            - "verify": as "require"; and each sample is made a second time by the dataset and
              transform objects themselves, with the same draws. VerificationError at the first one
              that differs. As slow as torch without workers.
            - "off": torch's path.

        seed: key of feedmill's own random numbers. None (default): torch's are drawn, see ``rng``;
            with rng="feedmill" the key is torch's base seed, which differs in every epoch, and in
            every run unless torch is seeded. An int: an image's draws depend only on the seed, the
            epoch's number, the image's index, and how often that index came before in the epoch.
            The epoch's number is ``sampler.epoch`` if the sampler
            has one, else the count of iter() calls, from 0 or from what set_epoch() set. A
            UserWarning reports a sampler's epoch that has not moved since the previous epoch. On
            torch's path and with native="hybrid" a seed has no effect, which a UserWarning reports.
        threads: number of decode threads, 1 to 1,024. None (default): num_workers; if that is 0,
            the usable CPUs (affinity and quota) divided by the number of processes that share them,
            less one, at least 1. That number is LOCAL_WORLD_SIZE or, if larger, the number of
            processes of this user that decode with feedmill on the same CPUs, now or in the last
            ten minutes, this process included. They are counted again at every iter(); several
            loaders of a process count once. Other processes never change a given number.
        memory_budget: bytes for batches, read buffers and scratch memory. None (default): a quarter
            of the memory that the process may use. If three batches do not fit, native="auto"
            takes torch's path, and "require" raises ValueError at iter(). Not included:
            progressive JPEGs, interlaced PNGs and WebPs take up to 80 MiB more per thread, until
            the thread waits for work or, for JPEGs, 8 other images have come; and libwebp's own
            memory.
        seek_index: where to keep at which bits the rows of JPEGs begin, which later epochs decode
            faster with; the pixels are the same, also of a file that changes. None (default): in
            at most 512 MiB of memory, within memory_budget; a photograph of 110 KB takes about 480
            bytes. An int: in at most that many bytes; 0: nowhere. A path: in that file, of about
            500 bytes for each sample, so that later runs have them from the start, and the
            processes of a machine that train together share them. It is made if it is missing, and
            belongs to one dataset; it must be on a local disk or in /dev/shm, must not be truncated
            or copied over while it is in use, and is trusted: use none that others could have
            written. OSError or ValueError at iter() if it can't be used.
        reader: how files are read: "uring" (io_uring), "pread", or "auto" (default): io_uring if it
            is available. The environment variable FEEDMILL_READER overrides it.
        worker_init: what a worker_init_fn means: "fallback" (default): torch's path; "ignore": the
            function is not called on the native path, which has no Python workers.
        dtype: torch.float32, torch.float16 or torch.bfloat16: every sample's image is converted as
            by ``.to(dtype)`` before collate_fn gets it. None (default): the transform's type.
        memory_format: torch.contiguous_format (default, as torch) or torch.channels_last: the
            strides of the batch's images, whose shape stays (n, 3, height, width), and of the
            samples that a collate_fn of your own gets.
        log: path of a file to which each step is appended, with its wait and the cause, and every
            second the load of process and host, as JSON lines (see feedmill.profiling.log).
            "{pid}" and "{rank}" in the path are replaced. The thread that iterates writes it once a
            second and at the end of an epoch or of the process; a killed process loses the last
            second. OSError at iter() if the file can't be written to; if the disk is full later,
            a warning, and training goes on. None (default): the file that the environment variable
            FEEDMILL_LOG names, if any. Worker processes of torch's path write no log.
        log_samples: True adds a line per sample to the log, for ``feedmill trace``. It costs about
            3 us and 400 bytes per sample, and 9 MB of the memory_budget, more for large batches.
            Default False; if FEEDMILL_LOG is in force, FEEDMILL_LOG_SAMPLES=1 turns it on.
        cache: memory for encoded files, such as "ram:8GiB", beside memory_budget. Files that were
            decoded natively stay in it for the life of this loader, first come, first kept, so that
            later epochs read only what did not fit. The hit rate is the share of the files that
            fits, in whatever order they are read. (A page cache evicts what was used longest ago,
            which a shuffled epoch is about to ask for.) Decoded pixels would take about five times
            the bytes. A cached file is identified by its path, and not read again if it changes.
            ValueError at iter() if the size exceeds the process's memory.
            "disk:/nvme/feedmill:200GiB" keeps objects of stores and servers (not local files) in a
            folder of a local disk, for later epochs and runs, and for all processes of the machine,
            which share the limit. The folder is made if it is missing, but not its parent. Objects
            are taken never to change under their names, and are not asked for again; with ":check"
            behind the size their servers are asked at each use whether they have changed. Full, it
            stores nothing more (":first-come"), or removes what was used longest ago (":lru").
            "ram:8GiB+disk:/nvme/feedmill:200GiB" has memory in front. OSError or ValueError at
            iter() if the folder can't be used. None (default): no cache.
        on_error: what happens to a sample whose file is missing, unreadable or damaged, or which a
            transform refuses. stats().sample_errors lists all of them. All values but "raise" need
            the native path: RuntimeError if it is not possible.

            - "raise" (default): its batch raises, and the iterator continues with the next batch.
            - "replace": another sample of this rank's epoch takes its place, with its own target
              and draws. The choice depends only on seed, epoch, index and the sampler's indices.
              If the sampler is not torch's, so that its indices are unknown, another sample of the
              same batch is used.
            - "zero": an image of zeros, with the sample's target.
            - "skip": the batch gets shorter; a batch of which nothing is left raises. ValueError
              with a DistributedSampler, whose ranks would fall out of step.

        max_errors: the most samples of an epoch that on_error applies to; the next ones raise.
            Default 100.
        device: "cuda", "cuda:1" or the like, or such a torch.device: batches are delivered on that
            GPU; "cuda" is the current one at iter(). None (default) or "cpu": CPU tensors.

            - Native batches are copied ahead of their turn, in a stream of the loader's own. Images
              of float types cross the bus as bytes if possible; the GPU computes the same values
              from them, bit for bit. explain() says why if it can't.
            - Everything else in a batch, and the batches of torch's path, torch copies in the
              consumer's stream; pin_memory=True lets torch's pinning thread do its part there.
            - Tensors belong to the stream that is current at next(), and may be used there and
              dropped at any time. For another stream call record_stream(), as for any tensor.
            - RuntimeError here and at iter() if there is no such GPU, and at next() while a CUDA
              graph is being captured. draws(), fetch() and native="verify" work on the CPU.

        deferred: on torch's path, whether images that the dataset opens with Pillow are decoded
            only when their pixels are asked for, and only as far as they are needed; see
            feedmill.deferred_images(). Pixels, types, errors and random numbers stay the same.

            - "auto" (default): yes, if feedmill decodes to the installed Pillow's pixels.
            - "off": no. FEEDMILL_DEFERRED=0 in the environment has the same effect on all loaders.
            - "verify": yes, and each batch's samples are made a second time by Pillow alone, with
              the generators of random, NumPy and torch as they were the first time.
              VerificationError at the first sample that differs. ValueError at iter() with an
              IterableDataset, which can't make a sample twice.

        decode: how large JPEGs are decoded on the native path.

            - "exact" (default): to Pillow's pixels.
            - "scaled": where a crop has at least twice the pixels per side that the resize makes of
              it, at 1/2, 1/4 or 1/8 of the size, as by Pillow's Image.draft(), and resized from
              there. Faster, with other pixels, which differ slightly: see the options' page. Other
              formats, smaller crops, nearest-neighbor resizes and images that Pillow decodes in
              place of a damaged file stay exact, and so does all under native="verify". No effect
              on torch's path and with native="hybrid".

        rng: whose random numbers the transforms draw on the native path.

            - "auto" (default): feedmill's with ``seed``, on_error= other than "raise",
              native="hybrid", worker_init="ignore", or in_order=False and several workers; else
              torch's.
            - "feedmill": those of a sample depend on the seed, the epoch, its index and how often
              it came before, and on nothing else; see ``seed``.
            - "torch": those that torch's worker processes would draw, so that batches equal those
              of torch.utils.data.DataLoader with the same arguments and seeds, augmentations
              included, bit for bit. They follow from torch's seed and depend on num_workers,
              batch_size and the order. With num_workers=0 they come from the process's own
              generators, and a batch is decoded only when it is requested. What the native code
              can't draw takes torch's path, and explain() says why. The collate_fn runs on the
              thread that asks for the batch, with the worker's generators. An epoch is resumed
              with the same num_workers, batch size and ranks only: see load_state_dict(). draws()
              and fetch() raise RuntimeError. ValueError with seed= or on_error=.

        torch_arguments: keyword arguments of newer versions of torch, passed on to its constructor.

    Options as attributes: the options from ``native`` to ``rng`` can be read and set. A new
    value counts from the next iter() on (on torch's path not for persistent workers that are
    running). A subclass may use these names for itself; the options of its objects then stay what
    the constructor got.

    dtype and memory_format apply on torch's path, too. There a sample's image is the sample itself
    or the first element of a tuple or list: a tensor (channels, height, width), or with
    batch_size=None a batch (n, channels, height, width), of torch.uint8 or a floating-point type;
    TypeError at the batch's turn if there is none. The batch's images are what collate_fn returns
    or the first element of that, if it is a tensor of four dimensions; anything else keeps its
    strides.

    native="hybrid": the transform gets the same PIL image as from torch, with the same pixels and
    ``info`` (EXIF, ICC profile, resolution). JPEGs are decoded natively, other files by Pillow.

    - The transform is called from as many threads at once as there are decode threads, and must be
      thread-safe. Threads help while it releases Python's GIL, as numpy, OpenCV and torch do in
      long operations; stats().decode.hybrid_transform_ns is its time.
    - It pays if decoding is a large part of a sample's cost and num_workers is 0 or 1. With one
      worker a crop, flip and normalization ran 1.25 times as fast as in torch, DINO's eight
      augmented crops 1.03 times. With two workers threads wait for the GIL around each short call:
      1.00 and 0.85 times, so torch's path is better (benchmarks/results/hybrid.md).
    - Random numbers are not reproducible: the transform draws from this process's generators
      (torch's, random's, numpy's or its own) in whatever order the threads run, interleaved with
      the script's own draws. seed= and torch.manual_seed() do not fix that. There is no
      get_worker_info(), and draws() and fetch() do not cover such epochs.
    - A collate_fn that can't be shown to be free of side effects runs on the thread that asks for
      the batch, with the global generators of torch, random and numpy set to those of the worker
      that torch would have used. Other threads that draw at that moment draw from these, too.

    Thread-safety: one thread at a time may iterate; stats() and report() may be called from any
    thread. A loader can be pickled, and used after a fork in both processes.

    Raises:
        ValueError, TypeError: as torch's constructor; or an option has a value that is not listed
            above.
        RuntimeError: native="require" or "verify", and the native path is not possible.
    """

    _feedmill: LoaderState = _StateOnDemand()  # type: ignore[assignment]

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
        seek_index: int | str | os.PathLike[str] | None = None,
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
        deferred: str = "auto",
        decode: str = "exact",
        rng: str = "auto",
        **torch_arguments: Any,
    ) -> None:
        options = Options(
            native=native,
            seed=seed,
            threads=threads,
            memory_budget=memory_budget,
            seek_index=seek_index,
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
            deferred=deferred,
            decode=decode,
            rng=rng,
        )
        options.check()
        check_device(device)
        self._feedmill = LoaderState(options=options)
        self._feedmill_set_attributes(options)
        # Older versions of torch lack these two arguments. Passing one on unless it has its default
        # value makes torch refuse it there.
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

    def _feedmill_set_attributes(self, options: Options) -> None:
        """Sets an attribute per option, except for names that a subclass uses for itself."""
        taken = names_taken(self, DataLoader)
        own = {name: value for name, value in options.values().items() if name not in taken}
        vars(self).update(own)

    def _feedmill_options(self) -> Options:
        """The options in force. They are unchecked if they come from attributes: see
        Options.check()."""
        given = self._feedmill.options
        if given is None:
            return _default_options()
        return options_among(vars(self), given) if type(self) is DataLoader else given

    def _feedmill_draws_as_torch(self) -> bool:
        """Whether native batches have the random numbers of torch's workers, which follow from the
        arguments unless in_order=False leaves them to timing."""
        options = self._feedmill_options()
        is_of_chance = self.num_workers > 1 and not getattr(self, "in_order", True)
        return options.draws_as_torch and not (is_of_chance and options.rng == "auto")

    def _get_iterator(self) -> Any:
        return make_iterator(self)

    @property
    def _index_sampler(self) -> Any:
        """As torch's. While an iterator is made, it gets one that notes what the order depends on,
        and begins at a loaded state."""
        lent = self._feedmill.lent_sampler
        return TorchDataLoader._index_sampler.fget(self) if lent is None else lent  # type: ignore[attr-defined]

    @TorchDataLoader.multiprocessing_context.getter  # type: ignore[attr-defined, untyped-decorator]
    def multiprocessing_context(self) -> Any:
        """As torch's. Accelerate reads it when it is about to rebuild this loader, which
        note_read() detects."""
        note_read(self)
        return TorchDataLoader.multiprocessing_context.fget(self)  # type: ignore[attr-defined]

    def _feedmill_rebuilt(self, *args: Any, **kwargs: Any) -> DataLoader[Any]:
        """A new DataLoader with the given arguments of torch's and with this loader's options."""
        make: Callable[..., DataLoader[Any]] = DataLoader
        loader = make(*args, **kwargs, **self._feedmill_options().values())
        loader._feedmill.epochs.next_number = self._feedmill.epochs.next_number
        loader._feedmill.position.loaded = self._feedmill.position.loaded
        return loader

    def __getstate__(self) -> dict[str, Any]:
        """A copied or unpickled loader has counters of its own, which begin at 0."""
        state = dict(vars(self))
        if self._feedmill.options is None:
            state.pop("_feedmill", None)
        else:
            state["_feedmill"] = LoaderState(
                self._feedmill.epochs.next_number,
                self._feedmill_options(),
                self._feedmill.position.loaded,
            )
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Also accepts the state of a torch DataLoader, whose class `feedmill run` may have
        replaced by this one."""
        own = state.get("_feedmill") or LoaderState()
        if own.options is None:
            own.options = _default_options()
        vars(self).update({**state, "_feedmill": own})
        self._feedmill_set_attributes(own.options)

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch; later epochs count on from it.

        With an int as seed the number is part of the random draws, so a resumed run must set it.
        With seed=None it only names the epoch for draws() and fetch(). If a sampler has a
        set_epoch(), as DistributedSampler does, that is called, too.

        Args:
            epoch: int from 0.

        Raises:
            ValueError: epoch is something else.
        """
        if not is_int(epoch, 0, _WORD64):
            raise ValueError(f"epoch is {epoch!r}; it must be an int from 0")
        self._feedmill.epochs.next_number = epoch
        for sampler in samplers_of(self):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)

    # ---- stopping and going on -------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where this loader is, for a checkpoint: JSON values, less than 1 KB in the usual case.

        The position is what next() has delivered, never what was loaded ahead. It may be taken at
        any time: between two batches, inside a loop, after an error, between epochs, before the
        first. Two calls without a step between them return the same. torchdata's
        StatefulDataLoader has the same two methods.

        A state is larger by the states of the generators that the script gave (about 4 KB each);
        with torch's random numbers by those of each worker (3.4 KB for each of torch's, Python's
        and NumPy's that its batches draw from); by that of torch's global one for a sampler that
        draws its order from it directly, as SubsetRandomSampler and WeightedRandomSampler without
        generator= do; and by what the state_dict() of a sampler or dataset returns.

        "run" holds what the run has waited for so far, by cause, for report(). It is the only part
        that differs between the ranks of a DistributedSampler.

        With an IterableDataset, in_order=False on torch's path, or after an error of a transform
        with torch's random numbers that it does not raise again, a state holds no position, which a
        UserWarning says.
        """
        return state_dict(self)

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Makes the next iter() go on where state_dict() was called.

        The rest of the epoch has the samples of an unbroken run, in the same order; on the native
        path with the same pixels, bit for bit. No image is read to get there: the sampler is
        advanced, from its own state at the epoch's begin if it has one. num_workers, threads,
        batch_size, prefetch_factor, reader, device and the files' place may be others than before.
        len() stays that of a whole epoch. With torch's DistributedSampler the number of ranks
        may change, too: what is left of the epoch is dealt anew, and its end padded or dropped as
        the sampler does. Later epochs follow as in an unbroken run, with the generators that the
        script gave in their states; torch's global generator is the script's to restore, see
        torch.set_rng_state(), and iter() of the resumed epoch draws nothing from it.

        With torch's random numbers and workers, the batches are those that torch's own DataLoader
        would have delivered without a stop. num_workers, batch_size, the number of ranks and the
        rank must then be the same; with strict=False the workers' generators are seeded anew if
        they are not, which a UserWarning says at iter(). With num_workers=0, batches draw from the
        process's own generators, which the script restores.

        Args:
            state_dict: what state_dict() returned. {}: forget a state loaded before.
            strict: True: the state must belong to this dataset, these transforms and this order, by
                the number of samples, names and targets of the first and last sample, the plan,
                seed=, with torch's random numbers the workers and ranks, and the indices so far.
                False: go on in any case.

        Raises:
            ValueError: the state is damaged; or, with strict=True, it belongs to something else,
                which the text names. At the first batch, if that shows only in the sampler's
                indices.
        """
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_name == "load_state_dict":
            frame = frame.f_back  # of a subclass
        caller = "" if frame is None else frame.f_globals.get("__name__", "")
        load_state_dict(self, state_dict, strict, caller)

    # ---- what happened ---------------------------------------------------------------------------

    def stats(self) -> Stats:
        """Counters since this DataLoader was made, over all of its iterators. May be called from
        any thread."""
        state = self._feedmill
        accounts = (state.engine_pool, state.torch_counters)
        counters = sum_counters(
            [one.counters() for one in accounts] + [state.python_counters.counters()]
        )
        steps = np.concatenate([one.steps() for one in accounts])
        steps = steps[np.argsort(steps["request_ns"], kind="stable")][-KEPT_STEPS:]
        n_bad, sample_errors = state.sample_errors.all()
        times: dict[str, Any] = state.clock.counters()
        return Stats.from_flat(
            {**counters, **times, "path": state.path, "bad_samples": n_bad},
            reasons=state.reasons,
            steps=steps,
            slow_samples=tuple(state.engine_pool.slow_samples()),
            sample_errors=sample_errors,
            system=state.recorder.system,
        )

    def report(
        self,
        *,
        wait_ms: float = Limits.wait_ms,
        gpu: float = Limits.gpu,
        cpu: tuple[float, float] = Limits.cpu,
        all_ranks: bool = False,
    ) -> str:
        """stats() as readable text: a sentence that says what to do; which targets are met or
        missed; problems with diagnosis and remedy; the numbers behind them; after
        load_state_dict() and iter(), the waits of the whole run by cause, those of the processes
        before this one included; and, after a replay(), what the loader costs.

        Args:
            wait_ms, gpu, cpu: targets, see feedmill.Stats.report().
            all_ranks: True: a report on all ranks of a distributed training, in place of this
                rank's: which ranks held the others back, at which steps, by how much and why, and
                the first sentence of each rank's own report. It is a collective operation of
                torch.distributed's default process group (gloo, NCCL): all ranks must call it, and
                get the same text. It compares the latest 16,384 steps (fewer with over 180 ranks).
                Mark where the script communicates with feedmill.collective(), or a slow training
                loop is not seen.

        Raises:
            RuntimeError: all_ranks=True, and there is no process group, or a rank's report failed.
        """

        def of_this_rank() -> tuple[str, str, np.ndarray]:
            stats = self.stats()
            around = report_context(self, stats)
            text = stats.report(wait_ms=wait_ms, gpu=gpu, cpu=cpu, around=around)
            replayed = self._feedmill.replay_counters.steps()
            lines = [text, *run_lines(self), *costs(stats.steps, replayed)]
            return "\n".join(lines), stats.path, stats.steps

        return report_on_all_ranks(of_this_rank) if all_ranks else of_this_rank()[0]

    def replay(self, n: int, steps: int | None = None) -> Replay:
        """An iterable that repeats n ready batches, to measure what the loader costs.

            for images, targets in loader.replay(8):
                ...

        A training loop over it runs at its own speed, without any loading. A step of a loop over
        the loader itself takes longer by what the loader costs, which report() then shows. Both
        loops must do the same work; the first step of each is left out.

        Args:
            n: number of batches to keep, from 1: the first ones of an epoch. They are loaded at the
                first iter() of the result and stay in memory as long as it does.
            steps: steps per iteration. Default None: len() of the loader.

        Raises:
            ValueError: n or steps is not an int from 1.

        See feedmill.iterators.replay.Replay for details.
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
        self, index: int, epoch: int, occurrence: int = 0, view: int = 0
    ) -> list[tuple[str, dict[str, Any]]]:
        """Diagnostic: the random draws of a sample on the native path, one entry per transform.

        Entries look like ``("RandomHorizontalFlip", {"flip": True})``; crops are given by "top",
        "left", "height" and "width" in pixels of the image that the transform gets. Opens the file
        to read the image's size.

        Args:
            index: dataset index.
            epoch: the epoch's number. With seed=None, native iter() calls are counted from 0 or
                from what set_epoch() set, and the last 1,000 epochs are known. With an int as seed
                any number is possible, see the option.
            occurrence: how often the index came before in that epoch.
            view: number of the image, from 0, if the transform makes several of a sample.

        Raises:
            ValueError: seed=None and the epoch is not known, or an argument is out of range.
            RuntimeError: the dataset is not recognised.
            OSError and others: what Pillow raises if it can't open the file.
        """
        ran, item = _find(self, index, epoch)
        occurrence = _occurrence(occurrence)
        source = ran.source
        if source.copies:
            return []
        n_views = len(getattr(source.plan, "views", (None,)))
        if not is_int(view, 0, n_views - 1):
            raise ValueError(f"there is no view {view!r}; the samples have {n_views}")
        engines = self._feedmill.engine_pool
        with engines.diagnostic(source.native_plan, source.n_samples, source.arrays) as handle:
            return draws_of_item(handle, ran.key, ran.word, item, occurrence, view)

    def fetch(self, index: int, epoch: int, occurrence: int = 0) -> tuple[Any, Any]:
        """Diagnostic: one sample as the loader delivers it: (image (3, height, width), target), or
        (list of images, target) if the transform makes several.

        For an epoch that has run, this is exactly the sample that was delivered. Slow: reads and
        decodes the file again. Arguments and errors as for draws().
        """
        ran, item = _find(self, index, epoch)
        occurrence = _occurrence(occurrence)
        source = ran.source
        if source.copies:
            sample: tuple[torch.Tensor, Any] = source.sample(item)
            return sample
        engines = self._feedmill.engine_pool
        with engines.diagnostic(source.native_plan, source.n_samples, source.arrays) as handle:
            return fetch_one(handle, ran.key, ran.word, source, item, occurrence)


# ---- helpers -------------------------------------------------------------------------------------


def _default_options() -> Options:
    """The defaults in the constructor's signature."""
    parameters = inspect.signature(DataLoader.__init__).parameters
    return Options(**{name: parameters[name].default for name in OPTIONS})


def _find(loader: DataLoader[Any], index: int, epoch: int) -> tuple[Epoch, Item]:
    """Looks up an epoch by its number, and the sample of a dataset index as it was in it."""
    ran = loader._feedmill.epochs.find(loader, epoch)
    source = ran.source
    if not source.has_indices:
        raise RuntimeError("the samples of an IterableDataset have no indices")
    if loader._feedmill_draws_as_torch() and getattr(source.plan, "is_random", False):
        raise RuntimeError(
            "torch's random numbers of a sample depend on all samples that its worker made before "
            "it; draws() and fetch() repeat feedmill's own only: pass seed= or rng='feedmill'"
        )
    if not is_int(index, -source.n_samples, source.n_samples - 1):
        raise ValueError(f"index is {index!r}; the dataset has {source.n_samples} samples")
    return ran, source.item(index % source.n_samples)


def _occurrence(value: Any) -> int:
    if not is_int(value, 0, _WORD32):
        raise ValueError(f"occurrence is {value!r}; it must be an int from 0")
    occurrence: int = value
    return occurrence
