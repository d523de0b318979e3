"""Functions that make an RGB image of another one by pasting it, as PyTorch-GAN's ``to_rgb()``:

    rgb_image = Image.new("RGB", image.size)
    rgb_image.paste(image)
    return rgb_image
"""

from __future__ import annotations

import ast
import functools
import warnings
from types import FunctionType
from typing import Any

from feedmill.planner.sources import definition_of
from feedmill.planner.untouched import is_original

# Of the images that Pillow opens.
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "I;16")
_SIZE = (61, 67)


def pastes_as_rgb(function: Any) -> bool:
    """Whether a function makes what ``image.convert("RGB")`` does of an image of any mode. Calls
    nothing of the user's."""
    from PIL import Image

    if type(function) is not FunctionType or function.__closure__:
        return False
    definition = definition_of(function)
    if definition is None or not isinstance(definition.node, ast.FunctionDef):
        return False
    if function.__globals__.get("Image") is not Image or not _is_paste(definition.node):
        return False
    new, paste = vars(Image).get("new"), vars(Image.Image).get("paste")
    is_pillows = is_original(new, "PIL.Image", "new") and is_original(
        paste, "PIL.Image", "Image.paste"
    )
    return is_pillows and is_paste_as_convert()


def _is_paste(node: ast.FunctionDef) -> bool:
    arguments = node.args
    if len(arguments.args) != 1 or ast.unparse(arguments) != arguments.args[0].arg:
        return False
    if len(node.body) != 3 or not isinstance(node.body[0], ast.Assign):
        return False
    image, made = arguments.args[0].arg, ast.unparse(node.body[0].targets[0])
    if not isinstance(node.body[0].targets[0], ast.Name) or len({image, made, "Image"}) != 3:
        return False
    lines = f"{made} = Image.new('RGB', {image}.size)", f"{made}.paste({image})", f"return {made}"
    return tuple(map(ast.unparse, node.body)) == lines


@functools.cache
def is_paste_as_convert() -> bool:
    """Whether the installed Pillow pastes images of all modes as it converts them."""
    from PIL import Image

    n_px = _SIZE[0] * _SIZE[1]
    return all(
        _outcome(mode, n_px, lambda one: one.convert("RGB")) == _outcome(
            mode, n_px, lambda one: _pasted(Image.new("RGB", one.size), one)
        )
        for mode in _MODES
    )


def _pasted(made: Any, image: Any) -> Any:
    made.paste(image)
    return made


def _outcome(mode: str, n_px: int, convert: Any) -> Any:
    """The pixels of a converted image, also after a resize, which reads them otherwise; or the type
    of the error."""
    from PIL import Image

    values = bytes((number * 7919 + number // 251) % 256 for number in range(4 * n_px))
    try:
        n_bytes = len(Image.new(mode, _SIZE).tobytes())
        image = Image.frombytes(mode, _SIZE, values[:n_bytes])
        if mode in ("P", "PA"):
            image.putpalette(values[:768])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = convert(image)
        return made.mode, made.tobytes(), made.resize((23, 29)).tobytes()
    except Exception as error:
        return type(error)
