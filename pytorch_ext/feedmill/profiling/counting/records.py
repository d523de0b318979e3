"""Records of steps and samples, as NumPy structured arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from feedmill._ops import native

# The step record of a native engine. FM_STEP_FIELDS, FM_WAIT_CAUSE_FIELDS and
# FM_STORAGE_PART_FIELDS in feedmill/stats.h describe the fields.
_NATIVE_STEP_DTYPE = np.dtype(native.STEP_FIELDS)
# The same with the GPU's stall (see gpu_stalls), which is valid only if gpu_known is 1, and the
# times of collective operations (see collectives), which are valid if n_collectives is not 0.
STEP_DTYPE = np.dtype([
    *native.STEP_FIELDS, ("gpu_stall_ns", "u8"), ("gpu_copy_ns", "u8"), ("gpu_known", "u8"),
    ("before_collective_ns", "u8"), ("collective_ns", "u8"), ("n_collectives", "u8"),
])
# The sample record of a native engine. FM_SAMPLE_RECORD_FIELDS there describes the fields.
SAMPLE_DTYPE = np.dtype(native.SAMPLE_FIELDS)


def names_of(dtype: np.dtype) -> tuple[str, ...]:
    """The field names of a structured dtype, in order."""
    return dtype.names or ()


_STEP_NAMES = names_of(_NATIVE_STEP_DTYPE)
# The causes of a wait: the fields of a step that add up to its data_wait_ns exactly.
_FIRST_PART = _STEP_NAMES.index("storage_connect_ns")
CAUSES = _STEP_NAMES[_STEP_NAMES.index("last_index") + 1 : _FIRST_PART]
# The parts of storage_ns: they add up to it exactly.
STORAGE_PARTS = _STEP_NAMES[_FIRST_PART:]

# Values of a step's phase.
FIRST, BOUNDARY, STEADY = range(3)
PHASES = ("first", "boundary", "steady")

KEPT_STEPS = 65536


def native_steps(handle: Any, start: int = 0) -> np.ndarray:
    """The step records, from number `start` on, that a native engine (_native.Loader) still keeps,
    oldest first."""
    parts = [np.empty(0, _NATIVE_STEP_DTYPE)]
    while len(part := np.frombuffer(handle.steps(start), _NATIVE_STEP_DTYPE)):
        parts.append(part)
        start = int(part["step"][-1]) + 1
    recorded = np.concatenate(parts)
    steps = np.zeros(len(recorded), STEP_DTYPE)
    n_bytes = _NATIVE_STEP_DTYPE.itemsize
    _as_bytes(steps)[:, :n_bytes] = _as_bytes(recorded)
    return steps


def _as_bytes(records: np.ndarray) -> np.ndarray:
    return records.view(np.uint8).reshape(len(records), records.dtype.itemsize)


def native_samples(handle: Any, start: int) -> tuple[int, np.ndarray]:
    """The sample records, from number `start` on, that a native engine still keeps.

    Returns:
        (number of the first record, records, oldest first).
    """
    parts, first = [np.empty(0, SAMPLE_DTYPE)], start
    while True:
        number, data = handle.sample_records(start)
        part = np.frombuffer(data, SAMPLE_DTYPE)
        if not len(part):
            return first, np.concatenate(parts)
        if number > start:  # the records in between have been overwritten
            first, parts = number, parts[:1]
        parts.append(part)
        start = number + len(part)
