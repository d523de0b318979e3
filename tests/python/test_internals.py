"""Private names of torch and torchvision: all are in one file, and feedmill works without each."""

import ast
import sys
from pathlib import Path

import feedmill
import helpers
import pytest
import torch
from feedmill import _internals
from feedmill.planner import comparing
from helpers import compose, native_loader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from torchvision.transforms import autoaugment, v2

PACKAGE = Path(feedmill.__file__).parent
SIZE = (8, 8)


# ---- private names are in one file ---------------------------------------------------------------


def private_names(tree):
    """Names of torch and torchvision that begin with an underscore: in imports, in attribute access
    that begins with the library's name, and in strings that name a module."""
    for node in ast.walk(tree):
        texts = []
        if isinstance(node, ast.Import):
            texts = [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            texts = [f"{node.module}.{one.name}" for one in node.names]
        elif isinstance(node, ast.Attribute):
            texts = [ast.unparse(node)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts = [node.value] if " " not in node.value else []
        for text in texts:
            first, *rest = text.split(".")
            if first in ("torch", "torchvision") and any(
                one.startswith("_") and not one.startswith("__") for one in rest
            ):
                yield text


def test_private_names_are_in_one_file():
    found = {
        (str(path.relative_to(PACKAGE)), name)
        for path in PACKAGE.rglob("*.py")
        for name in private_names(ast.parse(path.read_text()))
    }
    assert {file for file, _ in found} == {"_internals.py"}, sorted(found)


def test_the_installed_torch_has_all_private_names():
    assert _internals.why_not_this_torch() == ()


# ---- torch without a private name ----------------------------------------------------------------

# Each name is tested in a process forked before feedmill is imported. The name is missing for
# feedmill only: torch's own functions keep their references.
WITHOUT_A_NAME = """
import importlib, os, sys, types
sys.path[:0] = [{support!r}, {tests!r}]
import torch, torchvision_cpu, PIL.Image, torch.utils.data.dataloader
from torch.utils.data import DataLoader as TorchDataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

dataset = ImageFolder(sys.argv[1], T.Compose([T.Resize((8, 8)), T.PILToTensor()]))


def hide_name(module, name):
    real = importlib.import_module(module)
    assert hasattr(real, name), (module, name)
    duplicate = types.ModuleType(module)
    vars(duplicate).update({{key: value for key, value in vars(real).items() if key != name}})
    sys.modules[module] = duplicate
    parent, _, child = module.rpartition(".")
    setattr(sys.modules[parent], child, duplicate)


def rename_get_iterator():
    TorchDataLoader._make_iterator = TorchDataLoader._get_iterator
    del TorchDataLoader._get_iterator
    TorchDataLoader.__iter__ = lambda self: self._make_iterator()


def change_call():
    module = torch.utils.data.dataloader
    hide_name("torch.utils.data.dataloader", "_BaseDataLoaderIter")
    base = module._BaseDataLoaderIter
    sys.modules["torch.utils.data.dataloader"]._BaseDataLoaderIter = type(base)(
        "_BaseDataLoaderIter", (base,), {{"__init__": lambda self, loader, device: None}})


def run(hide, word, native, with_workers):
    hide()
    import feedmill
    options = {{"batch_size": 8, "shuffle": True}}
    runs = []
    for kind in (TorchDataLoader, feedmill.DataLoader):
        for num_workers in (0, 1)[: 1 + with_workers]:
            torch.manual_seed(3)
            loader = kind(dataset, num_workers=num_workers, **options)
            runs.append([batch for epoch in range(2) for batch in loader])
    text = loader.explain()
    assert text.startswith("native path" if native else "torch's own path, because"), text
    assert native or word in text, text
    assert native or loader.stats().path in ("torch", "none")
    half = len(runs) // 2
    for theirs, ours in zip(runs[:half], runs[half:]):
        assert len(theirs) == len(ours) == 10
        for one, other in zip(theirs, ours):
            assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])
    loader.report()
    if native:
        return
    try:
        list(feedmill.DataLoader(dataset, native="require"))
    except RuntimeError as error:
        assert word in str(error)
    else:
        assert False, "native='require' was not refused"


cases = [(lambda m=module, n=name: hide_name(m, n), name, native)
         for module, name, native in {names!r}]
cases += [(rename_get_iterator, "_get_iterator", False), (change_call, "works otherwise", False)]
for number in range({part}, len(cases), {n_parts}):
    pid = os.fork()
    if pid == 0:
        with open(os.devnull, "w") as nothing:
            sys.stdout = nothing
            try:
                run(*cases[number], with_workers=number == {part})
            except BaseException:
                import traceback
                print(cases[number][1:], traceback.format_exc(), file=sys.stderr)
                os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, cases[number][1]
print(len(cases))
"""
# (module, name, whether the native path can do without it)
NAMES = [(*name.rsplit(".", 1), False) for name in _internals._NEEDED] + [
    ("torch.utils.data.dataloader", "_SingleProcessDataLoaderIter", True),
    ("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter", True),
    ("torch.autograd", "_profiler_enabled", True),
    ("torch.cuda", "_queued_calls", True),
    ("torch._C", "_push_on_torch_function_stack", True),
]
N_PARTS = 2


@pytest.mark.slow
@pytest.mark.parametrize("part", range(N_PARTS))
def test_a_torch_without_a_private_name(small_images, part):
    here = Path(__file__).parent
    text = WITHOUT_A_NAME.format(tests=str(here), support=str(here.parent / "support"), names=NAMES,
                                 part=part, n_parts=N_PARTS)
    done = helpers.subprocess.run([sys.executable, "-W", "ignore", "-c", text, str(small_images)],
                                  capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(len(NAMES) + 2)]


@pytest.fixture(autouse=True)
def looked_at_anew():
    """Clears the process's cached facts and comparisons before and after each test."""
    def forget():
        _internals.why_not_this_torch.cache_clear()
        comparing.forget()

    forget()
    yield
    forget()


@pytest.mark.parametrize("name", _internals._ITERATOR_ATTRIBUTES)
def test_an_iterator_without_an_attribute(small_images, monkeypatch, name):
    def absent(self):
        raise AttributeError(name)

    base = _internals.BaseDataLoaderIter
    renamed = type("Renamed", (base,), {name: property(absent, lambda self, value: None)})
    monkeypatch.setattr(_internals, "BaseDataLoaderIter", renamed)
    text = falls_back(folder(small_images, *HEAD))  # the constructor reads some of them
    assert f"{name}, which feedmill needs" in text or f"AttributeError: {name}" in text


def test_a_loader_without_an_attribute(small_images, monkeypatch):
    monkeypatch.setattr(_internals, "_LOADER_ATTRIBUTES", ("_auto_collation", "_renamed"))
    assert "has no DataLoader._renamed, which feedmill" in falls_back(folder(small_images, *HEAD))


# ---- torchvision without a private name ----------------------------------------------------------

HEAD = (T.Resize(SIZE), T.PILToTensor())


def folder(root, *steps):
    return ImageFolder(str(root), compose(*steps))


def lacking(transform, *names):
    """The transform without these attributes of its own."""
    for name in names:
        del vars(transform)[name]
    return transform


@pytest.mark.parametrize(("make", "name"), [
    (lambda: v2.RandomAffine(5), "_fill"),
    (lambda: v2.RandomRotation(5), "_fill"),
    (lambda: v2.TrivialAugmentWide(), "_fill"),
    (lambda: v2.RandomResizedCrop(8), "_log_ratio"),
    (lambda: v2.AutoAugment(), "_policies"),
    (lambda: T.AutoAugment(), "policies"),
    (lambda: T.RandomRotation(5), "degrees"),
    (lambda: v2.ColorJitter(0.5), "brightness"),
    (lambda: T.Resize(SIZE), "interpolation"),
    (lambda: T.RandomResizedCrop(8), "ratio"),
])
def test_a_transform_without_an_attribute(small_images, make, name):
    step = lacking(make(), name)
    text = falls_back(folder(small_images, T.Resize(SIZE), step, T.Lambda(same), T.PILToTensor()))
    kind = type(step).__name__
    assert (kind in text and f"'{name}'" in text) or f"has no {name}" in text
    assert "transforms.Lambda is not supported" in text  # all reasons are listed


def same(image):
    return image.copy()


def falls_back(dataset):
    """Loads the dataset on torch's path without an exception. Returns the text of explain()."""
    loader = feedmill.DataLoader(dataset, batch_size=8)
    text = loader.explain()
    assert text.startswith("torch's own path, because\n")
    iter(loader)
    assert loader.stats().path == "torch"
    with pytest.raises(RuntimeError, match="native path can't be taken"):
        native_loader(dataset)
    return text


@pytest.mark.parametrize(("owner", "name", "make", "words"), [
    (v2.Transform, "make_params" if hasattr(v2.Transform, "make_params") else "_get_params",
     lambda: v2.ColorJitter(0.5), "has no _get_params"),
    (autoaugment.AutoAugment, "_get_policies", T.AutoAugment, "has no _get_policies"),
    (autoaugment, "_apply_op", T.RandAugment, "has no _apply_op"),
    (autoaugment, "_apply_op", T.TrivialAugmentWide, "has no _apply_op"),
    (T.functional, "_interpolation_modes_from_int", lambda: T.Resize(SIZE, 2),
     "_interpolation_modes_from_int"),
    (T.functional, "_get_inverse_affine_matrix", lambda: T.RandomAffine(5),
     "has no torchvision.transforms.functional._get_inverse_affine_matrix"),
    (T._functional_pil, "_parse_fill", lambda: T.RandomAffine(5),
     "has no torchvision.transforms._functional_pil._parse_fill"),
    (T._functional_pil, "resize", lambda: T.Resize(SIZE),
     "has no torchvision.transforms._functional_pil.resize"),
])
def test_a_library_without_a_name(small_images, monkeypatch, owner, name, make, words):
    step = make()
    kinds = [owner, *(kind for kind in type(step).__mro__ if name in vars(kind))]
    for one in kinds:
        monkeypatch.delattr(one, name, raising=False)
    assert words in falls_back(folder(small_images, T.Resize(SIZE), step, T.PILToTensor()))


def test_a_v2_augmentation_with_a_changed_method(small_images, monkeypatch):
    name = "_apply_image_or_video_transform"
    for kind in v2.RandAugment.__mro__:
        if name in vars(kind):
            monkeypatch.delattr(kind, name)
    text = falls_back(folder(small_images, T.Resize(SIZE), v2.RandAugment(), T.PILToTensor()))
    assert f"has no {name}" in text


def test_a_missing_module(small_images, monkeypatch):
    monkeypatch.delitem(sys.modules, "torchvision.transforms._functional_pil")
    text = feedmill.DataLoader(folder(small_images, *HEAD)).explain()
    assert "has no torchvision.transforms._functional_pil.resize" in text


@pytest.mark.parametrize("error", [ValueError, KeyError, IndexError, RuntimeError, ZeroDivisionError])
def test_any_error_during_recognition(small_images, monkeypatch, error):
    """An error in a transform, a dataset or the DataLoader means torch's path, with the reason."""
    def fail(self):
        raise error("as of torchvision 9")

    monkeypatch.setattr(T.Resize, "size", property(fail, lambda self, value: None), raising=False)
    dataset = folder(small_images, T.CenterCrop(8), *HEAD)
    assert "its own" in falls_back(dataset) or "as of torchvision 9" in falls_back(dataset)
    monkeypatch.undo()
    monkeypatch.setattr(torch.utils.data.Subset, "indices",
                        property(fail, lambda self, value: None), raising=False)
    dataset = torch.utils.data.Subset(folder(small_images, *HEAD), [0])
    assert "as of torchvision 9" in falls_back(dataset)


def test_a_dataset_whose_attributes_raise(small_images):
    class Odd(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return index

        def __getattr__(self, name):
            raise AttributeError(name) if name.startswith("__") else ZeroDivisionError(name)

        def feedmill_item(self, index):
            return "", 0

    text = falls_back(Odd())
    assert "ZeroDivisionError" in text
    assert sum(len(batch) for batch in feedmill.DataLoader(Odd(), batch_size=4)) == 8
