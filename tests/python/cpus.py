"""Marks of tests that need a kind of CPU."""

import platform

import pytest

needs_handover = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"),
    reason="batches are handed over in reused memory on x86-64 only",
)
