"""What an installation of feedmill lacks on this machine, why that matters, and how to get it."""

from __future__ import annotations

import importlib
import os
from typing import Any, NamedTuple

import torch

from feedmill._ops import native
from feedmill.cli.advice import SMALL_SHM_BYTES
from feedmill.cli.survey import bytes_text

_FROM_SOURCE = "reinstall feedmill from its sources (pip install .)"


class Missing(NamedTuple):
    """A library or facility that is missing.

    Attributes:
        what: its name.
        why: how its absence shows, and what the user loses.
        get: how to get it.
    """

    what: str
    why: str
    get: str


def find_missing(facts: dict[str, Any]) -> list[Missing]:
    """Everything that is missing.

    Args:
        facts: reader, reader_reason, why_no_uring, formats, network and shared_memory, as
            machine_facts() of ``feedmill doctor`` has them.
    """
    return [
        *_io_uring(facts),
        *_package("torchvision", "torchvision", "torchvision's datasets and transforms, and "
                  "`feedmill demo`, need it",
                  "pip install torchvision, in the version made for torch "
                  f"{torch.__version__.partition('+')[0]}, from the index that torch came from"),
        *_package("PIL", "Pillow", "images that the native decoder does not support need it",
                  "pip install pillow"),
        *_format(facts, "libspng", "PNG", "libspng-dev"),
        *_format(facts, "libwebp", "WebP", "libwebp-dev"),
        *_network(facts),
        *_cuda_plugin(),
        *_shared_memory(facts),
    ]


def _io_uring(facts: dict[str, Any]) -> list[Missing]:
    # With FEEDMILL_READER=pread io_uring was not tried.
    if facts["reader"] == "uring" or os.environ.get("FEEDMILL_READER") == "pread":
        return []
    remedy = "; ".join(facts["why_no_uring"]) or (
        "use Linux 5.19 or newer, and a feedmill that was built with liburing 2.2 or newer"
    )
    return [Missing("io_uring", f"{facts['reader_reason']}; threads read the files with pread "
                    "instead, fewer at a time", remedy)]


def _package(module: str, name: str, use: str, get: str) -> list[Missing]:
    try:
        importlib.import_module(module)
    except Exception as error:  # a build for another torch fails with errors of many types
        why = f"`import {module}` fails ({type(error).__name__}: {error}); {use}"
        return [Missing(name, why, get)]
    return []


def _format(facts: dict[str, Any], library: str, name: str, package: str) -> list[Missing]:
    if name in facts["formats"].split(", "):
        return []
    return [Missing(
        library,
        f"feedmill was built without it, so Pillow decodes {name} images, which is slower",
        f"install a wheel of feedmill, which contains {library}; or install {library}'s headers "
        f"({package} on Debian and Ubuntu) and {_FROM_SOURCE}",
    )]


def _network(facts: dict[str, Any]) -> list[Missing]:
    if facts["network"]:
        return []
    return [Missing(
        "libcurl",
        "feedmill was built without it, so s3://, gs://, http:// and https:// names can't be read",
        "install the headers of libcurl and OpenSSL (libcurl4-openssl-dev and libssl-dev on Debian "
        f"and Ubuntu) and {_FROM_SOURCE}",
    )]


def _cuda_plugin() -> list[Missing]:
    # The plug-in needs CUDA. torch for ROCm calls its GPUs "cuda", too.
    if torch.version.hip is not None or not torch.cuda.is_available():
        return []
    try:
        native.device_count("cuda")
    except native.Error as error:
        return [Missing(
            "CUDA plug-in",
            f"{error}; with device= torch copies the batches to the GPU instead",
            f"pip install feedmill-cuda13, or {_FROM_SOURCE} where nvcc is on PATH; both need an "
            "NVIDIA driver for CUDA 13.0 or newer",
        )]
    return []


def _shared_memory(facts: dict[str, Any]) -> list[Missing]:
    space = facts["shared_memory"]
    if space and space["total"] >= SMALL_SHM_BYTES:
        return []
    found = f"/dev/shm has only {bytes_text(space['total'])}" if space else "there is no /dev/shm"
    return [Missing(
        "space in /dev/shm",
        f"{found}; the worker processes of torch's own path pass their batches through it "
        "(the native path does not use it)",
        "in Docker start the container with --shm-size=8g; elsewhere mount a tmpfs of 1 GB or "
        "more at /dev/shm, as root",
    )]
