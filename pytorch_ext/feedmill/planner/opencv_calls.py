"""How a user's ``__getitem__`` or loader function opens its image file by OpenCV, as
``item_evaluating`` evaluates it: what decodes a file, and what makes an RGB array or a PIL image
of the result."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

import numpy as np

from feedmill.planner import opencv_files
from feedmill.planner.image_calls import ImageValue
from feedmill.planner.looked_up import PATH, Value
from feedmill.planner.opencv_files import (
    BGR_TO_RGB,
    COLOR,
    CONTIGUOUS,
    COPY,
    CVT_COLOR,
    FROM_ARRAY,
    FROM_BUFFER,
    FROM_FILE,
    IMREAD,
    IMREAD_STR,
    IS_BGR,
    REVERSE,
    OpenCvLoader,
    is_reversed,
)
from feedmill.planner.opened_files import File, FileEvaluator

_UNKNOWN_WAY = "it calls {} in an unknown way"


@dataclass(frozen=True)
class Encoded:
    """The bytes of a file.

    Attributes:
        how: FROM_FILE or FROM_BUFFER.
        is_array: they are an array, as np.frombuffer() makes it.
    """

    path: Value
    how: str
    is_array: bool


@dataclass(frozen=True)
class Pixels:
    """An array that OpenCV decoded; or None, if it could not, before anything was done with it.

    Attributes:
        how, flags, steps: as OpenCvLoader's.
        is_bgr: its channels are B, G, R.
    """

    path: Value
    how: str
    flags: int
    is_bgr: bool
    steps: tuple[str, ...] = ()


def _slices(text: str) -> str:
    subscript = ast.parse(f"image[{text}]", mode="eval").body
    assert isinstance(subscript, ast.Subscript)
    return ast.dump(subscript.slice)


_REVERSALS = tuple(map(_slices, (":, :, ::-1", "..., ::-1")))


class OpenCvEvaluator(FileEvaluator):
    """Evaluates calls of OpenCV's functions."""

    def __init__(self, method: FunctionType) -> None:
        super().__init__(method)
        self._read: list[Value] = []  # paths of the files that were read or decoded
        self._argument: Value | None = None  # of a loader function: its path

    def _check_files(self, node: ast.AST) -> None:
        super()._check_files(node)
        is_by_opencv = type(self.load) is OpenCvLoader or not self._read
        are_used = all(any(path.is_same(one) for one in self.paths) for path in self._read)
        if not is_by_opencv or not are_used:
            raise self._error(node, "it opens a file that it does not return")

    def _execute(self, statement: ast.stmt) -> None:
        if not self._fails_without_image(statement):
            super()._execute(statement)

    def _fails_without_image(self, statement: ast.stmt) -> bool:
        """Whether a statement does nothing but raise an error if an array is None:
        ``assert image is not None``, or ``if image is None: raise ...``. The dataset itself raises
        it, see NoImageError."""
        if isinstance(statement, ast.Assert):
            operation: type[ast.cmpop] = ast.IsNot
        elif isinstance(statement, ast.If) and not statement.orelse:
            operation = ast.Is
            if len(statement.body) != 1 or not isinstance(statement.body[0], ast.Raise):
                return False
        else:
            return False
        test = statement.test
        return (
            isinstance(test, ast.Compare)
            and isinstance(test.left, ast.Name)
            and type(self._names.get(test.left.id)) is Pixels
            and len(test.ops) == 1
            and type(test.ops[0]) is operation
            and isinstance(test.comparators[0], ast.Constant)
            and test.comparators[0].value is None
        )

    def _is_reversal(self, node: ast.Subscript) -> bool:
        """Whether an expression is ``something[:, :, ::-1]``."""
        return isinstance(node.slice, ast.Tuple) and ast.dump(node.slice) in _REVERSALS

    def _reversed(self, node: ast.Subscript) -> Pixels:
        pixels = self._value(node.value)
        if type(pixels) is not Pixels:
            raise self._error(node, "it takes a part of something else than OpenCV's array")
        return self._with_step(pixels, REVERSE, not pixels.is_bgr)

    @staticmethod
    def _with_step(pixels: Pixels, step: str, is_bgr: bool) -> Pixels:
        return replace(pixels, steps=(*pixels.steps, step), is_bgr=is_bgr)

    def _method_of_file(self, node: ast.Call, name: str, owner: File | Pixels | Encoded) -> Any:
        """``file.read()``, ``image.copy()``"""
        if not node.args and not node.keywords:
            if name == "copy" and type(owner) is Pixels:
                return self._with_step(owner, COPY, owner.is_bgr)
            if name == "read" and type(owner) is File and not owner.is_closed:
                # A second read would find nothing.
                if self._files.count(owner) == 1:
                    self._files.remove(owner)
                    self._read.append(owner.path)
                    return Encoded(owner.path, FROM_BUFFER, False)
        raise self._error(node, f"it calls {name}() of what it opens")

    def _by_opencv(self, node: ast.Call, function: Any) -> Any:
        """The result of a call of one of the functions here; None: it is another one."""
        for name, call in (
            ("imread", self._imread), ("imdecode", self._imdecode), ("cvtColor", self._cvt_color),
        ):
            if opencv_files.is_function(function, name):
                return call(node)
        if opencv_files.is_numpys(function, "frombuffer"):
            return self._array_of(node, "frombuffer")
        if opencv_files.is_numpys(function, "fromfile"):
            return self._array_of(node, "fromfile")
        is_contiguous = opencv_files.is_numpys(function, "ascontiguousarray")
        if not is_contiguous and not opencv_files.is_fromarray(function):
            return None
        given, keywords = self._arguments(node, node.args)
        if len(given) != 1 or type(given[0]) is not Pixels or keywords:
            raise self._error(node, _UNKNOWN_WAY.format(function.__name__))
        if is_contiguous:
            return self._with_step(given[0], CONTIGUOUS, given[0].is_bgr)
        return self._image_of(node, self._with_step(given[0], FROM_ARRAY, given[0].is_bgr))

    def _imread(self, node: ast.Call) -> Pixels:
        """``cv2.imread(path, cv2.IMREAD_COLOR)``"""
        given, keywords = self._arguments(node, node.args)
        path, *rest = given or [None]
        flags = self._flags(node, rest, keywords, COLOR)
        if type(path) is not Value or path.kind == PATH:
            raise self._error(node, _UNKNOWN_WAY.format("cv2.imread"))
        how = IMREAD
        if path.how == "str" and path.sources == [self._argument]:
            path, how = path.sources[0], IMREAD_STR
        self._read.append(path)
        return Pixels(path, how, flags, IS_BGR[flags])

    def _imdecode(self, node: ast.Call) -> Pixels:
        """``cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_COLOR)``"""
        given, keywords = self._arguments(node, node.args)
        encoded, *rest = given or [None]
        flags = self._flags(node, rest, keywords, 0)
        if type(encoded) is not Encoded or not encoded.is_array:
            raise self._error(node, "it calls cv2.imdecode with something else than a file")
        return Pixels(encoded.path, encoded.how, flags, IS_BGR[flags])

    def _flags(
        self, node: ast.Call, given: list[Any], keywords: dict[str, Any], default: int
    ) -> int:
        values = [*given, *keywords.values()]
        flags = values[0] if values else default
        if len(values) > 1 or not keywords.keys() <= {"flags"} or type(flags) is not int:
            raise self._error(node, "it calls OpenCV in an unknown way")
        if flags not in IS_BGR:
            raise self._error(node, "it reads an image by other flags than cv2.IMREAD_COLOR")
        return flags

    def _cvt_color(self, node: ast.Call) -> Pixels:
        """``cv2.cvtColor(image, cv2.COLOR_BGR2RGB)``"""
        given, keywords = self._arguments(node, node.args)
        values = [*given, *keywords.values()]
        if len(values) != 2 or type(values[0]) is not Pixels or not keywords.keys() <= {"code"}:
            raise self._error(node, _UNKNOWN_WAY.format("cv2.cvtColor"))
        if is_reversed(values[0].steps):  # some versions may not take it
            raise self._error(node, "it calls cv2.cvtColor of a view in reverse order")
        if type(values[1]) is not int or values[1] != BGR_TO_RGB:
            raise self._error(node, "it converts colors to something else than RGB")
        return self._with_step(values[0], CVT_COLOR, not values[0].is_bgr)

    def _array_of(self, node: ast.Call, name: str) -> Encoded:
        """``np.fromfile(path, np.uint8)`` or ``np.frombuffer(data, dtype=np.uint8)``"""
        given, keywords = self._arguments(node, node.args)
        values = [*given, *keywords.values()]
        is_bytes = len(values) == 2 and keywords.keys() <= {"dtype"} and values[1] is np.uint8
        if is_bytes and name == "fromfile" and type(values[0]) is Value:
            self._read.append(values[0])
            return Encoded(values[0], FROM_FILE, True)
        if is_bytes and name == "frombuffer" and type(values[0]) is Encoded:
            if not values[0].is_array:
                return replace(values[0], is_array=True)
        raise self._error(node, _UNKNOWN_WAY.format(f"np.{name}"))

    def _image_of(self, node: ast.AST, pixels: Pixels) -> ImageValue:
        """The image of which transforms are called: an array, or a PIL image."""
        if pixels.is_bgr:
            raise self._error(
                node, "its channels are blue, green and red, not converted to RGB"
            )
        loader = opencv_files.loader_of(pixels.how, pixels.flags, pixels.steps)
        return self._loaded(node, pixels.path, loader)
