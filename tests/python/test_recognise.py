"""Which datasets, transforms and arguments are native, and which take torch's path, with the reason
and with torch's batches."""

import pickle

import feedmill
import helpers
import pytest
import torch
from feedmill._ops import native
from feedmill.data import ImageList
from helpers import MEAN, STD, compose, native_loader
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision import transforms as T
from torchvision.datasets import DatasetFolder, ImageFolder
from torchvision.datasets.folder import default_loader, pil_loader
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms._presets import ImageClassification

SIZE = (8, 8)
HEAD = (T.Resize(SIZE), T.PILToTensor())


def folder(root, *steps, **options):
    return ImageFolder(str(root), compose(*(steps or HEAD)), **options)


class Subclass(ImageFolder):
    def __getitem__(self, index):
        image, target = super().__getitem__(index)
        return image + 0, target


class ResizeSubclass(T.Resize):
    pass


class ComposeSubclass(T.Compose):
    def __call__(self, image):
        return super().__call__(image)


def patched(name, value=lambda *_: None, step=None):
    step = step or T.Resize(SIZE)
    object.__setattr__(step, name, value) if not isinstance(step, torch.nn.Module) else (
        step.__dict__.__setitem__(name, value)
    )
    return step


def hooked(kind):
    step = T.Resize(SIZE)
    getattr(step, kind)(lambda *arguments: None)
    return step


def changed(step, **attributes):
    for name, value in attributes.items():
        setattr(step, name, value)
    return step


TO_FLOAT = (T.Resize(SIZE), T.ToTensor())
# In older versions of torchvision, the name has an underscore.
MAKE_PARAMS = "make_params" if hasattr(v2.RandomResizedCrop, "make_params") else "_get_params"
# name: (transforms of the Compose, words of the reason)
TRANSFORMS = {
    "lambda": ((T.Resize(SIZE), T.Lambda(lambda x: x.copy()), T.PILToTensor()), "Lambda is not supported"),
    "blur": ((T.Resize(SIZE), T.GaussianBlur(3), T.PILToTensor()), "GaussianBlur is not supported"),
    "function": ((T.Resize(SIZE), lambda x: x.copy(), T.PILToTensor()),
                 "test_recognise.<lambda>, a function, is not supported"),
    "v2_blur": ((v2.Resize(SIZE), v2.GaussianBlur(3), v2.PILToTensor()), "GaussianBlur"),
    "v2_on_halves": ((v2.ToImage(), v2.ToDtype(torch.float16), v2.Resize(SIZE)), "Resize follows"),
    "v2_cubic": ((v2.Resize(SIZE, "cubic"), v2.ToImage()), "interpolation='cubic' is not"),
    "v2_number": ((v2.RandomResizedCrop(8, interpolation=6), v2.ToImage()), "interpolation=6"),
    "v2_float": ((v2.Resize(SIZE, 2.0), v2.ToImage()), "interpolation=2.0"),
    "v2_old_ratio": ((changed(v2.RandomResizedCrop(8), ratio=(1, 2)), v2.ToImage()), "was changed"),
    "v2_float64": ((v2.Resize(SIZE), v2.ToImage(), v2.ToDtype(torch.float64)), "torch.float64"),
    "v2_dtype_first": ((v2.ToDtype(torch.float32), v2.Resize(SIZE), v2.ToImage()), "before the"),
    "v2_there_and_back": (
        (v2.Resize(SIZE), T.ToTensor(), T.Normalize([0.5], [0.5]), v2.ToDtype(torch.uint8)),
        "changes uint8 values"),
    "v1_flip_of_image": ((v2.Resize(SIZE), v2.ToImage(), T.RandomHorizontalFlip()), "use v2."),
    "v2_make_params": (
        (patched(MAKE_PARAMS, step=v2.RandomResizedCrop(8)), v2.ToImage()), f"own {MAKE_PARAMS}"),
    "v2_hook": ((v2.Resize(SIZE), hooked("register_forward_hook"), v2.ToImage()), "hooks"),
    "subclass": ((ResizeSubclass(SIZE), T.PILToTensor()), "ResizeSubclass is not supported"),
    "name_of_mode": (
        (T.Resize(SIZE, "bicubic"), T.PILToTensor()), "interpolation='bicubic' is not"),
    "no_mode": ((T.RandomResizedCrop(8, interpolation=None), T.ToTensor()), "interpolation=None"),
    "odd_number": ((changed(T.Resize(SIZE), interpolation=6), T.ToTensor()), "interpolation=6"),
    "preset_of_name": ((ImageClassification(crop_size=8, interpolation="box"),), "interpolation='box' is not"),
    "forward_shadowed": ((patched("forward"), T.PILToTensor()), "its own forward"),
    "get_params_shadowed": (
        (patched("get_params", step=T.RandomResizedCrop(8)), T.PILToTensor()), "its own get_params"),
    "call_shadowed": ((patched("__call__", step=T.Resize(SIZE)), T.PILToTensor()), "__call__"),
    "to_tensor_shadowed": ((T.Resize(SIZE), patched("__call__", step=T.ToTensor())), "__call__"),
    "forward_hook": ((hooked("register_forward_hook"), T.PILToTensor()), "hooks"),
    "pre_hook": ((hooked("register_forward_pre_hook"), T.PILToTensor()), "hooks"),
    "free_size": ((T.Resize(8), T.PILToTensor()), "one size for all images"),
    "no_geometry": ((T.PILToTensor(),), "one size for all images"),
    "crop_of_normalized": (
        (T.Resize(SIZE), T.ToTensor(), T.Normalize(MEAN, STD), T.CenterCrop(9)), "pads small"),
    "pad_of_tensor": ((T.PILToTensor(), T.Pad(1)), "follows the conversion"),
    "no_tensor": ((T.Resize(SIZE),), "does not end in a tensor"),
    "two_tensors": ((*TO_FLOAT, T.ToTensor()), "another conversion"),
    "normalize_uint8": ((*HEAD, T.Normalize(MEAN, STD)), "needs float"),
    "normalize_first": ((T.Resize(SIZE), T.Normalize(MEAN, STD), T.ToTensor()), "before the conv"),
    "std_zero": ((*TO_FLOAT, T.Normalize(MEAN, [0, 1, 1])), "fails"),
    "std_tiny": ((*TO_FLOAT, T.Normalize([0.5], [1e-40])), "not finite"),
    "four_means": ((*TO_FLOAT, T.Normalize([0.0] * 4, [1.0] * 4)), "mean has shape"),
    "image_of_means": ((*TO_FLOAT, T.Normalize(torch.zeros(3, 8, 8), STD)), "mean has shape"),
    "to_float64": ((*HEAD, T.ConvertImageDtype(torch.float64)), "torch.float64"),
    "to_int16": ((*HEAD, T.ConvertImageDtype(torch.int16)), "torch.int16"),
    "pair_and_max": ((T.Resize(SIZE, max_size=9), T.PILToTensor()), "max_size"),
    "max_too_small": ((T.Resize(9, max_size=9), T.CenterCrop(4), T.PILToTensor()), "max_size"),
    "float_size": ((changed(T.CenterCrop(4), size=(4.0, 4)), T.PILToTensor()), "must be two ints"),
    "huge_size": ((T.Resize((70000, 1)), T.PILToTensor()), "1 to 65535"),
    "odd_scale": ((T.RandomResizedCrop(8, scale=(0.5, float("inf"))), T.PILToTensor()), "scale"),
    "negative_ratio": ((changed(T.RandomResizedCrop(8), ratio=(-1, 2)), T.PILToTensor()), "ratio"),
    "odd_p": ((T.Resize(SIZE), T.RandomHorizontalFlip(float("nan")), T.PILToTensor()), "p=nan"),
    "many": ((*[T.RandomHorizontalFlip()] * 64, *HEAD), "65 steps"),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_unsupported_transforms_take_torchs_path(small_images, name):
    steps, words = TRANSFORMS[name]
    dataset = folder(small_images, *steps)
    loader = feedmill.DataLoader(dataset)
    text = loader.explain()
    assert text.startswith("torch's own path, because\n  - ")
    assert words in text
    with pytest.raises(RuntimeError, match="native path can't be taken") as caught:
        native_loader(dataset)
    assert words in str(caught.value)


def test_a_scripted_transform(small_images):
    dataset = folder(small_images)
    dataset.transform = torch.jit.script(torch.nn.Sequential(T.Resize([8, 8])))
    assert "ScriptModule is not supported" in feedmill.DataLoader(dataset).explain()


def same_as_torch(dataset, *, words, **options):
    """Expects torch's path with these words in the reason, and torch's batches."""
    ours = feedmill.DataLoader(dataset, batch_size=8, **options)
    theirs = torch.utils.data.DataLoader(dataset, batch_size=8, **options)
    assert words in ours.explain()
    runs = []
    for loader in (ours, theirs):
        torch.manual_seed(3)
        runs.append(list(loader))
    for mine, other in zip(*runs):
        assert type(mine) is type(other)
        assert all(torch.equal(one, two) for one, two in zip(mine, other))
    assert len(runs[0]) == len(runs[1]) > 0
    stats = ours.stats()
    assert (stats.path, stats.batches, stats.epochs) == ("torch", len(runs[0]), 1)
    assert any(words in reason for reason in stats.reasons)
    assert len(stats.steps) == stats.batches
    assert ours.report().startswith("fell back to torch: ")
    with pytest.raises(RuntimeError, match="native='require'"):
        feedmill.DataLoader(dataset, native="require", **options)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", ["lambda", "blur", "pad_of_tensor", "crop_of_normalized", "v2_on_halves"])
def test_torchs_path_gives_torchs_batches(small_images, name, num_workers):
    steps, words = TRANSFORMS[name]
    # All images are at least 20 pixels wide and high.
    same_as_torch(folder(small_images, T.CenterCrop(20), *steps), words=words, shuffle=True,
                  num_workers=num_workers)


def do_nothing(_worker):
    pass


def target_plus_one(target):
    return target + 1


class Squares(torch.utils.data.Dataset):
    """A custom dataset without feedmill_item()."""

    def __getitem__(self, index):
        return torch.full((2,), float(index)), index

    def __len__(self):
        return 9


class SubsetSubclass(torch.utils.data.Subset):
    pass


class TensorSubclass(torch.utils.data.TensorDataset):
    pass


def test_unsupported_datasets_and_arguments(small_images):
    root = str(small_images)
    same_as_torch(Subclass(root, compose(*HEAD)), words="test_recognise.Subclass is not supported natively: ")
    same_as_torch(SubsetSubclass(folder(root), range(9)), words="SubsetSubclass")
    same_as_torch(TensorSubclass(torch.arange(9.0)), words="TensorSubclass")
    same_as_torch(Squares(), words="Squares")
    same_as_torch(torch.utils.data.Subset(Squares(), [1, 2]), words="Squares")
    same_as_torch(folder(root, loader=lambda path: pil_loader(path).copy()), words="default_loader")
    same_as_torch(ImageFolder(root, compose(*HEAD), target_plus_one), words="target_transform")
    same_as_torch(ImageFolder(root, ComposeSubclass(list(HEAD))), words="ComposeSubclass")
    same_as_torch(ImageFolder(root, torch.nn.Sequential(*TO_FLOAT[:1], torch.nn.Identity(),
                                                        *[T.Lambda(T.functional.to_tensor)][:0]),
                              loader=lambda path: T.functional.to_tensor(pil_loader(path))),
                  words="default_loader")
    same_as_torch(folder(root), words="worker_init_fn", worker_init_fn=do_nothing, num_workers=1)
    parts = [folder(root), folder(root, T.Resize(SIZE), T.RandomHorizontalFlip(0), T.PILToTensor())]
    same_as_torch(torch.utils.data.ConcatDataset(parts), words="transforms with different results")


def test_patched_subset(small_images, monkeypatch):
    subset = torch.utils.data.Subset(folder(small_images), range(9))
    monkeypatch.setattr(torch.utils.data.Subset, "__len__", lambda self: 5)
    same_as_torch(subset, words="Subset.__len__ was replaced")


def test_patched_objects(small_images, monkeypatch):
    dataset = folder(small_images)
    dataset.__getitems__ = lambda indices: [dataset[i] for i in indices]
    same_as_torch(dataset, words="its own __getitems__")
    dataset = folder(small_images)
    dataset.__getitem__ = None
    same_as_torch(dataset, words="its own __getitem__")
    dataset = folder(small_images)
    dataset.transform.__call__ = None
    same_as_torch(dataset, words="Compose object has its own __call__")


@pytest.mark.parametrize(
    ("owner", "name", "words"),
    [
        (T.Resize, "forward", "Resize.forward was replaced"),
        (T.PILToTensor, "__call__", "PILToTensor.__call__ was replaced"),
        (T.Compose, "__call__", "Compose.__call__ was replaced"),
        (DatasetFolder, "__getitem__", "__getitem__ was replaced"),
        (T.functional, "resize", "functional.resize was replaced"),
        (T.functional, "pil_to_tensor", "functional.pil_to_tensor was replaced"),
    ],
)
def test_patched_classes_and_functions(small_images, monkeypatch, owner, name, words):
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **options: original(*args, **options))
    same_as_torch(folder(small_images), words=words)


def test_patched_get_params(small_images, monkeypatch):
    dataset = folder(small_images, T.RandomResizedCrop(8), T.PILToTensor())
    monkeypatch.setattr(T.RandomResizedCrop, "get_params", staticmethod(lambda *_: (0, 0, 5, 5)))
    same_as_torch(dataset, words="get_params was replaced")


def test_global_hooks(small_images):
    hook = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        same_as_torch(folder(small_images), words="global hooks")
    finally:
        hook.remove()


def test_the_default_dtype(small_images):
    torch.set_default_dtype(torch.float64)
    try:
        same_as_torch(folder(small_images, *TO_FLOAT), words="default dtype is torch.float64")
    finally:
        torch.set_default_dtype(torch.float32)


class Halves(TorchFunctionMode):
    """Changes what default_collate makes."""

    def __torch_function__(self, function, types, args=(), options=None):
        made = function(*args, **(options or {}))
        return made.floor_divide_(2) if function is torch.stack else made


class HalvesLater(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), options=None):
        made = function(*args, **(options or {}))
        return made.floor_divide_(2) if "stack" in str(function) else made


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("mode", [Halves, HalvesLater])
def test_active_modes_see_what_is_called(small_images, mode, num_workers):
    dataset = folder(small_images)
    options = {"batch_size": 4, "num_workers": num_workers, "multiprocessing_context": "fork"}
    if num_workers == 0:
        del options["multiprocessing_context"]
    plain = next(iter(torch.utils.data.DataLoader(dataset, **options)))[0]
    loader = feedmill.DataLoader(dataset, **options)
    with mode():
        assert f"a {mode.__base__.__name__} of torch is active" in loader.explain()
        wanted = next(iter(torch.utils.data.DataLoader(dataset, **options)))[0]
        assert torch.equal(next(iter(loader))[0], wanted)
    assert torch.equal(wanted, plain // 2)
    assert loader.explain().startswith("native path")
    assert torch.equal(next(iter(loader))[0], plain)


def test_modes_that_do_not_reach_spawned_workers(small_images):
    loader = feedmill.DataLoader(
        folder(small_images), num_workers=1, multiprocessing_context="spawn"
    )
    with Halves():
        assert loader.explain().startswith("native path")


def test_another_default_device_is_such_a_mode(small_images):
    loader = feedmill.DataLoader(folder(small_images), batch_size=4)
    with torch.device("meta"):
        assert "a TorchFunctionMode of torch is active" in loader.explain()
    with torch.device("cpu"), Halves():
        assert "a TorchFunctionMode of torch is active" in loader.explain()
    assert loader.explain().startswith("native path")


def test_the_cpu_as_default_device_changes_nothing(small_images):
    dataset = folder(small_images)
    loader = feedmill.DataLoader(dataset, batch_size=4)
    plain = next(iter(loader))[0]
    with torch.device("cpu"):
        assert loader.explain().startswith("native path")
        assert torch.equal(next(iter(loader))[0], plain)
        wanted = next(iter(torch.utils.data.DataLoader(dataset, batch_size=4)))[0]
    assert torch.equal(wanted, plain)
    before = torch.get_default_device()
    torch.set_default_device("cpu")
    try:
        assert loader.explain().startswith("native path")
    finally:
        torch.set_default_device(before if before.type != "cpu" else None)


def test_a_different_image_backend(small_images, monkeypatch):
    monkeypatch.setattr("torchvision._image_backend", "accimage")
    assert "image backend is accimage" in feedmill.DataLoader(folder(small_images)).explain()
    for kind in (torch.utils.data.DataLoader, feedmill.DataLoader):
        with pytest.raises(ModuleNotFoundError, match="accimage"):  # it is not on PyPI
            next(iter(kind(folder(small_images))))


def test_the_suffixes_of_most_files_decide(tmp_path):
    for i in range(6):
        name = f"{i}.bmp" if i < 4 else f"{i}.JPEG"
        helpers.save_jpeg(tmp_path / "c" / "new.jpg", 30, 30).rename(tmp_path / "c" / name)
    dataset = folder(tmp_path)
    same_as_torch(dataset, words=f"most files are not {native.formats()} by name (2 of 6")
    dataset.samples = dataset.samples[1:]
    dataset.samples += dataset.samples[-2:]
    assert feedmill.DataLoader(dataset).explain().startswith("native path")


def test_most_files_went_through_pillow(tmp_path):
    """BMP files that are named like JPEGs: the second epoch takes torch's path."""
    for i in range(70):
        helpers.Image.new("RGB", (9, 9), (i, 0, 0)).save(tmp_path / f"{i:02}.bmp")
    (tmp_path / "c").mkdir()
    for path in tmp_path.glob("*.bmp"):
        path.rename(tmp_path / "c" / f"{path.stem}.jpg")
    dataset = folder(tmp_path)
    first, second = (feedmill.DataLoader(dataset, batch_size=10, num_workers=n) for n in (1, 2))
    for loader in (first, second):
        for path in ("native", "torch" if loader is second else "native"):
            assert len(list(loader)) == 7 and loader.stats().path == path
    assert "70 of 70 samples of the latest native epoch" in second.explain()
    second.native = "require"
    assert len(list(second)) == 7 and second.stats().path == "native"


def test_wrong_values_of_the_attribute_samples(small_images):
    dataset = folder(small_images)
    dataset.samples = []
    assert "is empty" in feedmill.DataLoader(dataset).explain()
    dataset.samples = {0: ("a.jpg", 0)}
    assert "not a list" in feedmill.DataLoader(dataset).explain()
    dataset.samples = [1, 2]
    assert "pairs" in feedmill.DataLoader(dataset).explain()
    dataset.samples = tuple(folder(small_images).samples)
    assert len(list(native_loader(dataset, batch_size=40))) == 1


def test_all_reasons_are_listed(small_images):
    dataset = ImageFolder(str(small_images), compose(T.ToTensor()), target_plus_one,
                          loader=lambda path: pil_loader(path).copy())
    dataset.transform.transforms += [T.Lambda(same), v2.ColorJitter(0.5)]
    loader = feedmill.DataLoader(dataset, num_workers=1, worker_init_fn=do_nothing)
    text = loader.explain()
    for words in ("worker_init_fn", "default_loader", "target_transform", "transforms.Lambda",
                  "ColorJitter"):
        assert words in text


class OtherName(DatasetFolder):
    """A DatasetFolder subclass that is not native."""

    def __getitem__(self, index):
        return super().__getitem__(index - 1)


def indices_of(count):
    yield from range(count)


def unlike(dataset, **attributes):
    for name, value in attributes.items():
        setattr(dataset, name, value)
    return dataset


class Unfinished(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(())

    def feedmill_item(self, index):
        return "", 0


@pytest.mark.parametrize(("make", "words"), [
    (lambda f: Subclass(f.root, f.transform), "test_recognise.Subclass"),
    (lambda f: OtherName(f.root, default_loader, (".jpg",), f.transform), "OtherName"),
    (lambda f: SubsetSubclass(f, range(9)), None),
    (lambda f: torch.utils.data.Subset(f, indices_of(9)), "a Subset's indices are a"),
    (lambda f: unlike(torch.utils.data.Subset(f, [1]), __len__=None), "its own __len__"),
    (lambda f: unlike(torch.utils.data.ConcatDataset([f, f]), __len__=None), "its own __len__"),
    (lambda f: unlike(torch.utils.data.ConcatDataset([f]), cumulative_sizes=[]), "were changed"),
    (lambda f: unlike(f, __getitem__=None), "its own __getitem__"),
    (lambda f: unlike(f, samples={}), "not a list"),
    (lambda f: unlike(Squares(), transform=f.transform), "Squares"),
    (lambda f: unlike(Unfinished(), transform=f.transform), "IterableDataset"),
    (lambda f: unlike(ImageList([], transform=f.transform), transforms=same), "both transform"),
])
def test_reasons_against_the_transform_of_a_refused_dataset_are_listed(small_images, make, words):
    steps = (T.Lambda(same), T.Resize(SIZE), T.GaussianBlur(3), T.PILToTensor())
    dataset = make(folder(str(small_images), *steps))
    text = feedmill.DataLoader(dataset).explain()
    assert text.startswith("torch's own path, because\n")
    if words is not None:
        assert words in text
        assert "transforms.Lambda is not supported" in text and "GaussianBlur is not" in text


def test_unknown_image_sizes_of_a_refused_dataset_are_no_reason(small_images):
    dataset = unlike(Squares(), transform=compose(T.RandomCrop(32, 4), T.ToTensor()))
    assert "one size" not in feedmill.DataLoader(dataset).explain()
    dataset.transform = T.ToTensor()
    assert "one size" not in feedmill.DataLoader(dataset).explain()
    dataset = Subclass(str(small_images), T.ToTensor())
    assert "one size for all images" in feedmill.DataLoader(dataset).explain()


@pytest.mark.parametrize(
    "steps",
    [
        (T.Resize(SIZE, antialias=False), T.PILToTensor()),
        (T.Resize(SIZE, antialias=None), T.PILToTensor()),
        (T.Resize(SIZE), T.RandomHorizontalFlip(1.5), T.PILToTensor()),
        (T.Resize(SIZE), T.RandomHorizontalFlip(0), T.PILToTensor()),
        (T.RandomResizedCrop([8]), T.ToTensor()),
        (T.Resize([8]), T.CenterCrop(4), T.ToTensor(), T.Normalize(tuple(MEAN), torch.tensor(STD))),
        (T.Resize(SIZE, interpolation=2), T.ToTensor(), T.ConvertImageDtype(torch.float32)),
        (compose(T.Resize(SIZE), compose(T.PILToTensor())),),
        (v2.Resize(SIZE, interpolation=2), v2.ToImage()),
        (v2.Resize(SIZE, InterpolationMode.BILINEAR, antialias=None), T.PILToTensor()),
    ],
)
def test_supported_transforms_are_native(small_images, steps):
    dataset = folder(small_images, *steps)
    assert feedmill.DataLoader(dataset).explain().startswith("native path")
    images, _ = next(iter(native_loader(dataset, batch_size=4)))
    assert images.shape[0] == 4


def test_default_loader_and_pil_loader_are_native(small_images):
    for load in (default_loader, pil_loader):
        native_loader(folder(small_images, loader=load))


def test_native_off_is_torchs_dataloader(small_images):
    loader = feedmill.DataLoader(folder(small_images), native="off", batch_size=8)
    assert isinstance(iter(loader), type(iter(torch.utils.data.DataLoader([1]))))
    assert len(list(loader)) == 5
    assert "native='off'" in loader.explain() and "native='off'" in loader.report()


def test_native_require_is_checked_at_iter_too(small_images):
    dataset = folder(small_images)
    loader = native_loader(dataset)
    dataset.transform = compose(T.ToTensor())
    with pytest.raises(RuntimeError, match="one size for all images"):
        iter(loader)


def test_recognition_draws_no_random_numbers(small_images):
    loader = feedmill.DataLoader(folder(small_images, *TO_FLOAT, T.Normalize(MEAN, STD)))
    torch.manual_seed(1)
    state = torch.get_rng_state()
    loader.explain()
    assert torch.equal(torch.get_rng_state(), state)


def test_explain_prints_nothing_and_its_repr_is_readable(small_images, capsys):
    for dataset in (folder(small_images), Squares()):
        text = feedmill.DataLoader(dataset).explain()
        assert capsys.readouterr() == ("", "")
        assert isinstance(text, str) and len(text.splitlines()) > 1
        assert repr(text) == str(text) == text and type(str(text)) is str
        shown = []
        printer = type("Printer", (), {"text": lambda self, words: shown.append(words)})
        text._repr_pretty_(printer(), False)
        assert shown == [text] and type(pickle.loads(pickle.dumps(text))) is type(text)


def test_torchvision_is_not_imported():
    out = helpers.subprocess.run(
        [helpers.sys.executable, "-c",
         "import sys, feedmill; d = feedmill.DataLoader([1, 2, 3]); print(list(d)); "
         "print(d.explain()); print([m for m in ('torchvision', 'PIL') if m in sys.modules])"],
        capture_output=True, text=True, check=True, timeout=600,
    )
    assert out.stderr == "" and out.stdout.endswith("[]\n")


# ---- persistent workers and memory budgets -------------------------------------------------------


def test_persistent_workers_choose_the_path_at_every_iter(numbered):
    native = numbered.transform
    foreign = T.Compose([T.Lambda(same), *native.transforms])
    loader = feedmill.DataLoader(numbered, batch_size=8, num_workers=1, persistent_workers=True)
    wanted, paths = list(range(40)), []
    for transform in (foreign, native, foreign, foreign, native, native):
        numbered.transform = transform
        assert sum(helpers.targets_of(loader), []) == wanted
        paths.append(loader.stats().path)
    assert paths == ["torch", "native", "torch", "torch", "native", "native"]
    old = iter(loader)
    loader.native = "off"
    assert len(list(loader)) == 5 and loader.stats().path == "torch"
    assert helpers.take(old) == "end"
    loader.native = "require"
    assert len(list(loader)) == 5 and loader.stats().path == "native"
    numbered.transform = foreign
    with pytest.raises(RuntimeError, match="Lambda"):
        iter(loader)
    loader.native = "auto"
    list(loader)
    loader.native = "require"
    with pytest.raises(RuntimeError, match="Lambda"):
        iter(loader)


def same(image):
    return image.copy()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_small_memory_budget_leads_to_torchs_path(numbered, num_workers):
    options = {"batch_size": 16, "num_workers": num_workers, "shuffle": True}
    loader = feedmill.DataLoader(numbered, memory_budget=1000, **options)
    assert "memory_budget of 1000 bytes is too small" in loader.explain()
    # The generators have the same states as with torch.
    torch.manual_seed(3)
    got = helpers.targets_of(loader)
    torch.manual_seed(3)
    assert got == helpers.targets_of(torch.utils.data.DataLoader(numbered, **options))
    assert loader.stats().path == "torch"
    assert "memory_budget of 1000 bytes" in loader.report().splitlines()[0]
    loader.memory_budget = None
    list(loader)
    assert loader.stats().path == "native" and loader.explain().startswith("native path")
    loader.memory_budget, loader.native = 1000, "require"
    with pytest.raises(ValueError, match="memory_budget of 1000 bytes"):
        iter(loader)


def test_other_errors_of_the_native_loader_are_raised(numbered, monkeypatch):
    monkeypatch.setenv("FEEDMILL_READER", "carrier pigeon")
    with pytest.raises(ValueError, match="carrier pigeon"):
        next(iter(feedmill.DataLoader(numbered)))


def test_batches_of_unknown_size_beyond_the_budget_come_in_parts(numbered):
    batches = [list(range(3)), list(range(40)) * 50]
    budget = 24 << 20
    loader = feedmill.DataLoader(numbered, batch_sampler=batches, num_workers=1, threads=1,
                                 memory_budget=budget)
    numbered.transform = T.Compose([T.Resize((32, 32)), T.ToTensor()])
    (few, _), (many, targets) = loader
    assert len(few) == 3 and targets.tolist() == list(range(40)) * 50
    assert torch.equal(many[:3], few) and torch.equal(many[40:80], many[:40])
    assert loader.stats().path == "native"
    loader = helpers.native_loader(numbered, batch_sampler=batches, num_workers=1, threads=1,
                                   memory_budget=budget)
    with pytest.raises(ValueError, match="memory_budget"):
        iter(loader)
