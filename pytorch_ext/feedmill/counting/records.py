"""Records of steps and samples, as NumPy structured arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from feedmill._ops import native

# One a step; fields as FM_STEP_FIELDS and FM_BLAME_FIELDS of feedmill/stats.h say.
STEP_DTYPE = np.dtype(native.STEP_FIELDS)
# One a sample; FM_SAMPLE_RECORD_FIELDS.
SAMPLE_DTYPE = np.dtype(native.SAMPLE_FIELDS)

# What a wait is made of: together these fields of a step are its data_wait_ns, exactly.
CAUSES = STEP_DTYPE.names[STEP_DTYPE.names.index("last_index") + 1 :]

# Values of a step's phase.
FIRST, BOUNDARY, STEADY = range(3)
PHASES = ("first", "boundary", "steady")

KEPT_STEPS = 65536


def native_steps(handle: Any, start: int = 0) -> np.ndarray:
    """Steps from number `start` on that a native loader (_native.Loader) keeps, oldest first."""
    parts = [np.empty(0, STEP_DTYPE)]
    while len(part := np.frombuffer(handle.steps(start), STEP_DTYPE)):
        parts.append(part)
        start = int(part["step"][-1]) + 1
    return np.concatenate(parts)


def native_samples(handle: Any, start: int) -> tuple[int, np.ndarray]:
    """Samples from number `start` on that it keeps, oldest first, and the first one's number."""
    parts, first = [np.empty(0, SAMPLE_DTYPE)], start
    while True:
        number, data = handle.sample_records(start)
        part = np.frombuffer(data, SAMPLE_DTYPE)
        if not len(part):
            return first, np.concatenate(parts)
        if number > start:  # those in between are overwritten already
            first, parts = number, parts[:1]
        parts.append(part)
        start = number + len(part)
