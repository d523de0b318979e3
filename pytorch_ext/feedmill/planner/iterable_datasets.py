"""Reads ``IterableDataset``s of Hugging Face's datasets library that ``to_iterable_dataset()``
makes of a Dataset, and whose ``map()`` transforms the images.

The library's own code chooses the samples, shuffles them and gives each worker its shards. It runs
as it is, but its feature Image gives an Encoded in the place of a decoded image, and the function
of ``map()`` is replaced by an ExampleMap.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from feedmill._ops import native
from feedmill.planner import files, huggingface
from feedmill.planner.arrangements import OpenFields, taken_apart
from feedmill.planner.arrow_datasets import is_local, reasons_against_formats, table_of
from feedmill.planner.attributes import NotUnderstood
from feedmill.planner.batch_functions import Column, ExampleFunction
from feedmill.planner.huggingface_iterables import (
    check_dataset,
    check_iterables,
    check_node,
    dataset_of,
    is_identity,
    is_iterable,
    is_node,
    mapping_of,
    shards_of,
)
from feedmill.planner.image_calls import Convert, ImageState, ImageValue
from feedmill.planner.plan import UnsupportedError
from feedmill.planner.sample_streams import Collect, Picture, Run, SampleStream
from feedmill.planner.samples import BaseDataset
from feedmill.planner.transforms import TransformPlan, converts_first, read_transforms

_MAX_NODES = 64
# Iterables that pass on Arrow tables, before images are decoded.
_OF_TABLES = (
    "RebatchedArrowExamplesIterable", "SelectColumnsIterable", "SkipExamplesIterable",
    "TakeExamplesIterable", "InterleavedShardsExamplesIterable", "BufferShuffledExamplesIterable",
)
# Those of them that a trial leaves out.
_OF_ORDER = _OF_TABLES[2:]
_BEHIND_MAP = {
    "BufferShuffledExamplesIterable": "shuffle()", "SkipExamplesIterable": "skip()",
    "TakeExamplesIterable": "take()", "InterleavedShardsExamplesIterable": "shuffle()",
}
_NOT_RGB = (
    "the function of map() does not convert the images to RGB first, so that their mode is not "
    'known; call image.convert("RGB") before the transforms'
)


class Encoded(Picture):
    """Stands for an image that the feature Image was to decode.

    Attributes:
        value: the dict of bytes and path.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        super().__init__({}, "")
        self.value = value

    @property
    def name(self) -> str:
        return str(self.value.get("path") or "bytes in memory")


class ExampleMap:
    """In the place of the function of map(): what it does, with the image's Encoded.

    Args:
        function: the script's.
        image: the column of images.
        state: of the images; None: unknown.
    """

    def __init__(self, function: Any, image: str, state: ImageState | None) -> None:
        self._function = function
        self._image = image
        self._state = state
        self._read: dict[tuple[str, ...], ExampleFunction] = {}

    def read(self, columns: tuple[str, ...]) -> ExampleFunction:
        """What it does with a sample of these columns. Raises UnsupportedError."""
        if columns not in self._read:
            try:
                read = ExampleFunction(self._function, columns, self._image, self._state)
            except NotUnderstood as error:
                raise UnsupportedError(
                    f"what the function of map() does is not supported natively: {error}"
                ) from None
            self._read[columns] = read
        return self._read[columns]

    def __call__(self, example: dict[str, Any]) -> dict[str, Any]:
        image = example.get(self._image)
        if type(image) is not Encoded:  # there is none, for which the function raises its error
            made: dict[str, Any] = self._function(example)
            return made
        read = self.read(tuple(example))
        done = Encoded(image.value)
        done.sample, done.field = dict(example), self._image
        values = [done if one is None else example[one] for one in read.columns]
        made = dict(zip(read.keys, values))
        if not read.returns_given:
            return made
        example.clear()
        example.update(made)
        return example


class OwnExamples:
    """Makes samples by the library's own code. ``self[picture]`` is the sample that holds it.

    Args:
        feature: decodes images.
        token: its token_per_repo_id.
        stages: the iterables from map() on.
        arrangement: of the samples; None: ``self[picture]`` is a pair of the image and the rest of
            the sample.
    """

    def __init__(
        self, feature: Any, token: Any, stages: Sequence[Any], arrangement: Any = None
    ) -> None:
        self._feature, self._token = feature, token
        self._stages = stages
        self._arrangement = arrangement

    def __getitem__(self, picture: Any) -> Any:
        decoded = self._feature.decode_example(picture.value, token_per_repo_id=self._token)
        samples: Any = [(0, {**picture.sample, picture.field: decoded})]
        for stage in self._stages:
            samples = _behind(stage, samples)
        _, sample = next(iter(samples))
        return sample if self._arrangement is None else taken_apart(self._arrangement, sample)

    def load(self, source: Any) -> Any:
        """The image of a path or of encoded bytes, as a PIL image in RGB, turned as its metadata
        says."""
        is_data = type(source) is bytes
        value = {"bytes": source if is_data else None, "path": None if is_data else source}
        image = self._feature.decode_example(value, token_per_repo_id=self._token)
        return image.convert("RGB")


def _behind(node: Any, inner: Any = None) -> Any:
    """A copy of an iterable that takes what another one yields, and has its own state."""
    copied = copy.copy(node)
    copied._state_dict = None
    if inner is not None:
        copied.ex_iterable = inner
    return copied


# ---- the chain of iterables ----------------------------------------------------------------------


class _Chain:
    """The iterables of a dataset.

    Args:
        dataset: an IterableDataset.

    Attributes:
        behind: those from the decoded sample on, the innermost first.
        decode: the one that decodes.
        before: those that pass on tables, the outermost first.
        leaf: the one that reads tables.
        features: of the samples where they are decoded.
        image: the column of images.
        map: in the place of the function that transforms the image.
        function: that one.
        transforms: the iterable among ``behind`` that calls it.
        key: the image's in the samples of the dataset.
    """

    key: str

    def __init__(self, dataset: Any) -> None:
        nodes = _nodes_of(dataset._ex_iterable)
        found = [n for n, one in enumerate(nodes) if is_node(one, "FormattedExamplesIterable")]
        if not found:
            raise UnsupportedError(
                "the dataset has no map(), so its samples are PIL images; transform them in a "
                "function that map() is given"
            )
        if len(found) > 1:
            raise UnsupportedError(
                "the images are decoded and encoded again before map(), as behind "
                "rename_column(), remove_columns() or cast_column(); call these after map()"
            )
        at = found[0]
        self.behind = nodes[:at][::-1]
        self.decode = nodes[at]
        self.before = nodes[at + 1 : -1]
        self.leaf = nodes[-1]
        self._check_tables()
        self.features = self.decode._features
        self._read_image()
        self._read_functions()

    def _check_tables(self) -> None:
        if self.decode.formatting is not None or self.decode._features is None:
            raise UnsupportedError("natively, with_format() may not be called before map()")
        for node in self.before:
            if not is_node(node, *_OF_TABLES):
                raise _unknown(node)
        if not is_node(self.leaf, "ArrowExamplesIterable"):
            raise _unknown(self.leaf)
        first: Any = self.before[0] if self.before else None
        if not is_node(first, "RebatchedArrowExamplesIterable") or first.batch_size != 1:
            raise UnsupportedError(
                "natively, map() must be called with single samples; leave out batched=True"
            )

    def _read_image(self) -> None:
        images = [one for one in self.features if huggingface.is_image(self.features[one])]
        if len(images) != 1:
            raise UnsupportedError(
                f"the dataset has {len(images)} columns of images; natively it must have one. "
                "Other columns can be removed by select_columns()"
            )
        self.image = images[0]
        needs = self.features._column_requires_decoding
        if others := [one for one in self.features if needs[one] and one != self.image]:
            raise UnsupportedError(
                f"the dataset's column {others[0]!r} is decoded, too; if it is not needed, remove "
                "it by select_columns()"
            )
        mode = self.features[self.image].mode
        if mode not in (None, "RGB"):
            raise UnsupportedError(f"the images are decoded to mode {mode!r}, not to RGB")

    def _read_functions(self) -> None:
        """Follows a sample through the iterables behind the decoder."""
        mode = self.features[self.image].mode
        state = None if mode is None else ImageState(True, mode)
        sample: dict[str, Any] = {
            one: ImageValue(0) if one == self.image else Column(one) for one in self.features
        }
        self.transforms: Any = None
        self.calls: list[Any] = []
        self.converts_within = False
        for node in self.behind:
            if is_node(node, "SelectColumnsIterable"):
                sample = {one: sample[one] for one in _present(node.column_names, sample)}
                continue
            if not is_node(node, "MappedExamplesIterable"):
                raise _behind_map(node)
            _check_map(node)
            removed = node.remove_columns or ()
            if (mapping := mapping_of(node.function)) is not None:
                made: dict[str, Any] = _renamed(sample, mapping)
            elif is_identity(node.function):
                made = _without(sample, removed)
            else:
                made = self._transformed(node, sample, state)
            sample = {**_without(sample, removed), **made}
        images = [key for key, one in sample.items() if type(one) is not Column]
        done = [key for key in images if sample[key] == ImageValue(1)]
        if self.transforms is None or len(done) != 1:
            raise UnsupportedError("map() does not transform the images, or the samples lack them")
        if len(images) > 1:
            left = next(key for key in images if key not in done)
            raise UnsupportedError(
                f"the samples still have the decoded image at {left!r}, which native samples do "
                f"not have; pass remove_columns={left!r} to map()"
            )
        self.key = done[0]

    def _transformed(self, node: Any, sample: dict[str, Any], state: Any) -> dict[str, Any]:
        if self.transforms is not None:
            raise UnsupportedError("natively, only one map() may have a function of the script")
        images = [key for key, one in sample.items() if type(one) is ImageValue]
        if len(images) != 1:
            raise UnsupportedError("the samples have no image, or several, where map() is called")
        self.transforms, self.function = node, node.function
        self.map = ExampleMap(node.function, images[0], state)
        read = self.map.read(tuple(sample))
        self.calls = read.calls
        if state is None:
            if not converts_first(read.calls):
                raise UnsupportedError(_NOT_RGB)
            self.converts_within = read.calls[0] != Convert("RGB")
            self.calls = read.calls if self.converts_within else read.calls[1:]
        values = [ImageValue(1) if one is None else sample[one] for one in read.columns]
        made = dict(zip(read.keys, values))
        made.update(dict.fromkeys(read.left, ImageValue(0)))
        return _without(made, node.remove_columns or ()) if read.returns_given else made

    def nodes(self) -> list[Any]:
        """All of them."""
        return [*self.behind, self.decode, *self.before, self.leaf]

    def shadow(self, before: Sequence[Any] | None = None) -> Any:
        """Copies that yield an Encoded in the place of each image.

        Args:
            before: in the place of those with this name.
        """
        node = _behind(self.leaf)
        for one in reversed(self.before if before is None else before):
            node = _behind(one, node)
        node = _behind(self.decode, node)
        node._features = _with_stand_in(self.features, self.image)
        for one in self.behind:
            node = _behind(one, node)
            if one is self.transforms:
                node.function = self.map
        return node

    def shadow_to_try(self) -> Any:
        """The same without what shuffles and leaves out samples."""
        return self.shadow([one for one in self.before if not is_node(one, *_OF_ORDER)])

    def from_map(self, function: Any = None) -> list[Any]:
        """The iterables from that on which transforms the images, with another function."""
        stages = self.behind[self.behind.index(self.transforms) :]
        if function is not None:
            stages[0] = _behind(stages[0])
            stages[0].function = function
        return stages

    def with_transform(self, transform: Any) -> Any:
        """The function of map() with another transform."""
        given = transform
        if self.converts_within:

            def given(image: Any) -> Any:
                return transform(image.convert("RGB"))

        function = next(iter(self.map._read.values()))
        return function.with_transform(given)


def _nodes_of(node: Any) -> list[Any]:
    """An iterable and those within it."""
    nodes: list[Any] = []
    while node is not None and len(nodes) < _MAX_NODES:
        check_node(node)
        nodes.append(node)
        node = vars(node).get("ex_iterable")
    return nodes


def _unknown(node: Any) -> UnsupportedError:
    return UnsupportedError(
        f"{type(node).__name__} of an IterableDataset of Hugging Face is not supported natively"
    )


def _behind_map(node: Any) -> UnsupportedError:
    name = next((_BEHIND_MAP[one] for one in _BEHIND_MAP if is_node(node, one)), None)
    if name is None:
        return _unknown(node)
    return UnsupportedError(
        f"the dataset's {name} comes behind map(), whose images it orders or leaves out when they "
        f"are transformed already; call {name} before map()"
    )


def _check_map(node: Any) -> None:
    """Raises UnsupportedError if map() was called with arguments that are not supported."""
    given = {
        "with_indices": node.with_indices, "input_columns": node.input_columns is not None,
        "batched": node.batched, "fn_kwargs": node.fn_kwargs, "features": node._features,
        "a format": node.formatting,
    }
    if found := [name for name, one in given.items() if one]:
        raise UnsupportedError(f"map() with {found[0]} is not supported natively")


def _present(columns: Sequence[str], sample: dict[str, Any]) -> Sequence[str]:
    if missing := [one for one in columns if one not in sample]:
        raise UnsupportedError(f"the samples have no column {missing[0]!r}")
    return columns


def _renamed(sample: dict[str, Any], mapping: dict[str, str]) -> dict[str, Any]:
    _present(list(mapping), sample)
    if any(one in sample for one in mapping.values()):
        raise UnsupportedError("rename_columns() gives a column the name of another one")
    return {new: sample[old] for old, new in mapping.items()}


def _without(sample: dict[str, Any], removed: Sequence[str]) -> dict[str, Any]:
    return {key: one for key, one in sample.items() if key not in removed}


def _with_stand_in(features: Any, image: str) -> Any:
    """A copy of features, in which a column's Image decodes to an Encoded."""
    feature = copy.copy(features[image])
    vars(feature)["decode_example"] = _stand_in
    copied = copy.copy(features)
    copied[image] = feature
    return copied


def _stand_in(value: Any, token_per_repo_id: Any = None) -> Encoded:
    return Encoded(value)


# ---- samples -------------------------------------------------------------------------------------


class IterableSource(SampleStream):
    """The samples of an IterableDataset.

    Args:
        dataset: the script's.
        chain: its iterables.
        read: its image's transforms.
    """

    what = "an IterableDataset of Hugging Face"
    rejects = native.REJECT_TURNED

    def __init__(self, dataset: Any, chain: _Chain, read: TransformPlan) -> None:
        feature, token = chain.features[chain.image], chain.decode.token_per_repo_id
        arrangement = OpenFields(chain.key)

        def with_transform(transform: Any, _: Any) -> OwnExamples:
            stages = chain.from_map(chain.with_transform(transform))
            return OwnExamples(feature, token, stages, arrangement)

        own = OwnExamples(feature, token, chain.from_map())
        base = BaseDataset(
            own, self.find, own.load, False, "transform", read.plan, read.steps,
            arrangement=arrangement, makes_samples=True, converts=read.converts, is_turned=True,
            with_transform=with_transform,
        )
        super().__init__(dataset, base)
        self._chain = chain

    def find(self, index: Any) -> Any:
        raise TypeError("the samples of an IterableDataset have no indices")

    def _parts(self) -> Sequence[Any]:
        chain = self._chain
        own = vars(self.dataset)
        return [*chain.nodes(), chain.function, chain.features, own["_distributed"]]

    def stages(self, of_worker: bool, earlier: Sequence[Any] = ()) -> list[Any]:
        return []

    def run(self, stages: Sequence[Any]) -> Run:
        shadow = dataset_of(self.dataset, self._chain.shadow())
        return Run(iter(shadow), Collect(1, True), shadow)

    def _encoded(self, picture: Any) -> tuple[int, Any, Any]:
        value = picture.value
        data, path = value.get("bytes"), value.get("path")
        if data is None and is_local(path):
            return 0, path, None
        # Of empty bytes the library makes the sample, or raises its error.
        return 0, "", data if type(data) is bytes else b""

    def _samples_to_try(self) -> Iterator[Any]:
        return (sample for _, sample in self._chain.shadow_to_try())

    def state_of(self, run: Run) -> Any:
        return _copied(run.dataset._state_dict)

    def note_state(self, state: Any) -> None:
        self.dataset._state_dict = state


def _copied(state: Any) -> Any:
    """A copy of a dataset's state, which is made of dicts, lists and plain values."""
    if type(state) is dict:
        return {key: _copied(one) for key, one in state.items()}
    return list(map(_copied, state)) if type(state) is list else state


def is_iterable_dataset(dataset: Any) -> bool:
    """Whether a dataset is an IterableDataset of Hugging Face's, and no subclass of it."""
    return is_iterable(type(dataset))


def read_iterable(dataset: Any) -> IterableSource:
    """The samples of an IterableDataset.

    Draws no random number and changes nothing.

    Raises:
        UnsupportedError: it can't be run natively.
    """
    huggingface.check_library()
    check_iterables()
    for reason in files.reasons_against_opening():
        raise UnsupportedError(reason)
    check_dataset(dataset)
    if dataset._formatting is not None:
        raise UnsupportedError("natively, an IterableDataset may have no format; see with_format()")
    chain = _Chain(dataset)
    if dataset._info.features is not None:
        raise UnsupportedError("natively, the samples of map() may have no features= or cast()")
    _check_distributed(dataset)
    _check_shards(chain)
    read = read_transforms(chain.calls)
    if read.reasons:
        raise UnsupportedError(read.reasons[0])
    if read.views:
        raise UnsupportedError("the transform makes several images of a sample")
    return IterableSource(dataset, chain, read)


def _check_distributed(dataset: Any) -> None:
    """Raises UnsupportedError if split_dataset_by_node() leaves out samples behind map()."""
    split = dataset._distributed
    if split is None:
        return
    by_shards = dataset._ex_iterable.num_shards % split.world_size == 0
    strategy = getattr(split, "strategy", "auto")
    if strategy == "examples" or (strategy == "auto" and not by_shards):
        raise UnsupportedError(
            "split_dataset_by_node() leaves out samples behind map(), as the number of shards is "
            "no multiple of the number of nodes"
        )


def _check_shards(chain: _Chain) -> None:
    """Checks the Datasets whose tables are read."""
    tables = [table_of(shard, is_library_known=True) for shard in shards_of(chain.leaf)]
    reasons = [reason for one in tables for reason in one.reasons_against_rows()]
    for reason in reasons or reasons_against_formats(tables):
        raise UnsupportedError(reason)
