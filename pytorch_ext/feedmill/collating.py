"""From the images and targets of a batch to what the caller gets."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import pin_memory as torch_pin_memory
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data._utils.collate import default_collate, default_convert

from feedmill.devices import as_device, pinned
from feedmill.recognition.formats import batch_laid_out
from feedmill.recognition.recognise import has_default_collate

# Of torch, random and numpy, which have one state for all threads.
_generators = threading.RLock()


def samples_of(images: torch.Tensor, as_image: bool) -> list[torch.Tensor]:
    """The images of a batch, (3, height, width) each: their memory is the batch's, their storage
    their own.

    A plain view would take the whole batch along wherever its storage goes, to a file by
    torch.save() for instance.
    """
    if images.dtype is torch.bfloat16:  # which numpy does not have
        arrays = images.view(torch.int16).numpy()
        samples = [torch.from_numpy(one).view(torch.bfloat16) for one in arrays]
    else:
        samples = [torch.from_numpy(one) for one in images.numpy()]
    if as_image:
        samples = list(map(sys.modules["torchvision.tv_tensors"].Image, samples))
    return samples


class Collate:
    """Puts batches together as the DataLoader's collate_fn does.

    Args:
        loader: the feedmill.DataLoader.
        iterator: its iterator, which knows base_seed and pin_memory.
        function: what is called; default None: the loader's collate_fn.

    Attributes:
        is_default: torch's own function: images need not be touched at all.
        on_device: the parts of batches are on a GPU; to be set at the start of each epoch.
        memory_format: that of the batches; to be set at the start of each epoch.
    """

    def __init__(self, loader: Any, iterator: Any, function: Any = None) -> None:
        self.is_default = has_default_collate(loader)
        self._function = loader.collate_fn if function is None else function
        self.memory_format = loader.memory_format
        self._counters = loader._feedmill.python_counters
        self._auto_collation = loader._auto_collation
        self.on_device = False
        self._pins = iterator._pin_memory
        # What torch's function makes goes to the device as it is.
        self._pins_for_device = self.is_default and as_device(loader.device) is not None
        self._device = iterator._pin_memory_device
        self._workers: list[_Worker] = []
        if not self.is_default:
            self._workers = [
                _Worker(number, loader, iterator._base_seed) for number in range(loader.num_workers)
            ]

    def __call__(
        self,
        parts: Sequence[torch.Tensor],
        targets: Sequence[Any],
        number: int,
        as_image: bool,
        is_pinned: bool = True,
        labels: Sequence[torch.Tensor] = (),
    ) -> Any:
        """What the caller gets.

        Args:
            parts: the images, (n, 3, height, width) each, in order; none for an empty batch.
            targets: one a sample.
            number: of the batch in its epoch; tells which worker torch would have given it to.
            as_image: samples are tv_tensors.Image.
            is_pinned: where batches are to be pinned, a single part is so already.
            labels: of each part the targets, where they are on the device already.
        """
        if not targets:
            return self._pinned(self._call([], number))
        images = _joined(parts)
        is_pinned = is_pinned and len(parts) == 1
        if not is_pinned:
            images = batch_laid_out(images, self.memory_format)
        if not self.is_default:
            data = self._run(images, targets, number, as_image)
            return self._pinned(batch_laid_out(data, self.memory_format))
        if not self._auto_collation:
            data = default_convert((samples_of(images, as_image)[0], targets[0]))
        else:
            # As zip() gives them to torch.
            data = [images, _joined(labels) if labels else default_collate(tuple(targets))]
        if not self._pins:
            return data
        # The images are pinned already, unless they were put together.
        rest = data[1:]
        if not labels:
            rest = [torch_pin_memory.pin_memory(one, self._device) for one in rest]
        return [data[0] if is_pinned else self._pinned(data[0]), *rest]

    def of_samples(self, samples: Sequence[Any], number: int) -> Any:
        """What the caller gets of samples that are complete already.

        Args:
            samples: of the batch, one without automatic batching.
            number: as above.
        """
        begin_ns = time.monotonic_ns()
        try:
            data = self._call(list(samples) if self._auto_collation else samples[0], number)
            return pinned(data) if self._pins_for_device else self._pinned(data)
        finally:
            if not self.is_default:
                self._counters.collate_ns += time.monotonic_ns() - begin_ns

    def arrays(self, batch: Any, as_image: bool) -> Any:
        """What the caller gets of a batch whose parts are lists of tensors, one for each array; of
        images the second are their targets."""
        parts = batch.parts
        if not parts:
            return self._pinned(self._call([], batch.number))
        changed = batch.items.changed()
        if changed is not None:
            return self._pinned(changed)
        if not self.is_default or not self._auto_collation:
            images, targets = zip(*parts)
            labels = [target for part in targets for target in part.tolist()]
            return self(images, labels, batch.number, as_image)
        if len(parts) == 1:
            return parts[0]  # pinned already
        return self._pinned([torch.cat(same) for same in zip(*parts)])

    def _pinned(self, data: Any) -> Any:
        if not self._pins or self.on_device:
            return data
        return torch_pin_memory.pin_memory(data, self._device)

    def _run(
        self, images: torch.Tensor, targets: Sequence[Any], number: int, as_image: bool
    ) -> Any:
        begin_ns = time.monotonic_ns()
        samples = list(zip(samples_of(images, as_image), targets))
        try:
            return self._call(samples if self._auto_collation else samples[0], number)
        finally:
            self._counters.collate_ns += time.monotonic_ns() - begin_ns

    def _call(self, data: Any, number: int) -> Any:
        if not self._workers:
            return self._function(data)
        with self._workers[number % len(self._workers)].entered():
            return self._function(data)


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


class _Worker:
    """The random generators of one of torch's worker processes.

    A collate_fn that draws random numbers (MixUp) gets those that it would get there, as long as
    the transforms draw none, and the script's own generators stay untouched, as they would.
    """

    def __init__(self, number: int, loader: Any, base_seed: int) -> None:
        seed = base_seed + number
        # The very objects' seeding, without touching the global generators.
        generator = torch.Generator()
        generator.manual_seed(seed)
        numpy_generator = np.random.RandomState()
        numpy_generator.seed(torch_worker._generate_state(base_seed, number))
        self._states = (
            generator.get_state(),
            random.Random(seed).getstate(),
            numpy_generator.get_state(legacy=False),
        )
        self._info = torch_worker.WorkerInfo(
            id=number, num_workers=loader.num_workers, seed=seed, dataset=loader.dataset
        )
        # One that seeds: see recognise.only_seeds().
        self._seed = loader.worker_init_fn if loader.worker_init != "ignore" else None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Around a call: the worker's generators are the global ones, and get_worker_info() tells
        of it. One thread at a time; others that draw meanwhile draw from the worker's."""
        with _generators:
            states = _global_states()
            info = torch_worker._worker_info
            try:
                _set_global_states(self._states)
                torch_worker._worker_info = self._info
                if self._seed is not None:
                    with _other_devices_kept():
                        self._seed(self._info.id)
                    self._seed = None
                yield
            finally:
                self._states = _global_states()
                _set_global_states(states)
                torch_worker._worker_info = info


def _global_states() -> tuple[Any, Any, Any]:
    return torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)


def _set_global_states(states: tuple[Any, Any, Any]) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    # A script may have put another bit generator there, which torch's workers can't seed either.
    if np.random.get_state(legacy=False)["bit_generator"] == states[2]["bit_generator"]:
        np.random.set_state(states[2])


@contextmanager
def _other_devices_kept() -> Iterator[None]:
    """torch.manual_seed() seeds the GPUs' generators, too; in a worker those are nobody's."""
    cuda = torch.cuda
    if cuda.is_initialized():
        states = cuda.get_rng_state_all()
        try:
            yield
        finally:
            cuda.set_rng_state_all(states)
        return
    queued = getattr(cuda, "_queued_calls", [])  # what is to be done when CUDA is initialized
    n_queued = len(queued)
    try:
        yield
    finally:
        del queued[n_queued:]
