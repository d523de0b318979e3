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
from feedmill.planner.evaluating import Evaluator, called, is_own
from feedmill.planner.image_calls import ImageValue

# Limits of the native loader.
MAX_VIEWS = 16
MAX_VIEW_OPS = 255
_MAX_LOOPS = 64
_MAX_FUNCTIONS = 64


class _List(list[Any]):
    """A list that the function made itself."""


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
        known[key] = _ViewEvaluator(function, known, kept).views(bound)
    except NotUnderstood:
        pass
    return known[key]


_IMAGES = (_List, _Inner, tuple)


class _ViewEvaluator(Evaluator):
    """Evaluates a function once."""

    def __init__(self, function: FunctionType, known: _Known, kept: list[Any]) -> None:
        super().__init__(function, None)
        self._known, self._kept = known, kept

    def views(self, bound: list[Any]) -> list[list[Any]]:
        self._views: list[list[Any]] = []
        result = self.result([*bound, ImageValue(0)])
        node = self._definition.node
        if type(result) not in _IMAGES or len(result) < 2:
            raise self._error(node, "it does not return several images")
        if any(type(one) is _Inner for one in result):
            # Lists in a list, which the reader of the transforms refuses.
            return [[one.function] for one in result if type(one) is _Inner]
        if not all(type(one) is ImageValue and one.n_calls for one in result):
            raise self._error(node, "it does not return transformed images only")
        chains = [self._views[one.view] for one in result]
        is_complete = all(one.n_calls == len(chain) for one, chain in zip(result, chains))
        if not is_complete or len({one.view for one in result}) != len(self._views):
            raise self._error(node, "it does not return each image once, after all its transforms")
        if len(result) != len(self._views):
            raise self._error(node, "it returns an image twice")
        return chains

    def _add(self, node: ast.AST, image: ImageValue, transform: Any) -> Any:
        self._calls.append(transform)  # of all views
        if image.n_calls == 0:
            inner = _views_in(transform, self._known, self._kept)
            if inner is not None:
                views = _Inner(self._new_view(node, list(chain)) for chain in inner)
                views.function = transform
                return views
            return self._new_view(node, [transform])
        chain = self._views[image.view]
        if image.n_calls != len(chain):
            raise self._error(node, "it uses an image twice")
        if len(chain) == _MAX_LOOPS:
            raise self._error(node, f"it calls more than {_MAX_LOOPS} transforms")
        chain.append(transform)
        return ImageValue(len(chain), image.view)

    def _new_view(self, node: ast.AST, chain: list[Any]) -> ImageValue:
        if len(self._views) == MAX_VIEWS:
            raise self._error(node, f"it makes more than {MAX_VIEWS} images")
        self._views.append(chain)
        return ImageValue(len(chain), len(self._views) - 1)

    # ---- lists -----------------------------------------------------------------------------------

    def _execute(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            return self._append(statement.value)
        is_sum = isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add)
        if is_sum and isinstance(statement, ast.AugAssign) and self._extend(statement):
            return None
        super()._execute(statement)
        return None

    def _append(self, node: ast.Call) -> None:
        """``list.append(image)`` or ``list.extend(images)``."""
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("append", "extend"):
            owner = self._value(node.func.value)
            if type(owner) is _List and len(node.args) == 1 and not node.keywords:
                value = self._value(node.args[0])
                if type(value) is ImageValue and node.func.attr == "append":
                    owner.append(value)
                    return
                if type(value) in _IMAGES and node.func.attr == "extend":
                    owner += value
                    return
        raise self._error(node, "it calls something else than a transform of the image")

    def _extend(self, statement: ast.AugAssign) -> bool:
        """``images += [...]``. False: it is no list that the function made."""
        target = statement.target
        owner = self._names.get(target.id) if isinstance(target, ast.Name) else None
        if type(owner) is not _List:
            return False
        value = self._value(statement.value)
        if type(value) not in _IMAGES:
            raise self._error(statement, "it does more than to transform the image")
        owner += value
        return True

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.List | ast.Tuple) and isinstance(node.ctx, ast.Load):
            values = [self._value(one) for one in node.elts]
            return _List(values) if isinstance(node, ast.List) else tuple(values)
        if isinstance(node, ast.ListComp):
            return self._comprehension(node)
        return super()._value(node)

    def _computed_of(self, node: ast.BinOp, one: Any, other: Any) -> Any:
        if isinstance(node.op, ast.Add) and type(one) is type(other) is _List:
            return _List(one + other)
        return super()._computed_of(node, one, other)

    def _comprehension(self, node: ast.ListComp) -> _List:
        """``[transform(image) for ... in ...]``"""
        inner = node.generators[0]
        target = inner.target
        if len(node.generators) > 1 or inner.ifs or inner.is_async:
            raise self._error(node, "it does more than to transform the image")
        if not isinstance(target, ast.Name):
            raise self._error(node, "it assigns to something else than a variable")
        values = _List()
        outside = dict(self._names)
        for one in self._items(inner.iter):
            self._names[target.id] = one
            values.append(self._value(node.elt))
        self._names = outside
        return values

    def _items(self, node: ast.expr) -> list[Any]:
        if isinstance(node, ast.Call) and self._value(node.func) is range:
            numbers = [self._value(one) for one in node.args]
            if node.keywords or not numbers or not all(type(one) is int for one in numbers):
                raise self._error(node, "it calls range() in an unknown way")
            try:
                count = range(*numbers)
            except (TypeError, ValueError):
                raise self._error(node, "it calls range() in an unknown way") from None
            if len(count) > _MAX_LOOPS:
                raise self._error(node, "it is too long")
            return list(count)
        return super()._items(node)
