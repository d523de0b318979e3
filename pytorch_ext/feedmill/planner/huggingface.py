"""Hugging Face's ``datasets`` library: which of its objects are supported, by version.

datasets is not imported here: its objects can exist only if a script has imported it. Each of its
functions between an index and a sample must be one of the versions listed below
(``fingerprints``). For another version of datasets, add the hash that the test of tests/frameworks
prints, if the function computes what the others of its list do.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FunctionType
from typing import Any

from feedmill.planner import fingerprints
from feedmill.planner.plan import UnsupportedError
from feedmill.planner.untouched import is_original, shadowing_attributes, type_name

_DATASET = "datasets.arrow_dataset"
_FORMATTING = "datasets.formatting"
_FORMATTERS = "datasets.formatting.formatting"
_FEATURES = "datasets.features.features"
_IMAGE = "datasets.features.image"
_TABLE = "datasets.table"
_FILES = "datasets.utils.file_utils"

# Hashes of the functions of datasets 5.1.0 and 5.2.0, the newest first.
KNOWN = {
    f"{_DATASET}:Dataset.__getitem__": frozenset({"f261f4bb6dc71727"}),
    f"{_DATASET}:Dataset._getitem": frozenset({"dffd2194e63b3dc8"}),
    f"{_DATASET}:Dataset.__getitems__": frozenset({"cd5d6d6a9cb4279f"}),
    f"{_DATASET}:Dataset.__len__": frozenset({"d349d66590d30217"}),
    f"{_DATASET}:Dataset.num_rows": frozenset({"f2493892e515fc9d"}),
    f"{_FORMATTING}:get_formatter": frozenset({"ecde8a5f32a05094"}),
    f"{_FORMATTING}:get_format_type_from_alias": frozenset({"d6e8dddadaec0dd4"}),
    f"{_FORMATTERS}:_is_range_contiguous": frozenset({"f0b8c0a2a3332e73"}),
    f"{_FORMATTERS}:_query_table_with_indices_mapping": frozenset({"dc5be1ac18f984c4"}),
    f"{_FORMATTERS}:_query_table": frozenset({"0de21db793bf3906"}),
    f"{_FORMATTERS}:query_table": frozenset({"eda6d95f0463cb04"}),
    f"{_FORMATTERS}:format_table": frozenset({"0c43c8351dcaa982"}),
    f"{_FORMATTERS}:key_to_query_type": frozenset({"652fbccbc687494d"}),
    f"{_FORMATTERS}:_check_valid_index_key": frozenset({"6f693443f1324442"}),
    f"{_FORMATTERS}:_unnest": frozenset({"55f150f121eb7c74"}),
    f"{_FORMATTERS}:PythonArrowExtractor.extract_row": frozenset({"9827a23f5a36d655"}),
    f"{_FORMATTERS}:PythonArrowExtractor.extract_batch": frozenset({"591673b57bdad42a"}),
    f"{_FORMATTERS}:PythonFeaturesDecoder.__init__": frozenset({"55fa2a030e48e386"}),
    f"{_FORMATTERS}:PythonFeaturesDecoder.decode_row": frozenset({"f1e0a1ae8884c07c"}),
    f"{_FORMATTERS}:PythonFeaturesDecoder.decode_batch": frozenset({"632f6095dc201694"}),
    f"{_FORMATTERS}:Formatter.__init__": frozenset({"e562100af8b00386"}),
    f"{_FORMATTERS}:Formatter.__call__": frozenset({"378173eb7299bb5d"}),
    f"{_FORMATTERS}:CustomFormatter.__init__": frozenset({"def5741c17d21832"}),
    f"{_FORMATTERS}:CustomFormatter.format_row": frozenset({"ab104acf4dca2cbe"}),
    f"{_FORMATTERS}:CustomFormatter.format_batch": frozenset({"2fd35b8f44b1a4b5"}),
    f"{_FORMATTERS}:PythonFormatter.__init__": frozenset({"d9cf64b1384ee7c2"}),
    f"{_FORMATTERS}:PythonFormatter.format_row": frozenset({"9ad362c0f327f9b4"}),
    f"{_FEATURES}:decode_nested_example": frozenset({"c754b81c36253ea0"}),
    f"{_FEATURES}:Features.decode_batch": frozenset({"501d9e6755e60650"}),
    f"{_FEATURES}:Features.decode_example": frozenset({"ecd8b875914b05f6"}),
    f"{_IMAGE}:Image.decode_example": frozenset({"d15130c62e8c97ac", "b76b343cac244d1d"}),
    f"{_FILES}:is_local_path": frozenset({"5d101bae5c9bbc2a"}),
    f"{_TABLE}:IndexedTableMixin.__init__": frozenset({"632d08d86b957ece"}),
    f"{_TABLE}:IndexedTableMixin.fast_gather": frozenset({"a2e5ae14d5b26626"}),
    f"{_TABLE}:IndexedTableMixin.fast_slice": frozenset({"62bdd448d0c4eeb1"}),
    f"{_TABLE}:_interpolation_search": frozenset({"0e8b4eabfd1cf06f"}),
    f"{_TABLE}:Table.num_rows": frozenset({"d3f30ec2a9859c22"}),
}
# What the functions' global names stand for.
_MEANINGS = {
    "get_formatter": f"{_FORMATTING}:get_formatter",
    "get_format_type_from_alias": f"{_FORMATTING}:get_format_type_from_alias",
    "query_table": f"{_FORMATTERS}:query_table",
    "format_table": f"{_FORMATTERS}:format_table",
    "_query_table": f"{_FORMATTERS}:_query_table",
    "_query_table_with_indices_mapping": f"{_FORMATTERS}:_query_table_with_indices_mapping",
    "_is_range_contiguous": f"{_FORMATTERS}:_is_range_contiguous",
    "_check_valid_index_key": f"{_FORMATTERS}:_check_valid_index_key",
    "_unnest": f"{_FORMATTERS}:_unnest",
    "key_to_query_type": f"{_FORMATTERS}:key_to_query_type",
    "PythonFormatter": f"{_FORMATTERS}:PythonFormatter",
    "PythonFeaturesDecoder": f"{_FORMATTERS}:PythonFeaturesDecoder",
    "decode_nested_example": f"{_FEATURES}:decode_nested_example",
    "zip_dict": "datasets.utils.py_utils:zip_dict",
    "LargeList": f"{_FEATURES}:LargeList",
    "List": f"{_FEATURES}:List",
    "Table": f"{_TABLE}:Table",
    "_interpolation_search": f"{_TABLE}:_interpolation_search",
    "is_local_path": f"{_FILES}:is_local_path",
    "BytesIO": "io:BytesIO",
    "config": "datasets.config",
    "np": "numpy",
    "pa": "pyarrow",
    "os": "os",
    "numbers": "numbers",
    "operator": "operator",
    "urlparse": "urllib.parse:urlparse",
    # Tables of formatters, of which check_library() checks the entries that are used; abstract
    # classes; what is used for errors, for single columns, and for files that are not local.
    **dict.fromkeys(
        ("_FORMAT_TYPES", "_FORMAT_TYPES_ALIASES", "_FORMAT_TYPES_ALIASES_UNAVAILABLE", "Iterable",
         "MutableMapping", "_raise_bad_key_type", "_check_valid_column_key", "Column", "LazyRow",
         "PandasFeaturesDecoder", "_check_non_null_non_empty_recursive", "DownloadConfig",
         "string_to_dict", "xopen"),
        "*",
    ),
}
_TABLES = ("Table", "TableBlock", "InMemoryTable", "MemoryMappedTable", "ConcatenationTable")


def _of(module: str, name: str) -> Any:
    """An object of the library; None if its module was not imported."""
    return getattr(sys.modules.get(module), name, None)


def is_dataset(kind: type) -> bool:
    """Whether a class is datasets.Dataset, and no subclass of it."""
    return kind is _of(_DATASET, "Dataset")


def is_image(feature: Any) -> bool:
    """Whether a column's feature is an Image that is decoded to a PIL image."""
    return type(feature) is _of(_IMAGE, "Image") and feature.decode is True


def is_table(table: Any) -> bool:
    """Whether an object is one of the library's tables."""
    return any(type(table) is _of(_TABLE, name) for name in _TABLES)


def check_library() -> None:
    """Raises UnsupportedError if a function that makes samples is not of a known version, or was
    changed, or if a function of Pillow that turns images was."""
    for place in KNOWN:
        if not is_known(place):
            module, _, name = place.partition(":")
            raise UnsupportedError(
                f"{module}.{name} is not that of a version of Hugging Face's datasets which "
                "feedmill knows"
            )
    formats, aliases = _of(_FORMATTING, "_FORMAT_TYPES"), _of(_FORMATTING, "_FORMAT_TYPES_ALIASES")
    for format_, kind in (("custom", "CustomFormatter"), (None, "PythonFormatter")):
        formatter = _of(_FORMATTERS, kind)
        if aliases.get(format_) != format_ or formats.get(format_) is not formatter:
            raise UnsupportedError(
                f"the formatter {format_!r} of Hugging Face's datasets was replaced"
            )
        _check_formatter(formatter)
    from PIL import Image, ImageOps

    if not is_original(ImageOps.exif_transpose, "PIL.ImageOps", "exif_transpose"):
        raise UnsupportedError("PIL.ImageOps.exif_transpose was replaced")
    if not is_original(vars(Image.Image).get("getexif"), "PIL.Image", "Image.getexif"):
        raise UnsupportedError("PIL.Image.Image.getexif was replaced")


def _check_formatter(kind: type) -> None:
    """Checks what a formatter takes from the class that formatters share."""
    shared = _of(_FORMATTERS, "Formatter")
    if kind.__call__ is not shared.__call__ or (
        vars(shared).get("python_arrow_extractor") is not _of(_FORMATTERS, "PythonArrowExtractor")
        or "python_arrow_extractor" in vars(kind)
    ):
        raise UnsupportedError(f"{type_name(kind)} was changed")


def is_known(
    place: str,
    known: Mapping[str, frozenset[str]] = KNOWN,
    meanings: Mapping[str, str] = _MEANINGS,
) -> bool:
    """Whether the function at a place of ``known`` is one of those listed."""
    module, _, path = place.partition(":")
    owner, _, name = path.rpartition(".")
    function = vars(_of(module, owner)).get(name) if owner else _of(module, name)
    function = function.fget if isinstance(function, property) else function
    function = getattr(function, "__func__", function)  # of a static method
    return type(function) is FunctionType and fingerprints.is_known(
        function, place, known, meanings
    )


def check_dataset(dataset: Any) -> None:
    """Raises UnsupportedError if a Dataset, its table or its features hide methods of their
    classes."""
    for one in (dataset, dataset._data, dataset._indices, dataset._info.features):
        own = [] if one is None else shadowing_attributes(one)
        if own:
            raise UnsupportedError(
                f"a {type_name(type(one))} object has its own {', '.join(own)}, which hides that "
                "of its class"
            )
    tables = [one for one in (dataset._data, dataset._indices) if one is not None]
    if not all(map(is_table, tables)):
        raise UnsupportedError("the dataset's table is none of Hugging Face's datasets")
    check_features(dataset._info.features)


def check_features(features: Any) -> None:
    """Raises UnsupportedError if features are not the library's, or hide methods of their
    classes."""
    if type(features) is not _of(_FEATURES, "Features") or shadowing_attributes(features):
        raise UnsupportedError("the dataset's features are none of Hugging Face's datasets")
    for name, one in features.items():
        # The fields of a feature hide their defaults, which are in the class.
        own = [
            key for key in getattr(one, "__dict__", ()) if callable(getattr(type(one), key, None))
        ]
        if own:
            raise UnsupportedError(
                f"the feature of the column {name!r} has its own {', '.join(own)}, which hides "
                "that of its class"
            )
