"""Collates a native batch's images and targets into the batch that the caller gets."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate, default_convert

from feedmill._internals import (
    cuda_calls_in_queue,
    make_worker_info,
    numpy_seed_of_worker,
    pin_memory,
    set_worker_info,
)
from feedmill.collate.mixing import with_native_mixing
from feedmill.collate.proof import Read, is_proved
from feedmill.collate.samples import collate_function, samples_of
from feedmill.collate.stacking import SharingCollate, is_builtin
from feedmill.collate.unshared import unshared
from feedmill.collate.workers import CollateWorkers
from feedmill.engine.devices import as_device, pinned
from feedmill.iterators.batches import NOTHING, Batch
from feedmill.iterators.global_generators import Held, drawing_from
from feedmill.iterators.receive import as_torch_raises
from feedmill.planner.arrangements import PAIR, OpenFields, arranged, described, holders
from feedmill.planner.formats import batch_laid_out
from feedmill.planner.random_states import States
from feedmill.planner.raw_files import RawPlan
from feedmill.planner.recognise import gives_pil, has_default_collate, stacks_natively
from feedmill.planner.samples import Source

# Where a collate_fn is called: on the thread that asks for the batch; or ahead of the batch's turn,
# in a thread of this process or in worker processes.
HERE = "here"
AHEAD_IN_THREAD = "thread"
AHEAD_IN_PROCESSES = "processes"


def collate_place(loader: Any, source: Source | None = None) -> str:
    """Where the native path calls a DataLoader's collate_fn. One that stacks_natively() is always
    called HERE, if at all: the images are collated already."""
    if loader.num_workers == 0 or stacks_natively(loader, source):
        return HERE
    return AHEAD_IN_THREAD if is_proved(loader.collate_fn) else AHEAD_IN_PROCESSES


def may_draw(loader: Any, source: Source | None) -> bool:
    """Whether a DataLoader's collate_fn may draw random numbers."""
    return not stacks_natively(loader, source) and not is_proved(loader.collate_fn)


def seeded_as_worker(base_seed: int, number: int) -> States:
    """The states of the generators of one of torch's worker processes, as torch seeds them."""
    seed = base_seed + number
    generator = torch.Generator()
    generator.manual_seed(seed)
    numpy_generator = np.random.RandomState()
    numpy_generator.seed(numpy_seed_of_worker(base_seed, number))
    return (
        generator.get_state(), random.Random(seed).getstate(),
        numpy_generator.get_state(legacy=False),
    )


def worker_states(loader: Any, base_seed: int) -> list[States]:
    """The generators' states with which torch's worker processes begin, their worker_init_fn, which
    only seeds and prints, included. Calls it."""
    workers = [_Worker(number, loader, base_seed) for number in range(loader.num_workers)]
    for worker in workers if loader.worker_init_fn is not None else ():
        with worker.entered():
            pass
    return [worker.states for worker in workers]


class Collate:
    """Makes batches as the DataLoader's collate_fn does.

    Args:
        loader: the feedmill.DataLoader.
        iterator: its iterator, for the base seed and pin_memory.
        function: the function to call. Default None: the loader's collate_fn.
        as_worker: whether to call a user's function with the random generators of the worker that
            torch would have used.
        source: the samples of a native loader; None: they are made otherwise.

    Attributes:
        is_default: the collate_fn is torch's own, so that images need no collating.
        stacks: images need no collating: see stacks_natively().
        on_device: the parts of batches are on a GPU. Must be set at the start of each epoch.
        memory_format: of the batches. Must be set at the start of each epoch.
    """

    def __init__(
        self,
        loader: Any,
        iterator: Any,
        function: Any = None,
        as_worker: bool = False,
        source: Source | None = None,
    ) -> None:
        self.is_default = has_default_collate(loader)
        self.stacks = stacks_natively(loader, source)
        self._gets_pil = self.stacks and gives_pil(source)
        is_own = function is None
        self._function = (
            with_native_mixing(collate_function(loader, source)) if is_own else function
        )
        self._given = loader.collate_fn  # takes samples as the dataset returns them
        self._arrangement = None if source is None else source.arrangement
        options = loader._feedmill_options()
        self.memory_format = options.memory_format
        self._counters = loader._feedmill.python_counters
        self._auto_collation = loader._auto_collation
        self.on_device = False
        self._pins = iterator._pin_memory
        # A batch of torch's own function is pinned here already, before its copy to the device.
        self._pins_for_device = self.is_default and as_device(options.device) is not None
        self._device = iterator._pin_memory_device
        self._counting = threading.Lock()
        self._reads: list[Read] = []
        self._sharing: SharingCollate | None = None
        is_here = loader.num_workers == 0 and is_own and not self.stacks
        if is_here and self._auto_collation and is_proved(loader.collate_fn, self._reads):
            self._sharing = SharingCollate(self._function, auto_collation=True)
        self._workers: list[_Worker] = []
        if as_worker and not self.is_default:
            self._workers = [
                _Worker(number, loader, iterator._base_seed) for number in range(loader.num_workers)
            ]

    def worker(self, number: int) -> _Worker:
        """With ``as_worker``: the generators with which a batch's function is called."""
        return self._workers[number % len(self._workers)]

    def check(self, source: Source) -> None:
        """Raises RuntimeError if the samples are not arranged as when this object was made, so that
        a user's function would not get them as the dataset returns them."""
        if not self.is_default and source.arrangement != self._arrangement:
            raise RuntimeError(
                f"the dataset's samples were {described(self._arrangement)} and are now "
                f"{described(source.arrangement)}; with persistent workers and a collate_fn this "
                "needs a new DataLoader"
            )

    def __call__(
        self,
        parts: Sequence[torch.Tensor],
        targets: Sequence[Any],
        number: int,
        as_image: bool,
        is_pinned: bool = True,
        labels: Sequence[torch.Tensor] = (),
        arrangement: Any = PAIR,
    ) -> Any:
        """Makes the caller's batch.

        Args:
            parts: the images in order, (n, 3, height, width) each; none for an empty batch.
            targets: one per sample.
            number: of the batch in its epoch; decides which worker torch would have used.
            as_image: whether samples are tv_tensors.Image.
            is_pinned: with pin_memory, whether a single part is already pinned.
            labels: the targets of each part, if they are on the device already.
            arrangement: of the samples' parts, as BaseDataset's.
        """
        if not targets:
            return self._pinned(self._call([], number))
        images = _joined(parts)
        is_pinned = is_pinned and len(parts) == 1
        if not is_pinned:
            images = batch_laid_out(images, self.memory_format)
        is_fast = self.stacks and not self.is_default  # timm's or NVIDIA's fast_collate
        if not self.stacks or (
            is_fast and not self._gets_pil
            and (images.dtype is not torch.uint8 or set(map(type, targets)) != {int})
        ):
            data = self._run(images, targets, number, as_image)
            return self._pinned(batch_laid_out(data, self.memory_format))
        if arrangement != PAIR:
            return self._arranged(images, targets, as_image, is_pinned, arrangement)
        if not self._auto_collation:
            data = default_convert((samples_of(images, as_image)[0], targets[0]))
        else:
            data = [images, _joined(labels) if labels else self._column_of(targets)]
        if not self._pins:
            return tuple(data) if is_fast else data
        # The images are pinned already, unless parts were concatenated.
        rest = data[1:]
        if not labels:
            rest = [pin_memory(one, self._device) for one in rest]
        return [data[0] if is_pinned else self._pinned(data[0]), *rest]

    def _column_of(self, targets: Sequence[Any]) -> Any:
        if self._gets_pil:
            return torch.tensor(list(targets), dtype=torch.int64)
        column: Any = tuple(targets)  # a tuple, as torch passes it
        return default_collate(column)

    def _arranged(
        self,
        images: torch.Tensor,
        targets: Sequence[Any],
        as_image: bool,
        is_pinned: bool,
        arrangement: Any,
    ) -> Any:
        """As __call__() with torch's own function, for samples that are no pairs."""
        if not self._auto_collation:
            image = samples_of(images, as_image)[0]
            return self._pinned(default_convert(arranged(arrangement, image, targets[0])))
        images = images if is_pinned else self._pinned(images)
        if isinstance(arrangement, OpenFields):
            rows = [arranged(arrangement, 0, one) for one in targets]
            return arranged(arrangement, images, self._pinned(default_collate(rows)))
        return arranged(arrangement, images, self._columns(targets, arrangement))

    def _columns(self, targets: Sequence[Any], arrangement: Any) -> list[Any]:
        """The parts other than images, each of all samples, as torch's own function collates them:
        it passes those of dicts as a list, others as a tuple, and may return them as they are."""
        if arrangement == PAIR:
            targets = [(one,) for one in targets]
        columns: Any = zip(zip(*targets), holders(arrangement))
        return [
            self._pinned(default_collate(list(values) if kind is dict else values))
            for values, kind in columns
        ]

    def batch(self, batch: Batch, source: Source) -> Any:
        """Makes the caller's batch from a complete batch."""
        plan: Any = source.plan
        if batch.own is not None:
            return self._of_samples(batch.own, batch.turn, self._given)
        if source.arrays is not None:
            return self.arrays(batch, plan.as_image)
        if plan.more_views:
            return self._views(batch, source)
        images = batch.images()
        if isinstance(plan, RawPlan):
            images = [plan.values_of(one) for one in images]
        return self(
            images, batch.targets(), batch.turn, plan.as_image,
            is_pinned=not batch.skipped,
            labels=() if batch.skipped or batch.replaced else batch.labels,
            arrangement=source.arrangement,
        )

    def ready(self, data: Any) -> Any:
        """A batch that was collated otherwise, pinned if it is to be."""
        return self._pinned(data)

    def _views(self, batch: Batch, source: Source) -> Any:
        """As batch(), for samples with several images, with torch's own function: each view in a
        tensor of its own, in a list."""
        targets = batch.targets()
        if not targets:
            return self._pinned(self._call([], batch.turn))
        plan = source.native_plan
        views = [_joined(batch.images(number)) for number in range(len(plan.views))]
        is_pair = source.arrangement == PAIR
        if not self._auto_collation:
            images = [samples_of(one, plan.as_image)[0] for one in views]
            rest = targets if is_pair else targets[0]
            return self._pinned(default_convert(arranged(source.arrangement, images, rest)))
        labels = () if batch.skipped or batch.replaced else batch.labels
        if labels:
            columns = [_joined(labels)]
        else:
            columns = self._columns(targets, source.arrangement)
        if batch.skipped or len(batch.parts) > 1:
            views = [self._pinned(one) for one in views]
        return arranged(source.arrangement, views, columns)

    def in_thread(self) -> Callable[[Sequence[torch.Tensor], Sequence[Any], bool], Any]:
        """Returns a function that makes the same batch on another thread, for a proved collate_fn.
        It is called with images, targets and as_image, see __call__()."""
        call = SharingCollate(self._function, self._auto_collation)
        counters, memory_format = self._counters, self.memory_format
        pins = self._pins and not self.on_device
        pin_device = torch.cuda.current_device() if pins and torch.cuda.is_available() else None

        def collate(parts: Sequence[torch.Tensor], targets: Sequence[Any], as_image: bool) -> Any:
            begin_ns = time.monotonic_ns()
            images = _joined(parts) if targets else torch.empty(0)
            if len(parts) != 1:
                images = batch_laid_out(images, memory_format)
            del parts
            data = batch_laid_out(call(images, targets, as_image), memory_format)
            if pins:
                with contextlib.nullcontext() if pin_device is None else (
                    torch.cuda.device(pin_device)
                ):
                    data = pin_memory(data, self._device)
            counters.collate_ahead_ns += time.monotonic_ns() - begin_ns
            return data

        return collate

    def of_samples(self, samples: Sequence[Any], number: int) -> Any:
        """Makes the caller's batch from complete samples.

        Args:
            samples: of the batch; a single one without automatic batching.
            number: of the batch in its epoch.
        """
        begin_ns = time.monotonic_ns()
        try:
            return self._of_samples(samples, number)
        finally:
            if not self.is_default:
                self._counters.collate_ns += time.monotonic_ns() - begin_ns

    def ahead(self, samples: Sequence[Any], number: int) -> Any:
        """As of_samples(), on another thread, for torch's own function and a proved one. Returns
        NOTHING if the proof does not cover these samples' types."""
        if not self.is_default and not is_builtin(list(samples)):
            return NOTHING
        begin_ns = time.monotonic_ns()
        try:
            return self._of_samples(samples, number)
        finally:
            if not self.is_default:
                with self._counting:
                    self._counters.collate_ahead_ns += time.monotonic_ns() - begin_ns

    def _of_samples(self, samples: Sequence[Any], number: int, function: Any = None) -> Any:
        given = list(samples) if self._auto_collation else samples[0]
        data = self._call(given, number, function)
        return pinned(data) if self._pins_for_device else self._pinned(data)

    def arrays(self, batch: Any, as_image: bool) -> Any:
        """Makes the caller's batch if the samples are arrays: each part is a list with one tensor
        per array. If the first array holds images, the second one holds their targets."""
        parts = batch.parts
        if not parts:
            return self._pinned(self._call([], batch.turn))
        changed = batch.items.changed()
        if changed is not None:
            return self._pinned(changed)
        if not self.is_default or not self._auto_collation:
            images, targets = zip(*parts)
            labels = [target for part in targets for target in part.tolist()]
            return self(images, labels, batch.turn, as_image)
        if len(parts) == 1:
            return parts[0]  # pinned already
        return self._pinned([torch.cat(same) for same in zip(*parts)])

    def _pinned(self, data: Any) -> Any:
        if not self._pins or self.on_device:
            return data
        return pin_memory(data, self._device)

    def _run(
        self, images: torch.Tensor, targets: Sequence[Any], number: int, as_image: bool
    ) -> Any:
        begin_ns = time.monotonic_ns()
        try:
            if self._may_share(targets):
                assert self._sharing is not None
                return self._sharing(images, targets, as_image)
            samples = list(zip(samples_of(images, as_image), targets))
            return self._call(samples if self._auto_collation else samples[0], number)
        finally:
            self._counters.collate_ns += time.monotonic_ns() - begin_ns

    def _may_share(self, targets: Sequence[Any]) -> bool:
        """Whether the proof covers these samples, so that the batch may be the native memory."""
        return (
            self._sharing is not None
            and all(map(is_builtin, targets))
            and all(one.is_same() for one in self._reads)
        )

    def _call(self, data: Any, number: int, function: Any = None) -> Any:
        function = self._function if function is None else function
        if not self._workers:
            return function(data)
        with self.worker(number).entered():
            return function(data)


class Finisher:
    """Collates native batches ahead of their turn, on the thread that receives them.

    Args:
        collate: the iterator's, with a user's collate_fn.
        workers: the processes that call the function; None: it is proved, and called on this
            thread.
        source: the samples.
        num_workers: the DataLoader's.
        handle: the native loader.
    """

    def __init__(
        self,
        collate: Collate,
        workers: CollateWorkers | None,
        source: Source,
        num_workers: int,
        handle: Any,
    ) -> None:
        self._collate = collate
        self._workers = workers
        self._source = source
        self._num_workers = num_workers
        # If the samples are arrays, images are the first array.
        self._offset = 0 if source.arrays is None else handle.offsets[0]
        self._in_thread = None if workers is not None else collate.in_thread()

    def finish(self, batch: Batch) -> None:
        """Calls the collate_fn, or sends the batch to a worker. Does not raise."""
        if self._workers is not None:
            self._send(self._workers, batch)
        elif batch.error is None:
            self._call(batch)
        batch.ready_ns = time.monotonic_ns()
        batch.done.set()

    def _call(self, batch: Batch) -> None:
        images, targets = self._images_and_targets(batch)
        if not all(map(is_builtin, targets)):
            return  # not covered by the proof: the function is called at the batch's turn
        batch.parts = []
        batch.owners = []
        try:
            assert self._in_thread is not None
            plan: Any = self._source.plan
            batch.data = self._in_thread(images, targets, plan.as_image)
        except Exception as error:
            batch.error = as_torch_raises(error, batch.turn, self._num_workers)

    def _send(self, workers: CollateWorkers, batch: Batch) -> None:
        owners, batch.owners = batch.owners, []
        try:
            if batch.error is not None:
                workers.send(batch.number, None, None, ())
                return
            _, targets = self._images_and_targets(batch)
            batch.parts = []
            kept = None
            if batch.skipped:
                kept = [i for i in range(len(batch.items)) if i not in batch.skipped]
            parts = [(owner, self._offset, n) for owner, n in owners]
            workers.send(batch.number, parts, kept, targets)
        except OSError:
            pass  # the worker has ended; torch's iterator reports that
        except Exception as error:  # a target can't be pickled
            error.args = (f"{error} (targets of native samples are pickled and sent to the process "
                          "that calls collate_fn; native='off' makes the samples there)",)
            batch.error = as_torch_raises(error, batch.turn, self._num_workers)
            with contextlib.suppress(OSError):
                workers.send(batch.number, None, None, ())

    def _images_and_targets(self, batch: Batch) -> tuple[list[torch.Tensor], list[Any]]:
        if self._source.arrays is None:
            return batch.images(), batch.targets()
        if not batch.parts:
            return [], []
        images, labels = zip(*batch.parts)
        return list(images), [target for part in labels for target in part.tolist()]


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


class _Worker:
    """What one of torch's worker processes would have: random generators, and one thread to compute
    with.

    A collate_fn that draws random numbers (MixUp) then draws the same ones as in the worker, if the
    transforms draw none; and the main process's generators stay unchanged, as with torch.

    Attributes:
        states: of torch's, Python's and NumPy's generators.
    """

    def __init__(self, number: int, loader: Any, base_seed: int) -> None:
        self.states = seeded_as_worker(base_seed, number)
        self._info = make_worker_info(
            id=number, num_workers=loader.num_workers, seed=base_seed + number,
            dataset=loader.dataset,
        )
        # A worker_init_fn that only seeds generators and prints: see planner.seeding.
        called = loader._feedmill_options().worker_init != "ignore"
        self._seed = loader.worker_init_fn if called else None
        self._n_threads = 1

    def go_on(self, states: States) -> None:
        """Goes on with states in which the worker_init_fn was called already."""
        self.states, self._seed = states, None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """While active, the global generators have the worker's state, get_worker_info() returns
        the worker's, and torch computes with as many threads as there. One thread at a time. Other
        threads that draw meanwhile draw from the worker's generators, too."""
        info = torch.utils.data.get_worker_info()
        held = Held(self.states)
        try:
            with drawing_from(self.states, held):
                set_worker_info(self._info)
                try:
                    if self._seed is not None:
                        with _other_devices_kept():
                            self._seed(self._info.id)
                        self._seed = None
                    with unshared(), self._with_its_threads():
                        yield
                finally:
                    set_worker_info(info)
        finally:
            self.states = held.states

    @contextmanager
    def _with_its_threads(self) -> Iterator[None]:
        """While active, torch computes with as many threads as in the worker: one, unless the
        function has changed it. More would not only be other than there: while they wait for work,
        they take CPUs from the decode threads."""
        before = torch.get_num_threads()
        torch.set_num_threads(self._n_threads)
        try:
            yield
        finally:
            self._n_threads = torch.get_num_threads()
            torch.set_num_threads(before)


@contextmanager
def _other_devices_kept() -> Iterator[None]:
    """Restores the GPUs' generators, which torch.manual_seed() seeds, too. In a worker process that
    would not affect the main process."""
    cuda = torch.cuda
    if cuda.is_initialized():
        states = cuda.get_rng_state_all()
        try:
            yield
        finally:
            cuda.set_rng_state_all(states)
        return
    queued = cuda_calls_in_queue()
    n_queued = len(queued)
    try:
        yield
    finally:
        del queued[n_queued:]
