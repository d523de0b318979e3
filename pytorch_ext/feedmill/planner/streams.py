"""The samples of a WebDataset pipeline: how its own stages run without decoding images.

The stages shuffle, split, group, rename and collect samples as written, but the field of a
sample's image holds a Member, a byte range of a tar file, and behind the decoder a Picture. The
native loader reads and decodes what these stand for.
"""

from __future__ import annotations

import contextlib
import copy
import os
import re
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch.utils.data import default_convert

from feedmill.planner import files
from feedmill.planner.arrangements import IMAGE, PAIR, OpenFields, arranged, taken_apart
from feedmill.planner.left_out import Replayed, with_ends
from feedmill.planner.ranges import Range
from feedmill.planner.sample_streams import Collect, Picture, Run, SampleStream, picture_of
from feedmill.planner.samples import BaseDataset, Item
from feedmill.planner.tar_places import TarPlaces
from feedmill.planner.transforms import TransformPlan

# The bytes with which tarfile tells a compressed file.
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\x5d\x00\x00\x80", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
# As in webdataset.
_META = re.compile(r"__[^/]*__($|/)")
# Samples that tell how large images are.
_N_MEASURED = 16
# What a sample may have beside its image, in bytes.
_MAX_OTHERS = 1 << 16
_PLAIN_TYPES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)


class Member(NamedTuple):
    """Stands for the bytes of a tar file's member, which were not read."""

    path: str
    place: Range

    def read(self) -> bytes:
        return self.place.read(self.path)


def whole(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample with the bytes of its members. Raises OSError if they can't be read."""
    return {key: one.read() if type(one) is Member else one for key, one in sample.items()}


# ---- the stages that differ ----------------------------------------------------------------------


class Expander:
    """In the place of the stage tar_file_expander: yields the files in tar files, the images among
    them as Members.

    A file that is compressed or damaged is left to the stage itself, from the first member that is
    not read here.

    Args:
        stage: webdataset's.
        fields: extensions of images.
    """

    def __init__(self, stage: Callable[[Any], Any], fields: Iterable[str]) -> None:
        self._stage = stage
        self._suffixes = tuple(f".{one}" for one in fields)

    def __call__(self, opened: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for source in opened:
            with contextlib.ExitStack() as closing:
                closing.callback(source["stream"].close)
                n_yielded = 0
                files = self._files_of(source)
                while (file := _next_of(files)) is not None:
                    yield file
                    n_yielded += 1
                if next(files, None) == _ENDED:
                    yield {}  # the end of a tar file, as the stage marks it
                    continue
                closing.pop_all()
            if hasattr(source["stream"], "seekable") and source["stream"].seekable():
                source["stream"].seek(0)
            yield from islice(self._stage([source]), n_yielded, None)

    def _files_of(self, source: dict[str, Any]) -> Iterator[Any]:
        """Yields a tar file's files, then None, and then _ENDED if these were all of them."""
        stream = source["stream"]
        path = os.path.abspath(stream.name)
        # Not with every way to open it.
        local = {"__local_path__": source["local_path"]} if "local_path" in source else {}
        status = os.fstat(stream.fileno())
        if stat.S_ISREG(status.st_mode) and not stream.peek(16).startswith(_COMPRESSED):
            stream.seek(0)
            tar = tarfile.TarFile(fileobj=stream)
            while (info := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]
                if not 0 <= info.size <= status.st_size - info.offset_data:
                    break
                if not info.isreg() or _is_meta(info.name):
                    continue
                data = self._data_of(tar, info, path)
                yield {"fname": info.name, "data": data, "__url__": source["url"], **local}
            else:
                yield from (None, _ENDED)
        yield None

    def _data_of(self, tar: tarfile.TarFile, info: tarfile.TarInfo, path: str) -> Any:
        if info.type not in _PLAIN_TYPES or info.issparse():
            extracted = tar.extractfile(info)
            return None if extracted is None else extracted.read()
        if info.size and info.name.lower().endswith(self._suffixes):
            return Member(path, Range(info.offset_data, info.size))
        file: Any = tar.fileobj
        data = os.pread(file.fileno(), info.size, info.offset_data)
        if len(data) < info.size:
            raise OSError("the file is larger than one call reads, or was cut short")
        return data


_ENDED = {"__ended__": True}


def _next_of(files: Iterator[Any]) -> Any:
    """The next file; None: there is none, or it can't be read here."""
    try:
        return next(files)
    except Exception:  # webdataset's own code will raise what is to be raised
        return None


def _is_meta(name: str) -> bool:
    """Whether webdataset skips a file for its name, or that of its first folder."""
    is_one = "/" not in name and name.startswith("__") and name.endswith("__")
    return is_one or _META.match(name) is not None


class Decode:
    """In the place of webdataset's Decoder: decodes all fields of a sample but its image, in the
    place of which it puts a Picture.

    Args:
        decoder: webdataset's.
        fields: extensions of images, of which a sample's first one is used.
    """

    def __init__(self, decoder: Callable[[Any], Any], fields: Sequence[str]) -> None:
        self._decoder = decoder
        self._fields = fields

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        field = next((one for one in self._fields if one in sample), None)
        if field is None:
            decoded: dict[str, Any] = self._decoder(whole(sample))
            return decoded
        rest = {key: value for key, value in sample.items() if key != field}
        try:
            decoded = self._decoder(whole(rest))
        except Exception:
            # The image may be decoded before what fails here, and fail itself.
            self._decoder(whole(sample))
            raise
        picture = Picture(sample, field)
        return {key: picture if key == field else decoded[key] for key in sample}


class Open:
    """In the place of a function of the script that opens a sample's image: calls the function with
    a Picture in the place of its bytes.

    Args:
        function: calls neither Pillow nor transforms.
        opens: the function itself, without the transforms.
        fields: keys of images, of which a sample's first one is used.
    """

    def __init__(
        self, function: Callable[[Any], Any], opens: Callable[[Any], Any], fields: Sequence[str]
    ) -> None:
        self._function, self._opens = function, opens
        self._fields = fields

    def __call__(self, sample: dict[str, Any]) -> Any:
        encoded = dict(sample)
        field = next((one for one in self._fields if one in sample), None)
        sample.update(whole({key: one for key, one in sample.items() if key != field}))
        if field is not None:
            sample[field] = Picture(encoded, field)
        try:
            return self._function(sample)
        except Exception:
            # The image may be opened before what fails here, and fail itself.
            self._opens(whole(encoded))
            raise


def as_it_is(value: Any) -> Any:
    """In the place of an image's transform."""
    return value


# ---- samples -------------------------------------------------------------------------------------


class OwnSamples:
    """Makes samples by the pipeline's own stages. ``self[picture]`` is the sample that holds it.

    Args:
        stages: from the decoder on, which change samples one by one.
        arrangement: of the samples; None: ``self[picture]`` is a pair of the image and the rest of
            the sample.
    """

    def __init__(self, stages: Sequence[Any], arrangement: Any = None) -> None:
        self._stages = stages
        self._arrangement = arrangement

    def __getitem__(self, picture: Picture) -> Any:
        samples: Any = iter([whole(picture.sample)])
        for stage in self._stages:
            samples = stage(samples)
        sample = next(samples)
        return sample if self._arrangement is None else _pair_of(self._arrangement, sample)


def _pair_of(arrangement: Any, sample: Any) -> Any:
    """The image of a sample and what find() returns beside it."""
    return sample if arrangement == PAIR else taken_apart(arrangement, sample)


@dataclass(frozen=True)
class Stages:
    """The stages of a pipeline.

    Attributes:
        shadows: those that read, order and decode samples, with an Expander and a Decode in the
            place of webdataset's own.
        chain: called with a function in the place of the image's transform, or None for the
            transforms themselves: the stages from the decoder on, which change samples one by one.
        reads, changes: as ``shadows``, for the samples of the first tar files, in their order:
            those before the decoder, and the others.
        is_image: whether a field is decoded as an image.
        tar_paths: of all tar files.
        collects: the stage that yields lists of samples; None: the pipeline makes no batches.
        collate: makes a batch of a list of samples, as webdataset does.
        leaves_out: a handler of a stage from the decoder on may leave out a sample. The stages of
            ``chain`` then raise LeftOut.
    """

    shadows: Sequence[Any]
    chain: Callable[[Any], list[Any]]
    reads: Sequence[Any]
    changes: Sequence[Any]
    is_image: Callable[[str], bool]
    tar_paths: Sequence[str]
    collects: Collect | None = None
    collate: Callable[[list[Any]], Any] | None = None
    leaves_out: bool = False


class StreamSource(SampleStream):
    """The samples of a pipeline.

    Args:
        dataset: the DataPipeline.
        stages: its stages.
        read: its image's transforms.
        arrangement: of the samples, a tuple or OpenFields.
        stateful: classes of stages that hold a state, of which each worker process has a copy.
    """

    what = "a pipeline of webdataset"
    needs_default = True

    def __init__(
        self, dataset: Any, stages: Stages, read: TransformPlan, arrangement: Any,
        stateful: tuple[type, ...],
    ) -> None:
        base = BaseDataset(
            OwnSamples(stages.chain(None)), self.find, files.load_rgb, False, "transform",
            read.plan, read.steps, arrangement=arrangement, makes_samples=True,
            converts=read.converts,
            with_transform=lambda transform, _: OwnSamples(stages.chain(transform), arrangement),
        )
        super().__init__(dataset, base)
        self.collates = stages.collects is not None
        self._stages = stages
        self._stateful = stateful
        is_dict = isinstance(arrangement, OpenFields)
        self._image = arrangement.image if is_dict else arrangement.index(IMAGE)

    def find(self, index: Any) -> Any:
        raise TypeError(f"the samples of a {self.kind} have no indices")

    @property
    def n_places(self) -> int:
        return self._places.n

    @cached_property
    def _places(self) -> TarPlaces:
        sizes = [0]
        with contextlib.suppress(Exception):
            for sample in islice(self._pipeline(self._stages.reads), _N_MEASURED):
                sizes += [one.place.n_bytes for one in sample.values() if type(one) is Member]
        return TarPlaces(self._stages.tar_paths, sum(sizes) // max(1, len(sizes) - 1))

    def _parts(self) -> Sequence[Any]:
        stages: list[Any] = vars(self.dataset)["pipeline"]
        return stages

    def _why_slow(self) -> str:
        """A reason if the other fields of the first sample take long to decode."""
        sample: dict[str, Any] = {}
        with contextlib.suppress(Exception):
            sample = next(iter(self._pipeline(self._stages.reads)))
        fields = [key for key in sample if not key.startswith("__")]
        n_images = sum(map(self._stages.is_image, fields))
        n_bytes = sum(len(sample[key]) for key in fields if type(sample[key]) is bytes)
        if n_images <= 1 and n_bytes <= _MAX_OTHERS:
            return ""
        return (
            f"the samples have other images, or large fields, beside their image "
            f"({', '.join(fields)}), which one process would decode"
        )

    # ---- samples ---------------------------------------------------------------------------------

    def stages(self, of_worker: bool, earlier: Sequence[Any] = ()) -> list[Any]:
        shadows = self._stages.shadows
        if not of_worker:
            return list(shadows)
        before = earlier if len(earlier) == len(shadows) else shadows
        return [
            one if not isinstance(one, self._stateful)
            else held if type(held) is type(one) and held is not one else copy.copy(one)
            for one, held in zip(shadows, before)
        ]

    def run(self, stages: Sequence[Any]) -> Run:
        collects = self._stages.collects
        collect = Collect(1, True) if collects is None else collects.copy()
        if self._stages.leaves_out:
            return Run(self._replayed(stages, None if collects is None else collect), collect)
        more = [] if collects is None else [collect]
        return Run(iter(self._pipeline([*stages, *more])), collect)

    def _replayed(self, stages: Sequence[Any], collect: Collect | None) -> Replayed:
        pipeline = self._pipeline([*stages, with_ends])
        n = pipeline.nsamples if pipeline.repetitions != 1 else 0  # as DataPipeline.__iter__
        pipeline.nsamples = 0
        return Replayed(iter(pipeline), collect, n if n > 0 else -1)

    def _pipeline(self, stages: Sequence[Any]) -> Any:
        kind = next(one for one in type(self.dataset).__mro__ if one.__name__ == "DataPipeline")
        pipeline: Any = object.__new__(kind)
        vars(pipeline).update({**vars(self.dataset), "pipeline": list(stages)})
        return pipeline

    @staticmethod
    def is_of_item(item: Item, sample: Any) -> bool:
        return picture_of(sample) is item.index

    def _encoded(self, picture: Any) -> tuple[int, Any, Any]:
        data = picture.sample[picture.field]
        if type(data) is not Member:
            return 0, "", data
        path, place = data
        return self._places.number(path, place.offset), path, place

    def _samples_to_try(self) -> Iterator[Any]:
        stages = [*self._stages.reads, *self._stages.changes]
        return iter(self._pipeline(stages))

    def collated(self, images: torch.Tensor, targets: Sequence[Any]) -> Any:
        """A batch as the pipeline and torch's default_convert() make it."""
        rows = [self._row(target) for target in targets]
        assert self._stages.collate is not None
        batch = default_convert(self._stages.collate(rows))
        batch[self._image] = images
        return batch

    def _row(self, target: Any) -> Any:
        """A sample without its image."""
        rest = (target,) if self.arrangement == PAIR else target
        row = arranged(self.arrangement, None, rest)
        return tuple(row) if type(row) is list else row

