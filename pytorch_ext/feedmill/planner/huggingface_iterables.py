"""Hugging Face's ``IterableDataset``: which of its objects are supported, by version.

As in ``huggingface``, each function that chooses samples, and passes them on to a decoder and to a
function of the script, must be one of the versions listed below.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np
import torch

from feedmill.planner import huggingface
from feedmill.planner.plan import UnsupportedError
from feedmill.planner.untouched import shadowing_attributes, type_name

_ITERABLE = "datasets.iterable_dataset"
_FORMATTERS = "datasets.formatting.formatting"
_TABLE = "datasets.table"
_SHARDING = "datasets.utils.sharding"

# Hashes of the functions of datasets 5.1.0 and 5.2.0, the newest first, by module and class.
_HASHES = {
    _ITERABLE: {
        "_BaseExamplesIterable": {
            "__init__": "565fdfc8c79c66b5",
            "iter_arrow": "6a8f27ef6d63c842",
            "is_typed": "c6f9920c1df24bf1",
            "features": "105c982afdea7ace",
            "split_shard_indices_by_worker": "c99f483892603e76",
            "load_state_dict": "50e092a4a69f1d05",
            "state_dict": "671518394de4814f",
            "sleep_on_threads_shutdown": "a1ae85f4945a7d5c",
        },
        "ArrowExamplesIterable": {
            "__iter__": "08e2e8e51014c461",
            "_iter_arrow": "553712b6c2c8c1df",
            "iter_arrow": "76fc448e91440587",
            "num_shards": "8b06464aba49fce2",
            "_init_state_dict": "d9ae749337d94c98",
            "shuffle_data_sources": "914eadbf585bc9ef",
            "shard_data_sources": "b18ab44a5474a099",
        },
        "RebatchedArrowExamplesIterable": {
            "__init__": "901506ee35ae3d67",
            "__iter__": "2637de9a3c161fe5",
            "_iter_arrow": "fee3b52b8367646a",
            "iter_arrow": "b555ba41a69217d5",
            "is_typed": "1d0af5a24afeecbc",
            "features": "ec3d154d68d4fb22",
            "num_shards": "f7ddde9cad3216a2",
            "_init_state_dict": "a8c0d587903fa44b",
            "shuffle_data_sources": "fa31aa2201417245",
            "shard_data_sources": "b58e6118e3996951",
        },
        "SelectColumnsIterable": {
            "__init__": "c5e3d4b3cdc049af",
            "__iter__": "17e6e2b9ece4e59d",
            "_iter_arrow": "c96ecf98efa56541",
            "iter_arrow": "917fc7b7b3c19297",
            "is_typed": "1d0af5a24afeecbc",
            "features": "ec3d154d68d4fb22",
            "num_shards": "f7ddde9cad3216a2",
            "_init_state_dict": "427590bea3811402",
            "shuffle_data_sources": "24d5067bef9af503",
            "shard_data_sources": "9d4ca40a6f7979a6",
        },
        "SkipExamplesIterable": {
            "__init__": "f33dcc90092d4a6b",
            "__iter__": "ab719e015158c88b",
            "_iter_arrow": "52d9d33cedd1c18d",
            "iter_arrow": "8e3a27c7a290d140",
            "is_typed": "1d0af5a24afeecbc",
            "features": "ec3d154d68d4fb22",
            "num_shards": "f7ddde9cad3216a2",
            "_init_state_dict": "34894ae388db53f1",
            "shuffle_data_sources": "9ca076671cbd6c0f",
            "shard_data_sources": "094fc021d8d27af0",
            "split_number": "8664d85c90d437fc",
        },
        "TakeExamplesIterable": {
            "__init__": "f33dcc90092d4a6b",
            "__iter__": "d11450b7d6861d0a",
            "_iter_arrow": "243e1f593b5ee2a9",
            "iter_arrow": "8e3a27c7a290d140",
            "is_typed": "1d0af5a24afeecbc",
            "features": "ec3d154d68d4fb22",
            "num_shards": "f7ddde9cad3216a2",
            "_init_state_dict": "3219e3d341cc42cc",
            "shuffle_data_sources": "ded3f611e428a1a6",
            "shard_data_sources": "d1a3c352d8f2f27a",
            "split_number": "8664d85c90d437fc",
        },
        "InterleavedShardsExamplesIterable": {
            "__init__": "8d3f10f22ec900f0",
            "__iter__": "47b9531d5279c575",
            "_iter_arrow": "8dd9531f78b49ae1",
            "iter_arrow": "8e3a27c7a290d140",
            "is_typed": "1d0af5a24afeecbc",
            "features": "ec3d154d68d4fb22",
            "num_shards": "f7ddde9cad3216a2",
            "_init_state_dict": "e229dfbb05f0bab8",
            "shuffle_data_sources": "af34b396a31b7989",
            "shard_data_sources": "821768e351b209ee",
            "_interleave_shards": "e707e341262b8ed0",
        },
        "BufferShuffledExamplesIterable": {
            "__init__": "5c78bd16b4c6dc92",
            "__iter__": "7972d580a0af6096",
            "_iter_arrow": "20e3106c8228cf4d",
            "iter_arrow": "8e3a27c7a290d140",
            "is_typed": "1d0af5a24afeecbc",
            "features": "ec3d154d68d4fb22",
            "num_shards": "f7ddde9cad3216a2",
            "_init_state_dict": "9846f410154cca13",
            "shuffle_data_sources": "fb879b7f727b620d",
            "shard_data_sources": "bfbffad1e1261ded",
            "shift_rngs": "504f4adf819ea437",
            "load_state_dict": "7d4f9d30596f64a4",
        },
        "FormattedExamplesIterable": {
            "__init__": "3c953db157ce90e2",
            "__iter__": "f320986c1fb65f0e",
            "_iter_arrow": "419698cb35df8e28",
            "iter_arrow": "f6c5cb2abbe95d6b",
            "is_typed": "0b09559dab1422b4",
            "features": "2e71c8671f718116",
            "num_shards": "f7ddde9cad3216a2",
            "_init_state_dict": "427590bea3811402",
            "shuffle_data_sources": "86e3c2bbe37cf8a5",
            "shard_data_sources": "f7a80a1ce3d87ed9",
        },
        "CyclingMultiSourcesExamplesIterable": {
            "__init__": "415e82262c99ffa2",
            "__iter__": "6b6054ec5b185db7",
            "_iter_arrow": "b363e4802e900616",
            "iter_arrow": "c9741d833f6e143c",
            "is_typed": "f612ae9ed87862d3",
            "features": "d3366acf03239f7d",
            "num_shards": "85bdede7158789b2",
            "_init_state_dict": "9e7015adcbc38326",
            "shuffle_data_sources": "f0793fad56fdca97",
            "shard_data_sources": "db32d3c77ee238e7",
            "_get_indices_iterator": "325a8c3c9c94d9a6",
        },
        "MappedExamplesIterable": {
            "__init__": "cea6f43a7dac31d9 54fe07de93534852",
            "__iter__": "c02812b5c82e7fd2",
            "iter_arrow": "9426148baf178317",
            "is_typed": "618e5fba96f0a3ec",
            "features": "2e71c8671f718116",
            "num_shards": "f7ddde9cad3216a2",
            "_init_state_dict": "a0a1134e7605cb8a",
            "shuffle_data_sources": "267ecbf791bd0588",
            "shard_data_sources": "3efba0401e2c8f19",
            "_iter": "b8eba2a2a625cca4 df25ca1514f2a4b0",
        },
        "": {
            "identity_func": "190e37cc2d5a8b10",
            "_rename_columns_fn": "9f3627b9663612a5",
            "_batch_to_examples": "32b8468da54f5e56",
            "shift_ex_examples_rngs": "81a0ee58b64db8c9",
            "_fast_copy": "f6413ee50dcdecb6",
            "_maybe_share_with_torch_persistent_workers": "39e75b02562b2708",
        },
        "IterableDataset": {
            "__iter__": "c7f86e078d4e24ee",
            "_iter_pytorch": "235284ce18413d88",
            "_is_main_process": "3b3674915b64ee6d",
            "_prepare_ex_iterable_for_iteration": "c378c318bf85b4b2",
            "epoch": "9674e066f08b15fb",
            "num_shards": "2a32b8cfd7ad6998",
            "state_dict": "0497392244d430b7",
            "load_state_dict": "9ec477a73b3156c4",
            "set_epoch": "4377a1b15275faf7",
        },
    },
    "datasets.arrow_dataset": {
        "Dataset": {
            "_generate_tables_from_shards": "0c163581664029dc",
            "iter": "c1dc0835281fc274",
            "with_format": "3d979cd748d603a0",
            "data": "e2423ef7e0424a3e",
        },
    },
    _TABLE: {
        "": {
            "table_iter": "fb32c9bf9aa44349",
            "cast_table_to_features": "347f9b9f0d3e5897",
        },
    },
    _FORMATTERS: {
        "PythonFormatter": {
            "format_batch": "27e43f9645012ad7",
        },
        "ArrowFormatter": {
            "format_batch": "e31a2d56d805942a",
            "format_row": "7ec51183ec2da5b9",
        },
        "SimpleArrowExtractor": {
            "extract_batch": "4c2de1d0bc5a986e",
        },
    },
    _SHARDING: {
        "": {
            "_number_of_shards_in_gen_kwargs": "32718f26172dd840",
            "_split_gen_kwargs": "dbe0fa8534d03496",
            "_merge_gen_kwargs": "6afb9295e0a4714f",
            "_shuffle_gen_kwargs": "d55779ff99b59703",
            "_distribute_shards": "03c7889b84cbc3d4",
        },
    },
    "datasets.features.features": {
        "Features": {
            "arrow_schema": "d3609b00e4d6fd45",
        },
    },
}
KNOWN = {
    f"{module}:{owner}.{name}" if owner else f"{module}:{name}": frozenset(found.split())
    for module, owners in _HASHES.items()
    for owner, names in owners.items()
    for name, found in names.items()
}
# What the functions' global names stand for.
_MEANINGS = {
    **{
        name: f"{_ITERABLE}:{name}" for name in (
            "ArrowExamplesIterable", "BufferShuffledExamplesIterable",
            "CyclingMultiSourcesExamplesIterable", "DataSourcesShufflingDisallowed",
            "FormattedExamplesIterable", "InterleavedShardsExamplesIterable",
            "MappedExamplesIterable", "RebatchedArrowExamplesIterable", "SelectColumnsIterable",
            "SkipExamplesIterable", "StepExamplesIterable", "TakeExamplesIterable",
            "_batch_to_examples", "_fast_copy", "_maybe_share_with_torch_persistent_workers",
            "shift_ex_examples_rngs",
        )
    },
    **{
        name: f"{_SHARDING}:{name}" for name in (
            "_distribute_shards", "_merge_gen_kwargs", "_number_of_shards_in_gen_kwargs",
            "_shuffle_gen_kwargs", "_split_gen_kwargs",
        )
    },
    "LazyBatch": f"{_FORMATTERS}:LazyBatch",
    "PythonFormatter": f"{_FORMATTERS}:PythonFormatter",
    "TensorFormatter": f"{_FORMATTERS}:TensorFormatter",
    "cast_array_to_feature": f"{_TABLE}:cast_array_to_feature",
    "cast_table_to_features": f"{_TABLE}:cast_table_to_features",
    "table_iter": f"{_TABLE}:table_iter",
    "get_formatter": "datasets.formatting:get_formatter",
    "format_table": f"{_FORMATTERS}:format_table",
    "config": "datasets.config",
    "cycle": "itertools:cycle",
    "deepcopy": "copy:deepcopy",
    "islice": "itertools:islice",
    "np": "numpy",
    "pa": "pyarrow",
    **{
        name: name
        for name in ("asyncio", "concurrent", "fsspec", "inspect", "json", "sys", "time")
    },
    # What messages, other formats and values that are not read from tables need; a tuple of types.
    **dict.fromkeys(
        ("CastError", "_PRIMITIVE_TYPES", "_apply_feature_types_on_example", "_convert_to_arrow",
         "_examples_to_batch", "_short_str", "logger"),
        "*",
    ),
}
# The same name means a module and its function.
_OF_COPY = {"datasets.arrow_dataset": "copy", _ITERABLE: "copy:copy"}

_NODES = (
    "ArrowExamplesIterable", "BufferShuffledExamplesIterable", "FormattedExamplesIterable",
    "InterleavedShardsExamplesIterable", "MappedExamplesIterable", "RebatchedArrowExamplesIterable",
    "SelectColumnsIterable", "SkipExamplesIterable", "TakeExamplesIterable",
)


def _found(name: str, module: str = _ITERABLE) -> Any:
    """An object of the library; None if its module was not imported."""
    return getattr(sys.modules.get(module), name, None)


def check_iterables() -> None:
    """Raises UnsupportedError if a function between a table and a sample is not of a known version,
    or was changed."""
    for place in KNOWN:
        module, _, name = place.partition(":")
        meanings = {**_MEANINGS, "copy": _OF_COPY.get(module, "")}
        if not huggingface.is_known(place, KNOWN, meanings):
            raise UnsupportedError(
                f"{module}.{name} is not that of a version of Hugging Face's datasets whose "
                "IterableDatasets feedmill knows, 5.1.0 and 5.2.0"
            )
    formats = _found("_FORMAT_TYPES", "datasets.formatting")
    aliases = _found("_FORMAT_TYPES_ALIASES", "datasets.formatting")
    formatter = _found("ArrowFormatter", _FORMATTERS)
    if aliases.get("arrow") != "arrow" or formats.get("arrow") is not formatter:
        raise UnsupportedError("the formatter 'arrow' of Hugging Face's datasets was replaced")
    for name in (*_NODES, "CyclingMultiSourcesExamplesIterable"):
        _check_class(_found(name))


def _looks_up_plainly(kind: Any) -> bool:
    """Whether a class leaves it to Python how attributes of its objects are found."""
    plain: Any = object.__getattribute__
    return kind.__getattribute__ is plain and not hasattr(kind, "__getattr__")


def _check_class(kind: type) -> None:
    """Raises UnsupportedError if a class of iterables inherits from another than it does, or has
    methods beside those which are known."""
    base = _found("_BaseExamplesIterable")
    if kind.__mro__ != (kind, base, object) or not _looks_up_plainly(kind):
        raise UnsupportedError(f"{type_name(kind)} was changed")
    if hidden := {"__copy__", "__reduce__", "__reduce_ex__", "__next__"} & {
        *vars(kind), *vars(base)
    }:
        raise UnsupportedError(f"{type_name(kind)} has its own {min(hidden)}")


def check_node(node: Any) -> None:
    """Raises UnsupportedError if an object is none of the library's iterables, or holds something
    else than these do."""
    if not is_node(node):
        raise UnsupportedError(
            f"{type(node).__name__} of an IterableDataset of Hugging Face is not supported natively"
        )
    hidden = shadowing_attributes(node)
    others = [key for key, one in vars(node).items() if key not in _OBJECTS and not is_plain(one)]
    if hidden or others:
        raise UnsupportedError(
            f"a {type_name(type(node))} object has its own {', '.join(hidden or others)}"
        )
    if vars(node).get("_features") is not None:
        huggingface.check_features(node._features)
    if not _is_generator(vars(node).get("generator")):
        raise UnsupportedError("shuffle() has a generator that is not one of NumPy's")


# Attributes of iterables that hold other values than plain ones, or are set before each epoch.
_OBJECTS = frozenset({
    "ex_iterable", "function", "formatting", "_features", "generator", "kwargs",
    "generate_tables_fn", "_state_dict", "_original_state_dict", "_interleaved",
    "_owned_loops_and_tasks",
})
_PLAIN = (int, float, bool, str, bytes, type(None))
_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")


def is_plain(value: Any) -> bool:
    """Whether a value is one of Python's own types, or lists and dicts of such."""
    if type(value) is dict:
        return all(map(is_plain, value)) and all(map(is_plain, value.values()))
    if type(value) in (list, tuple):
        return all(map(is_plain, value))
    return type(value) in _PLAIN


def _is_generator(generator: Any) -> bool:
    if type(generator) is not np.random.Generator:
        return generator is None
    return type(generator.bit_generator) in [getattr(np.random, name) for name in _GENERATORS]


def is_iterable(kind: type) -> bool:
    """Whether a class is datasets.IterableDataset, and no subclass of it."""
    return kind is _found("IterableDataset")


def is_node(node: Any, *names: str) -> bool:
    """Whether an object is one of the library's iterables: of these classes, or of any that is
    known."""
    return any(type(node) is _found(name) for name in names or _NODES)


def is_identity(function: Any) -> bool:
    """Whether a function is the one that map() has if it is given none, and remove_columns()."""
    return function is _found("identity_func")


def mapping_of(function: Any) -> dict[str, str] | None:
    """The names of columns in the function of rename_columns(); None: it is another function."""
    if type(function) is not functools.partial or function.func is not _found("_rename_columns_fn"):
        return None
    mapping: Any = function.keywords.get("column_mapping")
    is_plain = not function.args and len(function.keywords) == 1 and type(mapping) is dict
    if not is_plain or not all(type(one) is str for pair in mapping.items() for one in pair):
        return None
    return dict(mapping)


def shards_of(leaf: Any) -> list[Any]:
    """The Datasets whose tables an iterable reads. UnsupportedError if it reads something else."""
    dataset = _found("Dataset", "datasets.arrow_dataset")
    given = leaf.kwargs
    if leaf.generate_tables_fn is not dataset._generate_tables_from_shards or (
        type(given) is not dict or set(given) != {"shards", "batch_size"}
    ):
        raise UnsupportedError(
            "an IterableDataset of Hugging Face is supported natively if to_iterable_dataset() of "
            "a Dataset made it; this one reads its samples otherwise"
        )
    shards = given["shards"]
    if type(shards) is not list or type(given["batch_size"]) is not int:
        raise UnsupportedError("the shards of the IterableDataset were changed")
    if not all(type(one) is dataset for one in shards):
        raise UnsupportedError("a shard of the IterableDataset is no Dataset")
    return shards


def check_dataset(dataset: Any) -> None:
    """Raises UnsupportedError if an IterableDataset hides methods of its class, or that was given
    others."""
    if hidden := shadowing_attributes(dataset):
        raise UnsupportedError(f"the IterableDataset has its own {', '.join(hidden)}")
    split = dataset._distributed
    is_split = split is None or (
        type(split) is _found("DistributedConfig") and is_plain(vars(split))
    )
    is_known = is_split and is_plain(dataset._starting_state_dict)
    if not is_known or type(dataset._epoch) not in (int, torch.Tensor):
        raise UnsupportedError("the IterableDataset holds something else than the library gives it")
    if not _looks_up_plainly(type(dataset)):
        raise UnsupportedError(f"{type_name(type(dataset))} was changed")


def dataset_of(dataset: Any, iterable: Any) -> Any:
    """A copy of an IterableDataset that iterates over another iterable."""
    made = object.__new__(type(dataset))
    vars(made).update(vars(dataset))
    made._ex_iterable = iterable
    return made
