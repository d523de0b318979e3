"""timm's transforms, dataset and collate_fn that are supported, by version.

timm is not imported here: its objects can exist only if a script has imported it. Each of its
functions that determines a result must be one of the versions listed below (``fingerprints``). For
another version of timm, add the hash that the test of tests/frameworks prints, if the function
computes what the others of its list do.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

from feedmill._internals import FUNCTIONAL, why_collate_was_changed
from feedmill.planner import fingerprints, timm_hashes
from feedmill.planner.generators import is_of_python
from feedmill.planner.plan import UnsupportedError
from feedmill.planner.timm_hashes import AUGMENT
from feedmill.planner.untouched import is_original, type_name

TRANSFORMS = "timm.data.transforms"
ERASING = "timm.data.random_erasing"
_DATASET = "timm.data.dataset"
_FOLDER = "timm.data.readers.reader_image_folder"
_OLD_FOLDER = "timm.data.parsers.parser_image_folder"
_IN_TAR = "timm.data.readers.reader_image_in_tar"
_TAR = "timm.data.readers.reader_image_tar"
_LOADER = "timm.data.loader"

# The methods that determine what a transform computes.
_METHODS = {
    "RandomResizedCropAndInterpolation": ("__call__", "get_params"),
    "MaybeToTensor": ("__call__",),
    "MaybePILToTensor": ("__call__",),
    "ToNumpy": ("__call__",),
    "ResizeKeepRatio": ("__call__", "get_params"),
    "CenterCropOrPad": ("forward",),
    "RandomErasing": ("__call__", "_erase"),
    "RandAugment": ("__call__",),
    "AutoAugment": ("__call__",),
}
# Names of the supported classes, by module.
NAMES = {
    TRANSFORMS: frozenset(_METHODS) - {"RandomErasing", "RandAugment", "AutoAugment"},
    ERASING: frozenset({"RandomErasing"}),
    AUGMENT: frozenset({"RandAugment", "AutoAugment"}),
}

# Hashes of the functions of timm 0.2.1 to 1.0.31.
KNOWN = {
    f"{TRANSFORMS}:ToNumpy.__call__": frozenset({"52d7c3317a5fe3ce"}),
    f"{TRANSFORMS}:RandomResizedCropAndInterpolation.get_params": frozenset({
        "98dccab0ada5392b", "957e980f8bc18639",
    }),
    f"{TRANSFORMS}:RandomResizedCropAndInterpolation.__call__": frozenset({"8bf2a478bab54061"}),
    f"{TRANSFORMS}:MaybeToTensor.__call__": frozenset({"3364da4f231c43d2"}),
    f"{TRANSFORMS}:MaybePILToTensor.__call__": frozenset({"d7c357ebb12c8433"}),
    f"{TRANSFORMS}:ResizeKeepRatio.get_params": frozenset({
        "dd3371c580425722", "3dfb15667facc0bf",
    }),
    f"{TRANSFORMS}:ResizeKeepRatio.__call__": frozenset({"8c47f3c14711d562", "dfb025da534b9c50"}),
    f"{TRANSFORMS}:CenterCropOrPad.forward": frozenset({"9f5985a8194f6598", "4987e357371a0ed9"}),
    f"{TRANSFORMS}:center_crop_or_pad": frozenset({"6bc5f93737c98c7e", "e7de7fc8c00ace26"}),
    f"{TRANSFORMS}:_setup_size": frozenset({"08d20c16a1a8630e", "5680fb87bd7c289a"}),
    f"{ERASING}:RandomErasing.__call__": frozenset({"624c8e6b67afec99"}),
    f"{ERASING}:RandomErasing._erase": frozenset({"d15dbbd17026c0ff"}),
    f"{ERASING}:_get_pixels": frozenset({"f3489eb749d0a66a"}),
    f"{_DATASET}:ImageDataset.__getitem__": frozenset({
        "15c2d3b6ec3f1812", "24f7769750fdc506", "17d862ba76f5fb50", "c360db46aeaedb7c",
        "5c46afc64135bfee", "4b038332e55c53d3", "a53e2d854324a699",
    }),
    f"{_DATASET}:ImageDataset.__len__": frozenset({"88a2d1787d402c95", "5f1a197b92f3e828"}),
    f"{_FOLDER}:ReaderImageFolder.__getitem__": frozenset({"5695405e1b9c3ebf"}),
    f"{_FOLDER}:ReaderImageFolder.__len__": frozenset({"0cf612e087ab6b24"}),
    f"{_OLD_FOLDER}:ParserImageFolder.__getitem__": frozenset({"5695405e1b9c3ebf"}),
    f"{_OLD_FOLDER}:ParserImageFolder.__len__": frozenset({"0cf612e087ab6b24"}),
    f"{_IN_TAR}:ReaderImageInTar.__getitem__": frozenset({"0c8411fdb411f81e"}),
    f"{_IN_TAR}:ReaderImageInTar.__len__": frozenset({"0cf612e087ab6b24"}),
    f"{_TAR}:ReaderImageTar.__getitem__": frozenset({"7c5319e74d8a3c40"}),
    f"{_TAR}:ReaderImageTar.__len__": frozenset({"0cf612e087ab6b24"}),
    f"{_LOADER}:fast_collate": frozenset({
        "7db5291c85b20880", "4e91c1f38700daac", "c17e6fce1b44314f",
    }),
    **timm_hashes.HASHES,
}
# The readers that are supported, by name; in older versions one parser.
_READERS = {
    "ReaderImageFolder": _FOLDER,
    "ReaderImageInTar": _IN_TAR,
    "ReaderImageTar": _TAR,
}
_PARSERS = {"ParserImageFolder": _OLD_FOLDER}
# Versions of ImageDataset.__getitem__ that call a parser; and that make tensors of missing targets.
_PARSING = frozenset({"4b038332e55c53d3", "a53e2d854324a699"})
_WITHOUT_TARGETS = frozenset({"a53e2d854324a699"})
# What the functions' global names stand for.
MEANINGS = {
    "F": FUNCTIONAL,
    "Image": "PIL.Image",
    "Sequence": "typing:Sequence",
    "_get_pixels": f"{ERASING}:_get_pixels",
    "_setup_size": f"{TRANSFORMS}:_setup_size",
    "center_crop_or_pad": f"{TRANSFORMS}:center_crop_or_pad",
    "default_collate": "torch.utils.data:default_collate",
    "math": "math",
    "np": "numpy",
    "numbers": "numbers",
    "os": "os",
    "random": "random",
    "tarfile": "tarfile",
    "torch": "torch",
    "_logger": "*",
    "_ERROR_RETRY": "*",
    **timm_hashes.MEANINGS,
}
# Functions of torchvision that timm's transforms call, beside those that known.py checks.
_OF_TORCHVISION = ("get_dimensions", "get_image_size")


def check_transform(kind: type) -> None:
    """Raises UnsupportedError if a class of NAMES is not of a known version, or was changed."""
    for method in _METHODS[kind.__name__]:
        _check_method(kind, method)
    check_random("random", "uniform", "randint", "choice")
    functional = sys.modules[FUNCTIONAL]
    for name in _OF_TORCHVISION:
        function = getattr(functional, name, None)
        if function is not None and not is_original(function, FUNCTIONAL, name):
            raise UnsupportedError(f"{FUNCTIONAL}.{name} was replaced")


def check_random(*names: str) -> None:
    """Raises UnsupportedError if a function of Python's module random was replaced."""
    inst = getattr(random, "_inst", None)
    draws_below = vars(random.Random).get("_randbelow")
    own = "Random._randbelow_with_getrandbits"
    if set(getattr(inst, "__dict__", ())) - {"gauss_next"} or not is_original(
        draws_below, "random", own
    ):
        raise UnsupportedError("Python's global generator of random numbers was replaced")
    for name in names:
        if not is_of_python(getattr(random, name, None), name):
            raise UnsupportedError(f"random.{name} was replaced")


def check_noise() -> None:
    """Raises UnsupportedError if a function of torch that RandomErasing's random numbers come from
    was replaced."""
    functions: dict[str, tuple[Any, Any]] = {
        "empty": (torch.empty, type(len)),
        "Tensor.normal_": (torch.Tensor.normal_, type(str.join)),
    }
    for name, (function, kind) in functions.items():
        if type(function) is not kind or function.__name__ != name.rpartition(".")[2]:
            raise UnsupportedError(f"torch.{name} was replaced")


def _check_method(kind: type, method: str) -> None:
    place = f"{kind.__module__}:{kind.__qualname__}.{method}"
    if not fingerprints.is_known(vars(kind).get(method), place, KNOWN, MEANINGS):
        raise UnsupportedError(
            f"{type_name(kind)}.{method} is not that of a version of timm which feedmill knows"
        )


def is_image_dataset(kind: type) -> bool:
    """Whether a class is timm's ImageDataset."""
    return kind is getattr(sys.modules.get(_DATASET), "ImageDataset", None)


def reader_of(dataset: Any) -> Any:
    """The object that finds an ImageDataset's images: its "parser" before timm 0.8."""
    return dataset.reader if "reader" in vars(dataset) else dataset.parser


def reads_tars(reader: Any) -> bool:
    """Whether a reader that check_image_dataset() accepted reads tar files."""
    return type(reader).__name__ in ("ReaderImageInTar", "ReaderImageTar")


def check_image_dataset(dataset: Any) -> None:
    """Raises UnsupportedError if an ImageDataset does anything but load the images of a folder or
    of tar files as RGB and transform them."""
    reader = reader_of(dataset)
    name = type(reader).__name__
    parses = "reader" not in vars(dataset)
    place = (_PARSERS if parses else _READERS).get(name, "")
    if type(reader) is not getattr(sys.modules.get(place), name, None):
        raise UnsupportedError(
            f"the dataset's reader {type_name(type(reader))} is not supported natively; of timm's "
            f"readers, {', '.join(_READERS)} are (ParserImageFolder in older versions)"
        )
    for kind in (type(dataset), type(reader)):
        for method in ("__getitem__", "__len__"):
            _check_method(kind, method)
    gets = fingerprints.fingerprint(vars(type(dataset))["__getitem__"].__code__)
    if (gets in _PARSING) is not parses:
        raise UnsupportedError(f"timm's ImageDataset does not use its reader {name}")
    if gets in _WITHOUT_TARGETS and any(target is None for _, target in reader.samples):
        raise UnsupportedError("this version of timm makes tensors of missing targets")
    # Older versions call the mode of images img_mode, and have no additional features. Those with
    # a parser convert to RGB.
    mode = getattr(dataset, "input_img_mode", getattr(dataset, "img_mode", None))
    if dataset.load_bytes is not False or (mode != "RGB" and gets not in _PARSING):
        raise UnsupportedError(
            "natively, timm's ImageDataset must have load_bytes=False and input_img_mode='RGB'"
        )
    # How often in a row it may return the next image; not in all versions.
    most_retries = getattr(dataset, "_max_retries", 1)
    if type(most_retries) is not int or most_retries < 1:
        raise UnsupportedError(
            "natively, timm's ImageDataset must have _max_retries (TIMM_DATASET_MAX_RETRIES) from 1"
        )
    if getattr(dataset, "additional_features", None) is not None:
        raise UnsupportedError("natively, timm's ImageDataset can't have additional_features")


def is_fast_collate(function: Any) -> bool:
    """Whether a collate_fn is timm's fast_collate, which stacks uint8 images and makes an int64
    tensor of targets that are ints."""
    if function is not getattr(sys.modules.get(_LOADER), "fast_collate", function):
        return False
    place = f"{_LOADER}:fast_collate"
    return fingerprints.is_known(function, place, KNOWN, MEANINGS) and not (
        why_collate_was_changed(int)
    )
