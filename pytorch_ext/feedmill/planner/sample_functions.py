"""Functions of a script that are called with a sample of a pipeline of webdataset, or with one of
its fields: whether all that they do is understood.

Their source is read, which ``sources`` proves to be that of the running code.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType, CellType, FunctionType
from typing import Any, NamedTuple

import torch

from feedmill.planner.sample_reading import (
    OPAQUE,
    PURE_TYPES,
    SAMPLE,
    VALUE,
    Fields,
    Image,
    NotUnderstoodError,
    SampleReader,
)
from feedmill.planner.sources import Definition, definition_of

_GENERATORS = 0x20 | 0x80 | 0x100 | 0x200  # code flags: generators and coroutines
_STARS = 0x04 | 0x08  # code flags: *args and **kwargs


def is_identity(function: Any) -> bool:
    """Whether a function of the script returns its argument and does nothing else."""
    definition = _definition(function, with_defaults=False)
    if definition is None or not isinstance(definition.body[-1], ast.Return):
        return False
    rest = definition.body[:-1]
    is_plain = not rest or (len(rest) == 1 and isinstance(rest[0], ast.Expr) and (
        isinstance(rest[0].value, ast.Constant)
    ))
    returned = definition.body[-1].value
    argument = function.__code__.co_varnames[0]
    return is_plain and isinstance(returned, ast.Name) and returned.id == argument


def is_pure(function: Any, is_plain: bool = False) -> bool:
    """Whether a function's result is proved to follow from its argument alone, and nothing else to
    happen: int() and the like, or a function of the script.

    Args:
        is_plain: whether the argument is of a plain type.
    """
    if type(function) is type:
        return any(function is one for one in PURE_TYPES)
    if function is torch.tensor:
        return is_plain and type(function) is BuiltinFunctionType
    definition = _definition(function, with_defaults=False)
    if definition is None:
        return False
    argument = VALUE if is_plain else OPAQUE
    reader = SampleReader(function, definition, argument, lambda _: None)
    try:
        returned = reader.returned()
    except NotUnderstoodError:
        return False
    values = returned if type(returned) is list else [returned]
    return all(one is VALUE or one is OPAQUE for one in values)


def selects(function: Any, part_of: Callable[[Any], Any]) -> bool:
    """Whether a function that says which samples to use is proved to look only at fields that are
    no images, and to change nothing.

    Args:
        part_of: see mapped_by().
    """
    definition = _definition(function)
    if definition is None:
        return False
    sample = _sample_of(part_of)
    try:
        SampleReader(function, definition, sample, part_of, is_pure).follows()
    except NotUnderstoodError:
        return False
    return sample is SAMPLE or not (sample.made or sample.gone)


def _definition(function: Any, with_defaults: bool = True) -> Definition | None:
    """The source of a function with Python's own built-in names and one argument; None: it is
    another one, or that is not proved.

    Args:
        with_defaults: it may have others, with defaults.
    """
    is_function = type(function) is FunctionType and not hasattr(function, "__wrapped__")
    if not is_function or function.__builtins__ is not vars(builtins):
        return None
    code = function.__code__
    n_defaults = len(function.__defaults__ or ())
    is_plain = not code.co_flags & (_GENERATORS | _STARS) and not code.co_kwonlyargcount
    if not is_plain or code.co_argcount != 1 + n_defaults or (n_defaults and not with_defaults):
        return None
    return definition_of(function)


def function_of_one(function: Any) -> Definition | None:
    """The proved source of a function of the script with one argument; see _definition()."""
    return _definition(function, with_defaults=False)


def _sample_of(part_of: Callable[[Any], Any]) -> Any:
    return Fields({}, set(), True) if part_of(None) is None else SAMPLE


# ---- functions of a sample -----------------------------------------------------------------------


class Mapped(NamedTuple):
    """What a function makes of a sample: a tuple of its fields, or a dict.

    Attributes:
        function: of the script.
        parts: of the tuple, or the dict's values: the image's field, and None for what is computed
            from other fields.
        image: which of them is the image; None: none is, it is among the sample's other fields.
        keys: of the parts; None: it makes a tuple.
        gone: fields of the sample that the dict does not have.
        keeps_rest: the dict has the sample's other fields.
        opening: names of the variables by which it opens the image, such as "io".
        names: of the variables that hold the image's transforms, in the order in which these are
            called.
        transforms: their values.
    """

    function: FunctionType
    parts: Sequence[Any]
    image: int | None
    names: tuple[str, ...]
    transforms: tuple[Any, ...]
    keys: tuple[str, ...] | None = None
    gone: frozenset[str] = frozenset()
    keeps_rest: bool = False
    opening: frozenset[str] = frozenset()

    def with_transforms(self, first: Any, others: Any) -> FunctionType:
        """The function with other values of these variables."""
        return self._with({
            name: others if i else first for i, name in enumerate(self.names)
        })

    def without_opening(self) -> FunctionType:
        """The function for a sample with another object in the place of the encoded image, which
        it neither opens nor transforms; it calls the object's convert()."""
        return self._with(dict.fromkeys((*self.opening, *self.names), _AsItIs()))

    def _with(self, values: dict[str, Any]) -> FunctionType:
        function: Any = self.function
        code = function.__code__
        arguments = code.co_varnames[: code.co_argcount]
        defaults = function.__defaults__ or ()
        of_defaults = arguments[len(arguments) - len(defaults) :]
        return FunctionType(
            code,
            {**function.__globals__, **values},
            function.__name__,
            tuple(values.get(name, one) for name, one in zip(of_defaults, defaults)),
            tuple(
                CellType(values[name]) if name in values else cell
                for name, cell in zip(code.co_freevars, function.__closure__ or ())
            ),
        )


class _AsItIs:
    """In the place of transforms, of BytesIO, and of the modules io and PIL.Image."""

    def __call__(self, value: Any) -> Any:
        return value

    BytesIO = open = __call__


def mapped_by(function: Any, part_of: Callable[[Any], Any]) -> Mapped | None:
    """What a function of the script makes of a sample; None: it is not understood to make a tuple
    or a dict of an image, which passes from one transform to the next, and of values that follow
    from the other fields alone.

    Args:
        part_of: called with None, returns the number of the sample's parts, or None if it is a
            dict; with a key the field, see SampleReader, or None.
    """
    definition = _definition(function)
    if definition is None:
        return None
    reader = SampleReader(function, definition, _sample_of(part_of), part_of, is_pure)
    try:
        returned = reader.returned()
    except NotUnderstoodError:
        return None
    keys = None
    parts = returned
    if type(returned) is Fields:
        keys, parts = tuple(returned.made), list(returned.made.values())
    if type(parts) is not list:
        return None
    images = [i for i, one in enumerate(parts) if type(one) is Image]
    # Each transform is called once, and for the image that is returned.
    if reader.n_opened > 1 or (reader.opening and not images):
        return None
    names = reader.names
    n_calls = sum(parts[i].n_calls for i in images)
    may_have_none = keys is not None and returned.has_rest
    if not (len(images) == 1 or (not images and may_have_none)) or (
        any(type(one) is not Image and one is not VALUE and one is not OPAQUE for one in parts)
        or n_calls != len(names) or len({*names}) < len(names)
    ):
        return None
    fields = [one.field if type(one) is Image else None for one in parts]
    image = images[0] if images else None
    mapped = Mapped(function, fields, image, tuple(names), tuple(reader.transforms),
                    opening=frozenset(reader.opening))
    if keys is None:
        return mapped
    return mapped._replace(
        keys=keys, gone=frozenset(returned.gone), keeps_rest=returned.has_rest
    )
