"""Memory use and load of NVIDIA GPUs, from the driver's library NVML. No other file opens it."""

from __future__ import annotations

import ctypes
import os
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_OK = 0


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class _Rates(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint) for name in ("gpu", "memory")]


class Nvml:
    """The GPUs that this process may use.

    Args:
        library: libnvidia-ml.so.1, opened with ctypes.

    Raises:
        OSError: NVML can't be initialized, or can't count the GPUs.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        if library.nvmlInit_v2() != _OK:
            raise OSError(f"{_LIBRARY}: nvmlInit_v2() failed")
        count = ctypes.c_uint()
        if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != _OK:
            raise OSError(f"{_LIBRARY}: nvmlDeviceGetCount_v2() failed")
        self._devices = []
        for index in range(count.value):
            device = ctypes.c_void_p()
            if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == _OK:
                self._devices.append((index, device))
        visible = _visible()
        if visible is not None:
            self._devices = [one for one in self._devices if one[0] in visible]

    def read(self) -> list[dict[str, Any]]:
        """Returns a dict for each GPU. Values that a GPU does not report are left out.

        - index: as in nvidia-smi.
        - memory_bytes: memory that all processes use.
        - busy: share of the driver's sampling period, at most a second, in which a kernel ran, 0
          to 1.
        """
        return [self._read(*one) for one in self._devices]

    def _read(self, index: int, device: Any) -> dict[str, Any]:
        found: dict[str, Any] = {"index": index}
        memory, rates = _Memory(), _Rates()
        if self._library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) == _OK:
            found["memory_bytes"] = memory.used
        if self._library.nvmlDeviceGetUtilizationRates(device, ctypes.byref(rates)) == _OK:
            found["busy"] = rates.gpu / 100
        return found


def _visible() -> set[int] | None:
    """The indices in CUDA_VISIBLE_DEVICES. None, for all GPUs, if it is not set or names GPUs by
    something else than indices."""
    words = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    indices = [word.strip() for word in words]
    return set(map(int, indices)) if all(word.isdecimal() for word in indices) else None


_opened: Nvml | None = None
_opened_by = 0


def gpus() -> list[dict[str, Any]] | None:
    """Returns Nvml.read() for this process; None if NVML or the driver is missing."""
    global _opened, _opened_by
    if _opened_by != os.getpid():  # the child of a fork must not use its parent's NVML
        _opened_by = os.getpid()
        try:
            _opened = Nvml(ctypes.CDLL(_LIBRARY))
        except (OSError, AttributeError):
            _opened = None
    return None if _opened is None else _opened.read()
