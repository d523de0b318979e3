"""Finds out which images a user's function, or an object with ``__call__``, makes of one image: two
crops for contrastive learning, or the global and local crops of DINO.

It is understood only if all that it does is to call transforms on the image, each result once, and
to return a list or tuple of the results. See ``evaluating`` for what that proof rests on.
"""

from __future__ import annotations

import ast
from types import FunctionType, MethodType
from typing import Any

from feedmill.planner.attributes import NotUnderstood
from feedmill.planner.evaluating import called, is_own
from feedmill.planner.image_calls import ImageValue
from feedmill.planner.view_calls import MadeList, ViewCalls

MAX_VIEW_OPS = 255  # the native loader's limit
_MAX_FUNCTIONS = 64


class _Inner(list[Any]):
    """The images that a function which it calls makes, in a list or a tuple.

    Attributes:
        function: makes them.
    """

    function: Any = None


# By function or object: the images that it makes; None: it makes several images in no known way, or
# is being read.
_Known = dict[tuple[int, ...], list[list[Any]] | None]


def views_in(transform: Any) -> list[list[Any]] | None:
    """The transforms that make each view of an image, in order. Calls nothing.

    Args:
        transform: any object.

    Returns:
        None: the transform is not the user's own, or is not proved to only make several views.
    """
    return _views_in(transform, {}, [])


def _views_in(transform: Any, known: _Known, kept: list[Any]) -> list[list[Any]] | None:
    """As views_in().

    Args:
        known: of the functions that were read so far; each is read once.
        kept: the functions and objects of ``known``.
    """
    if not is_own(transform):
        return None
    key: tuple[int, ...] = (id(transform),)
    if type(transform) is MethodType:
        key = (id(transform.__func__), id(transform.__self__))
    if key in known or len(known) == _MAX_FUNCTIONS:
        return known.get(key)
    known[key] = None
    kept.append(transform)  # ids stay those of living objects
    try:
        function, bound = called(transform)
        known[key] = _ViewEvaluator(function, known, kept).views_of(bound)
    except NotUnderstood:
        pass
    return known[key]


class _ViewEvaluator(ViewCalls):
    """Evaluates a function once."""

    _sequences = (MadeList, _Inner, tuple)

    def __init__(self, function: FunctionType, known: _Known, kept: list[Any]) -> None:
        super().__init__(function)
        self._known, self._kept = known, kept

    def views_of(self, bound: list[Any]) -> list[list[Any]]:
        result = self.result([*bound, ImageValue(0)])
        node = self._definition.node
        if type(result) not in self._sequences or len(result) < 2:
            raise self._error(node, "it does not return several images")
        self.check_order()
        if any(type(one) is _Inner for one in result):
            # Lists in a list, which the reader of the transforms refuses.
            return [[one.function] for one in result if type(one) is _Inner]
        if not self._is_every_view(result):
            raise self._error(node, "it does not return each image once, after all its transforms")
        return [self.views[one.view] for one in result]

    def _add(self, node: ast.AST, image: ImageValue, transform: Any) -> Any:
        inner = None
        if image.n_calls == 0:
            inner = _views_in(transform, self._known, self._kept)
        if inner is None:
            return super()._add(node, image, transform)
        views = _Inner(self._new_view(node, list(chain)) for chain in inner)
        views.function = transform
        return views
