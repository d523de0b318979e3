"""Stages of a pipeline of webdataset that may fail for a sample whose transforms have drawn random
numbers before: which sample that is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

_NAME = "feedmill_picture"  # of an attribute of the error, until taken_from() takes it


class Naming:
    """In the place of a stage: runs it for one sample at a time, and tells taken_from() for which
    one it failed.

    Args:
        stage: changes samples one by one.
        picture_of: of a sample as the stage gets it.
    """

    def __init__(self, stage: Callable[[Any], Any], picture_of: Callable[[Any], Any]) -> None:
        self._stage, self._picture_of = stage, picture_of

    def __call__(self, samples: Iterable[Any]) -> Iterator[Any]:
        for sample in samples:
            picture = self._picture_of(sample)
            try:
                made = next(self._stage(iter([sample])))
            except Exception as error:
                vars(error)[_NAME] = picture
                raise
            yield made


def taken_from(error: Exception) -> Any:
    """The Picture of the sample for which a Naming failed; None: there is none."""
    return vars(error).pop(_NAME, None)
