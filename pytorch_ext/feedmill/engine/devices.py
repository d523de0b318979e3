"""Batches on a GPU: the values of the DataLoader's device=, and the copies of batches.

On the native path the native loader copies batches ahead of their turn, in a stream of its own, to
memory that ``Stage`` provides. Everything else torch copies at the batch's turn, in the consumer's
stream (``to_device()``).
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
# Number of output buffers on the GPU: that many batches can be copied while it computes.
_N_BUFFERS = 2
# The native loader's name of the kind of device.
_KIND = "cuda"


# ---- the device ----------------------------------------------------------------------------------


def as_device(value: Any) -> torch.device | None:
    """The device that a value of device= names; None: the CPU. ValueError if it is invalid."""
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
    """As as_device(). RuntimeError if there is no such GPU, with the reason and what to do."""
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
            f"{asked}torch finds no driver, or no GPU that this process may use{hidden}: check "
            f"nvidia-smi, {otherwise}"
        )
    n_devices = torch.cuda.device_count()
    if device.index is not None and device.index >= n_devices:
        has = "only cuda:0" if n_devices == 1 else f"only cuda:0 to cuda:{n_devices - 1}"
        raise RuntimeError(f"{asked}there is {has}: name one of those, {otherwise}")
    return device


def device_of(loader: Any) -> torch.device | None:
    """The GPU on which a DataLoader delivers its batches, with its index; None: the CPU. "cuda"
    means the current GPU. Errors as check_device()."""
    device = check_device(loader._feedmill_options().device)
    if device is not None and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def check_not_capturing(device: torch.device | None) -> None:
    """Raises RuntimeError while the consumer's stream is being captured into a CUDA graph."""
    if device is not None and torch.cuda.is_initialized() and is_capturing(device):
        raise RuntimeError(
            "a batch can't be fetched while a CUDA graph is being captured: its copy would become "
            "part of the graph; fetch it before, and copy_() it into the graph's own input"
        )


# ---- copies by torch -----------------------------------------------------------------------------


def to_device(data: Any, device: torch.device) -> Any:
    """Copies all tensors of a batch to a GPU; those that are there already stay as they are.

    Descends into tuples, named tuples, lists and mappings, and keeps their types. Calls ``to()`` of
    any other object that has this method; leaves the rest alone. Copies are queued in the device's
    current stream, from pinned memory of torch's, which stays allocated until they are done: both
    the CPU's tensors and the new ones may be dropped at any time.
    """

    def move(one: Any) -> Any:
        if isinstance(one, torch.Tensor):
            return _moved(_pinned(one), device)
        try:
            return one.to(device, non_blocking=True)
        except TypeError:  # its to() has no argument non_blocking
            return one.to(device)

    return _mapped(data, move)


def pinned(data: Any) -> Any:
    """The batch with its tensors in pinned memory, which to_device() copies from directly."""
    return _mapped(data, lambda one: _pinned(one) if isinstance(one, torch.Tensor) else one)


def _mapped(data: Any, function: Callable[[Any], Any]) -> Any:
    """Applies a function to each tensor of a batch, and to each other object that has a to()."""
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
    """A mapping of the same type and with the same attributes, as from torch's pin_memory()."""
    kind: Any = type(data)
    try:
        if isinstance(data, MutableMapping):
            copied = copy.copy(data)
            copied.update(values)
            return copied
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
    """The tensor in pinned memory: a copy from pageable memory would block the host until it is
    done.
    """
    is_dense = type(tensor) is torch.Tensor and tensor.layout is torch.strided
    if not is_dense or tensor.device.type != "cpu" or tensor.is_pinned():
        return tensor
    return tensor.pin_memory()


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return tensor.to(device, non_blocking=True)


class Delivery:
    """Copies complete batches to a GPU, for iterators of torch's."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def check(self) -> None:
        check_not_capturing(self.device)

    def move(self, data: Any) -> Any:
        return to_device(data, self.device)


def delivery_of(loader: Any) -> Delivery | None:
    """The Delivery of a DataLoader; None: its batches stay on the CPU."""
    device = device_of(loader)
    return None if device is None else Delivery(device)


# ---- copies by the native loader -----------------------------------------------------------------


def stage_refusal(loader: Any) -> str | None:
    """Why the native loader can't copy the batches of a DataLoader with a device, so that torch
    copies them; None: it can.

    Raises:
        RuntimeError: the environment variable FEEDMILL_CUDA_LIBRARY names a plug-in that can't be
            used.
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
    """Config.device of a DataLoader: (kind, index, whether the GPU converts); None: the native
    loader delivers on the CPU."""
    if device is None or stage_refusal(loader) is not None:
        return None
    # on_error="zero" writes zeros of the final type. Converted pixels of 0 would differ from that.
    return (_KIND, device.index, loader._feedmill_options().on_error != "zero")


class Stage:
    """Output buffers on a GPU for a native loader's copies, during one epoch. Not thread-safe."""

    def __init__(self, handle: Any, device: torch.device) -> None:
        self._handle = handle
        self._device = device
        self._image_bytes, self._label_bytes = handle.output_bytes
        # (images, labels, stream) of each buffer that no batch was taken from; batches fill them in
        # this order.
        self._buffers: deque[tuple[torch.Tensor, torch.Tensor, Any]] = deque()

    @property
    def is_consistent(self) -> bool:
        """False if an interrupt came during add_buffers() or take(): the epoch must be restarted.
        """
        n_outputs: int = self._handle.n_outputs
        return len(self._buffers) == n_outputs

    def add_buffers(self) -> None:
        """Allocates missing output buffers and passes them to the native loader. The next batch
        then has a buffer.

        Raises:
            torch.OutOfMemoryError and others: not even one buffer can be allocated.
        """
        while len(self._buffers) < _N_BUFFERS:
            try:
                accepted = self._add_buffer()
            except RuntimeError:  # out of memory: one buffer suffices, for one batch at a time
                if not self._buffers:
                    raise
                return
            if not accepted:
                return

    def _add_buffer(self) -> bool:
        stream = current_stream(self._device)
        images = empty(self._image_bytes, self._device)
        labels = empty(self._label_bytes, self._device)
        buffer = images, labels, stream
        self._buffers.append(buffer)
        accepted: bool = False
        try:
            accepted = self._handle.add_output(
                images.data_ptr(), images.numel(), labels.data_ptr(), labels.numel(),
                stream.cuda_stream,
            )
        finally:
            if not accepted and self._buffers and self._buffers[-1] is buffer:
                self._buffers.pop()
        return accepted

    def take(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(images as bytes, labels as int64) of the batch that the native loader has just returned.
        Makes the consumer's stream wait for the copy."""
        images, labels, stream = self._buffers.popleft()
        current = current_stream(self._device)
        self._handle.wait(current.cuda_stream)
        if current != stream:
            # The allocator knows only the stream in which the memory was allocated.
            record_stream(images, current)
            record_stream(labels, current)
        return images, labels.view(torch.int64)

    def forget(self) -> None:
        """Releases all buffers. The native loader's epoch must have ended."""
        self._buffers.clear()


def empty(n_bytes: int, device: torch.device) -> torch.Tensor:
    return torch.empty(n_bytes, dtype=torch.uint8, device=device)


def record_stream(tensor: torch.Tensor, stream: Any) -> None:
    tensor.record_stream(stream)


def current_stream(device: torch.device) -> Any:
    return torch.cuda.current_stream(device)


# ---- explain() -----------------------------------------------------------------------------------


def describe(loader: Any, device: torch.device) -> str:
    """Text for explain(): how batches of the native path get to the GPU."""
    refusal = stage_refusal(loader)
    if refusal is not None:
        return f"{device}: copied by torch in the consumer's stream, as {refusal}"
    return f"{device}: copied ahead, in a stream of the loader's own"
