"""The samples of an IterableDataset whose own code runs without decoding images.

What it yields has a stand-in in the place of an image: a Picture. The native loader reads and
decodes what it stands for.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch

from feedmill.planner.arrangements import PAIR, taken_apart
from feedmill.planner.processes import is_forked
from feedmill.planner.samples import BaseDataset, BaseNode, Item, Source

_N_TRIED = 40


class Picture:
    """Stands for a decoded image.

    Attributes:
        sample: the sample before its image was decoded, a dict.
        field: the image's key in it.
    """

    __slots__ = ("field", "sample")

    def __init__(self, sample: dict[str, Any], field: str) -> None:
        self.sample, self.field = sample, field

    def convert(self, mode: str) -> Picture:
        """As an image's: it is in RGB already, the only mode that functions may name."""
        return self

    @property
    def name(self) -> str:
        """What messages call the image."""
        url, key = self.sample.get("__url__"), self.sample.get("__key__")
        return f"{url}: {key}.{self.field}"


def picture_of(sample: Any) -> Picture | None:
    """The Picture in a sample, a dict or a tuple; None: there is none."""
    values = sample.values() if type(sample) is dict else sample
    return next((one for one in values if type(one) is Picture), None)


class StreamItem(Item):
    """A sample of a stream, which has no index. ``index`` is its Picture."""

    __slots__ = ()

    @property
    def name(self) -> str:
        return str(self.index.name)

    def __str__(self) -> str:
        return self.name


class Collect:
    """In the place of webdataset's stage batched(): yields the samples of each batch in a list.

    Args:
        size: of a batch.
        is_partial: the last one may be smaller.

    Attributes:
        begun: samples of the next list.
        left: samples before the latest list, or the end, that are too few for a batch.
        ahead: the sample behind the latest list, which webdataset makes before that.
    """

    def __init__(self, size: int, is_partial: bool) -> None:
        self._size, self._is_partial = size, is_partial
        self.begun: list[Any] = []
        self.left: list[Any] = []
        self.ahead: list[Any] = []

    def __call__(self, samples: Iterable[Any]) -> Iterator[list[Any]]:
        self.begun = []
        for sample in samples:
            if len(self.begun) == self._size:
                batch, self.begun = self.begun, []
                self.ahead.append(sample)
                yield batch
                self.ahead.clear()
            self.begun.append(sample)
        batch, self.begun = self.begun, []
        if batch and (self._is_partial or len(batch) == self._size):
            yield batch
        else:
            self.left += batch

    def copy(self) -> Collect:
        return Collect(self._size, self._is_partial)

    def forget(self) -> None:
        """Forgets all samples."""
        self.begun, self.left, self.ahead = [], [], []


class Run(NamedTuple):
    """A run of the dataset.

    Attributes:
        samples: with Pictures; or lists of them, if it makes batches. A Replayed, if some may be
            left out behind the decoder.
        collect: the stage that makes these lists; else one that is not used.
        dataset: that is run, in the place of the script's; None: it holds no state.
    """

    samples: Iterator[Any]
    collect: Collect
    dataset: Any = None


class SampleStream(Source):
    """The samples of an IterableDataset.

    Args:
        dataset: the script's.
        base: its samples' transforms.

    Attributes:
        what: the dataset in words.
        collates: it makes batches itself.
        needs_default: its samples can be given to torch's own collate_fn only.
    """

    has_indices = False
    what: str
    collates = False
    needs_default = False

    def __init__(self, dataset: Any, base: BaseDataset) -> None:
        self.dataset = dataset
        self.n_samples = 1  # it is not known
        self.plan = base.plan
        self.kind = type(dataset).__name__
        self.arrangement = base.arrangement
        self.gives_bytes = True
        self._node = BaseNode(base, self.kind)
        self._tried: list[Item] | None = None

    @property
    def size(self) -> str:
        return "samples as they come"

    def is_like(self, other: Source, in_any_format: bool = False) -> bool:
        if type(other) is not type(self) or not self._has_plan_of(other, in_any_format):
            return False
        mine, theirs = self._identity(), other._identity()
        return len(mine) == len(theirs) and all(map(operator.is_, mine, theirs))

    def _identity(self) -> list[Any]:
        steps = [one for step in self.base_datasets[0].steps for one in step.identity()]
        return [self.dataset, *self._parts(), *steps]

    def _parts(self) -> Sequence[Any]:
        """The objects that determine the samples, beside the dataset and the transforms."""
        raise NotImplementedError

    # ---- options of the DataLoader ---------------------------------------------------------------

    def why_not(self, loader: Any, is_default: bool) -> list[str]:
        options = loader._feedmill_options()
        reasons = []
        if not is_default and self.needs_default:
            reasons.append(f"{self.what} needs torch's own collate_fn natively")
        elif not is_default and loader.persistent_workers:
            # It is called for batches that are left out, too, or that an epoch left early has in
            # flight, and may draw random numbers.
            reasons.append(
                f"with persistent workers, {self.what} needs torch's own collate_fn natively"
            )
        if self.collates and loader.batch_sampler is not None:
            reasons.append(
                "the pipeline makes batches, and so does the DataLoader: pass batch_size=None"
            )
        if loader.num_workers > 0:
            reasons += self._why_not_workers(loader)
        elif self.native_plan.is_random and self.collates:
            reasons.append(
                "without workers, the pipeline's batched() draws the random numbers of the next "
                "batch's first sample from this process's generators; pass num_workers=1"
            )
        if self.native_plan.is_random and not loader._feedmill_draws_as_torch():
            reasons.append(
                f"seed= and rng='feedmill' need samples with indices, which {self.what} does not "
                "have"
            )
        if options.native == "verify" or options.on_error != "raise" or options.device is not None:
            reasons.append(
                f"native='verify', on_error= and device= are not supported for {self.what}"
            )
        if why := self._why_slow():
            reasons.append(why)
        changes_images = options.dtype or options.memory_format is not torch.contiguous_format
        if self.collates and changes_images:
            reasons.append(
                "dtype= and memory_format= are not applied natively to batches that the pipeline "
                "makes"
            )
        return reasons

    def _why_slow(self) -> str:
        """A reason if the samples take long to make without their images, which torch's workers
        would do side by side."""
        return ""

    def _why_not_workers(self, loader: Any) -> list[str]:
        reasons = []
        if loader.num_workers > 1 and not getattr(loader, "in_order", True):
            reasons.append("with in_order=False the order of batches depends on timing")
        if not is_forked(loader):
            reasons.append("worker processes that are not forked may see another dataset")
        return reasons

    # ---- samples ---------------------------------------------------------------------------------

    def stages(self, of_worker: bool, earlier: Sequence[Any] = ()) -> list[Any]:
        """The stages for run().

        Args:
            of_worker: copies, as a worker process has them.
            earlier: what was returned for the worker's epoch before.
        """
        raise NotImplementedError

    def run(self, stages: Sequence[Any]) -> Run:
        """Begins to run the dataset."""
        raise NotImplementedError

    @staticmethod
    def is_of_item(item: Item, sample: Any) -> bool:
        """Whether a sample that run() yielded is an item's."""
        raise NotImplementedError

    def item_of(self, sample: Any) -> Item:
        """The item of a sample that run() yielded.

        Raises:
            RuntimeError: its parts are not those of the samples that the native path can load.
        """
        apart = taken_apart(self.arrangement, sample)
        if apart is None or not isinstance(apart[0], Picture):
            raise RuntimeError(
                f"a sample of {self.what} has no image where others have it, which torch's path "
                "only can load; use native='off'"
            )
        picture, rest = apart
        target = rest[0] if self.arrangement == PAIR else rest
        place, path, data = self._encoded(picture)
        return StreamItem(place, path, data, target, self.base_datasets[0], picture)

    def _encoded(self, picture: Any) -> tuple[int, Any, Any]:
        """The position, path and data of a Picture's Item."""
        raise NotImplementedError

    def trial_numbers(self, n: int) -> Sequence[int]:
        return range(n)

    def item(self, index: Any) -> Item:
        """One of the first samples, for a trial. Raises IndexError."""
        if self._tried is None:
            self._tried = []
            with contextlib.suppress(Exception):
                for sample in islice(self._samples_to_try(), _N_TRIED):
                    self._tried.append(self.item_of(sample)._replace(position=0))
        found: Item = self._tried[index]
        return found

    def _samples_to_try(self) -> Iterator[Any]:
        """Some samples, in the order in which they are stored."""
        raise NotImplementedError

    def note_state(self, state: Any) -> None:
        """Called without workers when a batch is delivered.

        Args:
            state: of the dataset that is run, as state_of() gave it behind that batch.
        """

    def state_of(self, run: Run) -> Any:
        """What note_state() is to be called with; None: nothing."""
        return None
