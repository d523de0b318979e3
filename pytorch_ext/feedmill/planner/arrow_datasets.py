"""Reads ``Dataset``s of Hugging Face's datasets library whose rows have an image, under a function
that ``set_transform()`` or ``with_transform()`` was given.

Images and the other columns come from the Arrow table: encoded images without a copy, or paths.
Images that their metadata turns are made by the library itself; see FM_REJECT_TURNED.
"""

from __future__ import annotations

import bisect
import itertools
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from feedmill._ops import native
from feedmill.planner import files, huggingface
from feedmill.planner.arrangements import IMAGE, Fields
from feedmill.planner.attributes import NotUnderstood, of_class
from feedmill.planner.batch_functions import BatchFunction
from feedmill.planner.buffers import Buffer
from feedmill.planner.collate_keys import keys_read
from feedmill.planner.equality import native_formats
from feedmill.planner.image_calls import Convert, ImageState
from feedmill.planner.known import flatten
from feedmill.planner.plan import UnsupportedError
from feedmill.planner.samples import (
    BaseDataset,
    BaseNode,
    Item,
    NotNative,
    Source,
    SubsetNode,
    why_no_path,
)
from feedmill.planner.transforms import TransformPlan, read_transforms
from feedmill.planner.untouched import type_name

# Rows whose first bytes are read to find out of which format the images are.
_PROBED_ROWS = 64
_FIRST_BYTES = {"JPEG": b"\xff\xd8\xff", "PNG": b"\x89PNG\r\n\x1a\n", "WebP": b"RIFF"}
_NOT_RGB = (
    "the function of set_transform() does not convert the images to RGB first, so that their mode "
    'is not known; call image.convert("RGB") before the transforms'
)

# The methods of tables that are called for rows, and the classes that define them. They are checked
# there; the classes of tables inherit them.
_TABLE_METHODS = {
    "fast_gather": "IndexedTableMixin", "fast_slice": "IndexedTableMixin", "num_rows": "Table",
}


class _Chunks:
    """A column of an Arrow table, whose elements are looked up by the row."""

    def __init__(self, column: Any) -> None:
        self.chunks = [chunk for chunk in column.chunks if len(chunk)]
        self._ends = list(itertools.accumulate(map(len, self.chunks)))

    def place(self, row: int) -> tuple[int, int]:
        """(number of the chunk, row in it)"""
        number = bisect.bisect_right(self._ends, row)
        return number, row - (self._ends[number - 1] if number else 0)

    def value(self, row: int) -> Any:
        number, at = self.place(row)
        return self.chunks[number][at].as_py()


class ImageTable:
    """The rows of a Dataset.

    Args:
        dataset: the Dataset.
        is_library_known: huggingface.check_library() was called.

    Attributes:
        dataset: the same.
        columns: that its samples have.
        image: the column of images.
        mode: "RGB" if the library converts images to it; None: their mode is unknown.
        determined_by: see BaseDataset.identity().

    Raises:
        UnsupportedError: it is not supported, or has not one column of images.
    """

    def __init__(self, dataset: Any, is_library_known: bool = False) -> None:
        if not is_library_known:
            huggingface.check_library()
        huggingface.check_dataset(dataset)
        _check_methods(dataset)
        self.dataset = dataset
        self.columns = _columns_of(dataset)
        self.image = _image_column(dataset, self.columns)
        self._feature = dataset._info.features[self.image]
        self.mode: str | None = self._feature.mode
        if self.mode not in (None, "RGB"):
            raise UnsupportedError(f"the images are decoded to mode {self.mode!r}, not to RGB")
        table = dataset._data.table
        rows = dataset._indices
        self._rows = None if rows is None else rows.table.column(0).to_numpy()
        self._n_rows = len(dataset)
        self._images = _Chunks(table.column(self.image))
        self._parts = [_bytes_and_paths(chunk) for chunk in self._images.chunks]
        self.determined_by = (dataset._data, rows, dataset._info.features)

    def column(self, name: str) -> Callable[[int], Any]:
        """A function that returns the value of a column in a row. UnsupportedError if values are
        others than Python's own."""
        _check_column(self.dataset, name)
        return _Chunks(self.dataset._data.table.column(name)).value

    def row(self, index: Any) -> int:
        """The row of an index. Raises what the dataset raises for it alone, and NotNative if it is
        not an integer."""
        try:
            index = operator.index(index)
        except (TypeError, ValueError) as error:
            raise NotNative(index, None, f"the index is not an integer ({error})") from None
        if not -self._n_rows <= index < self._n_rows:
            self.dataset[index]  # raises
        row: int = index % self._n_rows
        return row if self._rows is None else int(self._rows[row])

    def source(self, row: int) -> Any:
        """The path or the encoded image in a row, or the library's error if it has neither."""
        number, at = self._images.place(row)
        encoded, paths = self._parts[number]
        value = encoded[at]
        if value.is_valid:
            buffer = value.as_buffer()
            return Buffer(buffer.address, buffer.size, buffer) if buffer.size else b""
        path = paths[at].as_py()
        if path is not None:
            return path
        try:
            return self._decoded({"bytes": None, "path": None})
        except Exception as error:
            return error.with_traceback(None)

    def _decoded(self, value: Any) -> Any:
        return self._feature.decode_example(value, token_per_repo_id=None)

    def load(self, source: Any) -> Any:
        """The image of a path or of encoded bytes, as a PIL image in RGB, turned as its metadata
        says."""
        if type(source) is bytes:
            return self._decoded({"bytes": source, "path": None}).convert("RGB")
        return self._decoded({"bytes": None, "path": source}).convert("RGB")

    def reasons(self) -> list[str]:
        """Reasons against the images: rows without one, files that are not local, and formats that
        go through Pillow."""
        return self.reasons_against_rows() or reasons_against_formats([self])

    def reasons_against_rows(self) -> list[str]:
        """Reasons if there are rows without an image, or files that are not local."""
        compute = sys.modules["pyarrow.compute"]
        for chunk, (encoded, paths) in zip(self._images.chunks, self._parts):
            if chunk.null_count:
                return ["the dataset has rows without an image"]
            if not encoded.null_count:
                continue
            used = paths.filter(encoded.is_null()).drop_null()
            is_local = compute.or_(
                compute.starts_with(used, "/"),
                compute.invert(compute.match_substring(used, ":")),
            )
            if len(used) and not compute.all(is_local).as_py():
                return ["the dataset's images are not in local files, but at URLs"]
        return []

    def sources(self, n: int) -> Iterator[Any]:
        """The paths or encoded images in about n rows."""
        for index in range(0, self._n_rows, max(1, self._n_rows // n)):
            yield self.source(index if self._rows is None else int(self._rows[index]))


def reasons_against_formats(tables: Sequence[ImageTable]) -> list[str]:
    """Reasons if most images of tables have formats that go through Pillow."""
    paths, n_native, n_probed = [], 0, 0
    first = tuple(_FIRST_BYTES[name] for name in native_formats())
    some = tables[:: max(1, len(tables) // _PROBED_ROWS)]
    n = max(1, _PROBED_ROWS // max(1, len(some)))
    for source in itertools.chain.from_iterable(one.sources(n) for one in some):
        if type(source) is str:
            paths.append(source)
        elif type(source) is Buffer:
            n_probed += 1
            n_native += bytes(memoryview(source.owner)[:8]).startswith(first)
    if 2 * n_native < n_probed:
        return [
            f"most images are not {', '.join(native_formats())} ({n_native} of {n_probed} "
            "sampled images are)"
        ]
    return files.reasons_against_names(paths) if paths else []


def _bytes_and_paths(chunk: Any) -> tuple[Any, Any]:
    """The two columns in a column of images."""
    parts = chunk.flatten()
    return tuple(parts[chunk.type.get_field_index(name)] for name in ("bytes", "path"))


def is_local(path: Any) -> bool:
    """Whether a path in a column of images is one of a file that the native loader can open."""
    return (
        type(path) is str and (path.startswith("/") or ":" not in path) and not why_no_path(path)
    )


def table_of(dataset: Any, is_library_known: bool = False) -> ImageTable:
    """The rows of a Dataset without a function. UnsupportedError if it is not supported.

    Args:
        is_library_known: as ImageTable's.
    """
    if dataset._format_type is not None:
        raise UnsupportedError(
            f"the Dataset within it has the format {dataset._format_type!r}; natively it must have "
            "none"
        )
    return ImageTable(dataset, is_library_known)


class _Verified:
    """A dataset for native="verify": the user's own, with another transform in its function, and
    without the fields that native samples do not have."""

    def __init__(self, dataset: Any, keys: Sequence[str]) -> None:
        self._dataset = dataset
        self._keys = keys

    def __getitem__(self, index: Any) -> dict[str, Any]:
        sample = self._dataset[index]
        return {key: sample[key] for key in sample if key in self._keys}


class ArrowDataset:
    """A Dataset with a function that set_transform() or with_transform() was given.

    Attributes:
        determined_by: see BaseDataset.identity().

    Raises:
        UnsupportedError: it is not supported.
    """

    def __init__(self, dataset: Any) -> None:
        self._table = ImageTable(dataset)
        given = _function_of(dataset)
        mode = self._table.mode
        state = None if mode is None else ImageState(True, mode)
        # Whether a transform converts the images to RGB, and not the function itself.
        self._converts_within = False
        try:
            self._function = BatchFunction(
                given, self._table.columns, self._table.image, state
            )
        except NotUnderstood as error:
            raise UnsupportedError(
                f"what the function of set_transform() does is not supported natively: {error}"
            ) from None
        calls = self._function.calls
        if mode is None:
            if not calls or not _converts_first(calls[0]):
                raise UnsupportedError(_NOT_RGB)
            self._converts_within = calls[0] != Convert("RGB")
            calls = calls if self._converts_within else calls[1:]
        self._calls: list[Any] = calls
        self._columns = [
            self._table.column(one) for one in self._function.columns if one is not None
        ]
        self.determined_by = (*self._table.determined_by, given)

    def find(self, index: Any) -> tuple[Any, tuple[Any, ...]]:
        """(path or encoded image, the values of the columns) of an index. Raises what the dataset
        raises."""
        row = self._table.row(index)
        return self._table.source(row), tuple(value(row) for value in self._columns)

    def reasons(self) -> list[str]:
        """Reasons against the images."""
        return [*files.reasons_against_opening(), *self._table.reasons()]

    def read(self) -> TransformPlan:
        """The plan of the transforms."""
        return read_transforms(self._calls)

    def base(self, read: TransformPlan) -> BaseDataset:
        """The dataset for the planner, given read()."""
        parts = tuple(IMAGE if one is None else "value" for one in self._function.columns)
        return BaseDataset(
            self._table.dataset, self.find, self._table.load, True, "transform", read.plan,
            read.steps, arrangement=Fields(self._function.keys, parts),
            with_transform=self._with_transform, views=read.views, is_turned=True, is_arrow=True,
            left=self._function.left,
        )

    def _with_transform(self, transform: Any, copy_with: Any) -> Any:
        copied = object.__new__(type(self._table.dataset))
        vars(copied).update(vars(self._table.dataset))
        given = transform
        if self._converts_within:

            def given(image: Any) -> Any:
                return transform(image.convert("RGB"))

        copied._format_kwargs = {"transform": self._function.with_transform(given)}
        return _Verified(copied, self._function.keys)


def _check_methods(dataset: Any) -> None:
    """Raises UnsupportedError if a class of the Dataset's tables overrides a method that is known
    in another class."""
    library = sys.modules["datasets.table"]
    for table in (dataset._data, dataset._indices):
        for name, owner in _TABLE_METHODS.items() if table is not None else ():
            if of_class(type(table), name) is not vars(getattr(library, owner))[name]:
                raise UnsupportedError(
                    f"{type_name(type(table))} was changed: it has its own {name}"
                )


def _columns_of(dataset: Any) -> list[str]:
    """The columns that the function gets."""
    names = list(dataset._data.column_names)
    if dataset._format_columns is None:
        return names
    if dataset._output_all_columns:
        raise UnsupportedError("set_transform() with output_all_columns is not supported natively")
    return [one for one in names if one in dataset._format_columns]


def _image_column(dataset: Any, columns: Sequence[str]) -> str:
    features = dataset._info.features
    found = [one for one in columns if huggingface.is_image(features[one])]
    if len(found) != 1:
        raise UnsupportedError(
            f"the dataset has {len(found)} columns of images; natively it must have one. Other "
            "columns can be removed by remove_columns()"
        )
    needs = features._column_requires_decoding
    if others := [one for one in columns if needs[one] is not (one == found[0])]:
        raise UnsupportedError(
            f"the dataset's column {others[0]!r} is decoded, too; if it is not needed, remove it "
            "by remove_columns()"
        )
    return found[0]


def _function_of(dataset: Any) -> Any:
    """The function of set_transform()."""
    kind, given = dataset._format_type, dataset._format_kwargs
    if kind is None:
        raise UnsupportedError(
            "the dataset has no transform, so its samples are PIL images; set one by "
            "with_transform()"
        )
    if kind != "custom" or type(given) is not dict or set(given) != {"transform"}:
        raise UnsupportedError(
            f"the dataset's format {kind!r} is not supported natively; supported is a function, "
            "set by with_transform()"
        )
    return given["transform"]


def _check_column(dataset: Any, name: str) -> None:
    """Raises UnsupportedError if the values of a column are others than plain Python values."""
    kind = dataset._data.table.schema.field(name).type
    if not _is_plain(kind):
        raise UnsupportedError(
            f"the dataset's column {name!r} of type {kind} is not supported natively; if it is "
            "not needed, remove it by remove_columns()"
        )


def _is_plain(kind: Any) -> bool:
    """Whether pyarrow makes Python's own numbers, strings, bytes, lists or dicts of a type's
    values."""
    types = sys.modules["pyarrow"].types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _is_plain(kind.value_type)
    if types.is_struct(kind):
        return all(_is_plain(kind.field(number).type) for number in range(kind.num_fields))
    tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_string,
             types.is_large_string, types.is_binary, types.is_large_binary, types.is_null)
    return any(test(kind) for test in tests)


class ArrowSource(Source):
    """The samples of a tree of datasets with Datasets of Hugging Face in it."""

    rejects = native.REJECT_TURNED

    def __init__(self, dataset: Any, node: Any) -> None:
        super().__init__(dataset, node)
        self._listed = _looked_up_by_lists(node)

    def _item(self, node: Any, asked: Any, index: Any) -> Item:
        if self._listed is not None:
            _check_in_list(self._listed, node.locate(index)[1])
        try:
            return super()._item(node, asked, index)
        except NotNative as error:
            # ImageTable.row() knows the table's index only, not the sampler's.
            raise NotNative(asked, error.path, str(error)) from None

    def why_not(self, loader: Any, is_default: bool) -> list[str]:
        reasons = super().why_not(loader, is_default)
        if loader.batch_sampler is None:
            reasons.append(
                "with batch_size=None, an index may be a list, for which a Dataset of Hugging Face "
                "returns a whole batch; pass a batch_size or a batch_sampler"
            )
        left = {key for base in self._node.base_datasets for key in base.left}
        if left:
            reasons += _reasons_against_collate(loader.collate_fn, is_default, left)
        return reasons


def _looked_up_by_lists(node: Any) -> Any:
    """The Dataset of Hugging Face that torch asks for all rows of a batch at once, by a list of
    indices, as it has __getitems__(). None: a ConcatDataset, or a dataset of the user's own, asks
    for one row after the other."""
    while isinstance(node, SubsetNode):
        node = node.inner
    if not isinstance(node, BaseNode):
        return None
    dataset = node.base_datasets[0].dataset
    return dataset if huggingface.is_dataset(type(dataset)) else None


def _check_in_list(dataset: Any, index: Any) -> None:
    """Raises what a Dataset raises for a list with an index that alone means something else: one
    that is not an integer, and a negative one if rows were selected."""
    try:
        is_other = operator.index(index) < 0 and dataset._indices is not None
    except (TypeError, ValueError):
        is_other = True
    if is_other:
        dataset[[index]]


def _reasons_against_collate(collate: Any, is_default: bool, left: set[str]) -> list[str]:
    """Reasons if a collate_fn may read the images that native samples do not have."""
    key = sorted(left)[0]
    advice = (
        f"the samples still have the decoded image at {key!r}, which native samples do not have; "
        f"delete it in the function of set_transform(), as in: del batch[{key!r}]"
    )
    if is_default:
        return [advice]
    try:
        read = keys_read(collate)
    except NotUnderstood as error:
        return [advice, f"it is not proved that collate_fn does not read that image: {error}"]
    return [advice, "collate_fn reads that image"] if read & left else []


def _converts_first(call: Any) -> bool:
    """Whether the first thing that a call does with an image is to convert it to RGB, whatever its
    mode is."""
    try:
        return next(flatten(call), None) == Convert("RGB")
    except UnsupportedError:
        return False
