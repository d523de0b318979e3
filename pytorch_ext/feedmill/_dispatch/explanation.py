"""The text that DataLoader.explain() returns."""

from __future__ import annotations

from typing import Any


class Explanation(str):
    """A str whose repr is the text itself: ``loader.explain()`` typed at the prompt of Python,
    IPython or a notebook shows its lines."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """For IPython, which does not ask for the repr of every class."""
        printer.text(str(self))
