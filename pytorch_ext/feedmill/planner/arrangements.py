"""How the parts of a sample, its images and the values beside them, are arranged in what a dataset
returns, and in a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

# The parts of a sample, and the arrangement of most samples. Other arrangements are tuples of
# parts, Fields, or a single part, each of which holds the image once; and Trees.
IMAGE, TARGET, INDEX, VALUE = "image", "target", "index", "value"
PAIR = (IMAGE, TARGET)


@dataclass(frozen=True)
class Fields:
    """The arrangement of samples that are dicts.

    Attributes:
        keys: of the dict, in order.
        parts: the part at each key.
    """

    keys: tuple[str, ...]
    parts: tuple[str, ...]

    def __str__(self) -> str:
        pairs = (f"{key!r}: {part}" for key, part in zip(self.keys, self.parts))
        return f"{{{', '.join(pairs)}}}"


@dataclass(frozen=True)
class OpenFields:
    """The arrangement of samples that are dicts, whose keys may differ from sample to sample. What
    find() returns beside the image is the sample without it: None is in its place.

    Attributes:
        image: the image's key.
    """

    image: str

    def __str__(self) -> str:
        return f"{{{self.image!r}: {IMAGE}, ...}}"


@dataclass(frozen=True)
class Tree:
    """The arrangement of samples that hold several images, or lists and dicts in others.

    Attributes:
        kind: list, tuple or dict.
        parts: in order: Trees, the number of an image among several, or VALUE.
        keys: of the dict.
    """

    kind: type
    parts: tuple[Tree | int | str, ...]
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        names = [f"image {one + 1}" if type(one) is int else str(one) for one in self.parts]
        if self.kind is dict:
            return f"{{{', '.join(f'{key!r}: {one}' for key, one in zip(self.keys, names))}}}"
        return f"[{', '.join(names)}]" if self.kind is list else f"({', '.join(names)})"

    def leaves(self) -> list[tuple[int | str, type]]:
        """The parts, also of Trees within, in order, and the types of what holds each."""
        found: list[tuple[int | str, type]] = []
        for one in self.parts:
            found += one.leaves() if isinstance(one, Tree) else [(one, self.kind)]
        return found

    @property
    def n_images(self) -> int:
        return sum(type(one) is int for one, _ in self.leaves())

    def filled(
        self, images: Sequence[Any], rest: Iterator[Any], of_tuples: Callable[[list[Any]], Any]
    ) -> Any:
        """Lists and dicts of images and the other parts.

        Args:
            of_tuples: list or tuple: what is made where the sample holds tuples.
        """
        values = [
            one.filled(images, rest, of_tuples) if isinstance(one, Tree)
            else images[one] if isinstance(one, int) else next(rest)
            for one in self.parts
        ]
        if self.kind is dict:
            return dict(zip(self.keys, values))
        return of_tuples(values) if self.kind is tuple else values

    def values_of(self, sample: Any) -> list[Any] | None:
        """The values of all leaves() in a sample; None: it is not arranged like this."""
        if type(sample) is not self.kind:
            return None
        if type(sample) is dict:
            if tuple(sample) != self.keys:
                return None
            sample = list(sample.values())
        if len(sample) != len(self.parts):
            return None
        found: list[Any] = []
        for one, value in zip(self.parts, sample):
            values = one.values_of(value) if isinstance(one, Tree) else [value]
            if values is None:
                return None
            found += values
        return found


class ArrangedSamples:
    """The samples of a dataset whose samples have other parts than an image and a target.

    Args:
        samples: a list of pairs (path, target).
        arrangement: as BaseDataset's.
    """

    def __init__(self, samples: Any, arrangement: Any) -> None:
        self.samples = samples
        self.determined_by = (samples,)
        self._rest = [part for part in as_parts(arrangement) if part != IMAGE]

    def find(self, index: Any) -> tuple[Any, tuple[Any, ...]]:
        """(path, parts other than the image) of an index. Raises as the list does."""
        path, target = self.samples[index]
        values = {TARGET: target, INDEX: index}
        return path, tuple(values[part] for part in self._rest)


def as_parts(arrangement: Any) -> tuple[str, ...]:
    """The names of the parts in an arrangement."""
    if isinstance(arrangement, Fields):
        return arrangement.parts
    return arrangement if type(arrangement) is tuple else (arrangement,)


def as_returned(arrangement: Any, image: Any, rest: Any) -> Any:
    """A sample as the dataset returns it, of the image and find()'s target."""
    if arrangement == PAIR:
        return image, rest
    if isinstance(arrangement, Tree):
        return arrangement.filled(_images_of(arrangement, image), iter(rest), tuple)
    values = arranged(arrangement, image, rest)
    return tuple(values) if type(values) is list else values


def taken_apart(arrangement: Any, sample: Any) -> tuple[Any, Any] | None:
    """The image, or the list of images, in a sample that a dataset returned, and the other parts;
    None: it is not arranged like this."""
    if isinstance(arrangement, Tree):
        values = arrangement.values_of(sample)
        if values is None:
            return None
        images, rest = {}, []
        for (part, _), value in zip(arrangement.leaves(), values):
            if isinstance(part, int):
                images[part] = value
            else:
                rest.append(value)
        return images[0] if len(images) == 1 else [images[n] for n in sorted(images)], tuple(rest)
    if arrangement == IMAGE:
        return sample, ()
    if isinstance(arrangement, OpenFields):
        key = arrangement.image
        has_it = type(sample) is dict and key in sample
        return (sample[key], {**sample, key: None}) if has_it else None
    if isinstance(arrangement, Fields):
        if type(sample) is not dict or tuple(sample) != arrangement.keys:
            return None
        sample = tuple(sample.values())
    elif type(sample) not in (tuple, list) or len(sample) != len(arrangement):
        return None
    image = as_parts(arrangement).index(IMAGE)
    return sample[image], (*sample[:image], *sample[image + 1 :])


def holders(arrangement: Any) -> list[type]:
    """The types of what holds each of the parts other than images: dict or another."""
    if isinstance(arrangement, Tree):
        return [kind for part, kind in arrangement.leaves() if part == VALUE]
    kind = dict if isinstance(arrangement, Fields) else tuple
    return [kind for part in as_parts(arrangement) if part != IMAGE]


def _images_of(arrangement: Tree, image: Any) -> Sequence[Any]:
    return [image] if arrangement.n_images == 1 else image


def described(arrangement: Any) -> str:
    """An arrangement in words, such as "(image, target, index)"."""
    return f"({', '.join(arrangement)})" if type(arrangement) is tuple else str(arrangement)


def arranged(arrangement: Any, image: Any, rest: Any) -> Any:
    """A sample, or a batch's columns, of an image and the other parts: a list, a dict, or the image
    alone. The image may be a list of views. Tuples become lists, as torch makes them.

    Args:
        arrangement: as BaseDataset's.
        image: the image, or all images.
        rest: what find() returns beside the image, in order.
    """
    if arrangement == IMAGE:
        return image
    if isinstance(arrangement, OpenFields):
        return {**rest, arrangement.image: image}
    others = iter(rest)
    if isinstance(arrangement, Tree):
        return arrangement.filled(_images_of(arrangement, image), others, list)
    values = [image if part == IMAGE else next(others) for part in as_parts(arrangement)]
    return dict(zip(arrangement.keys, values)) if isinstance(arrangement, Fields) else values
