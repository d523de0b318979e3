"""Evaluates the source of a dataset's ``__getitem__`` for ``own_datasets``: which image it opens,
which transforms it applies, and what it returns, as functions of the index."""

from __future__ import annotations

import ast
import string
from collections.abc import Callable, Mapping, Sequence
from pathlib import PosixPath
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch

from feedmill.planner import huggingface, tables, tensor_files, torchcodec_files
from feedmill.planner.arrow_datasets import ImageTable, table_of
from feedmill.planner.attributes import NotUnderstood, attribute, attributes_of, of_class
from feedmill.planner.computed_values import (
    Made,
    Sample,
    is_computing,
    is_plain_value,
    result_of_choice,
    result_of_function,
    result_of_method,
    result_of_operator,
)
from feedmill.planner.drawn_lookups import Drawing, drawing_of
from feedmill.planner.files import open_as_is, open_rgb
from feedmill.planner.folders import get_image_backend
from feedmill.planner.generators import drawing_function
from feedmill.planner.image_calls import Convert, ImageState, ImageValue
from feedmill.planner.looked_up import (
    CONSTANTS,
    ROW,
    TEXT,
    TEXTS,
    Value,
    constant,
    formatted_of,
    function_of,
    has_plain_keys,
    is_plain,
    joined_path,
    kind_of_elements,
    kind_of_item,
    method_of,
    part_of_path,
    sum_of,
    unpacked,
)
from feedmill.planner.opencv_calls import Encoded, Pixels
from feedmill.planner.opened_files import File, Opened
from feedmill.planner.plan import UnsupportedError
from feedmill.planner.raising import RaisingEvaluator
from feedmill.planner.untouched import is_original
from feedmill.planner.view_calls import MadeList

_CONTAINERS = (list, tuple, range, dict, np.ndarray, torch.Tensor)
_TELL_CLASS = ("__class__", "__getattribute__")  # what isinstance() asks an object for
# A value that is made in more steps is not understood.
_MOST_STEPS = 64


class DictSample(dict[str, Any]):
    """A dict that ``__getitem__`` makes, with the values in it."""


class _Row:
    """A sample of a Dataset of Hugging Face."""

    def __init__(self, at: Value) -> None:
        self.at = at


# Hold parts of a sample.
_HOLDERS = (Sample, DictSample, MadeList)
# Stand for what is looked up.
_UNKNOWN = (Value, *_HOLDERS, File, Opened, Encoded, Pixels, _Row, tables.Table)
_MOST_LEVELS = 8  # of lists and dicts in a sample
_MOST_PARTS = 1024
_MOST_ELEMENTS = 64  # of a list or dict of transforms


def parts_of(result: Any) -> list[Any]:
    """The values in a sample, and in the lists and dicts within it, in order."""
    parts: list[Any] = []
    _add_parts(result, parts, 0)
    return parts


def _add_parts(value: Any, parts: list[Any], depth: int) -> None:
    if type(value) not in _HOLDERS:
        parts.append(value)
    elif depth == _MOST_LEVELS or len(parts) > _MOST_PARTS:
        raise NotUnderstood("it returns too many lists or dicts within each other")
    else:
        for one in value.values() if type(value) is DictSample else value:
            _add_parts(one, parts, depth + 1)


def with_elements(instance: Any, others: Mapping[int, Any]) -> dict[str, Any]:
    """The attributes of an object that are lists, tuples or dicts with transforms, with others in
    the place of these.

    Args:
        others: by the id() of the present value.
    """
    made: dict[str, Any] = {}
    for name, held in attributes_of(instance).items():
        if type(held) not in (list, tuple, dict) or len(held) > _MOST_ELEMENTS:
            continue
        elements = held.values() if type(held) is dict else held
        if any(id(one) in others for one in elements):
            new = [others.get(id(one), one) for one in elements]
            made[name] = dict(zip(held, new)) if type(held) is dict else type(held)(new)
    return made


def _with_constants(result: Any) -> Any:
    """A sample with Values in the place of constants; see parts_of()."""
    if type(result) is DictSample:
        return DictSample({key: _with_constants(one) for key, one in result.items()})
    if type(result) in _HOLDERS:
        return type(result)(map(_with_constants, result))
    return constant(result) if type(result) in CONSTANTS else result


class ItemEvaluator(RaisingEvaluator):
    """Evaluates a ``__getitem__`` once.

    Attributes:
        inner_index, table, calls, takes_pil: as OwnDataset's. ``views`` holds one image, too.
        follows_functions: it calls functions or methods of the user's.
        calls_elements: a transform is an element of a list or dict.
        values: all that were made.
        drawings: of random numbers, in order.
    """

    _sequences = (MadeList, Sample)

    def __init__(self, method: FunctionType) -> None:
        super().__init__(method)
        self.inner_index: Value | None = None
        self.table: ImageTable | None = None
        self.takes_pil = False
        self.follows_functions = False
        self.calls_elements = False
        self.values: list[Value] = []
        self.drawings: list[Drawing] = []
        self._plain: set[int] = set()  # ids of the containers that were checked
        self._index = Value(lambda index, _: index, how="index")
        self._indices = [self._index]  # and the same as an int

    def _bind(self, values: Sequence[Any]) -> None:
        super()._bind(values)
        several = self._definition.node.args.vararg
        if several is not None:  # no list of the user's, as it may hold Values
            self._names[several.arg] = Sample(self._names[several.arg])

    def _within(self, function: FunctionType, arguments: Sequence[Any]) -> Any:
        self.follows_functions = True
        return super()._within(function, arguments)

    @property
    def calls(self) -> list[Any]:
        return self._calls

    def sample(self, dataset: Any) -> Any:
        self._whole = dataset
        result = self.result([dataset, self._index])
        if self.retries:
            self.check_rest()
        node = self._definition.node
        if type(result) in _HOLDERS:
            parts_of(result)  # may be nested without an end
            result = _with_constants(result)
        parts = parts_of(result)
        images = [one for one in parts if type(one) is ImageValue]
        self._check_files(node)
        is_of_row = self.load == getattr(self.table, "load", None) and len(self.paths) == 1
        if self.table is not None and not is_of_row:
            raise self._error(node, "it opens another image than that of the row")
        is_whole = self._is_every_view(images) if self.views else images == [ImageValue(0)]
        if not is_whole:
            raise self._error(
                node, "it does not return each image that it makes once, after all its transforms"
            )
        if not all(type(one) in (ImageValue, Value) for one in parts):
            raise self._error(node, "it returns other values than those that it looks up")
        attributes = list(attributes_of(dataset).values())
        for call in self._calls:
            # native="verify" must be able to replace it.
            if type(call) is not Convert and not any(call is one for one in attributes):
                self.calls_elements = True
                if not with_elements(dataset, {id(call): None}):
                    raise self._error(
                        node, "its transform is no attribute of the dataset, nor in a list that is"
                    )
        if self.drawings and len(self.paths) < 2:
            raise self._error(node, "it draws random numbers for a sample of one image file")
        if self.retries and (self.drawings or self.table is not None):
            raise self._error(node, "it catches errors, and draws files or takes rows of a table")
        if self.inner is not None and not any(self.inner is one for one in attributes):
            raise self._error(node, "it takes its sample from no attribute of the dataset")
        if len(self.views) == 1 and len({id(call) for call in self._calls}) != len(self._calls):
            raise self._error(node, "it applies a transform twice")
        return result

    def loader(self) -> Any:
        """How a function loads the file of the path that it is given, as OwnDataset.load."""
        self._argument = self._index
        node, result = self._definition.node, self.result([self._index])
        if type(result) is Opened and result.load is open_rgb and self.load is None:
            result = self._loaded_lazily(node, result, open_as_is)
        if type(result) is Pixels:
            result = self._image_of(node, result)
        if self.retries:
            raise self._error(node, "it catches errors")
        if type(result) is not ImageValue or self.paths != [self._index] or self._calls:
            raise self._error(node, "it does more than to load a file as RGB")
        self._check_files(node)
        return self.load

    # ---- expressions -----------------------------------------------------------------------------

    def _concrete(self, node: ast.expr) -> Any:
        return self._known(node, super()._concrete(node))

    def _known(self, node: ast.expr, value: Any) -> Any:
        """A value that depends neither on the index nor on the image."""
        if type(value) is ImageValue:
            raise self._error(node, "it uses the image in another way than to transform it")
        if type(value) in _UNKNOWN:
            raise self._error(node, "what it does depends on the index")
        return value

    def _compare(self, node: ast.Compare) -> Any:
        one, other = self._value(node.left), self._value(node.comparators[0])
        if (made := self._computed_value(result_of_operator(node.ops[0], one, other))) is not None:
            return made
        for operand, value in ((node.left, one), (node.comparators[0], other)):
            if type(value) is not ImageValue:
                self._known(operand, value)
        return super()._compare(node)

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load):
            values = Sample()
            for one in node.elts:
                if isinstance(one, ast.Starred):
                    inside = self._value(one.value)
                    if type(inside) is not Sample:
                        raise self._error(node, "it unpacks something else than a sample")
                    values += inside
                else:
                    values.append(self._value(one))
            return values
        if isinstance(node, ast.Dict):
            if not all(isinstance(key, ast.Constant) for key in node.keys):
                raise self._error(node, "it makes a dict with unknown keys")
            made = DictSample()
            for key, one in zip(node.keys, node.values):
                self._set_field(node, made, self._value(key) if key else None, self._value(one))
            return made
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            if self._is_reversal(node):
                return self._reversed(node)
            if isinstance(node.slice, ast.Slice):
                return self._slice(node, node.slice, self._value(node.value))
            return self._item(node, self._value(node.value), self._value(node.slice))
        if isinstance(node, ast.JoinedStr):
            return self._formatted(node)
        if isinstance(node, ast.IfExp):
            return self._either(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            if type(left := self._value(node.left)) is str:
                return self._by_percent(node, left)
            return self._computed_of(node, left, self._value(node.right))
        return super()._value(node)

    def _computed_value(self, made: Made | None) -> Value | None:
        """A Value of what is computed of others; None: that is not known."""
        return None if made is None else self._made(made[0], made[1], None, None, made[2])

    def _either(self, node: ast.IfExp) -> Any:
        """``one if test else other``, where the test may depend on the index."""
        if (converted := self._converted_to_rgb(node)) is not None:
            return converted
        test = self._value(node.test)
        if type(test) is not Value:
            is_true = self._decide(node.test, self._known(node.test, test))
            return self._value(node.body if is_true else node.orelse)
        made = result_of_choice(test, self._value(node.body), self._value(node.orelse))
        if (value := self._computed_value(made)) is None:
            raise self._error(node, "what it does depends on the index")
        return value

    def _assigns_either(self, statement: ast.stmt) -> bool:
        """Executes ``if label > 3: label = 3``, also with ``else``, where the test depends on the
        index. False: it is another statement."""
        if not isinstance(statement, ast.If) or not isinstance(statement.test, ast.Compare):
            return False
        written = [statement.body, *([statement.orelse] if statement.orelse else [])]
        assigned = [one[0] for one in written if len(one) == 1]
        names = {
            one.targets[0].id
            for one in assigned
            if isinstance(one, ast.Assign) and len(one.targets) == 1
            and isinstance(one.targets[0], ast.Name)
        }
        if len(assigned) != len(written) or len(names) != 1 or len(statement.test.ops) != 1:
            return False
        parts = (statement.test.left, statement.test.comparators[0])
        if not all(isinstance(one, ast.Constant | ast.Name | ast.Attribute | ast.Subscript)
                   for one in parts):
            return False
        if not any(type(self._value(one)) is Value for one in parts):
            return False
        (name,) = names
        values = [self._value(one.value) for one in assigned if isinstance(one, ast.Assign)]
        if not statement.orelse:
            values.append(self._names.get(name))
        made = result_of_choice(self._value(statement.test), *values)
        if name not in self._names and not statement.orelse:
            made = None
        if (value := self._computed_value(made)) is None:
            raise self._error(statement, "what it does depends on the index")
        self._executed.update(map(id, assigned))
        self._names[name] = value
        return True

    def _may_hold(self, value: Any) -> bool:
        return type(value) in (ImageValue, Value, *CONSTANTS, *_HOLDERS)

    def _tuple(self, node: ast.AST, values: Sequence[Any]) -> Sample:
        self._count(node, values)
        return Sample(values)

    def _formatted(self, node: ast.JoinedStr) -> Value:
        """``f"{name}.jpg"``"""
        parts: list[tuple[str, Value, str]] = []
        text = ""
        for one in node.values:
            if isinstance(one, ast.Constant):
                text += str(one.value)
                continue
            assert isinstance(one, ast.FormattedValue)
            spec = "" if one.format_spec is None else self._constant_text(one.format_spec)
            value = self._value(one.value)
            value = constant(value) if type(value) in CONSTANTS else value
            if one.conversion != -1 or type(value) is not Value:
                raise self._error(node, "it formats something else than what it looks up")
            parts.append((text, value, spec))
            text = ""
        parts.append((text, constant(""), ""))
        how = f"f{[(text, spec) for text, _, spec in parts]}"
        return self._made(formatted_of(parts), [one for _, one, _ in parts], None, TEXT, how)

    def _constant_text(self, node: ast.expr) -> str:
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        if not all(isinstance(one, ast.Constant) for one in parts):
            raise self._error(node, "it formats a value in a format that is not constant")
        return "".join(str(one.value) for one in parts if isinstance(one, ast.Constant))

    def _by_percent(self, node: ast.BinOp, text: str) -> Any:
        """``"%05d.jpg" % number``"""
        given = self._value(node.right)
        values = given if type(given) is Sample else [given]
        made = [constant(one) if type(one) in CONSTANTS else one for one in values]
        if not all(type(one) is Value for one in made):
            raise self._error(node, "it formats something else than what it looks up")

        def formatted(index: Any, sample: Any) -> str:
            parts = tuple(one.of(index, sample) for one in made)
            return text % (parts if type(given) is Sample else parts[0])

        return self._made(formatted, made, None, TEXT, f"{text!r}%{type(given) is Sample}")

    def _set_field(self, node: ast.AST, fields: DictSample, key: Any, value: Any) -> None:
        if type(key) is not str:
            raise self._error(node, "it makes a dict whose keys are no strings")
        fields[key] = value

    def _attribute(self, node: ast.Attribute) -> Any:
        owner = self._value(node.value)
        if tables.is_table(owner) or type(owner) is tables.Table:
            return self._part_of_table(node, owner)
        if type(owner) is Value and owner.kind == ROW:
            return self._field(node, owner, node.attr, True)
        if type(owner) is Value and (part := part_of_path(owner, node.attr)) is not None:
            return self._kept(part)
        if type(owner) in _UNKNOWN:
            raise self._error(node, f"it reads {node.attr} of what it looks up")
        if (mode := tensor_files.member_of_modes(owner, node.attr)) is not None:
            return mode
        return super()._attribute(node)

    def _part_of_table(self, node: ast.Attribute, owner: Any) -> tables.Table:
        part = tables.part_of(self._table(node, owner), node.attr)
        if part is None:
            raise self._error(node, f"it reads {node.attr} of a table of pandas")
        return part

    def _table(self, node: ast.AST, owner: Any) -> tables.Table:
        try:
            return owner if type(owner) is tables.Table else tables.table_of(owner)
        except NotUnderstood as error:
            raise self._error(node, str(error)) from None

    def _in_table(self, node: ast.AST, owner: Any, at: Any) -> Any:
        """A column of a table, or an element or row by the index."""
        table = self._table(node, owner)
        if (column := tables.column_of(table, at)) is not None:
            return column
        try:
            rows = at[0] if type(at) is Sample and at else at
            found = tables.lookup(table, at, any(rows is one for one in self._indices))
        except NotUnderstood as error:
            raise self._error(node, str(error)) from None
        return self._made(found.of, found.sources, table.root, found.kind, found.how)

    def _field(self, node: ast.AST, row: Value, name: Any, is_attribute: bool) -> Value:
        try:
            found = tables.field_of_row(row, name, is_attribute)
        except NotUnderstood as error:
            raise self._error(node, str(error)) from None
        return self._made(found.of, found.sources, None, found.kind, found.how)

    def _item(self, node: ast.AST, owner: Any, at: Any) -> Any:
        if tables.is_table(owner) or type(owner) is tables.Table:
            return self._in_table(node, owner, at)
        if type(owner) is Value and owner.kind == ROW:
            return self._field(node, owner, at, False)
        if type(owner) is DictSample and type(at) is str and at in owner:
            return owner[at]
        if type(owner) is _Row and type(at) is str:
            return self._of_row(node, owner, at)
        if type(owner) in self._sequences and type(at) is int and 0 <= at < len(owner):
            return owner[at]
        if type(owner) in (list, tuple) and type(at) is int and -len(owner) <= at < len(owner):
            return owner[at]
        if type(owner) is dict and type(at) in (int, str) and has_plain_keys(owner) and at in owner:
            return owner[at]
        if type(at) is str and type(owner) is Value and is_plain_value(owner):
            sources = [owner, constant(at)]  # of a dict
            return self._made(lambda *which: owner.of(*which)[at], sources, None, None, "[]")
        if type(at) is int and type(owner) is Value:
            kind = kind_of_item(owner)
            # What else a sample of an inner dataset holds may count from the end in its own way.
            if at >= 0 or kind is not None or owner.container is not None:
                sources = [owner, constant(at)]
                return self._made(lambda *which: owner.of(*which)[at], sources, None, kind, "[]")
        if type(at) is Value:
            if type(owner) is dict and any(at is one for one in self._indices):
                # The native loader needs ints as indices.
                raise self._error(node, "its indices are keys of a dict")
            if type(owner) in _CONTAINERS:
                if type(owner) is torch.Tensor and owner.requires_grad:
                    raise self._error(node, "its tensor requires a gradient, which no worker sends")
                if not has_plain_keys(owner):
                    raise self._error(node, "the keys of its dict are no numbers or strings")
                kind = kind_of_elements(owner)
                return self._made(
                    lambda index, sample: owner[at.of(index, sample)], [at], owner, kind, "lookup"
                )
            if huggingface.is_dataset(type(owner)):
                return self._row(node, owner, at)
            if type(owner) not in (*_UNKNOWN, ImageValue, str):
                return self._inner_sample(node, owner, at)
        raise self._error(node, "it looks up an item of no list, array, dict or dataset")

    def _slice(self, node: ast.AST, written: ast.Slice, owner: Any) -> Value:
        """``path[:-4]``"""
        bounds = [
            None if one is None else self._value(one)
            for one in (written.lower, written.upper, written.step)
        ]
        if type(owner) is not Value or owner.kind not in (TEXT, TEXTS):
            raise self._error(node, "it takes a part of something else than a string")
        if not all(type(one) in (int, type(None)) for one in bounds):
            raise self._error(node, "it takes a part whose bounds are no ints")
        part = slice(*bounds)
        return self._made(
            lambda index, sample: owner.of(index, sample)[part],
            [owner, *map(constant, bounds)], None, owner.kind, "[:]",
        )

    def _inner_sample(self, node: ast.AST, dataset: Any, at: Value) -> Sample:
        if self.inner is not None or self.load is not None:
            raise self._error(node, "it takes more than one sample")
        self.inner, self.inner_index = dataset, at
        try:
            has_transform = attribute(dataset, "transform") is not None
        except NotUnderstood:
            has_transform = True
        self.takes_pil = not has_transform
        self._state = ImageState(True, "RGB") if self.takes_pil else None
        return Sample([ImageValue(0), Value(lambda _, sample: sample[1], how="target")])

    def _row(self, node: ast.AST, dataset: Any, at: Value) -> _Row:
        """``dataset[index]`` for a Dataset of Hugging Face."""
        if self.table is None:
            try:
                self.table = table_of(dataset)
            except UnsupportedError as error:
                raise self._error(node, str(error)) from None
        if self.table.dataset is not dataset:
            raise self._error(node, "it takes rows of two datasets")
        return _Row(at)

    def _of_row(self, node: ast.AST, row: _Row, name: str) -> Any:
        """A column of a row: a Value, or the image."""
        table, at = self.table, row.at
        if table is None or name not in table.columns:
            raise self._error(node, f"it reads {name!r}, which is no column")
        source, rows, data = table.source, table.row, table.dataset._data
        if name == table.image:
            path = self._made(
                lambda index, sample: source(rows(at.of(index, sample))), [at], data, None, name
            )
            if table.mode is None:
                return Opened(path, table.load)
            return self._loaded(node, path, table.load)
        try:
            value = table.column(name)
        except UnsupportedError as error:
            raise self._error(node, str(error)) from None
        return self._made(
            lambda index, sample: value(rows(at.of(index, sample))), [at], data, None, name
        )

    def _assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Subscript):
            owner = self._value(target.value)
            if type(owner) is DictSample:
                return self._set_field(target, owner, self._value(target.slice), value)
        if isinstance(target, ast.Tuple | ast.List):
            n = len(target.elts)
            if any(isinstance(one, ast.Starred) for one in target.elts):
                raise self._error(target, "it unpacks with a *")
            if type(value) in self._sequences:
                return super()._assign(target, value)
            if type(value) is Value:
                parts = [
                    self._made(
                        unpacked(value, number, n), [value], None, kind_of_item(value),
                        f"{number} of {n}",
                    )
                    for number in range(n)
                ]
            else:
                raise self._error(target, "it unpacks no sample and no item of a list")
            for one, part in zip(target.elts, parts):
                self._assign(one, part)
            return None
        return super()._assign(target, value)

    def _execute(self, statement: ast.stmt) -> None:
        self._executed.add(id(statement))
        if isinstance(statement, ast.With):
            self._with(statement)
        elif isinstance(statement, ast.ImportFrom) and statement.level == 0:
            self._import(statement)
        elif not (
            self._makes_int(statement) or self._makes_rgb(statement)
            or self._assigns_either(statement)
        ):
            super()._execute(statement)

    def _makes_int(self, statement: ast.stmt) -> bool:
        """Executes ``if torch.is_tensor(index): index = index.tolist()``. False: it is another
        statement."""
        if not isinstance(statement, ast.If) or statement.orelse or len(statement.body) != 1:
            return False
        test, body = statement.test, statement.body[0]
        if not isinstance(test, ast.Call) or len(test.args) != 1 or test.keywords:
            return False
        name = test.args[0]
        if not isinstance(name, ast.Name) or self._names.get(name.id) is not self._index:
            return False
        called = {f"{name.id} = {name.id}.{one}()": one for one in ("tolist", "item")}
        method = called.get(ast.unparse(body))
        function = self._value(test.func)
        if method is None or function is not torch.is_tensor:
            return False
        if not is_original(function, "torch", "is_tensor"):
            return False

        def as_int(index: Any, _: Any) -> Any:
            return getattr(index, method)() if isinstance(index, torch.Tensor) else index

        self._indices.append(self._made(as_int, [self._index], how=method))
        self._names[name.id] = self._indices[-1]
        return True

    # ---- calls -----------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Attribute):
            owner = self._value(node.func.value)
            if node.func.attr == "__getitem__":
                return self._called_item(node, owner)
            if type(owner) is Opened:
                return self._convert(node, owner)
            if type(owner) in (File, Encoded, Pixels):
                return self._method_of_file(node, node.func.attr, owner)
            if type(owner) is PosixPath:
                owner = constant(owner)
            if type(owner) is str and node.func.attr == "format" and not node.keywords:
                return self._by_format(node, owner)
            if type(owner) is Value:
                return self._method_of_value(node, node.func.attr, owner)
            if type(owner) is ImageValue:
                if len(node.args) == 1 and not node.keywords:
                    return self._method(node, node.func.attr, owner)
                raise self._error(node, f"it calls the image's {node.func.attr}()")
        if (sequence := self._sequence(node)) is not None:
            return sequence
        function = self._value(node.func)
        if type(function) in (*_UNKNOWN, ImageValue):
            raise self._error(node, "it calls something that it looks up")
        if tensor_files.is_function(function) or torchcodec_files.is_function(function):
            return self._load_tensor(node, function)
        if (decoded := self._by_opencv(node, function)) is not None:
            return decoded
        if (computed := self._computed_by(node, function)) is not None:
            return computed
        if name := drawing_function(function):
            return self._drawn_number(node, name)
        arguments = [self._value(one) for one in node.args]
        if not node.keywords and (opened := self._opened_file(node, function, arguments)):
            return opened
        if function is not None and function is get_image_backend() and not node.args:
            return function()
        if function is dict and not arguments and all(one.arg for one in node.keywords):
            return DictSample({str(one.arg): self._value(one.value) for one in node.keywords})
        if function is isinstance and len(arguments) == 2 and not node.keywords:
            return self._is_instance(node)
        if function is len and not node.keywords:
            if len(arguments) == 1 and type(arguments[0]) in (list, tuple, *self._sequences):
                return len(arguments[0])
        if node.keywords or not any(type(one) is Value for one in arguments):
            if any(type(one) in (ImageValue, Opened, Pixels) for one in arguments):
                return self._transform(node, function, arguments)
            raise self._error(node, "it calls something else than a transform of the image")
        if (made := self._function_of(function, arguments)) is not None:
            return made
        if len(arguments) == 1 and (loaded := self._load(node, function, arguments[0])) is not None:
            return loaded
        if any(type(one) is ImageValue for one in arguments):
            raise self._error(node, "it calls a function of the image and of what it looks up")
        if type(function) is MethodType and type(function.__func__) is FunctionType:
            return self._within(function.__func__, [function.__self__, *arguments])
        if type(function) is FunctionType:
            return self._within(function, arguments)
        raise self._error(node, "it calls a function of what it looks up")

    def _drawn_number(self, node: ast.Call, name: str) -> Value:
        """``random.randint(0, len(self.files) - 1)``"""
        drawing = drawing_of(name, *self._arguments(node, node.args))
        if drawing is None or self.inner is not None or self.table is not None:
            raise self._error(node, "it draws a random number in an unknown way")
        draw, text = drawing
        number = len(self.drawings)
        self.drawings.append(draw)
        return self._made(lambda index, drawn: drawn[number], [], how=f"{number}: {text}")

    def _called_item(self, node: ast.Call, owner: Any) -> Any:
        """``owner.__getitem__(at)``, which is ``owner[at]`` unless the object has its own."""
        arguments = [self._value(one) for one in node.args]
        if len(arguments) != 1 or node.keywords or type(owner) in (*_UNKNOWN, ImageValue):
            raise self._error(node, "it calls __getitem__ in an unknown way")
        try:
            is_own = type(owner) not in _CONTAINERS and "__getitem__" in attributes_of(owner)
        except NotUnderstood as error:
            raise self._error(node, str(error)) from None
        if is_own:
            raise self._error(node, "it takes a sample by another __getitem__ than its class's")
        return self._item(node, owner, arguments[0])

    def _is_instance(self, node: ast.Call) -> bool:
        """Also ``isinstance(known object, kind)``."""
        value, kind = self._value(node.args[0]), self._value(node.args[1])
        if type(value) in (*_UNKNOWN, ImageValue) or type(kind) is not type:
            return super()._is_instance(node)
        own = [of_class(type(value), name) is not object.__dict__[name] for name in _TELL_CLASS]
        if any(own) and type(value) not in (*CONSTANTS, *_CONTAINERS):
            raise self._error(node, "it tests the type of an object that may tell another one")
        return issubclass(type(value), kind)

    def _transform(self, node: ast.Call, function: Any, arguments: list[Any]) -> Any:
        if len(arguments) > 1 and not node.keywords:
            if type(function) is MethodType and type(function.__func__) is FunctionType:
                return self._within(function.__func__, [function.__self__, *arguments])
            if type(function) is FunctionType:
                return self._within(function, arguments)
        if len(arguments) != 1 or node.keywords or type(function) is type:
            raise self._error(node, "it calls something else than a transform of the image")
        image = arguments[0]
        if type(image) is Opened:
            if image.load is not open_rgb:
                raise self._error(node, "it does not convert the opened image to RGB first")
            image = self._loaded_lazily(node, image, open_as_is)
        if type(image) is Pixels:
            if image.is_bgr and type(function) is FunctionType:  # which may convert it
                return self._within(function, [image])
            image = self._image_of(node, image)
        return self._add(node, image, function)

    def _function_of(self, function: Any, arguments: list[Any]) -> Value | None:
        """What a function of Python's makes of values; None: it is another function."""
        values = [constant(one) if type(one) in CONSTANTS else one for one in arguments]
        if not all(type(one) is Value for one in values):
            return None
        call = function_of(function, values)
        return None if call is None else self._result_of(call, values)

    def _method_of_value(self, node: ast.Call, name: str, owner: Value) -> Value:
        """A method of a string or of a regular expression's result: ``path.split("/")``."""
        given, keywords = self._arguments(node, node.args)
        values = [constant(one) if type(one) in CONSTANTS else one for one in given]
        if not keywords and all(type(one) is Value for one in values):
            if (call := method_of(name, owner, values)) is not None:
                return self._result_of(call, [owner, *values])
        made = None if keywords else result_of_method(name, owner, given)
        if (value := self._computed_value(made)) is not None:
            return value
        raise self._error(node, f"it calls {name}() of what it looks up")

    def _computed_by(self, node: ast.Call, function: Any) -> Value | None:
        """``torch.tensor(label, dtype=torch.long)``, ``np.array([x, y])``; None: another call."""
        if not is_computing(function):
            return None
        given, keywords = self._arguments(node, node.args)
        return self._computed_value(result_of_function(function, given, keywords))

    def _by_format(self, node: ast.Call, text: str) -> Value:
        """``"{}.jpg".format(name)``"""
        given, _ = self._arguments(node, node.args)
        values = [constant(one) if type(one) in CONSTANTS else one for one in given]
        try:
            fields = [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]
        except ValueError as error:
            raise self._error(node, f"its format is wrong: {error}") from None
        if not all(type(one) is Value for one in values) or not all(
            name == "" or name.isdecimal() for name in fields
        ):
            raise self._error(node, "it formats something else than what it looks up")
        return self._made(
            lambda index, sample: text.format(*(one.of(index, sample) for one in values)),
            values, None, TEXT, f"{text!r}.format",
        )

    def _result_of(self, call: tuple[Any, str | None], values: Sequence[Value]) -> Value:
        function, kind = call
        return self._made(
            lambda index, sample: function(*(one.of(index, sample) for one in values)),
            values, None, kind, function.__qualname__,
        )

    def _computed_of(self, node: ast.BinOp, one: Any, other: Any) -> Any:
        if isinstance(node.op, ast.Mod) and any(one is index for index in self._indices):
            if type(other) is int and other > 0:
                n = constant(other)
                return self._made(
                    lambda index, sample: one.of(index, sample) % other, [one, n], how="%"
                )
        if isinstance(node.op, ast.Add) and type(one) is type(other) is str:
            return one + other
        if isinstance(node.op, ast.Add) and Value in (type(one), type(other)):
            if (made := sum_of(one, other)) is not None:
                return self._kept(made)
        if isinstance(node.op, ast.Div) and Value in (type(one), type(other)):
            if (made := joined_path(one, other)) is not None:
                return self._kept(made)
        if (value := self._computed_value(result_of_operator(node.op, one, other))) is not None:
            return value
        return super()._computed_of(node, one, other)

    def _made(
        self,
        of: Callable[[Any, Any], Any],
        sources: Sequence[Value],
        container: Any = None,
        kind: str | None = None,
        how: str = "",
    ) -> Value:
        for source in (one for given in sources for one in given.all()):
            if source.container is None or id(source.container) in self._plain:
                continue
            self._plain.add(id(source.container))
            if not is_plain(source.container):
                raise self._error(
                    self._definition.node,
                    "it uses elements of a list or an array that are objects of other classes than "
                    "Python's own",
                )
        value = Value(of, sources, container, kind, how)
        if value.n_steps > _MOST_STEPS:
            raise self._error(self._definition.node, "what it looks up takes too many steps")
        self.values.append(value)
        return value

    def _kept(self, value: Value) -> Value:
        return self._made(value.of, value.sources, None, value.kind, value.how)
