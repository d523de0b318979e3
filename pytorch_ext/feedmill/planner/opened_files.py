"""How a user's ``__getitem__`` or loader function opens its image file, as ``item_evaluating``
evaluates it: ``open()``, ``Image.open()`` and ``with``, the conversion to RGB, and the functions
that load files at once."""

from __future__ import annotations

import ast
import io
from types import FunctionType
from typing import Any

from feedmill.planner import tensor_files, torchcodec_files
from feedmill.planner.file_loaders import GIVEN_ARRAY, GIVEN_REVERSED, GIVEN_RGB, FileLoader
from feedmill.planner.files import open_as_is, open_file_rgb, open_only_rgb, open_rgb
from feedmill.planner.folders import get_image_backend, original_loaders
from feedmill.planner.image_calls import ImageState, ImageValue
from feedmill.planner.looked_up import Value
from feedmill.planner.pasting import pastes_as_rgb
from feedmill.planner.view_calls import ViewCalls

_OPEN = io.open  # another one is a script's replacement
_CLOSED = "it uses an image behind the with statement that closed it"
# How files are loaded that the dataset opens by Image.open().
_BY_PILLOW = (open_rgb, open_file_rgb, open_as_is, open_only_rgb)


class File:
    """The result of open(path, "rb").

    Attributes:
        is_closed: it can't be read any more.
    """

    def __init__(self, path: Value) -> None:
        self.path = path
        self.is_closed = False


class Opened:
    """The result of PIL.Image.open(), or a decoded image of another library.

    Attributes:
        load: path -> the same image in RGB.
        file: from which it was opened; None: it was opened by its path.
        is_closed: its pixels can't be read any more.
        loaded_by: the load() that stands for its first use; None: it was not used yet.
        image: its first use.
    """

    def __init__(self, path: Value, load: Any, file: File | None = None) -> None:
        self.path = path
        self.load = load
        self.file = file
        self.is_closed = False
        self.loaded_by: Any = None
        self.image = ImageValue(0)


class FileEvaluator(ViewCalls):
    """Evaluates what opens a file, and what loads the image in it.

    Attributes:
        inner, load: as OwnDataset's.
        paths: of the files that are opened, in order.
    """

    def __init__(self, method: FunctionType) -> None:
        super().__init__(method)
        self.inner: Any = None
        self.load: Any = None
        self.paths: list[Value] = []
        self._opened: list[Opened] = []  # by Image.open()
        self._files: list[File] = []  # by open()
        # The loaded image may still be the opened one, which has not read its pixels.
        self._is_lazy = False
        self._n_until_closed: int | None = None  # calls of transforms until that one was closed

    def _check_files(self, node: ast.AST) -> None:
        """Checks that nothing but the images' files was opened, and that nothing reads an image
        after it was closed. A file may be opened more than once, if one image is made of it."""
        is_used = all(one.loaded_by is not None for one in self._opened)
        are_read = [one.file for one in self._opened if one.file is not None] == self._files
        if not is_used or not are_read or bool(self._opened) != (self.load in _BY_PILLOW):
            raise self._error(node, "it opens a file that it does not return")
        if len(self.paths) > 1 and sorted(self.files_of_views) != list(range(len(self.paths))):
            raise self._error(node, "it opens several files, and makes several images of one")
        n_calls = self._n_until_closed
        if n_calls is not None and (n_calls == 0 or n_calls != len(self._calls)):
            raise self._error(node, _CLOSED)

    def _makes_rgb(self, statement: ast.stmt) -> bool:
        """Executes ``if image.mode != "RGB": image = image.convert("RGB")`` of an opened image, or
        the same with a function that pastes_as_rgb(). False: it is another statement."""
        if not isinstance(statement, ast.If) or statement.orelse or len(statement.body) != 1:
            return False
        name = ast.unparse(statement.test).partition(".")[0]
        opened = self._names.get(name)
        if type(opened) is not Opened or opened.load not in _BY_PILLOW:
            return False
        if ast.unparse(statement.test) != f"{name}.mode != 'RGB'":
            return False
        if not self._is_conversion(statement.body[0], name):
            return False
        self._names[name] = self._loaded_lazily(statement, opened, opened.load)
        return True

    def _is_conversion(self, statement: ast.stmt, name: str) -> bool:
        """Whether a statement converts an opened image to RGB."""
        if ast.unparse(statement) == f"{name} = {name}.convert('RGB')":
            return True
        call = statement.value if isinstance(statement, ast.Assign) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            return False
        is_one = ast.unparse(statement) == f"{name} = {call.func.id}({name})"
        return is_one and pastes_as_rgb(self._value(call.func))

    def _converted_to_rgb(self, node: ast.IfExp) -> Any:
        """Also ``image.convert("RGB") if image.mode != "RGB" else image`` of an opened image."""
        name = ast.unparse(node.test).partition(".")[0]
        opened = self._names.get(name)
        if type(opened) is Opened and opened.load in _BY_PILLOW:
            converted = f"{name}.convert('RGB')"
            if ast.unparse(node) in (
                f"{converted} if {name}.mode != 'RGB' else {name}",
                f"{name} if {name}.mode == 'RGB' else {converted}",
            ):
                return self._loaded_lazily(node, opened, opened.load)
        return super()._converted_to_rgb(node)

    def _loaded_lazily(self, node: ast.AST, opened: Opened, load: Any) -> ImageValue:
        """An opened image that may not be converted, and so not have read its pixels."""
        self._is_lazy = True
        return self._used(node, opened, load)

    def _used(self, node: ast.AST, opened: Opened, load: Any) -> ImageValue:
        """An opened image that is used, of which several may be made."""
        if opened.is_closed:
            raise self._error(node, _CLOSED)
        if opened.loaded_by is None:
            opened.loaded_by = load
            opened.image = self._loaded(node, opened.path, load)
            return opened.image
        if opened.loaded_by is not load:
            raise self._error(node, "it uses an opened image with and without a conversion")
        return opened.image

    def _with(self, statement: ast.With) -> None:
        """Executes ``with open(path, "rb") as file:`` or ``with Image.open(path) as image:``."""
        entered = []
        for one in statement.items:
            context = self._value(one.context_expr)
            if type(context) not in (File, Opened) or context.is_closed:
                raise self._error(statement, "it enters something else than an opened file")
            entered.append(context)
            if one.optional_vars is not None:
                self._assign(one.optional_vars, context)
        try:
            for within in statement.body:
                self._execute(within)
        finally:  # also behind a return
            for file in self._files:
                file.is_closed |= file in entered
            for opened in self._opened:
                if opened in entered or opened.file in entered:
                    opened.is_closed = True
                    if self._is_lazy and self._n_until_closed is None:
                        self._n_until_closed = len(self._calls)

    def _import(self, statement: ast.ImportFrom) -> None:
        """Executes ``from PIL import Image``; or ``from torchvision import get_image_backend``, as
        torchvision's loader does."""
        names = [(one.name, one.asname) for one in statement.names]
        if (statement.module, names) == ("PIL", [("Image", None)]):
            import PIL.Image

            self._names["Image"] = PIL.Image
            return
        if (statement.module, names) != ("torchvision", [("get_image_backend", None)]):
            raise self._error(statement, "it imports a module")
        self._names["get_image_backend"] = get_image_backend()

    def _opened_file(self, node: ast.Call, function: Any, arguments: list[Any]) -> Any:
        """``open(path, "rb")``, or ``Image.open()`` of its result; None: another call."""
        kinds = [type(one) for one in arguments]
        if function is _OPEN and kinds == [Value, str] and arguments[1] == "rb":
            self._files.append(File(arguments[0]))
            return self._files[-1]
        if kinds != [File]:
            return None
        if arguments[0].is_closed:
            raise self._error(node, "it reads a file behind the with statement that closed it")
        return self._load(node, function, arguments[0])

    def _load(self, node: ast.Call, function: Any, path: Any) -> Any:
        """The image of a known function that opens a file; None: another function."""
        from PIL import Image

        if function is Image.open:
            is_file = type(path) is File
            opened = Opened(path.path, open_file_rgb, path) if is_file else Opened(path, open_rgb)
            self._opened.append(opened)
            return opened
        if type(path) is not Value:
            return None
        # default_loader() calls pil_loader().
        originals = original_loaders()
        if len(originals) == 2 and any(function is one for one in originals):
            return self._loaded(node, path, function)
        return None

    def _load_tensor(self, node: ast.Call, function: Any) -> ImageValue:
        """A call of torchvision's decode_image() or read_image(), or of torchcodec's functions, of
        a path."""
        arguments, keywords = self._arguments(node, node.args)
        library: Any = tensor_files
        names = ("input", "mode", "apply_exif_orientation")
        if function.__name__ == "read_image":
            names = ("path", *names[1:])
        if torchcodec_files.is_function(function):
            library, names = torchcodec_files, torchcodec_files.ARGUMENTS
        given = {**dict(zip(names, arguments)), **keywords}
        loader = library.loader_of(function, given)
        is_known = len(given) == len(arguments) + len(keywords) and given.keys() <= set(names)
        path = given.get(names[0])
        if library is torchcodec_files and len(arguments) > 1:
            loader = None
        if type(path) is not Value or not is_known or loader is None:
            raise self._error(node, f"it calls {function.__name__}() in an unknown way")
        return self._loaded(node, path, loader)

    def _convert(self, node: ast.Call, opened: Opened) -> ImageValue:
        assert isinstance(node.func, ast.Attribute)
        arguments, keywords = self._arguments(node, node.args)
        is_converted = (arguments, keywords) in ((["RGB"], {}), ([], {"mode": "RGB"}))
        if node.func.attr != "convert" or not is_converted:
            raise self._error(node, "it does not convert the opened image to RGB first")
        return self._used(node, opened, opened.load)

    def _loaded(self, node: ast.AST, path: Value, load: Any) -> ImageValue:
        number = next((n for n, one in enumerate(self.paths) if path.is_same(one)), len(self.paths))
        if self.load is load and number < len(self.paths):
            return ImageValue(0, file=number)  # the same file once more
        given = load.given if isinstance(load, FileLoader) else GIVEN_RGB
        is_other = self.paths and isinstance(load, FileLoader)
        if self.inner is not None or self.load not in (None, load) or is_other:
            raise self._error(node, "it opens more than one file, in a way that is not supported")
        self.paths.append(path)
        self.load = load
        is_array = given in (GIVEN_ARRAY, GIVEN_REVERSED)
        state = ImageState(given == GIVEN_RGB, "RGB", is_array)
        self._state = None if load is open_as_is else state
        return ImageValue(0, file=number)
