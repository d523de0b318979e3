"""Recognises the functions of webdataset by the hashes of their source; see ``fingerprints``.

webdataset is not imported here: its objects can exist only if a script has imported it.
"""

from __future__ import annotations

import json
import sys
from types import FunctionType
from typing import Any

from feedmill.planner import fingerprints
from feedmill.planner.plan import UnsupportedError
from feedmill.planner.sources import definition_of
from feedmill.planner.untouched import is_original

# Hashes of webdataset 0.2.96 to 1.0.2, the newest first.
_HASHES = {
    "pipeline": {
        "DataPipeline.invoke": {"c730c42bbb7c4423", "15ca95a38d3c7e40"},
        "DataPipeline.iterator1": {"92b7e09423556296"},
        "DataPipeline.iterator": {"9273c9b1a895a67d"},
        "DataPipeline.__iter__": {"0f33cf7ae4c11b5a"},
    },
    "filters": {
        "FilterFunction.__call__": {"b0adf18c1cbbd03d"},
        "pick": {"b7e6f77e148087b1"},
        "_select": {"83c9be91481f9026"},
        "_shuffle": {"2b8164708d30ce31"},
        "detshuffle.run": {"9facbaefb0a216f6"},
        "_decode": {"abbcfb69d0916081", "997b1dc10ddf603f"},
        "_map": {"14be65ee3c548eef"},
        "_rename": {"4586123e275deb1c"},
        "_to_tuple": {"dbb175072298764e"},
        "getfirst": {"84b9faa839ef52fb"},
        "_map_tuple": {"2874e50704eeaba8"},
        "_map_dict": {"e2a2e11175a2ee57"},
        "_batched": {"10bd372d7fe05dba"},
        "default_collation_fn": {"08ad6cdf5948c4e1", "3da2074afb87d234"},
        "combine_values": {"6d431b8ca20e825e"},
        "tuple2dict": {"9021b5eb9782e840"},
        "dict2tuple": {"c2b3a4104d717b14"},
        "reraise_exception": {"7f678e2bbaf5d1f4"},
        "identity": {"bc4b9a85d488f113"},
    },
    "shardlists": {
        "SimpleShardList.__iter__": {"4de570c0a0fd8b31"},
        "split_by_node": {"901e5d5566382a71"},
        "single_node_only": {"493d9412c94a1a35"},
        "split_by_worker": {"a70969974242190b"},
        "ResampledShards.__iter__": {"6d6a726b17858efe"},
    },
    "compat": {
        "check_empty": {"591ff9ed0d03510f"},
    },
    "tariterators": {
        "base_plus_ext": {"a876606b5854476b"},
        "valid_sample": {"891859c1ddcaace4"},
        "tarfile_samples": {"1867883d8286b996"},
        "url_opener": {"bf37f98b8033b18b"},
        "tar_file_iterator": {"cab2eb337d8ba64c"},
        "tar_file_expander": {"03cdfb8b05968b08"},
        "group_by_keys": {"8c0ad0470a3797d1"},
    },
    "cache": {
        "StreamingOpen.__call__": {"3a39d9c8eafa3fd2"},
    },
    "handlers": {
        "reraise_exception": {"7f678e2bbaf5d1f4"},
        "ignore_and_continue": {"3a755b86f2162836"},
        "warn_and_continue": {"447bba0ed1602918"},
    },
    "autodecode": {
        "Decoder.__call__": {"e9bc8eb49c81b6be"},
        "Decoder.decode": {"f2fc43345f519c8b", "0547a491ffcdfd88"},
        "Decoder.decode1": {"ab47d009da0dd5f7"},
        "ImageHandler.__call__": {"985ebb87e8b684e9"},
        "imagehandler": {"83d079e2fb6700dd"},
        "gzfilter": {"4a1bd792f43c76d0"},
        "basichandlers": {"3ff6dc72504fbffc"},
        "torch_loads": {"97d0bd87720a27f3", "fb9888455df34b90", "511e62d95773e0e7"},
        "tenbin_loads": {"5fc0c0a7a4eaaeb6"},
        "msgpack_loads": {"dae063512fe027e1"},
        "npy_loads": {"60a1a12cd084b4b7"},
        "npz_loads": {"ff817d9e12cea18d", "3d716feca976f9d1"},
        "cbor_loads": {"8524b1d444e7f083"},
        "unpickle_loads": {"8f83d5ca2f95000f"},
    },
    "utils": {
        "pytorch_worker_info": {"1bc661cecbf3daf7"},
        "pytorch_worker_seed": {"ae4f609fa599bb6c"},
        "make_seed": {"4767c3db3fcc3241"},
        "identity": {"bc4b9a85d488f113"},
    },
}
# Of the functions in its dict of decoders that are lambdas.
_DECODERS = frozenset({
    "96240109d3ace449", "c3ef15a634e2376a", "2fccd0109c2881ec", "acc6c2166b65ec79",
    "343b03693cb0b5fb",
})
_KNOWN = {
    f"webdataset.{module}:{name}": frozenset(found)
    for module, names in _HASHES.items() for name, found in names.items()
}
# What the functions' global names stand for.
_MEANINGS = {
    **{
        name: f"webdataset.{module}:{name}" for module, name in (
            ("filters", "combine_values"), ("filters", "dict2tuple"), ("filters", "getfirst"),
            ("filters", "pick"), ("filters", "_shuffle"), ("filters", "tuple2dict"),
            ("tariterators", "group_by_keys"), ("tariterators", "tar_file_expander"),
            ("tariterators", "tar_file_iterator"), ("tariterators", "url_opener"),
            ("tariterators", "valid_sample"),
            ("utils", "pytorch_worker_info"),
        )
    },
    "Continue": "webdataset.autodecode:Continue",
    "DecodingError": "webdataset.autodecode:DecodingError",
    "ImageHandler": "webdataset.autodecode:ImageHandler",
    "autodecode": "webdataset.autodecode",
    "IterableDataset": "torch.utils.data:IterableDataset",
    "PipelineStage": "webdataset.utils:PipelineStage",
    "TorchTensor": "torch:Tensor",
    "gopen": "webdataset.gopen",
    "islice": "itertools:islice",
    "np": "numpy",
    "urlparse": "urllib.parse:urlparse",
    "utils": "webdataset.utils",
    **{name: name for name in ("io", "json", "os", "pickle", "random", "re", "sys", "tarfile",
                               "tempfile", "time", "warnings")},
    # Another DataLoader may stand there, which no stage is. The others are values, see check().
    **dict.fromkeys(
        ("DataLoader", "decoders", "imagespecs", "meta_prefix", "meta_suffix",
         "pytorch_weights_only", "trace"), "*",
    ),
}
_VALUES = {
    ("tariterators", "trace"): False,
    ("tariterators", "meta_prefix"): "__",
    ("tariterators", "meta_suffix"): "__",
}


def found(module: str, name: str) -> Any:
    """What a module of webdataset holds by a name, such as "DataPipeline.invoke"; None: nothing, or
    the module was not imported."""
    value: Any = sys.modules.get(f"webdataset.{module}")
    for part in name.split("."):
        value = getattr(value, "__dict__", {}).get(part)
    return value


def is_of(value: Any, module: str, *names: str) -> bool:
    """Whether a value is what a module of webdataset holds by one of these names."""
    return value is not None and any(value is found(module, name) for name in names)


def check() -> None:
    """Raises UnsupportedError if a function of webdataset that pipelines call is not one of a known
    version, or was replaced."""
    for place in _KNOWN:
        module, _, name = place.removeprefix("webdataset.").partition(":")
        function = found(module, name)
        is_missing = function is None and place in _MISSING
        if not is_missing and not fingerprints.is_known(function, place, _KNOWN, _MEANINGS):
            raise UnsupportedError(
                f"webdataset's {module}.{name} is not that of a version which feedmill knows, "
                "0.2.96 to 1.0.2"
            )
    for (module, name), value in _VALUES.items():
        if found(module, name) is not value and found(module, name) != value:
            raise UnsupportedError(f"webdataset.{module}.{name} was changed")
    _check_decoders()


# Functions that older versions do not have.
_MISSING = frozenset({
    "webdataset.filters:combine_values", "webdataset.filters:tuple2dict",
    "webdataset.filters:dict2tuple", "webdataset.autodecode:unpickle_loads",
})


def _check_decoders() -> None:
    """Checks the functions that decode the fields which are no images."""
    decoders = found("autodecode", "decoders")
    if type(decoders) is not dict or not is_original(json.loads, "json", "loads"):
        raise UnsupportedError("webdataset's decoders were replaced")
    for name, function in decoders.items():
        if _is_known_decoder(function):
            continue
        raise UnsupportedError(f"webdataset's decoder of {name!r} was replaced")


def _is_known_decoder(function: Any) -> bool:
    if type(function) is not FunctionType:
        return False
    place = f"webdataset.autodecode:{function.__qualname__}"
    if place in _KNOWN:
        return fingerprints.is_known(function, place, _KNOWN, _MEANINGS)
    definition = definition_of(function)
    is_own = function.__globals__ is vars(sys.modules["webdataset.autodecode"])
    if definition is None or not is_own or function.__closure__ or function.__defaults__:
        return False
    # Built-in names must not be hidden.
    hides = {"int", "isinstance", "str"} & function.__globals__.keys()
    return not hides and fingerprints.hash_of(definition.node) in _DECODERS
