"""Batches on a GPU: what the DataLoader's device= may be, and how batches get there.

On the native path the loader's own stage copies them (``Stage``), ahead and in a stream of its own.
Everything else is copied by torch when it is there, in the consumer's stream (``to_device()``).
"""

from __future__ import annotations

import copy
import os
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import torch

from feedmill._ops import native
from feedmill.planner.recognise import has_default_collate
from feedmill.profiling.counting.captures import is_capturing

LIBRARY_VARIABLE = "FEEDMILL_CUDA_LIBRARY"
# Targets on offer: so many batches may be on their way to the GPU while it computes.
_AHEAD = 2
# What the native loader's device is called there.
_KIND = "cuda"


# ---- which one -----------------------------------------------------------------------------------


def as_device(value: Any) -> torch.device | None:
    """What device= says; None: the CPU. ValueError for what it can't say."""
    try:
        device = torch.device(value) if isinstance(value, str) else value
    except RuntimeError:
        device = value
    if device is not None and (
        not isinstance(device, torch.device) or device.type not in ("cpu", "cuda")
    ):
        raise ValueError(
            f"device is {value!r}; it must be 'cuda', 'cuda:1' or the like, a torch.device of "
            "such a name, 'cpu' or None"
        )
    return None if device is None or device.type == "cpu" else device


def check_device(value: Any) -> torch.device | None:
    """as_device(). RuntimeError where there is no such GPU, with the reason and what to do."""
    device = as_device(value)
    if device is None:
        return None
    asked = f"device={str(device)!r}, but "
    otherwise = "or leave device= out, for batches on the CPU"
    if torch.version.cuda is None and torch.version.hip is None:
        raise RuntimeError(
            f"{asked}this torch ({torch.__version__}) was built without CUDA: install a build "
            f"with it, {otherwise}"
        )
    if not torch.cuda.is_available():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hidden = f" (CUDA_VISIBLE_DEVICES is {visible!r})" if visible is not None else ""
        raise RuntimeError(
            f"{asked}torch finds no driver, or no GPU that this process may use{hidden}: look at "
            f"nvidia-smi, {otherwise}"
        )
    n_devices = torch.cuda.device_count()
    if device.index is not None and device.index >= n_devices:
        has = "only cuda:0" if n_devices == 1 else f"only cuda:0 to cuda:{n_devices - 1}"
        raise RuntimeError(f"{asked}there is {has}: name one of those, {otherwise}")
    return device


def device_of(loader: Any) -> torch.device | None:
    """The GPU, by number, on which a DataLoader delivers its batches; None: they stay on the CPU.
    "cuda" is the current one. Errors as check_device()."""
    device = check_device(loader._feedmill_options().device)
    if device is not None and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def check_not_capturing(device: torch.device | None) -> None:
    """RuntimeError while the consumer's stream is being captured into a CUDA graph."""
    if device is not None and torch.cuda.is_initialized() and is_capturing(device):
        raise RuntimeError(
            "a batch can't be fetched while a CUDA graph is being captured: its copy would become "
            "part of the graph; fetch it before, and copy_() it into the graph's own input"
        )


# ---- copies by torch -----------------------------------------------------------------------------


def to_device(data: Any, device: torch.device) -> Any:
    """A batch with all of its tensors on a GPU: what is there already stays as it is.

    Goes into tuples, lists, mappings and named tuples, whose types stay; anything else with a
    method ``to()`` is asked for itself, and what has none is left alone. Copies are queued in the
    current stream of that device, from pinned memory of torch's own, which stays until they are
    done: both the CPU's tensors and the new ones may be dropped at any time.
    """

    def move(one: Any) -> Any:
        if isinstance(one, torch.Tensor):
            return _moved(_pinned(one), device)
        try:
            return one.to(device, non_blocking=True)
        except TypeError:  # of a class that knows only the device
            return one.to(device)

    return _mapped(data, move)


def pinned(data: Any) -> Any:
    """The same with its tensors in pinned memory, from where to_device() takes them as they are."""
    return _mapped(data, lambda one: _pinned(one) if isinstance(one, torch.Tensor) else one)


def _mapped(data: Any, function: Callable[[Any], Any]) -> Any:
    """A batch in which each tensor, and what else has a to(), is what a function makes of it."""
    if isinstance(data, (str, bytes)):
        return data
    if isinstance(data, torch.Tensor) or callable(getattr(data, "to", None)):
        return function(data)
    if isinstance(data, tuple):
        parts = [_mapped(one, function) for one in data]
        return type(data)(*parts) if hasattr(data, "_fields") else type(data)(parts)
    if isinstance(data, Mapping):
        return _mapping(data, {key: _mapped(one, function) for key, one in data.items()})
    if isinstance(data, Sequence):
        return _like(data, [_mapped(one, function) for one in data])
    return data


def _mapping(data: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    """A mapping of that type, with its other attributes, as torch's pin_memory() makes it."""
    kind: Any = type(data)
    try:
        if isinstance(data, MutableMapping):
            twin = copy.copy(data)
            twin.update(values)
            return twin
        return kind(values)
    except TypeError:
        return values


def _like(data: Sequence[Any], values: list[Any]) -> Any:
    kind: Any = type(data)
    if kind is list:
        return values
    try:
        return kind(values)
    except TypeError:
        return values


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    """From other memory the copy would make the host wait until the GPU has come to it."""
    plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided
    if not plain or tensor.device.type != "cpu" or tensor.is_pinned():
        return tensor
    return tensor.pin_memory()


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return tensor.to(device, non_blocking=True)


class Delivery:
    """Brings whole batches to a GPU, when they are there."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def check(self) -> None:
        check_not_capturing(self.device)

    def move(self, data: Any) -> Any:
        return to_device(data, self.device)


def delivery_of(loader: Any) -> Delivery | None:
    """That of a DataLoader; None: its batches stay on the CPU."""
    device = device_of(loader)
    return None if device is None else Delivery(device)


# ---- copies by the native loader -----------------------------------------------------------------


def stage_refusal(loader: Any) -> str | None:
    """Why the native loader can't copy a DataLoader's batches itself, so that torch does; None: it
    can. The DataLoader has a device.

    Raises:
        RuntimeError: the plug-in that the environment names can't be used.
    """
    options = loader._feedmill_options()
    if not loader._auto_collation:
        return "without automatic batching there are single samples"
    if not has_default_collate(loader):
        return "collate_fn makes the batches, on the CPU"
    if options.native == "verify":
        return "native='verify' compares the samples on the CPU"
    if torch.version.hip is not None:
        return "the native loader's copies are made for CUDA, and this torch for ROCm"
    try:
        native.device_count(_KIND)
    except native.Error as error:
        if os.environ.get(LIBRARY_VARIABLE):
            raise RuntimeError(f"device={str(options.device)!r}: {error}") from None
        return str(error)
    return None


def stage_config(loader: Any, device: torch.device | None) -> tuple[str, int, bool] | None:
    """What the native loader is opened with: (kind, index, whether the GPU may convert); None:
    it delivers on the CPU."""
    if device is None or stage_refusal(loader) is not None:
        return None
    # Zeros in the place of a bad sample are zeros of the result, not of pixels.
    return (_KIND, device.index, loader._feedmill_options().on_error != "zero")


class Stage:
    """The memory that a native loader is offered for its copies to a GPU, from the start of an
    epoch to its end. One thread at a time."""

    def __init__(self, handle: Any, device: torch.device) -> None:
        self._handle = handle
        self._device = device
        self._image_bytes, self._label_bytes = handle.target_bytes
        # In the order of the offers, in which batches take them: (images, labels, stream).
        self._offered: deque[tuple[torch.Tensor, torch.Tensor, Any]] = deque()

    @property
    def is_consistent(self) -> bool:
        """False where an interrupt came in the middle of something; then the epoch starts anew."""
        n_offered: int = self._handle.n_offered
        return len(self._offered) == n_offered

    def offer(self) -> None:
        """Offers what is missing; there is a target for the next batch then.

        Raises:
            torch.OutOfMemoryError and others: there is none, as torch says.
        """
        while len(self._offered) < _AHEAD:
            try:
                taken = self._offer_one()
            except RuntimeError:  # one batch at a time has to do
                if not self._offered:
                    raise
                return
            if not taken:
                return

    def _offer_one(self) -> bool:
        stream = current_stream(self._device)
        images = empty(self._image_bytes, self._device)
        labels = empty(self._label_bytes, self._device)
        target = images, labels, stream
        self._offered.append(target)
        taken: bool = False
        try:
            taken = self._handle.offer(
                images.data_ptr(), images.numel(), labels.data_ptr(), labels.numel(),
                stream.cuda_stream,
            )
        finally:
            if not taken and self._offered and self._offered[-1] is target:
                self._offered.pop()
        return taken

    def take(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The memory of the batch that the native loader has handed out, as bytes: of the images
        and of the labels. The consumer's stream waits for the copy."""
        images, labels, stream = self._offered.popleft()
        current = current_stream(self._device)
        self._handle.wait(current.cuda_stream)
        if current != stream:
            # The allocator knows of the stream that it was taken in alone.
            record_stream(images, current)
            record_stream(labels, current)
        return images, labels.view(torch.int64)

    def forget(self) -> None:
        """The native loader's epoch has ended, and with it the offers."""
        self._offered.clear()


def empty(n_bytes: int, device: torch.device) -> torch.Tensor:
    return torch.empty(n_bytes, dtype=torch.uint8, device=device)


def record_stream(tensor: torch.Tensor, stream: Any) -> None:
    tensor.record_stream(stream)


def current_stream(device: torch.device) -> Any:
    return torch.cuda.current_stream(device)


# ---- in words ------------------------------------------------------------------------------------


def describe(loader: Any, device: torch.device) -> str:
    """How batches of the native path get to the GPU."""
    refusal = stage_refusal(loader)
    if refusal is not None:
        return f"{device}: copied by torch in the consumer's stream, as {refusal}"
    return f"{device}: copied ahead, in a stream of the loader's own"
