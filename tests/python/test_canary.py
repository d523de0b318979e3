"""With any version of torch and torchvision, each transform runs natively, or takes torch's path
with a reason, and nothing raises. `make test-newest` runs these tests with the newest versions."""

import inspect

import feedmill
import pytest
import torch
import torchvision
from feedmill import _internals
from helpers import compose
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
from torchvision.transforms._presets import ImageClassification

# Arguments of the transforms that can't be made without.
ARGUMENTS = {
    "CenterCrop": (8,), "ColorJitter": (0.4, 0.4, 0.4, 0.1), "ConvertImageDtype": (torch.float32,),
    "FiveCrop": (8,), "GaussianBlur": (3,), "Lambda": (abs,), "LinearTransformation": None,
    "Normalize": ([0.5] * 3, [0.5] * 3), "Pad": (2,), "RandomAdjustSharpness": (2,),
    "RandomAffine": (10,), "RandomApply": ([T.RandomInvert()],), "RandomChoice": ([T.RandomInvert()],),
    "RandomCrop": (8,), "RandomErasing": (), "RandomOrder": ([T.RandomInvert()],),
    "RandomPosterize": (3,), "RandomResizedCrop": (8,), "RandomRotation": (10,),
    "RandomSolarize": (100,), "Resize": (8,), "TenCrop": (8,), "RandomResize": (8, 12),
    "RandomShortestSize": (8,), "ScaleJitter": ((8, 8),), "Compose": ([T.RandomInvert()],),
    "ToDtype": (torch.float32,),
}
NAMES = [(module, name) for module in (T, v2) for name, kind in sorted(vars(module).items())
         if inspect.isclass(kind) and not name.startswith("_")
         and not hasattr(kind, "__members__") and name != "Transform"]
BEHIND = ("ToTensor", "PILToTensor", "ToImage", "Normalize", "ConvertImageDtype", "ToDtype",
          "RandomErasing", "LinearTransformation")


def transforms_with(module, name):
    """Transforms from an image to a tensor of one size, with the named one among them; None if this
    test has no arguments for it."""
    arguments = ARGUMENTS.get(name, ())
    if arguments is None:
        return None
    try:
        step = getattr(module, name)(*arguments)
    except TypeError:
        return None
    size = (T.Resize((12, 12)), T.CenterCrop(8))
    if name in ("ToTensor", "PILToTensor", "ToImage"):
        return (*size, step, v2.ToDtype(torch.float32, scale=True))
    if name in BEHIND:
        return (*size, T.ToTensor(), step)
    return (step, *size, T.ToTensor())


def assert_native_or_left_to_torch(dataset):
    loader = feedmill.DataLoader(dataset, batch_size=8)
    text = loader.explain()
    if text.startswith("native path"):
        batches = list(feedmill.DataLoader(dataset, batch_size=8, native="verify", seed=1))
        assert len(batches) == 1
        return True
    assert text.startswith("torch's own path, because\n  - "), text
    assert_as_torch(loader, dataset)
    assert loader.stats().path in ("torch", "none")
    return False


def assert_as_torch(loader, dataset):
    """Compares the batches of one epoch, or the error, with those of torch's DataLoader."""
    outcomes = []
    for one in (loader, torch.utils.data.DataLoader(dataset, batch_size=8)):
        torch.manual_seed(4)
        try:
            outcomes.append([images.tolist() for images, _ in one])
        except Exception as error:
            outcomes.append(type(error))
    assert outcomes[0] == outcomes[1]


@pytest.fixture(scope="module")
def few(small_images, tmp_path_factory):
    """A folder with eight of the images."""
    root = tmp_path_factory.mktemp("few")
    (root / "class").mkdir()
    for path in sorted(small_images.rglob("*.jpg"))[::5]:
        (root / "class" / path.name).write_bytes(path.read_bytes())
    return root


@pytest.mark.parametrize(("module", "name"), NAMES, ids=lambda one: getattr(one, "__name__", one))
def test_each_transform_is_native_or_has_a_reason(few, module, name):
    steps = transforms_with(module, name)
    if steps is None:
        return
    print(name, assert_native_or_left_to_torch(ImageFolder(str(few), compose(*steps))))


def test_presets_and_containers(few):
    for transform in (
        ImageClassification(crop_size=8, resize_size=10),
        torch.nn.Sequential(v2.Resize((8, 8)), v2.PILToTensor()),
        v2.Compose([v2.RandomResizedCrop(8), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]),
        None,
    ):
        assert_native_or_left_to_torch(ImageFolder(str(few), transform))


def test_common_transforms_are_native_with_tested_versions(few):
    """With newer versions this may fail; `make test-newest` shows it."""
    tried = _internals.TRIED
    if not all(".".join(one.__version__.split(".")[:2]) in tried for one in (torch, torchvision)):
        pytest.skip(f"this is torch {torch.__version__} with torchvision {torchvision.__version__}; "
                    f"tried were {tried}")
    plain = compose(T.RandomResizedCrop(8), T.RandomHorizontalFlip(), T.ToTensor())
    assert assert_native_or_left_to_torch(ImageFolder(str(few), plain))
