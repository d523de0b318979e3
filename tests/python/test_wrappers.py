"""Functions that replace PIL.Image.open: which of them keep the native path."""

import importlib.util

import feedmill
import numpy as np
import pytest
import torch
from helpers import compose, native_loader
from PIL import Image
from torchvision import transforms as T
from torchvision.datasets import CIFAR10, ImageFolder

HEAD = (T.Resize((8, 8)), T.PILToTensor())


def folder(root, *steps):
    return ImageFolder(str(root), compose(*(steps or HEAD)))


def explain(dataset, **options):
    return feedmill.DataLoader(dataset, **options).explain()


# As in ultralytics' patches.py: calls Pillow's function, and again with another plugin for files
# that Pillow does not recognise.
HANDS_ON = """
from PIL import Image
import functools, threading

_image_open = Image.open
_registered = False


def as_ultralytics(filename, *args, **kwargs):
    '''Opens an image.

    Registers a plugin where Pillow
        needs one.
    '''
    global _registered
    if _registered:
        return _image_open(filename, *args, **kwargs)
    try:
        return _image_open(filename, *args, **kwargs)
    except Image.UnidentifiedImageError:
        from functools import partial

        partial(print)
        _registered = True
        return _image_open(filename, *args, **kwargs)


def counting(original):
    calls = []

    @functools.wraps(original)
    def opened(*args, **kwargs):
        '''With another
        indentation.'''
        calls.append(1)
        return original(*args, **kwargs)

    return opened


over_each_other = counting(as_ultralytics)


def raising(path, *args, **kwargs):
    if not _registered:
        return _image_open(path, *args, **kwargs)
    else:
        raise OSError("not now")
"""
# Wrappers that do something else, by name.
OTHERWISE = {
    "turned": "return _image_open(path, *args, **kwargs).rotate(90)",
    "another_file": "path = str(path).replace('jpg', 'png')\nreturn _image_open(path, *args, **kwargs)",
    "another_default": "kwargs.setdefault('formats', None)\nreturn _image_open(path, *args, **kwargs)",
    "no_options": "return _image_open(path)",
    "kept": "image = _image_open(path, *args, **kwargs)\nreturn image",
    "one_way": "if path:\n    return _image_open(path, *args, **kwargs)",
    "swallowed": "try:\n    return _image_open(path, *args, **kwargs)\nexcept OSError:\n    pass",
    "another_function": "_image_open = print\nreturn _image_open(path, *args, **kwargs)",
    "imported": "from os import open as _image_open\nreturn _image_open(path, *args, **kwargs)",
    "in_a_block": "with lock:\n    return _image_open(path, *args, **kwargs)",
    "looks_at_it": "print(path)\nreturn _image_open(path, *args, **kwargs)",
    "caught": "try:\n    pass\nexcept OSError as path:\n    raise\nreturn _image_open(path, *args, **kwargs)",
    "yields": "yield path\nreturn _image_open(path, *args, **kwargs)",
    "other": "return other(path, *args, **kwargs)",
    "two": "if lock:\n    return other(path, *args, **kwargs)\nreturn _image_open(path, *args, **kwargs)",
    "nothing": "raise_it = 1",
}


def module_of(folder, text):
    path = folder / f"wrappers{len(list(folder.iterdir()))}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["as_ultralytics", "over_each_other", "raising"])
def test_a_wrapper_that_passes_every_call_on_is_native(small_images, tmp_path, monkeypatch, name):
    wrapper = getattr(module_of(tmp_path, HANDS_ON), name)
    monkeypatch.setattr(Image, "open", wrapper)
    dataset = folder(small_images)
    loader = native_loader(dataset, batch_size=8)
    for mine, other in zip(loader, torch.utils.data.DataLoader(dataset, batch_size=8)):
        assert torch.equal(mine[0], other[0])
    assert loader.stats().path == "native"


@pytest.mark.parametrize("name", OTHERWISE)
def test_other_wrappers_mean_torchs_path(small_images, tmp_path, monkeypatch, name):
    body = OTHERWISE[name].replace("\n", "\n    ")
    text = ("import threading\nfrom PIL import Image\n_image_open = Image.open\n"
            "lock = threading.Lock()\nother = _image_open.__class__(_image_open.__code__, {})\n\n"
            f"def {name}(path, *args, **kwargs):\n    {body}\n")
    module = module_of(tmp_path, text)
    monkeypatch.setattr(Image, "open", getattr(module, name))
    text = explain(folder(small_images))
    assert f"PIL.Image.open was replaced by {module.__name__}.{name}, which may return" in text
    hybrid = folder(small_images, T.Lambda(same), *HEAD)
    assert "PIL.Image.open was replaced" in explain(hybrid, native="hybrid")


def same(image):
    return image.copy()


def test_the_source_of_a_wrapper_must_match_its_code(small_images, tmp_path, monkeypatch):
    module = module_of(tmp_path, HANDS_ON)
    Image_open = Image.open
    monkeypatch.setattr(Image, "open", module.as_ultralytics)
    assert explain(folder(small_images)).startswith("native path")
    # The code differs from the file.
    code = module.as_ultralytics.__code__
    module.as_ultralytics.__code__ = code.replace(
        co_names=tuple("print" if one == "_image_open" else one for one in code.co_names))
    assert "PIL.Image.open was replaced" in explain(folder(small_images))
    # The code has no file, or the name refers to another function.
    scope = {"_image_open": Image_open}
    exec("def opened(path, *args, **kwargs):\n    return _image_open(path, *args, **kwargs)", scope)
    monkeypatch.setattr(Image, "open", scope["opened"])
    assert "PIL.Image.open was replaced" in explain(folder(small_images))
    again = module_of(tmp_path, HANDS_ON.replace("_image_open = Image.open", "_image_open = print"))
    monkeypatch.setattr(Image, "open", again.as_ultralytics)
    assert "PIL.Image.open was replaced" in explain(folder(small_images))
    monkeypatch.setattr(again, "_image_open", Image_open)
    assert explain(folder(small_images)).startswith("native path")


def test_datasets_in_memory_stay_native(tmp_path, monkeypatch):
    module = module_of(tmp_path, "def opened(*args, **kwargs):\n    raise OSError\n")
    monkeypatch.setattr(Image, "open", module.opened)
    small = CIFAR10.__new__(CIFAR10)
    small.data = np.zeros((4, 32, 32, 3), np.uint8)
    small.targets, small.target_transform = [0, 1, 2, 3], None
    small.transform = T.PILToTensor()
    assert explain(small).startswith("native path")
