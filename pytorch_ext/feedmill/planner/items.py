"""Finds out what a dataset's own ``__getitem__`` returns, if all that it does is to call that of a
parent class: the parent's sample unchanged, or its image, its target and the index in another
arrangement. And checks that ``__getitem__`` alone decides about a dataset's samples.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from types import CellType, FunctionType, GetSetDescriptorType
from typing import Any

from feedmill.planner.arrangements import IMAGE, INDEX, TARGET
from feedmill.planner.attributes import NotUnderstood, dict_of, mro_of
from feedmill.planner.evaluating import Evaluator

_MAX_CLASSES = 8
# What decides how a dataset is indexed, or copied to worker processes, apart from __getitem__.
_DECIDING = frozenset({
    "__getitems__", "__getattribute__", "__getattr__", "__setattr__", "__class__", "__dict__",
    "__getstate__", "__setstate__", "__reduce__", "__reduce_ex__", "__getnewargs__",
    "__getnewargs_ex__", "__copy__", "__deepcopy__", "feedmill_item",
})


def check_classes(kind: type, names: Iterable[str] = ()) -> None:
    """Checks that no class of a dataset, apart from those of torch and Python, defines something
    beside ``__getitem__`` that decides about its samples.

    Args:
        kind: the dataset's class.
        names: other attributes that must not be defined by a class.

    Raises:
        NotUnderstood: one does.
    """
    for owner in mro_of(kind):
        if owner.__module__.partition(".")[0] in ("torch", "typing", "builtins"):
            continue
        defined = dict_of(owner)
        for name in sorted(_DECIDING.union(names) & defined.keys()):
            # Python itself gives classes the attribute __dict__.
            if name != "__dict__" or type(defined[name]) is not GetSetDescriptorType:
                raise NotUnderstood(f"{owner.__qualname__} defines {name}")


class Part:
    """A part of a sample: its image, its target or its index."""

    def __init__(self, name: str) -> None:
        self.name = name


class _Super:
    """``super()`` in a method of the class ``owner``."""

    def __init__(self, owner: type) -> None:
        self.owner = owner


_IMAGE, _TARGET, _INDEX = Part(IMAGE), Part(TARGET), Part(INDEX)


def arrangement(dataset: Any, last: type) -> Any:
    """What ``dataset[index]`` returns in terms of the sample of a class among its parents, as
    BaseDataset's arrangement. Calls nothing.

    Args:
        dataset: the dataset.
        last: the parent class, whose ``__getitem__`` returns the pair (image, target).

    Raises:
        NotUnderstood: ``__getitem__`` does something else, or is not proved to do only this.
    """
    found = _sample_of(dataset, list(mro_of(type(dataset))), last, 0)
    names = tuple(one.name for one in found) if type(found) is tuple else found.name
    if (names if type(names) is tuple else (names,)).count(IMAGE) != 1:
        raise NotUnderstood("its __getitem__ does not return the image once")
    return names


def _sample_of(dataset: Any, classes: list[type], last: type, depth: int) -> Any:
    """The sample that the first of these classes with ``__getitem__`` returns, in Parts."""
    owner = next((one for one in classes if "__getitem__" in dict_of(one)), None)
    if owner is last:
        return _IMAGE, _TARGET
    method = None if owner is None else dict_of(owner)["__getitem__"]
    if type(method) is not FunctionType:
        raise NotUnderstood("its __getitem__ has no source in Python")
    if depth == _MAX_CLASSES:
        raise NotUnderstood(f"more than {_MAX_CLASSES} classes define __getitem__")
    return _ItemEvaluator(method, dataset, last, depth).sample()


class _ItemEvaluator(Evaluator):
    """Evaluates a ``__getitem__`` once."""

    def __init__(self, method: FunctionType, dataset: Any, last: type, depth: int) -> None:
        super().__init__(method, None)
        self._dataset = dataset
        self._last = last
        self._depth = depth
        self._n_samples = 0

    def sample(self) -> Any:
        result = self.result([self._dataset, _INDEX])
        parts = result if type(result) is tuple else (result,)
        if self._n_samples != 1 or not all(type(one) is Part for one in parts):
            raise self._error(self._definition.node, "it returns something else than the parts of "
                              "one sample of its parent class, and the index")
        return result

    def _assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Tuple | ast.List) and type(value) is tuple:
            if len(target.elts) == len(value):
                for one, part in zip(target.elts, value):
                    self._assign(one, part)
                return
        super()._assign(target, value)

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load):
            values: list[Any] = []
            for one in node.elts:
                if isinstance(one, ast.Starred):
                    values += self._tuple(one.value)
                else:
                    values.append(self._value(one))
            return tuple(values)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return (*self._tuple(node.left), *self._tuple(node.right))
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            values, at = list(self._tuple(node.value)), self._value(node.slice)
            if type(at) is int and 0 <= at < len(values):
                return values[at]
            raise self._error(node, "it reads an item that is not known")
        return super()._value(node)

    def _tuple(self, node: ast.expr) -> tuple[Any, ...]:
        value = self._value(node)
        if type(value) is not tuple:
            raise self._error(node, "it handles something else than the parent's sample")
        return value

    def _concrete(self, node: ast.expr) -> Any:
        value = super()._concrete(node)
        if type(value) in (Part, tuple, _Super):
            raise self._error(node, "it uses the sample in another way than to return it")
        return value

    def _attribute(self, node: ast.Attribute) -> Any:
        if node.attr == "__getitem__":
            owner = self._value(node.value)
            if type(owner) is _Super:
                return owner
        return super()._attribute(node)

    def _compare(self, node: ast.Compare) -> Any:
        for one in (node.left, node.comparators[0]):
            self._concrete(one)
        return super()._compare(node)

    def _call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Name) and self._value(node.func) is super:
            return self._super(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "__getitem__":
            parent = self._value(node.func)
            if type(parent) is _Super and not node.keywords and len(node.args) == 1:
                if self._value(node.args[0]) is _INDEX:
                    return self._parent_sample(parent.owner)
        raise self._error(node, "it calls something else than its parent's __getitem__")

    def _super(self, node: ast.Call) -> _Super:
        """``super()`` or ``super(Class, self)``."""
        if node.keywords or len(node.args) not in (0, 2):
            raise self._error(node, "it calls super() in an unknown way")
        if node.args:
            owner, instance = map(self._value, node.args)
        else:
            code = self._function.__code__
            names = code.co_freevars
            cells: tuple[CellType, ...] = self._function.__closure__ or ()
            if "__class__" not in names or not code.co_argcount:
                raise self._error(node, "it calls super() in an unknown way")
            owner = cells[names.index("__class__")].cell_contents
            instance = self._names.get(code.co_varnames[0])
        if instance is not self._dataset or not isinstance(owner, type):
            raise self._error(node, "it calls super() of another object")
        return _Super(owner)

    def _parent_sample(self, owner: type) -> Any:
        self._n_samples += 1
        classes = list(mro_of(type(self._dataset)))
        if owner not in classes:
            raise NotUnderstood("it calls super() of another class")
        rest = classes[classes.index(owner) + 1 :]
        return _sample_of(self._dataset, rest, self._last, self._depth + 1)
