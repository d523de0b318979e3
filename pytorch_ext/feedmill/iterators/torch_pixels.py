"""The random numbers that a RandomErasing writes to pixels, as torch's normal_() draws them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from feedmill.planner.plan import KINDS
from feedmill.planner.random_states import seeded_states, with_streams


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
