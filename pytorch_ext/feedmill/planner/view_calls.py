"""Evaluates functions that make several images: the transforms that make each of them, and the
lists in which they are collected. ``views`` reads transforms with it, ``item_evaluating``
datasets.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from types import FunctionType
from typing import Any

from feedmill.planner.arguments import V1, V2
from feedmill.planner.arithmetic import TensorCall
from feedmill.planner.drawing import Draw
from feedmill.planner.evaluating import Evaluator
from feedmill.planner.image_calls import Convert, ImageValue
from feedmill.planner.known import flatten
from feedmill.planner.numpy_calls import ArrayCall

MAX_VIEWS = 16  # the native loader's limit
_MAX_LOOPS = 64
_MAX_VALUES = 4096  # in all lists that a function makes
# Names of torchvision's transforms that never draw random numbers.
NEVER_DRAW = (
    "Resize", "CenterCrop", "Pad", "Grayscale", "ToTensor", "PILToTensor", "Normalize",
    "ConvertImageDtype", "ToImage", "ToDtype", "ToPILImage", "Compose",
)


class MadeList(list[Any]):
    """A list that the function makes itself."""


class ViewCalls(Evaluator):
    """Evaluates a function once.

    Attributes:
        views: the transforms that make each image, in the order in which the first of these are
            called.
        views_of_calls: the number of the image that each of the calls so far makes.
        files_of_views: the number of the file of which each image is made.
    """

    # The types that stand for the lists and tuples that the function makes.
    _sequences: tuple[type, ...] = (MadeList, tuple)

    def __init__(self, function: FunctionType) -> None:
        super().__init__(function, None)
        self.views: list[list[Any]] = []
        self.views_of_calls: list[int] = []
        self.files_of_views: list[int] = []
        self._late: list[Any] = []  # transforms of an image that were called after a later image's
        self._n_values = 0

    def check_order(self) -> None:
        """Checks that random numbers are drawn for one image after the other, none in vain."""
        if any(type(one) is Draw and not one.is_used for one in self._events):
            raise self._error(self._definition.node, "it draws a random number that has no effect")
        if not all(map(_never_draws, self._late)):
            raise self._error(
                self._definition.node,
                "it goes on to transform an image after it has begun another one",
            )

    def _is_every_view(self, images: Sequence[Any]) -> bool:
        """Whether these are all images, each once, after all its transforms."""
        chains = zip(self.views, self.files_of_views)
        wanted = [ImageValue(len(one), number, file) for number, (one, file) in enumerate(chains)]
        are_images = all(type(one) is ImageValue for one in images)
        return are_images and sorted(images, key=lambda one: one.view) == wanted

    # ---- calls -----------------------------------------------------------------------------------

    def _calls_for(self, image: ImageValue) -> list[Any]:
        return self.views[image.view][: image.n_calls] if image.n_calls else []

    def _add(self, node: ast.AST, image: ImageValue, transform: Any) -> Any:
        chain = self.views[image.view][: image.n_calls] if image.n_calls else []
        # Each image may begin with a copy that was converted for all of them.
        are_conversions = all(type(one) is Convert for one in chain)
        if are_conversions and (not chain or len(chain) < len(self.views[image.view])):
            return self._new_view(node, [*chain, transform], image.file)
        chain = self.views[image.view]
        if image.n_calls != len(chain):
            raise self._error(node, "it uses an image twice")
        if len(chain) == _MAX_LOOPS:
            raise self._error(node, f"it calls more than {_MAX_LOOPS} transforms")
        if image.view != len(self.views) - 1:
            self._late.append(transform)
        self._note(image.view, transform)
        chain.append(transform)
        return ImageValue(len(chain), image.view, image.file)

    def _new_view(self, node: ast.AST, chain: list[Any], file: int = 0) -> ImageValue:
        if len(self.views) == MAX_VIEWS:
            raise self._error(node, f"it makes more than {MAX_VIEWS} images")
        self.views.append(chain)
        self.files_of_views.append(file)
        self._note(len(self.views) - 1, chain[-1])
        return ImageValue(len(chain), len(self.views) - 1, file)

    def _note(self, view: int, transform: Any) -> None:
        self._calls.append(transform)
        self.views_of_calls.append(view)

    def _call(self, node: ast.Call) -> Any:
        made = self._sequence(node)
        return super()._call(node) if made is None else made

    def _sequence(self, node: ast.Call) -> Any:
        """``list(...)`` or ``tuple(...)`` of a list, of ``map(lambda one: ..., list)``, or of a
        generator expression; None: another call."""
        function = self._value(node.func) if isinstance(node.func, ast.Name) else None
        if (function is not list and function is not tuple) or len(node.args) != 1 or node.keywords:
            return None
        argument = node.args[0]
        if isinstance(argument, ast.GeneratorExp):
            values = self._comprehension(argument)
        elif isinstance(argument, ast.Call) and isinstance(argument.func, ast.Name):
            values = self._mapped(argument)
        else:
            values = self._value(argument)
        if type(values) not in self._sequences:
            raise self._error(node, "it makes a list of something else than a list")
        return self._list(node, values) if function is list else self._tuple(node, values)

    def _mapped(self, node: ast.Call) -> Any:
        if self._value(node.func) is not map or len(node.args) != 2 or node.keywords:
            return self._value(node)
        function = node.args[0]
        if not isinstance(function, ast.Lambda):
            raise self._error(node, "it calls map() with something else than a lambda")
        arguments = function.args
        names = [*arguments.posonlyargs, *arguments.args]
        others = (arguments.vararg, arguments.kwarg, *arguments.kwonlyargs, *arguments.defaults)
        if len(names) != 1 or any(one is not None for one in others):
            raise self._error(node, "it calls map() with a lambda of other arguments than one")
        return self._each(node, names[0].arg, node.args[1], function.body)

    # ---- lists -----------------------------------------------------------------------------------

    def _may_hold(self, value: Any) -> bool:
        """Whether a list may hold a value."""
        return type(value) is ImageValue

    def _list(self, node: ast.AST, values: Sequence[Any]) -> MadeList:
        self._count(node, values)
        return MadeList(values)

    def _tuple(self, node: ast.AST, values: Sequence[Any]) -> Any:
        self._count(node, values)
        return tuple(values)

    def _count(self, node: ast.AST, values: Sequence[Any]) -> None:
        self._n_values += len(values)
        if self._n_values > _MAX_VALUES:
            raise self._error(node, f"it makes lists of more than {_MAX_VALUES} values")

    def _execute(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            return self._append(statement.value)
        if isinstance(statement, ast.For) and isinstance(statement.iter, ast.Name):
            return self._loop(statement, self._value(statement.iter))
        is_sum = isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add)
        if is_sum and isinstance(statement, ast.AugAssign) and self._extend(statement):
            return None
        super()._execute(statement)
        return None

    def _loop(self, statement: ast.For, values: Any) -> None:
        """``for one in values:``, where the list must stay as it is."""
        n = len(values) if type(values) is MadeList else 0
        super()._execute(statement)
        if type(values) is MadeList and len(values) != n:
            raise self._error(statement, "it loops over a list that grows")

    def _assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Tuple | ast.List) and type(value) in self._sequences:
            starred = any(isinstance(one, ast.Starred) for one in target.elts)
            if starred or len(target.elts) != len(value):
                raise self._error(target, "it unpacks another number of values")
            for one, part in zip(target.elts, list(value)):
                self._assign(one, part)
            return
        super()._assign(target, value)

    def _append(self, node: ast.Call) -> None:
        """``list.append(image)`` or ``list.extend(images)``."""
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("append", "extend"):
            owner = self._value(node.func.value)
            if type(owner) is MadeList and len(node.args) == 1 and not node.keywords:
                value = self._value(node.args[0])
                if node.func.attr == "append" and self._may_hold(value):
                    self._count(node, [value])
                    owner.append(value)
                    return
                if node.func.attr == "extend" and type(value) in self._sequences:
                    self._count(node, value)
                    owner += value
                    return
        raise self._error(node, "it calls something else than a transform of the image")

    def _extend(self, statement: ast.AugAssign) -> bool:
        """``images += [...]``. False: it is no list that the function made."""
        target = statement.target
        owner = self._names.get(target.id) if isinstance(target, ast.Name) else None
        if type(owner) is not MadeList:
            return False
        value = self._value(statement.value)
        if type(value) not in self._sequences:
            raise self._error(statement, "it does more than to transform the image")
        self._count(statement, value)
        owner += value
        return True

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.List | ast.Tuple) and isinstance(node.ctx, ast.Load):
            values = [self._value(one) for one in node.elts]
            make = self._list if isinstance(node, ast.List) else self._tuple
            return make(node, values)
        if isinstance(node, ast.ListComp):
            return self._comprehension(node)
        return super()._value(node)

    def _element(self, node: ast.Subscript) -> Any:
        owner = self._value(node.value)
        if type(owner) is MadeList:
            at = self._value(node.slice)
            if type(at) is int and -len(owner) <= at < len(owner):
                return owner[at]
        return super()._element(node)

    def _computed_of(self, node: ast.BinOp, one: Any, other: Any) -> Any:
        if isinstance(node.op, ast.Add) and type(one) is type(other) is MadeList:
            return self._list(node, one + other)
        return super()._computed_of(node, one, other)

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp) -> MadeList:
        """``[transform(image) for ... in ...]``"""
        inner = node.generators[0]
        target = inner.target
        if len(node.generators) > 1 or inner.ifs or inner.is_async:
            raise self._error(node, "it does more than to transform the image")
        if not isinstance(target, ast.Name):
            raise self._error(node, "it assigns to something else than a variable")
        return self._each(node, target.id, inner.iter, node.elt)

    def _each(
        self, node: ast.AST, name: str, values: ast.expr, expression: ast.expr
    ) -> MadeList:
        """The values of an expression, in which a variable has each of some values in turn."""
        made = []
        items = self._items(values)
        outside = dict(self._names)
        for one in items:
            self._names[name] = one
            made.append(self._value(expression))
        self._names = outside
        return self._list(node, made)

    def _items(self, node: ast.expr) -> list[Any]:
        if isinstance(node, ast.List | ast.Tuple):
            return [self._value(one) for one in node.elts]
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
        if isinstance(node, ast.Name) and type(made := self._value(node)) in self._sequences:
            return list(made)
        return super()._items(node)


def _never_draws(transform: Any) -> bool:
    """Whether a transform is known to draw no random numbers."""
    modules = sys.modules.get(V1), sys.modules.get(V2)
    known: list[Any] = [Convert, TensorCall, ArrayCall]
    known += [getattr(one, name, None) for one in modules for name in NEVER_DRAW]
    try:
        return all(any(type(one) is kind for kind in known) for one in flatten(transform))
    except Exception:  # the reader of the transforms gives the reason
        return False
