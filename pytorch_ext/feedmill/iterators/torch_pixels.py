"""The random numbers that a RandomErasing writes to pixels, as torch's normal_() draws them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from feedmill._ops import native
from feedmill.iterators.global_generators import seeded_states
from feedmill.planner.plan import KINDS
from feedmill.planner.random_states import streams_of, with_streams

# Sizes of tensors for which torch is tried: numbers below 16 are drawn one by one, others in blocks
# of 16, of which the last one may overlap the one before it.
_SIZES = (*range(1, 70), 255, 256, 257, 272, 1000, 4095, 3 * 61 * 67, 3 * 224 * 224)


class PixelDraw(tuple[int, int, int, int, int, bool, tuple[float, ...]]):
    """The draw of a RandomErasing.

    Attributes:
        state: of torch's generator, before the numbers of the first box's pixels.
    """

    state: torch.Tensor


def with_pixels(
    handle: Any, draws: Sequence[Any], streams: bytes, width: int, height: int, view: int = 0
) -> Sequence[Any]:
    """A view's draws, with a PixelDraw if a RandomErasing is the last one and erases something.

    Args:
        streams: the fm_streams before the draws.
    """
    if not draws or draws[-1][0] != KINDS["RandomErasing"] or not draws[-1][5]:
        return draws
    last = PixelDraw(draws[-1])
    before = handle.before_pixels(streams, width, height, view)
    last.state = with_streams(seeded_states(0), before)[0]
    return [*draws[:-1], last]


@functools.cache
def is_as_torch() -> bool:
    """Whether the native code draws the normally distributed numbers of the installed torch on this
    CPU, bit for bit."""
    for seed, n in enumerate(_SIZES):
        generator = torch.Generator()
        generator.manual_seed(seed)
        # A number is kept for the next call or is not; some words have been drawn.
        torch.empty(seed % 9).normal_(generator=generator)
        states = generator.get_state(), *seeded_states(0)[1:]
        wanted = torch.empty(n).normal_(generator=generator)
        if native.noise_torch(streams_of(states), n) != wanted.numpy().tobytes():
            return False
    return True
