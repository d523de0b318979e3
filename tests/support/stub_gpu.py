"""Runs device= on the stub CUDA runtime (stub_cudart.h), which records wrong uses.

The plug-in that FEEDMILL_CUDA_LIBRARY names is the real one, linked with the stub runtime. Device
memory is the stub's, and a tensor on the device is an ordinary CPU tensor. The fake of torch's
allocator is a list of free blocks; a block is reused, in its stream's order, once its tensor is
freed.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections import defaultdict
from typing import Any

import torch
from fake_cuda import FakeCuda, FakeStream

_POINTER, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_SUM = ctypes.POINTER(ctypes.c_uint64)


class _Calls(ctypes.Structure):
    """The C struct stub_cudart_calls."""

    _fields_ = [
        ("reset", ctypes.CFUNCTYPE(None, _INT, ctypes.c_uint64)),
        ("fail_at", ctypes.CFUNCTYPE(None, ctypes.c_long)),
        ("failed", ctypes.CFUNCTYPE(ctypes.c_char_p)),
        ("complain", ctypes.CFUNCTYPE(None, ctypes.c_char_p)),
        ("complaints", ctypes.CFUNCTYPE(ctypes.c_char_p)),
        ("check_leaks", ctypes.CFUNCTYPE(None)),
        ("stream", ctypes.CFUNCTYPE(_POINTER, _INT)),
        ("memory", ctypes.CFUNCTYPE(_POINTER, _SIZE)),
        ("use", ctypes.CFUNCTYPE(None, _INT, _POINTER, _POINTER, _SIZE, _SUM)),
        ("after", ctypes.CFUNCTYPE(None, _INT, _POINTER, _POINTER)),
        ("spin", ctypes.CFUNCTYPE(None, _INT, _POINTER, ctypes.c_uint64)),
        ("finish", ctypes.CFUNCTYPE(None, _INT, _POINTER)),
        ("capture", ctypes.CFUNCTYPE(None, _POINTER, _INT)),
        ("set_context", ctypes.CFUNCTYPE(None, _INT)),
        ("check_context", ctypes.CFUNCTYPE(None, _INT)),
        ("sum", ctypes.CFUNCTYPE(ctypes.c_uint64, _POINTER, _SIZE)),
    ]


class StubGpu:
    """Puts the stub in the place of torch's GPU.

    Args:
        patch: with setattr(object, name, value), such as pytest's monkeypatch.
        delay_ns: of each copy and kernel.
    """

    def __init__(self, patch: Any, delay_ns: int = 200_000, n_devices: int = 2) -> None:
        from feedmill.engine import devices

        library = ctypes.CDLL(os.environ["FEEDMILL_CUDA_LIBRARY"])
        library.stub_cudart.restype = ctypes.POINTER(_Calls)
        self.calls = library.stub_cudart().contents
        self.calls.reset(n_devices, delay_ns)
        self.calls.set_context(-1)
        self.cuda = FakeCuda(n_devices=n_devices).install(patch)
        for i in range(n_devices):
            self.cuda.current[i] = self.new_stream(i)
        self._free: dict[tuple[int, Any], list[int]] = defaultdict(list)
        self._sums: list[Any] = []
        patch.setattr(devices, "empty", self.empty)
        patch.setattr(devices, "_pinned", lambda tensor: tensor)
        patch.setattr(devices, "_moved", lambda tensor, device: tensor)

    def new_stream(self, device: int = 0) -> FakeStream:
        stream = FakeStream(self.cuda, device)
        stream.cuda_stream = self.calls.stream(device)
        return stream

    def empty(self, n_bytes: int, device: torch.device) -> torch.Tensor:
        """torch.empty() on the device, in the current stream."""
        if not n_bytes:
            return torch.empty(0, dtype=torch.uint8)
        stream = self.cuda.current_stream(device)
        blocks = self._free[n_bytes, stream]
        address = blocks.pop() if blocks else self.calls.memory(n_bytes)
        memory = (ctypes.c_uint8 * n_bytes).from_address(address)
        # The tensor holds that object for as long as anything of it is left.
        weakref.finalize(memory, blocks.append, address)
        return torch.frombuffer(memory, dtype=torch.uint8)

    def consume(self, tensor: torch.Tensor) -> Any:
        """A kernel in the current stream that reads a dense tensor and overwrites it: its checksum,
        once the stream has been finished."""
        stream, result = self.cuda.current_stream(), ctypes.c_uint64()
        self._sums.append(result)
        n_bytes = tensor.numel() * tensor.itemsize
        self.calls.use(
            self.cuda.device, stream.cuda_stream, tensor.data_ptr(), n_bytes, ctypes.byref(result)
        )
        return result

    def spin(self, ns: int) -> None:
        self.calls.spin(self.cuda.device, self.cuda.current_stream().cuda_stream, ns)

    def finish(self) -> None:
        for stream in self.cuda.current:
            self.calls.finish(stream.device.index, stream.cuda_stream)

    def sum(self, tensor: torch.Tensor) -> int:
        """The checksum of a dense tensor's bytes."""
        return self.calls.sum(tensor.data_ptr(), tensor.numel() * tensor.itemsize)

    def complaints(self) -> str:
        return self.calls.complaints().decode()
