"""Finds out what a function does with a batch of samples that Hugging Face's datasets pass to it:
``Dataset.set_transform()`` and ``with_transform()`` take such functions. And what a function does
with one sample, which ``IterableDataset.map()`` takes.

The function's source is evaluated as ``evaluating`` does, with a dict of unknown columns. It is
understood only if all that it does is to apply transforms to each image of one column, and to
choose and name the columns of the result. It is called with a whole batch, so that it may draw no
random number itself: the images of a batch would share it.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from feedmill.planner.attributes import NotUnderstood, attributes_of
from feedmill.planner.drawing import Draw
from feedmill.planner.evaluating import Evaluator, called
from feedmill.planner.image_calls import Convert, ImageState, ImageValue


@dataclass(frozen=True)
class Column:
    """A column of the batch, unchanged."""

    name: str


@dataclass(frozen=True)
class _Images:
    """The list of all images after ``n_calls`` of the calls so far."""

    n_calls: int


class _Batch(dict[str, Any]):
    """The batch, or a dict that the function makes: Columns and _Images."""


class BatchFunction:
    """What a function does with a batch.

    Args:
        function: as the user gave it to set_transform().
        columns: of the batch.
        image: the column of images.
        state: of the images; None: unknown.

    Attributes:
        calls: the transforms that it applies to each image, in order.
        keys: of the result, in order.
        columns: the columns at these keys; None at the key of the transformed images.
        left: keys of the result, not among ``keys``, with images as they were before the last
            transform.
        returns_given: it returns the dict that it was called with.

    Raises:
        NotUnderstood: it does something else, or is not proved to do only this.
    """

    def __init__(
        self, function: Any, columns: Sequence[str], image: str, state: ImageState | None
    ) -> None:
        self._function = function
        inner, bound = called(function)
        evaluator = self._evaluator()(inner, state)
        result = evaluator.batch(bound, columns, image)
        self.returns_given = evaluator.returns_given
        self.calls: list[Any] = evaluator.calls
        done = evaluator.images(len(self.calls))
        images = {key: one for key, one in result.items() if type(one) is not Column}
        self.left = tuple(key for key, one in images.items() if one != done)
        self.keys = tuple(key for key in result if key not in self.left)
        self.columns: tuple[str | None, ...] = tuple(
            None if result[key] == done else result[key].name for key in self.keys
        )
        if self.columns.count(None) != 1:
            raise NotUnderstood("it does not return the images once, after all their transforms")
        for call in self.calls:
            # native="verify" must be able to replace it.
            if type(call) is not Convert and not _holds(inner, bound, call):
                raise NotUnderstood("a transform that it calls is no variable and no attribute")

    @staticmethod
    def _evaluator() -> type[_BatchEvaluator]:
        return _BatchEvaluator

    def with_transform(self, transform: Any) -> Any:
        """A copy of the function that calls another transform in the place of the first one, and
        none in the place of the others."""
        inner, bound = called(self._function)
        calls = [one for one in self.calls if type(one) is not Convert]
        new = {id(one): transform if n == 0 else _same for n, one in enumerate(calls)}
        copied = _with_values(inner, new)
        if not bound:
            return copied
        owner = bound[0]
        own = object.__new__(type(owner))
        vars(own).update({key: new.get(id(one), one) for key, one in vars(owner).items()})
        return MethodType(copied, own)


def _same(image: Any) -> Any:
    return image


def _names_in(code: CodeType) -> set[str]:
    """The global names in code and the code within it."""
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return set(code.co_names).union(*map(_names_in, inner))


def _holds(function: FunctionType, bound: Sequence[Any], value: Any) -> bool:
    """Whether a value is one that with_transform() can replace."""
    held = [function.__globals__.get(name) for name in _names_in(function.__code__)]
    held += [cell.cell_contents for cell in function.__closure__ or () if _is_set(cell)]
    held += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for owner in bound:
        held += attributes_of(owner).values()
    return any(one is value for one in held)


def _is_set(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _with_values(function: FunctionType, new: dict[int, Any]) -> FunctionType:
    """A copy of a function with other values in the place of those with these ids."""

    def changed(value: Any) -> Any:
        return new.get(id(value), value)

    space = {key: changed(value) for key, value in function.__globals__.items()}
    cells = tuple(
        CellType(changed(cell.cell_contents)) if _is_set(cell) else cell
        for cell in function.__closure__ or ()
    )
    defaults = tuple(map(changed, function.__defaults__ or ()))
    copied = FunctionType(function.__code__, space, function.__name__, defaults, cells or None)
    keywords = function.__kwdefaults__ or {}
    copied.__kwdefaults__ = {key: changed(value) for key, value in keywords.items()} or None
    return copied


class ExampleFunction(BatchFunction):
    """What a function does with one sample, which ``IterableDataset.map()`` calls it with: as with
    a batch, but the dict holds one image."""

    @staticmethod
    def _evaluator() -> type[_BatchEvaluator]:
        return _ExampleEvaluator


class _BatchEvaluator(Evaluator):
    """Evaluates a function once.

    Attributes:
        images: what stands for the images after a number of calls.
        returns_given: the function returned the dict that it was called with.
    """

    images: Any = _Images
    returns_given = False

    @property
    def calls(self) -> list[Any]:
        return self._calls

    def batch(self, bound: Sequence[Any], columns: Sequence[str], image: str) -> _Batch:
        """The dict that the function returns."""
        given = _Batch({one: self.images(0) if one == image else Column(one) for one in columns})
        result = self.result([*bound, given])
        if type(result) is not _Batch:
            raise self._error(self._definition.node, "it returns something else than a dict")
        self.returns_given = result is given
        return result

    # ---- statements ------------------------------------------------------------------------------

    def _execute(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Delete):
            for one in statement.targets:
                if not isinstance(one, ast.Subscript):
                    raise self._error(one, "it deletes something else than a column")
                owner, key = self._value(one.value), self._value(one.slice)
                self._pop(one, owner, key)
            return
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            if self._popped(statement.value) is None:
                raise self._error(statement, "it calls something else than a transform")
            return
        super()._execute(statement)

    def _assign(self, target: ast.expr, value: Any) -> None:
        if not isinstance(target, ast.Subscript):
            return super()._assign(target, value)
        owner, key = self._value(target.value), self._value(target.slice)
        if type(owner) is not _Batch:
            raise self._error(target, "it assigns to something else than a variable or a column")
        return self._set(target, owner, key, value)

    def _set(self, node: ast.AST, owner: _Batch, key: Any, value: Any) -> None:
        if type(key) is not str:
            raise self._error(node, "it makes a column whose name is no string")
        if type(value) is not Column and type(value) is not self.images:
            raise self._error(node, "it makes a column of something else than the images and the "
                              "other columns")
        owner[key] = value

    def _pop(self, node: ast.AST, owner: Any, key: Any) -> Any:
        if type(owner) is not _Batch or type(key) is not str or key not in owner:
            raise self._error(node, "it removes something that is no column")
        return owner.pop(key)

    # ---- expressions -----------------------------------------------------------------------------

    def _concrete(self, node: ast.expr) -> Any:
        value = super()._concrete(node)
        if type(value) in (_Batch, _Images, Column):
            raise self._error(node, "it uses a column in another way than to return it")
        return value

    def _compare(self, node: ast.Compare) -> Any:
        for one in (node.left, node.comparators[0]):
            self._concrete(one)
        return super()._compare(node)

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Dict):
            return self._dict(node)
        if isinstance(node, ast.ListComp):
            return self._comprehension(node)
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            owner = self._value(node.value)
            if type(owner) is _Batch:
                key = self._value(node.slice)
                if type(key) is str and key in owner:
                    return owner[key]
                raise self._error(node, f"it reads {key!r}, which is no column")
        return super()._value(node)

    def _dict(self, node: ast.Dict) -> _Batch:
        made = _Batch()
        for key, one in zip(node.keys, node.values):
            value = self._value(one)
            if key is not None:
                self._set(node, made, self._value(key), value)
            elif type(value) is _Batch:
                made.update(value)
            else:
                raise self._error(node, "it makes a dict of unknown keys")
        return made

    def _comprehension(self, node: ast.ListComp) -> _Images:
        """``[transform(image) for image in batch["image"]]``"""
        inner = node.generators[0]
        images = self._value(inner.iter)
        if len(node.generators) > 1 or inner.ifs or inner.is_async:
            raise self._error(node, "it does more than to transform each image")
        if type(images) is not _Images or not isinstance(inner.target, ast.Name):
            raise self._error(node, "it loops over something else than the images")
        outside = dict(self._names)
        self._names[inner.target.id] = ImageValue(images.n_calls)
        value = self._value(node.elt)
        self._names = outside
        if type(value) is not ImageValue:
            raise self._error(node, "it makes something else than an image of each image")
        return _Images(value.n_calls)

    def _attribute(self, node: ast.Attribute) -> Any:
        if type(self._value(node.value)) in (_Batch, _Images, Column):
            raise self._error(node, f"it reads {node.attr} of a column")
        return super()._attribute(node)

    # ---- calls -----------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Any:
        popped = self._popped(node)
        return super()._call(node) if popped is None else popped

    def _popped(self, node: ast.Call) -> Any:
        """The result of ``batch.pop(key)``; None: it is another call."""
        if isinstance(node.func, ast.Attribute) and node.func.attr == "pop":
            owner = self._value(node.func.value)
            if type(owner) is _Batch and len(node.args) == 1 and not node.keywords:
                return self._pop(node, owner, self._value(node.args[0]))
        return None

    def _drawn(self, node: ast.Call, function: Any) -> Any:
        drawn = super()._drawn(node, function)
        if type(drawn) is Draw:
            raise self._error(node, "it draws a random number")
        return drawn


class _ExampleEvaluator(_BatchEvaluator):
    """Evaluates a function of one sample once."""

    images = ImageValue

    def _comprehension(self, node: ast.ListComp) -> _Images:
        raise self._error(node, "it loops over something")
